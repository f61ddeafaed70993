"""Stored videos in run folders: found, described as a list shows them, loaded."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..files import Fields, explained, reason
from ..timeline.clock import VIDEO_FPS, plain_time, video_frames_of
from .files import DamagedFile, files_of, read_note
from .folder import RunReader, StoredBlock, Take, count_blocks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredVideo:
    """A video in a run folder, finished or not."""

    name: str  # `folder/video`, unique in the parent folder of all runs
    reader: RunReader  # of its files; `reader.problems` describes damaged ones
    keys: list[str]  # of its blocks, in order
    # stored at the start of the render: prompts, number of video frames, fps, seed ...
    about: Fields
    take: Take  # its number among the videos of its story

    @property
    def folder(self) -> Path:
        return self.reader.folder

    def blocks(self) -> Iterator[Tensor]:
        """The finished latent frames from the beginning, start frames first, one block `[frames,
        16, h, w]` at a time.

        Raises HeadForcingError if no block can be read or the start frames are missing.
        """
        return (block.latents for block in self.read())

    def latents(self) -> Tensor:
        """All finished latent frames `[frames, channels, h, w]`, start frames included."""
        return torch.cat(list(self.blocks()))

    def read(self) -> Iterator[StoredBlock]:
        """The finished blocks with their decisions, start frames first; raises as `blocks` does."""
        start = self.reader.load_start()
        if start is None and self.about.get("start_frames"):
            raise HeadForcingError(
                f"the start frames of this video in {self.folder} are missing or damaged"
            )
        block = None
        if start is not None and not self.about.get("held_frames"):  # a part of the first block
            block = StoredBlock(start, None)
            yield block
        for block in self.reader.read_blocks(self.keys):
            yield block
        if block is None:
            nothing = f"{self.folder} holds no finished block of this video"
            raise HeadForcingError("; ".join([nothing, *self.reader.problems]))

    # --------------------------------------------------------------------------- as a list shows it

    @property
    def finished(self) -> int:
        """Number of finished blocks; the files are not read."""
        return count_blocks(self.folder, self.keys)

    @property
    def seconds(self) -> float:
        """Length of the whole video."""
        return self.about["video_frames"] / self.about.get("fps", VIDEO_FPS)

    @property
    def finished_seconds(self) -> float:
        """Length of what is stored, start frames included."""
        frames = self.about.get("start_frames", 0) + self.finished * self.about.get(
            "frames_per_block", 3
        )
        return min(self.seconds, video_frames_of(frames) / self.about.get("fps", VIDEO_FPS))

    @property
    def date(self) -> str:
        """Date at which its first render was begun, in local time."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.take.begun))

    @property
    def length(self) -> str:
        """`m:ss`, of an unfinished one with how much of it there is."""
        whole = plain_time(self.seconds)
        if self.finished == len(self.keys):
            return whole
        return f"{plain_time(self.finished_seconds)} of {whole}"

    @property
    def story(self) -> str:
        """The first prompt, and the last one that was re-rolled with its seed."""
        shown = self.about["prompts"][:1] or [""]
        for number, seed in enumerate(self.about.get("seeds", ())):
            if seed is not None:
                rolled = f"[seed {seed}] {self.about['prompts'][number]}"
                shown = [*shown[: min(number, 1)], rolled]
        return " / ".join(_cut(text, 64 // len(shown)) for text in shown)

    @property
    def size(self) -> str:
        return self.about.get("size", "")


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return text[: most - 1].rstrip() + "…"


# ----------------------------------------------------------------------------------- finding videos

_last_begun = attrgetter("take.begun", "take.number")  # sort key


def stored_videos(parent: Path) -> list[StoredVideo]:
    """All videos in a folder of runs, the last begun first; unreadable ones are logged and
    skipped.
    """
    videos, problems = survey(parent)
    for problem in problems:
        log.warning("Head Forcing: %s", problem)
    return videos


def survey(parent: Path) -> tuple[list[StoredVideo], list[str]]:
    """All videos in a folder of runs, the last begun first, and the problems of unreadable ones,
    one sentence each.
    """
    videos = []
    problems: list[str] = []
    for folder in run_folders(parent):
        try:
            videos += videos_of(folder, problems)
        except (HeadForcingError, OSError) as error:
            problems.append(why(folder, error))
    return sorted(videos, key=_last_begun, reverse=True), problems


def find_video(parent: Path, name: str) -> StoredVideo | None:
    """The video of that name in a folder of runs; only its own run folder is read."""
    with suppress(HeadForcingError, OSError):  # as if it were not there; `survey` says why
        for folder in run_folders(parent):
            if name.startswith(f"{folder.name}/"):
                return next((video for video in videos_of(folder, []) if video.name == name), None)
    return None


def find_stored(place: Path) -> StoredVideo:
    """The video at `RUNS/FOLDER/VIDEO`, as `runs list` names it, or the last begun of the run
    folder `RUNS/FOLDER`.

    Raises HeadForcingError where there is none.
    """
    place = Path(os.path.abspath(place))
    folder = place if place.is_dir() else place.parent
    problems = list[str]()
    videos = videos_of(folder, problems)
    if place != folder:
        videos = [video for video in videos if video.name.endswith(f"/{place.name}")]
    if videos:
        return max(videos, key=_last_begun)
    nothing = f"{place} is neither a run folder nor a video in one; `runs list` names them"
    raise HeadForcingError("; ".join([nothing, *problems]))


def videos_of(folder: Path, problems: list[str]) -> list[StoredVideo]:
    """The videos of a run folder; adds to `problems`. Raises HeadForcingError for one of another
    format.
    """
    videos = []
    notes = {**files_of(folder, "run"), **files_of(folder, "video")}
    for key, path in notes.items():
        try:
            note = read_note(path)
            if key != "run":
                name = f"{folder.name}/{key}"
                reader = RunReader(folder, note["setup"])
                videos.append(
                    StoredVideo(
                        name,
                        reader,
                        keys=note["keys"],
                        about=note["about"],
                        take=Take(note["take"], note["begun"]),
                    )
                )
        except FileNotFoundError:  # a render has just replaced it
            continue
        except (DamagedFile, OSError) as error:
            problems.append(
                f"{folder.name}: {why(path, error)}; repeating the same render restores it"
            )
    return videos


def run_folders(parent: Path) -> list[Path]:
    """The folders in a folder of runs, sorted."""
    with explained(f"{parent} cannot be read"):
        if not parent.is_dir():
            return []
        return sorted(path for path in parent.iterdir() if path.is_dir())


def why(path: Path, error: Exception) -> str:
    """The sentence for a file or folder that cannot be read."""
    if isinstance(error, HeadForcingError):
        return str(error)
    return f"{path.name} cannot be read ({reason(error)})"
