"""Video frames of any file, by their timestamps: a section of it at a render's size and frame rate,
which a render begins with, or all frames, one by one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_high
from typing import Any

import numpy as np
import torch
from av import VideoFrame
from av.container import InputContainer
from av.error import FFmpegError
from torch import Tensor
from torch.nn import functional as F

from ..errors import HeadForcingError
from ..timeline.clock import MAX_SECONDS, TEMPORAL_STRIDE, VIDEO_FPS, video_frames_of
from .reader import VideoSource, fit, name_of, open_video, video_stream
from .sound import Sound, sound_of_file

# Containers round timestamps, to the millisecond at worst: a frame is also taken for times so many
# seconds before its own, and at most a quarter of a frame.
_ROUNDING = 0.004
_SEEK_FROM = 1.0  # seconds; up to there decoding from the beginning is as fast
MAX_START_SECONDS = 30.0  # of a section, all of whose frames are in memory
# Rates that files have, near which the distance of two rounded times is taken for one of them.
_USUAL_RATES = (24, 24_000 / 1001, 25, 30, 30_000 / 1001, 48, 50, 60, 60_000 / 1001, 120)
_NEAR = 0.03
_SHORTEST = 0.0075  # seconds; frames that follow earlier count as one
_LATEST = 1e10  # seconds; recordings of cameras count from the year 1970
_ADVICE = "give a video that plays elsewhere"


@dataclass(frozen=True)
class FrameTimes:
    """The times, in seconds, at which the video frames of a file are shown, in order."""

    times: list[float]
    end: float  # when the last frame ends
    fps: float  # a rate at which every frame is shown, see `_rate`
    timed: bool = True  # the file has timestamps; else its frames are counted at `fps`

    @classmethod
    def of(cls, source: VideoSource) -> FrameTimes:
        """Read it from the packets of a file, without decoding them."""
        with open_video(source, name_of(source)) as container:
            stream = video_stream(container)
            rate = float(stream.average_rate or stream.guessed_rate or VIDEO_FPS)
            packets: list[Any] = []
            try:
                for packet in container.demux(stream):
                    # neither empty nor marked as not to be shown
                    if packet.size and not packet.is_discard:
                        packets.append((packet.pts, packet.duration or 0))
            except FFmpegError as error:
                raise _damage_error(source, error) from error
            unit = float(stream.time_base or 0)
        if not packets:
            raise HeadForcingError(f"{name_of(source)} holds no video frames: {_ADVICE}")
        if not unit or any(pts is None for pts, _ in packets):
            times = [index / rate for index in range(len(packets))]
            _check_times(source, times)
            return cls(times, times[-1] + 1 / rate, rate, timed=False)
        packets.sort()
        times = [pts * unit for pts, _ in packets]
        _check_times(source, times)
        gaps = [later - time for time, later in pairwise(times)]
        usual = median_high(gaps or [1 / rate])
        _, duration = packets[-1]
        end = times[-1] + max(duration * unit, usual)  # some files state too short a duration
        return cls(times, end, _rate(times, end, rate))

    def within(self, start: float, duration: float) -> FrameTimes:
        """The part that begins `start` seconds after the first frame and lasts `duration` seconds;
        0: to the end. Its first time is that of the cut itself, at which the frame before it is
        still shown.
        """
        if not start and not duration:
            return self
        begin = min(self.times[0] + start, self.times[-1])
        end = self.end
        if duration:
            end = min(end, begin + duration)
        times = [begin, *(time for time in self.times if begin < time < end)]
        return replace(self, times=times, end=max(end, begin))

    @property
    def rounding(self) -> float:
        """Seconds before its own time for which a frame is also taken."""
        return _rounding(self.fps)

    def count_at(self, fps: float) -> int:
        """Number of video frames of the file at another frame rate, at least 1."""
        return max(1, math.floor((self.end - self.times[0] + self.rounding) * fps))

    @property
    def count_with_last(self) -> int:
        """Number of video frames at the file's own rate up to the one that shows its last."""
        place = self.times[-1] - self.times[0] - self.rounding
        return max(0, math.ceil(place * self.fps)) + 1

    def section(self, count: int, fps: float, part: str) -> list[float]:
        """The times of `count` video frames at `fps`, the `first` or the `last` of the file."""
        if part == "first":
            begin = self.times[0]
        else:
            # the last one ends with the file, or is its last frame, if that is shown shorter
            last = max(self.times[-1], self.end - 1 / fps)
            begin = last - (count - 1) / fps
        return [begin + index / fps for index in range(count)]


def _check_times(source: VideoSource, times: list[float]) -> None:
    """Refuse times between which numbers of double precision have no room for frames."""
    latest = max(abs(times[0]), abs(times[-1]))
    if latest > _LATEST:
        raise HeadForcingError(
            f"{name_of(source)} says that it has a frame at {latest:.3g} s; its times are damaged: "
            f"{_ADVICE}"
        )


