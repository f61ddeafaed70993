"""Entries of a list of takes: date, length, progress, prompts."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..timeline.clock import VIDEO_FPS, video_frames_of
from .files import files_of
from .folder import count_stored
from .stored import StoredVideo, find_video, survey


@dataclass(frozen=True)
class Entry:
    """A take in a list; `finished` blocks of it are stored."""

    video: StoredVideo
    finished: int

    @property
    def done(self) -> bool:
        """Whether the whole video is stored."""
        return self.finished == len(self.video.keys)

    @property
    def seconds(self) -> float:
        """Length of the whole video."""
        return self.video.about["video_frames"] / self.video.about.get("fps", VIDEO_FPS)

    @property
    def finished_seconds(self) -> float:
        """Length of what is stored, start frames included."""
        about = self.video.about
        frames = about.get("start_frames", 0) + self.finished * about.get("frames_per_block", 3)
        return min(self.seconds, video_frames_of(frames) / about.get("fps", VIDEO_FPS))

    @property
    def date(self) -> str:
        """Date at which its first render was begun, in local time."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.video.take.begun))

    @property
    def length(self) -> str:
        """`m:ss`, of an unfinished one with how much of it there is."""
        whole = _minutes(self.seconds)
        return whole if self.done else f"{_minutes(self.finished_seconds)} of {whole}"

    @property
    def story(self) -> str:
        """The first prompt, and the last one that was re-rolled with its seed."""
        prompts, seeds = self.video.about["prompts"], self.video.about.get("seeds", [])
        texts = [text if seed is None else f"[seed {seed}] {text}" for text, seed in zip(prompts, seeds, strict=False)]
        rolled = [number for number, seed in enumerate(seeds[: len(prompts)]) if seed is not None and number]
        shown = [(texts or prompts or [""])[0], *(texts[number] for number in rolled[-1:])]
        return " / ".join(_cut(text, 64 // len(shown)) for text in shown)

    @property
    def size(self) -> str:
        return self.video.about.get("size", "")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.video.name,
            "take": self.video.take.number,
            "date": self.date,
            "seconds": round(self.seconds, 3),
            "finished_seconds": round(self.finished_seconds, 3),
            "blocks": len(self.video.keys),
            "finished": self.finished,
            "size": self.size,
            "seeds": self.video.about.get("seeds", []),
            "prompts": self.video.about["prompts"],
        }


def list_takes(parent: Path) -> tuple[list[Entry], list[str]]:
    """All takes in a folder of runs, the last begun first, and the problems of unreadable ones as in `survey`."""
    videos, problems = survey(parent)
    stored = {folder: files_of(folder, "block") for folder in {video.folder for video in videos}}
    videos.sort(key=lambda video: (video.take.begun, video.take.number), reverse=True)
    return [Entry(video, count_stored(stored[video.folder], video.keys)) for video in videos], problems


def find_take(parent: Path, name: str) -> Entry | None:
    """The take of that name, see `StoredVideo.name`; only its own run folder is read."""
    video = find_video(parent, name)
    return None if video is None else Entry(video, video.finished)


def _minutes(seconds: float) -> str:
    whole = int(seconds + 1e-6)
    return f"{whole // 60}:{whole % 60:02}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
