"""Stored videos in run folders: listing, loading and pruning."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..files import explained, lock, reason, unlock
from ..report.latents import RunMeter, RunReport
from .files import FORMAT_VERSION, FOUND, OPENING, THUMBNAIL, DamagedFile, own_files, read_note
from .folder import RunReader, StoredBlock, Take, count_blocks, noted_take

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredVideo:
    """A video in a run folder, finished or not.

    Attributes:
        name: `folder/video`, unique in the parent folder of all runs.
        run: reads its files; `run.problems` describes damaged ones.
        keys: of its blocks, in order.
        about: description stored at the start of the render: prompts, number of video frames, fps, seed ...
        earlier: whether an earlier version of the pack made it, whose blocks no render continues.
        take: its number among the videos of its story.
        written: time of its note.
    """

    name: str
    run: RunReader
    keys: list[str]
    about: dict[str, Any]
    earlier: bool = False
    take: Take = Take(1, 0.0)
    written: float = field(default=0.0, compare=False)

    @property
    def folder(self) -> Path:
        return self.run.folder

    def blocks(self) -> Iterator[Tensor]:
        """The finished latent frames from the beginning, start frames first, one block `[frames, 16, h, w]` at a time.

        Raises HeadForcingError if no block can be read or the start frames are missing.
        """
        return (block.latents for block in self._stored())

    def report(self) -> RunReport:
        """The run report of the finished blocks, equal to that of the render except for the cache's frame slots."""
        meter = RunMeter()
        events = [event for kind in (OPENING, FOUND) for event in self.run.load_events(kind, self.keys)]
        for block in self._stored():
            for latents in block.latents.split(self.about.get("frames_per_block", len(block.latents))):
                meter.add(latents)
            if block.event is not None:
                events.append(block.event)
        return meter.report(events)

    def _stored(self) -> Iterator[StoredBlock]:
        start = self.run.load_start()
        if start is None and self.about.get("start_frames"):
            raise HeadForcingError(f"the start frames of this video in {self.folder} are missing or damaged")
        held = self.about.get("held_frames")  # part of the first block
        given = [] if start is None or held else [StoredBlock(start, None)]
        empty = True
        for block in chain(given, self.run.read_blocks(self.keys)):
            empty = False
            yield block
        if empty:
            damaged = "".join(f"; {problem}" for problem in self.run.problems)
            raise HeadForcingError(f"{self.folder} holds no finished block of this video{damaged}")

    def latents(self) -> Tensor:
        """All finished latent frames `[frames, 16, h, w]`, start frames included."""
        return torch.cat(list(self.blocks()))

    @property
    def finished(self) -> int:
        """Number of finished blocks; the files are not read."""
        return count_blocks(self.folder, self.keys)


def stored_videos(parent: Path) -> list[StoredVideo]:
    """All videos in a folder of runs, the newest first; unreadable ones are logged and skipped."""
    videos, problems = survey(parent)
    for problem in problems:
        log.warning("Head Forcing: %s", problem)
    return videos


def survey(parent: Path) -> tuple[list[StoredVideo], list[str]]:
    """All videos in a folder of runs, the newest first, and the problems of unreadable ones, one sentence each."""
    videos: list[StoredVideo] = []
    problems: list[str] = []
    for folder in _folders(parent):
        try:
            videos += videos_of(folder, problems)
        except (HeadForcingError, OSError) as error:
            problems.append(_why(folder, error))
    return sorted(videos, key=lambda video: (video.written, video.take), reverse=True), problems


def find_video(parent: Path, name: str) -> StoredVideo | None:
    """The video of that name in a folder of runs; only its own run folder is read."""
    with suppress(HeadForcingError, OSError):  # as if it were not there; `survey` says why
        folders = [folder for folder in _folders(parent) if name.rpartition("/")[0] == folder.name]
        return next((video for folder in folders for video in videos_of(folder, []) if video.name == name), None)
    return None


def find_stored(place: Path) -> StoredVideo:
    """The video at `RUNS/FOLDER/VIDEO`, as `runs list` names it, or the newest of the run folder `RUNS/FOLDER`.

    Raises HeadForcingError where there is none.
    """
    place = Path(os.path.abspath(place))
    folder = place if place.is_dir() else place.parent
    videos, problems = survey(folder.parent)
    for video in videos:
        if video.folder == folder and (place == folder or video.name.endswith(f"/{place.name}")):
            return video
    damaged = "".join(f"; {problem}" for problem in problems if problem.startswith(f"{folder.name}: "))
    raise HeadForcingError(f"{place} is no run folder, and no video in one; `runs list` names them{damaged}")


def earlier_video(parent: Path, about: Mapping[str, Any]) -> StoredVideo | None:
    """A video of this description that an earlier version of the pack has made, whose blocks no render continues."""
    same = ("method", "seed", "size", "prompts", "video_frames")
    with suppress(HeadForcingError):  # what cannot be read is told by who reads it
        videos, _ = survey(parent)
        return next((v for v in videos if v.earlier and all(v.about.get(k) == about.get(k) for k in same)), None)
    return None