def _rate(times: list[float], end: float, stated: float) -> float:
    """A rate at which every frame of a file is shown: the stated one or else the mean, if one of
    them does it, else the usual or the shortest distance between two frames.
    """
    first = times[0]
    span = end - first
    if not span:
        return stated
    mean = len(times) / span
    seen = [first]
    for time in times:
        if time - seen[-1] >= _SHORTEST:
            seen.append(time)
    gaps = [later - time for time, later in pairwise(seen)]
    if not gaps:
        return mean
    rates = [mean, *_near_rates(median_high(gaps)), *_near_rates(min(gaps))]
    if abs(stated - mean) <= 0.01 * mean:
        rates.insert(0, stated)
    places = np.array(seen) - first
    for rate in rates:
        numbers = np.ceil((places - _rounding(rate)) * rate)
        if (np.diff(numbers) >= 1).all():
            return rate
    return rates[-1]


def _near_rates(gap: float) -> list[float]:
    """Rates that files have at about this distance of two frames, the nearest one first, and that
    of the distance itself.
    """
    rate = 1 / gap
    near = [usual for usual in _USUAL_RATES if abs(usual - rate) <= _NEAR * rate]
    return [*sorted(near, key=lambda usual: abs(usual - rate)), rate]


def _rounding(fps: float) -> float:
    return min(_ROUNDING, 0.25 / fps)


def read_section(
    source: VideoSource,
    size: tuple[int, int],
    seconds: float,
    part: str = "last",
    frames_per_block: int = 3,
    window: tuple[float, float] = (0.0, 0.0),
    fps: float = VIDEO_FPS,
) -> tuple[Tensor, str]:
    """The `first` or `last` seconds of a video file, and a sentence that says what was taken.

    The frames `[4(n-1)+1, height, width, 3]` in 0..1 are upright and fitted to `size` (width,
    height); n latent frames are whole blocks of `frames_per_block`. `window` is a start and a
    duration as in `FrameTimes.within`. Raises HeadForcingError for a file that cannot be read, is
    damaged in this section, or is shorter than one block.
    """
    if not 0 < seconds <= MAX_START_SECONDS:
        raise HeadForcingError(
            f"start seconds must be above 0 and at most {MAX_START_SECONDS:g}, got {seconds:g}"
        )
    name = name_of(source)
    timing = FrameTimes.of(source).within(*window)
    available = min(timing.count_at(fps), math.floor(seconds * fps + 1e-6))
    latent_frames = 1 + (available - 1) // TEMPORAL_STRIDE
    latent_frames -= latent_frames % frames_per_block
    if latent_frames < 1:
        needed = video_frames_of(frames_per_block)
        raise HeadForcingError(
            f"{name}: expected at least one block of {needed} video frames ({needed / fps:.2f} s "
            f"at {fps:g} a second) to start from, got {available}; give a longer section of a video"
        )
    count = video_frames_of(latent_frames)
    video_frames = torch.stack(
        list(read_frames(source, timing, timing.section(count, fps, part), size))
    )
    length = timing.end - timing.times[0]
    return video_frames, (
        f"the {part} {count / fps:.2f} of {length:.2f} s of {name}, {count} video frames at "
        f"{fps:g} a second, fitted to {size[0]}x{size[1]}"
    )


@dataclass(frozen=True)
class Footage:
    """The frames of a video, at a constant rate, and its sound, if it has any."""

    video_frames: int
    fps: float
    width: int
    height: int
    # read(first): the frames from number `first` on, one by one, `[h, w, 3]`, uint8 or in 0..1
    read: Callable[[int], Iterator[Tensor]]
    sound: Sound | None = None

    @classmethod
    def of_file(cls, source: VideoSource, window: tuple[float, float] = (0.0, 0.0)) -> Footage:
        """A video file, `window` as in `FrameTimes.within`.

        Raises HeadForcingError for one that cannot be read.
        """
        timing = FrameTimes.of(source).within(*window)
        if timing.end - timing.times[0] > MAX_SECONDS:
            raise HeadForcingError(
                f"{name_of(source)} lasts more than {MAX_SECONDS:.0f} s, or its times say so: "
                "give a shorter video"
            )
        count = timing.count_at(timing.fps)
        if not any(window):
            count = max(count, timing.count_with_last)  # it may be shown for a short time
        times = timing.section(count, timing.fps, "first")
        height, width, _ = next(read_frames(source, timing, times[:1])).shape
        usual = (width, height)
        return cls(
            video_frames=len(times),
            fps=timing.fps,
            width=width,
            height=height,
            read=lambda first: read_frames(source, timing, times[first:], usual=usual),
            sound=sound_of_file(source, timing.times[0], timing.end),
        )

    @classmethod
    def of_images(cls, images: Tensor, fps: float, sound: Sound | None = None) -> Footage:
        """Frames in memory, `[n, height, width, 3]` in 0..1."""
        count, height, width, _ = images.shape
        return cls(
            video_frames=count,
            fps=fps,
            width=width,
            height=height,
            read=lambda first: iter(images[first:]),
            sound=sound,
        )

    def chunks(self, first: int, length: int) -> Iterator[Tensor]:
        """The frames from number `first` on in chunks `[length + 1, height, width, 3]` in 0..1; the
        last one may be shorter.

        Each begins with the last frame of the one before, for models that take pairs of frames.
        """
        held = []
        overlap = 0
        for frame in self.read(first):
            held.append(frame if frame.is_floating_point() else frame.float() / 255)
            if len(held) == length + 1:
                yield torch.stack(held)
                overlap = 1
                held = held[-1:]
        if len(held) > overlap:
            yield torch.stack(held)


