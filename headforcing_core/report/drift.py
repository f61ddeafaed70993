"""Drift report of a video file, which is read frame by frame in memory that is independent of its
length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from av.container import InputContainer
from av.error import FFmpegError

from ..errors import HeadForcingError
from ..files import Fields, check_regular
from ..timeline.clock import VIDEO_FPS, BlockClock, is_finite
from ..video.reader import VideoSource, open_video, video_stream
from ..video.section import FrameTimes, upright
from .meter import LEVELS, DriftMeter
from .metrics import METRICS, Numbers, numbers_of
from .thumbnails import Pixels, SwitchResponse
from .video_tags import NO_TAGS, VideoTags, read_tags

FIRST_SECONDS = 5  # the length that the models were trained on
NOTE = (
    "These are not VBench scores. Read them against the first 5 s of the same video, not against "
    "other videos."
)
PROMPTS_NOTE = (
    "A new prompt's colours affect colour drift and end / start, but not changes a minute."
)

Prompts = Sequence[tuple[float, str]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class DriftReport:
    """The change of a video over its length.

    Attributes:
        size: width and height in pixels.
        whole: the metrics of `metrics.METRICS` by key; `first` are those of the first
            `first_seconds`.
        prompts: (start in seconds, text) of each prompt with a known start.
        series: curves with one value per second, by name: `meter.LEVELS`, and `change` from frame
            to frame, 0-255.
    """

    name: str
    video_frames: int
    fps: float
    size: tuple[int, int]
    frames_per_block: int
    whole: Numbers
    first: Numbers
    first_seconds: float
    prompts: Prompts
    switches: list[SwitchResponse]
    series: dict[str, list[float]]
    tags: VideoTags = NO_TAGS

    @property
    def seconds(self) -> float:
        """Length of the video in seconds."""
        return self.video_frames / self.fps

    def heading(self) -> str:
        """One line about the video."""
        width, height = self.size
        parts = [
            f"{self.name}: {self.seconds:.2f} s",
            f"{self.video_frames} frames of {width}x{height} at {self.fps:g} fps",
            f"blocks of {self.frames_per_block} latent "
            f"frame{'s' if self.frames_per_block > 1 else ''}",
        ]
        if self.tags.method:
            parts.append(self.tags.method)
        if self.tags.seed is not None:
            parts.append(f"seed {self.tags.seed}")
        return ", ".join(parts)

    def text(self) -> str:
        """The report as text, for a fixed-width font."""
        lines = [self.heading(), NOTE, ""]
        lines.append(f"{'':<46}{'whole':>10}{f'first {self.first_seconds:.3g} s':>12}")
        for metric in METRICS:
            whole = metric.text(self.whole)
            first = metric.text(self.first)
            lines.append(f"{metric.name:<46}{whole:>10}{first:>12}")
        if not self.prompts:
            lines.append(
                "No prompts with their times are noted: measured as one scene (`headforcing report "
                "--prompts FILE` takes them)."
            )
        if len(self.prompts) > 1:
            lines += [PROMPTS_NOTE, "", "Prompt switches"]
            for (start, text), response in zip(self.prompts[1:], self.switches, strict=True):
                lines.append(f"  {start:6.2f} s  {response.text()}  {text[:60]}")
        return "\n".join(lines)

    def to_dict(self) -> Fields:
        """The report for JSON."""
        return {
            "note": NOTE,
            "name": self.name,
            "seconds": self.seconds,
            "video_frames": self.video_frames,
            "fps": self.fps,
            "width": self.size[0],
            "height": self.size[1],
            "frames_per_block": self.frames_per_block,
            "method": self.tags.method,
            "seed": self.tags.seed,
            "prompts": [{"seconds": start, "text": text} for start, text in self.prompts],
            "whole": self.whole,
            "first": {"seconds": self.first_seconds, **self.first},
            "switches": [
                {"seconds": each.video_frame / self.fps, **asdict(each)} for each in self.switches
            ],
            "series": self.series,
        }


def report_video(
    source: VideoSource,
    prompts: Prompts | None = None,
    frames_per_block: int | None = None,
    on_progress: Progress | None = None,
    start_seconds: float = 0.0,
    duration_seconds: float = 0.0,
) -> DriftReport:
    """Measure a video file, or a file in memory; raises HeadForcingError for anything but a video
    of 2 frames or more.

    Args:
        prompts: with their start times in seconds of the file; by default those in the file's tags.
        frames_per_block: latent frames per block; by default the number in the tags, else 3.
        on_progress: gets (frames so far, frames expected or 0) and may raise to stop.
        start_seconds, duration_seconds: the measured part of the file, all that follows if it has
            no duration.
    """
    name = "video"
    if isinstance(source, (str, Path)):
        check_regular(source)
        name = Path(source).name
    with open_video(source, name) as container:
        stream = video_stream(container)
        fps = FrameTimes.of(source).fps
        first = round(start_seconds * fps)
        last = first + round(duration_seconds * fps) if duration_seconds else None
        return report_frames(
            read_frames(container, name, first, last),
            fps,
            prompts=prompts,
            frames_per_block=frames_per_block,
            on_progress=on_progress,
            expected=max(0, min(stream.frames, last or stream.frames) - first),
            name=name,
            tags=read_tags(container.metadata),
            first_video_frame=first,
        )


def report_frames(
    chunks: Iterable[Pixels],
    fps: float = VIDEO_FPS,
    prompts: Prompts | None = None,
    frames_per_block: int | None = None,
    on_progress: Progress | None = None,
    expected: int = 0,
    name: str = "video",
    tags: VideoTags = NO_TAGS,
    first_video_frame: int = 0,
) -> DriftReport:
    """Measure video frames, chunks `[n, H, W, 3]` uint8; other arguments and errors as in
    `report_video`.
    """
    per_block = frames_per_block or tags.frames_per_block or 3
    if not is_finite(fps) or fps < 1:
        raise HeadForcingError(
            f"{name} has {fps!r} frames per second: drift can be measured from 1 on"
        )
    given = _snap_prompts(
        tags.prompts if prompts is None else prompts, BlockClock(per_block, fps), first_video_frame
    )
    begins = [round(start * fps) for start, _ in given[1:]]
    meter = DriftMeter(fps, per_block, begins, first_video_frame)
    size = (0, 0)
    for chunk in chunks:
        meter.add(chunk)
        size = (chunk.shape[2], chunk.shape[1])
        if on_progress is not None:
            on_progress(meter.video_frames, expected)
    if meter.video_frames < 2:
        raise HeadForcingError(
            f"{name} has {meter.video_frames} video frames: drift can be measured from 2 on"
        )
    shown = [(start, text) for start, text in given if start < meter.video_frames / fps]
    switches = [start for start, _ in shown[1:]]
    return DriftReport(
        name=name,
        video_frames=meter.video_frames,
        fps=fps,
        size=size,
        frames_per_block=per_block,
        whole=numbers_of(meter, switches),
        first=numbers_of(meter, switches, FIRST_SECONDS),
        first_seconds=min(FIRST_SECONDS, meter.video_frames / fps),
        prompts=shown,
        switches=meter.watch.responses(),
        series=_series(meter),
        tags=tags,
    )


def _series(meter: DriftMeter) -> dict[str, list[float]]:
    """The curves of `DriftReport.series`."""
    sums = meter.seconds()
    series = {name: (sums[name] / sums["frames"]).tolist() for name in LEVELS}
    series["change"] = (sums["change"] / np.maximum(sums["changes"], 1)).tolist()
    return series


def _snap_prompts(prompts: Prompts, clock: BlockClock, first_video_frame: int) -> Prompts:
    """(start in seconds, text) in order; starts are moved to block starts and counted from the
    first measured frame.
    """
    texts = {}  # by video frame
    for start, text in sorted(prompts):
        video_frame = clock.video_frames(clock.block_at(start)) - first_video_frame
        # the last prompt before the measured part is the one at its beginning
        texts[max(0, video_frame)] = text
    return [(video_frame / clock.fps, text) for video_frame, text in texts.items()]


def read_frames(
    container: InputContainer, name: str, first: int = 0, last: int | None = None
) -> Iterator[Pixels]:
    """Video frames `first` to `last` (exclusive), one at a time, `[1, H, W, 3]`; an error names the
    video `name`.
    """
    stream = video_stream(container)
    width, height = stream.width, stream.height  # that of the first frame: it may change
    try:
        for frame in islice(container.decode(stream), first, last):
            pixels = frame.to_ndarray(format="rgb24", width=width, height=height)
            yield upright(pixels.astype(np.uint8, copy=False), frame)[None]
    except FFmpegError as error:
        raise HeadForcingError(
            f"{name} is damaged and cannot be read to its end ({error}): make it again"
        ) from error
