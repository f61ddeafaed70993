"""Timelines for editors of videos, by OpenTimelineIO, an optional package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import HeadForcingError
from .exported_story import ExportedStory, Scene

_TIMECODES = 24  # frames a second in forms with timecodes, of which there are none of 16


@dataclass(frozen=True)
class Form:
    """A form of timelines: OpenTimelineIO's adapter, the frame rate, None for the video's, and the
    packages that write it.
    """

    adapter: str
    rate: float | None
    packages: str


# by the end of the file's name
TIMELINES = {
    ".otio": Form("otio_json", None, "opentimelineio"),
    ".xml": Form("fcp_xml", _TIMECODES, "opentimelineio otio-fcp-adapter"),
    ".edl": Form("cmx_3600", _TIMECODES, "opentimelineio otio-cmx3600-adapter"),
}
OF_SEVERAL_TRACKS = (".otio", ".xml")


def missing(end: str) -> str:
    """The command that installs what a form of `TIMELINES` needs; empty if it can be written."""
    return "" if _opentimelineio(end) else f"pip install {TIMELINES[end].packages}"


def written_timeline(story: ExportedStory, end: str) -> str:
    """A story as a timeline in a form of `TIMELINES`.

    Its takes are on tracks below its own, which an editor shows. Each prompt is a clip, named by
    its words, with a marker that has its switch and seed. Raises HeadForcingError without
    OpenTimelineIO or its adapter.
    """
    otio = _opentimelineio(end)
    if otio is None:
        raise HeadForcingError(
            f"a timeline for editors of videos needs OpenTimelineIO: {missing(end)}"
        )
    rate = TIMELINES[end].rate
    own = _Parts(otio, story, rate or story.fps)
    timeline = otio.schema.Timeline(name=story.name)
    for take in story.takes:
        timeline.tracks.append(_Parts(otio, take, rate or story.fps).pictures())
    timeline.tracks.append(own.pictures())
    if end in OF_SEVERAL_TRACKS:
        timeline.tracks.markers.extend(own.markers())
        if story.sound is not None:
            timeline.tracks.append(own.heard(story.sound))
    else:  # one track and no markers of its own
        own.mark_clips(timeline.tracks[0])
    return str(otio.adapters.write_to_string(timeline, TIMELINES[end].adapter))


def _opentimelineio(end: str) -> Any:
    """The module; None if it or its adapter for a form is not installed."""
    try:
        import opentimelineio as otio
    except ImportError:
        return None
    return otio if TIMELINES[end].adapter in otio.adapters.available_adapter_names() else None


class _Parts:
    """The parts of a timeline that one video gives, at a frame rate."""

    def __init__(self, otio: Any, story: ExportedStory, rate: float):
        self.otio = otio
        self.story = story
        self.rate = rate

    def pictures(self) -> Any:
        """A track with a clip for each prompt."""
        track = self.otio.schema.Track(name=self.story.name, kind="Video")
        for number, scene in enumerate(self.story.scenes, 1):
            track.append(self._clip(scene, number))
        return track

    def heard(self, sound: Path) -> Any:
        """A track with the sound."""
        track = self.otio.schema.Track(name="sound", kind="Audio")
        track.append(
            self.otio.schema.Clip(
                name=sound.name,
                media_reference=self._media(sound),
                source_range=self._range(0, self.story.frames),
            )
        )
        return track

    def markers(self) -> list[Any]:
        """The markers of the person who wrote the story, without those behind its end."""
        frames = [round(marker.seconds * self.rate) for marker in self.story.markers]
        end = self._range(0, self.story.frames).duration.value
        return [
            self._marker(marker.name, frame, {})
            for marker, frame in zip(self.story.markers, frames, strict=True)
            if frame < end
        ]

    def mark_clips(self, track: Any) -> None:
        """Put the markers on the clips that they stand over."""
        for marker in self.markers():
            for clip in track:
                if clip.source_range.contains(marker.marked_range.start_time):
                    clip.markers.append(marker)

    def _clip(self, scene: Scene, number: int) -> Any:
        place = self._range(scene.first, scene.frames)
        clip = self.otio.schema.Clip(
            name=scene.text, media_reference=self._media(self.story.video), source_range=place
        )
        about = {"prompt": number, "switch": scene.switch}
        if scene.seed is not None:
            about["seed"] = str(scene.seed)
        clip.markers.append(self._marker(f"prompt {number}", place.start_time.value, about))
        return clip

    def _marker(self, name: str, frame: float, about: dict[str, Any]) -> Any:
        times = self.otio.opentime
        start = times.RationalTime(frame, self.rate)
        return self.otio.schema.Marker(
            name=name,
            marked_range=times.TimeRange(start, times.RationalTime(0, self.rate)),
            metadata={"headforcing": about} if about else {},
        )

    def _range(self, first: int, frames: int) -> Any:
        """Video frames in frames of the timeline's rate."""
        times = self.otio.opentime
        begin = round(first * self.rate / self.story.fps)
        end = round((first + frames) * self.rate / self.story.fps)
        return times.TimeRange(
            times.RationalTime(begin, self.rate), times.RationalTime(end - begin, self.rate)
        )

    def _media(self, file: Path | None) -> Any:
        if file is None:
            return self.otio.schema.MissingReference()
        return self.otio.schema.ExternalReference(
            target_url=file.absolute().as_uri(),
            available_range=self._range(0, self.story.frames),
        )
