"""A stored video as its story tells it, for files of other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..timeline.clock import VIDEO_FPS
from .stored import StoredVideo


@dataclass(frozen=True)
class Marker:
    """A name at a time of the story, in seconds."""

    name: str
    seconds: float


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
    """A video as its story tells it.

    Attributes:
        video, sound: files, None for none.
        markers: of the person who wrote the story.
        takes: other videos, which a timeline for video editors has on tracks of their own.
    """

    name: str
    fps: float
    scenes: list[Scene]
    video: Path | None = None
    sound: Path | None = None
    markers: Sequence[Marker] = ()
    takes: Sequence[ExportedStory] = ()

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

    @property
    def frames(self) -> int:
        """The number of video frames."""
        return sum(scene.frames for scene in self.scenes)

    def seconds(self, scene: Scene) -> tuple[float, float]:
        """Start and end of a scene."""
        return scene.first / self.fps, (scene.first + scene.frames) / self.fps