def videos_of(folder: Path, problems: list[str]) -> list[StoredVideo]:
    """The videos of a run folder; adds to `problems`."""
    videos: dict[str, StoredVideo] = {}
    # sorted, so run-*.json is first: a run of another format is skipped as a whole
    for path in (path for path in own_files(folder) if path.name.startswith(("run-", "video-"))):
        try:
            note, written = read_note(path), path.stat().st_mtime
            kind, key = path.stem.split("-")[:2]
            # of two with one key, which a killed process can leave, the later one
            if kind == "video" and (key not in videos or written >= videos[key].written):
                run, earlier = RunReader(folder, note["setup"]), note["format_version"] != FORMAT_VERSION
                name, take = f"{folder.name}/{key}", noted_take(note, path)
                videos[key] = StoredVideo(name, run, note["keys"], note["about"], earlier, take, written)
        except FileNotFoundError:  # a render has just replaced it
            continue
        except (DamagedFile, OSError) as error:
            problems.append(f"{folder.name}: {_why(path, error)}; repeating the same render restores it")
    return list(videos.values())


def file_stats(folder: Path) -> dict[Path, os.stat_result]:
    """Sizes and times of this pack's files in a run folder."""
    stats = {}
    for path in own_files(folder):
        with suppress(OSError):  # a render has just replaced it
            stats[path] = path.stat()
    return stats


def folder_bytes(folder: Path) -> int:
    """Disk space in bytes of this pack's files in a run folder."""
    return sum(stat.st_size for stat in file_stats(folder).values())


@dataclass
class Pruned:
    """Result of `prune`.

    Attributes:
        removed: folders that are gone.
        freed: bytes on the disk of all files that were removed.
        stayed: folders that should have gone, by name, and why they are there.
    """

    removed: list[Path] = field(default_factory=list)
    freed: int = 0
    stayed: dict[str, str] = field(default_factory=dict)


def prune(parent: Path, keep_bytes: int) -> Pruned:
    """Remove runs, the oldest first, until the others take at most `keep_bytes`.

    Only folders with a readable `run-*.json` count as runs, only files of this pack are removed, and a folder only if
    it is empty then. Locked runs, which are being rendered, are kept. Raises HeadForcingError if `parent` cannot be
    read.
    """
    total, done = 0, Pruned()
    for folder in sorted(_runs(parent, done), key=_last_written, reverse=True):
        try:
            total += folder_bytes(folder)
            if total > keep_bytes:  # from here on all are older, and removed as well
                freed, problem = remove_folder(folder)
                done.freed += freed
                if problem:
                    done.stayed[folder.name] = problem
                else:
                    done.removed.append(folder)
        except HeadForcingError as error:
            done.stayed[folder.name] = str(error)
    return done


def _folders(parent: Path) -> list[Path]:
    with explained(f"{parent} cannot be read"):
        return sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []


def _why(path: Path, error: Exception) -> str:
    return str(error) if isinstance(error, HeadForcingError) else f"{path.name} cannot be read ({reason(error)})"


def _runs(parent: Path, done: Pruned) -> Iterator[Path]:
    """The folders of runs; others that have files of a run are named in `done`."""
    for folder in _folders(parent):
        try:
            own = [] if folder.is_symlink() else own_files(folder)
            notes = [path for path in own if path.name.startswith("run-")]
            if any({"format_version", "setup"} <= read_note(path, any_version=True).keys() for path in notes):
                yield folder
            elif own:
                done.stayed[folder.name] = "it has files of a run but no run-*.json"
        except (HeadForcingError, OSError) as error:
            done.stayed[folder.name] = _why(folder, error)


def _last_written(folder: Path) -> float:
    made_by_a_look = f"{THUMBNAIL}-"
    times = (stat.st_mtime for path, stat in file_stats(folder).items() if not path.name.startswith(made_by_a_look))
    return max(times, default=0.0)


def remove_folder(folder: Path) -> tuple[int, str]:
    """Remove this pack's files, and the folder if it is empty then.

    Returns the bytes freed, and why the folder is still there, empty if it is not.
    """
    held = lock(folder / "lock")
    if held is None:
        return 0, "it is being rendered"
    freed, problem = 0, ""
    try:
        freed, problem = remove_files(own_files(folder))
    finally:
        unlock(held, remove=not problem)
    if not problem:
        try:
            folder.rmdir()
        except OSError as error:
            left = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            problem = f"the folder cannot be removed ({reason(error)})"
            problem = "what was ours in it is removed, other files are left" if left else problem
    return freed, problem


def remove_files(paths: Iterable[Path]) -> tuple[int, str]:
    """Remove files as far as that is possible; returns the bytes freed and why one is still there, empty for none."""
    freed, problem = 0, ""
    for path in paths:
        try:
            size = path.stat().st_size
            path.unlink()
            freed += size
        except FileNotFoundError:
            pass
        except OSError as error:
            problem = f"{path.name} cannot be removed ({reason(error)})"
    return freed, problem