def read_frames(
    source: VideoSource,
    timing: FrameTimes,
    times: Sequence[float],
    size: tuple[int, int] | None = None,
    usual: tuple[int, int] | None = None,
) -> Iterator[Tensor]:
    """The video frames that are shown at these times, at least one, ascending, one by one:
    `[height, width, 3]`, uint8, upright.

    With a `size` (width, height) they are fitted to it, in 0..1; those that differ from the `usual`
    size are fitted to that, in uint8. Decoding begins at the last key
    frame before the first time, or at the beginning where the file's index leads too far. Raises
    HeadForcingError for a file that is damaged there.
    """
    seeks = timing.timed and times[0] > _SEEK_FROM
    # None decodes from the beginning
    starts = [times[0] - timing.rounding, None] if seeks else [None]
    for start in starts:
        with open_video(source, name_of(source)) as container:
            aspect = float(video_stream(container).sample_aspect_ratio or 1)
            answered = 0  # times, the first ones, whose frames have been given
            try:
                frames = _decode(container, timing, start)
                first_time, shown = next(frames, (math.inf, None))
                if shown is None or (start is not None and times[0] < first_time - timing.rounding):
                    continue  # the key frame that was found lies behind the time
                for time, frame in frames:
                    # `shown` is that of all times before this frame's; of none of them if the
                    # file has more frames a second than there are times
                    before = bisect_left(times, time - timing.rounding)
                    if before > answered:
                        yield from [_pixels(shown, aspect, size, usual)] * (before - answered)
                        answered = before
                    if answered == len(times):
                        return
                    shown = frame
                yield from [_pixels(shown, aspect, size, usual)] * (len(times) - answered)
                return
            except FFmpegError as error:
                if start is None or answered:
                    raise _damage_error(source, error) from error
    raise HeadForcingError(
        f"{name_of(source)} holds no video frames that can be decoded: {_ADVICE}"
    )


def _decode(
    container: InputContainer, timing: FrameTimes, start: float | None
) -> Iterator[tuple[float, VideoFrame]]:
    """The frames of a file and their times, from the last key frame before `start` seconds on;
    None: from the beginning.
    """
    stream = video_stream(container)
    if start is not None:
        container.seek(math.floor(start / float(stream.time_base or 1)), stream=stream)
    for index, frame in enumerate(container.decode(stream)):
        time = frame.time if timing.timed else index / timing.fps
        if time is not None:
            yield time, frame


def _pixels(
    frame: VideoFrame,
    aspect: float,
    size: tuple[int, int] | None,
    usual: tuple[int, int] | None,
) -> Tensor:
    """A frame with this aspect of its pixels, as it is shown; see `read_frames` for the sizes."""
    pixels = torch.from_numpy(upright(frame.to_ndarray(format="rgb24"), frame))
    if _placement(frame)[2]:
        aspect = 1 / aspect
    if size is not None:
        return fit(pixels[None].float() / 255, *size, aspect)[0]
    if usual is not None and usual != (pixels.shape[1], pixels.shape[0]):
        planes = pixels.movedim(-1, 0)[None].float()
        # stretched, as FFmpeg does it
        scaled = F.interpolate(planes, usual[::-1], mode="bilinear", antialias=True)
        return scaled[0].movedim(0, -1).round().clamp(0, 255).to(torch.uint8)
    return pixels


def upright(pixels: np.ndarray, frame: VideoFrame) -> np.ndarray:
    """The pixels of a frame `[h, w, 3]` turned and mirrored as its display matrix says."""
    across, down, swapped = _placement(frame)
    if swapped:
        pixels = pixels.swapaxes(0, 1)
    if across < 0:
        pixels = pixels[:, ::-1]
    if down < 0:
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _placement(frame: VideoFrame) -> tuple[float, float, bool]:
    """The turn of a frame, in steps of 90 degrees, by its display matrix: whether its rows and
    columns are swapped, and then the directions, below 0 mirrored, of its columns and rows.
    """
    side_data: Any = frame.side_data  # PyAV's types name other keys than it takes
    data = side_data.get("DISPLAYMATRIX")
    if data is None:
        return 1, 1, False
    # in FFmpeg's order a, b, u, c, d, v, ...: a pixel (x, y) is shown at (ax + cy, bx + dy)
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].tolist()
    if abs(a) < abs(b):
        return c, b, True
    return a, d, False


def _damage_error(source: VideoSource, error: Exception) -> HeadForcingError:
    return HeadForcingError(
        f"{name_of(source)} is damaged ({error}): {_ADVICE}, or another section"
    )
