"""The story of a stored video for other programs: subtitles, a table, and a timeline for editors of
videos.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import HeadForcingError
from ..timeline.clock import VIDEO_FPS, format_time
from .stored import StoredVideo

_TIMECODES = 24  # frames a second in forms with timecodes, of which there are none of 16
INSTALL = (
    "a timeline for editors of videos needs OpenTimelineIO: pip install opentimelineio "
    "otio-fcp-adapter otio-cmx3600-adapter"
)


@dataclass(frozen=True)
class Scene:
    """A prompt of a video with its first video frame, and the number of its video frames."""

    text: str
    first: int
    frames: int
    switch: str
    seed: int | None


@dataclass(frozen=True)
class ExportedStory:
    """A video as its story tells it; `video` and `sound` are files, None for none."""

    name: str
    fps: float
    scenes: list[Scene]
    video: Path | None = None
    sound: Path | None = None

    @classmethod
    def of(
        cls, stored: StoredVideo, video: Path | None = None, sound: Path | None = None
    ) -> ExportedStory:
        """The story of a stored video, finished or not."""
        about = stored.about
        fps = about.get("fps", VIDEO_FPS)
        starts = [round(start * fps) for start in about["starts_seconds"]]
        starts[0] = 0  # the first prompt's scene also has the start frames
        ends = [*starts[1:], about["video_frames"]]
        count = len(starts)
        switches = about.get("switches") or [""] * count
        seeds = about.get("seeds") or [None] * count
        scenes = [
            Scene(text, first=first, frames=end - first, switch=switch, seed=seed)
            for text, first, end, switch, seed in zip(
                about["prompts"], starts, ends, switches, seeds, strict=True
            )
        ]
        return cls(stored.name, fps, scenes, video=video, sound=sound)

    def seconds(self, scene: Scene) -> tuple[float, float]:
        """Start and end of a scene."""
        return scene.first / self.fps, (scene.first + scene.frames) / self.fps


def _clock(seconds: float, point: str) -> str:
    """`hh:mm:ss.mmm`."""
    minutes, _, rest = format_time(seconds).partition(":")
    return f"{int(minutes) // 60:02}:{int(minutes) % 60:02}:{rest}".replace(".", point)


def _subtitles(story: ExportedStory, point: str) -> list[str]:
    cues = []
    for number, scene in enumerate(story.scenes, 1):
        begin, end = story.seconds(scene)
        times = f"{_clock(begin, point)} --> {_clock(end, point)}"
        cues.append(f"{number}\n{times}\n{scene.text}\n")
    return cues


def _srt(story: ExportedStory) -> str:
    return "\n".join(_subtitles(story, ","))


def _vtt(story: ExportedStory) -> str:
    cues = "\n".join(_subtitles(story, "."))
    return "WEBVTT\n\n" + cues.replace("&", "&amp;").replace("<", "&lt;")


def _csv(story: ExportedStory) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["start", "end", "prompt"])
    for scene in story.scenes:
        begin, end = story.seconds(scene)
        rows.writerow([format_time(begin), format_time(end), scene.text])
    return text.getvalue()


def _timeline(story: ExportedStory, rate: float) -> Any:
    """A timeline of OpenTimelineIO: a clip for each prompt, named by its words, with a marker that
    has its switch and seed, and the sound.
    """
    try:
        import opentimelineio as otio
    except ImportError:
        raise HeadForcingError(INSTALL) from None
    times = otio.opentime
    length = sum(scene.frames for scene in story.scenes)

    def part(first: int, frames: int) -> Any:
        begin = round(first * rate / story.fps)
        end = round((first + frames) * rate / story.fps)
        return times.TimeRange(
            times.RationalTime(begin, rate), times.RationalTime(end - begin, rate)
        )

    def media(file: Path | None) -> Any:
        if file is None:
            return otio.schema.MissingReference()
        return otio.schema.ExternalReference(
            target_url=file.absolute().as_uri(), available_range=part(0, length)
        )

    timeline = otio.schema.Timeline(name=story.name)
    pictures = otio.schema.Track(name="video", kind=otio.schema.TrackKind.Video)
    timeline.tracks.append(pictures)
    for number, scene in enumerate(story.scenes, 1):
        place = part(scene.first, scene.frames)
        clip = otio.schema.Clip(
            name=scene.text, media_reference=media(story.video), source_range=place
        )
        about = {"prompt": number, "switch": scene.switch}
        if scene.seed is not None:
            about["seed"] = str(scene.seed)
        clip.markers.append(
            otio.schema.Marker(
                name=f"prompt {number}",
                marked_range=times.TimeRange(place.start_time, times.RationalTime(0, rate)),
                metadata={"headforcing": about},
            )
        )
        pictures.append(clip)
    if story.sound is not None:
        heard = otio.schema.Track(name="sound", kind=otio.schema.TrackKind.Audio)
        heard.append(
            otio.schema.Clip(
                name=story.sound.name,
                media_reference=media(story.sound),
                source_range=part(0, length),
            )
        )
        timeline.tracks.append(heard)
    return timeline


def _written_by(adapter: str, rate: float | None = None) -> Callable[[ExportedStory], str]:
    """A writer that is an adapter of OpenTimelineIO."""

    def write(story: ExportedStory) -> str:
        timeline = _timeline(story, rate or story.fps)
        import opentimelineio as otio

        if adapter not in otio.adapters.available_adapter_names():
            raise HeadForcingError(INSTALL)
        if adapter == "cmx_3600":  # has one track
            del timeline.tracks[1:]
        return str(otio.adapters.write_to_string(timeline, adapter))

    return write


# by the end of the file's name
WRITERS: dict[str, Callable[[ExportedStory], str]] = {
    ".srt": _srt,
    ".vtt": _vtt,
    ".csv": _csv,
    ".otio": _written_by("otio_json"),
    ".xml": _written_by("fcp_xml", _TIMECODES),
    ".edl": _written_by("cmx_3600", _TIMECODES),
}


def exported(story: ExportedStory, suffix: str) -> str:
    """The text of a file with this end of its name; raises HeadForcingError for another one, and
    without OpenTimelineIO for those that need it.
    """
    writer = WRITERS.get(suffix.lower())
    if writer is None:
        raise HeadForcingError(
            f"a story is exported to a file that ends in {', '.join(WRITERS)}, got {suffix!r}"
        )
    return writer(story)
