"""Stored videos in run folders: listing, loading and pruning."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..files import explained, lock, reason, unlock
from ..report.latents import RunMeter, RunReport
from .files import FORMAT_VERSION, FOUND, OPENING, THUMBNAIL, DamagedFile, own_files, read_note
from .folder import RunReader, StoredBlock, count_blocks
from .takes import Take, number_takes

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
        take: its number among the videos of its run folder.
    """

    name: str
    run: RunReader
    keys: list[str]
    about: dict[str, Any]
    earlier: bool = False
    take: Take = Take(1, 0.0)

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
        if self.about.get("held_frames"):  # they are part of the first block
            start = None
        if start is not None:
            yield StoredBlock(start, None)
        empty = start is None
        for block in self.run.read_blocks(self.keys):
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
    videos: list[tuple[float, StoredVideo]] = []
    problems: list[str] = []
    for folder in _folders(parent):
        try:
            videos += _videos_of(folder, problems)
        except (HeadForcingError, OSError) as error:
            problems.append(_why(folder, error))
    newest = sorted(videos, key=lambda entry: (entry[0], entry[1].take), reverse=True)
    return [video for _, video in newest], problems


def find_video(parent: Path, name: str) -> StoredVideo | None:
    """The video of that name in a folder of runs; only its own run folder is read."""
    folder = next((folder for folder in _folders(parent) if name.rpartition("/")[0] == folder.name), None)
    if folder is None:
        return None
    with suppress(HeadForcingError, OSError):  # as if it were not there; `survey` says why
        return next((video for _, video in _videos_of(folder, []) if video.name == name), None)
    return None


def find_stored(place: Path) -> StoredVideo:
    """The video at `RUNS/FOLDER/VIDEO`, as `runs list` names it, or the newest of the run folder `RUNS/FOLDER`.

    Raises HeadForcingError where there is none.
    """
    place = Path(os.path.abspath(place))
    folder = place if place.is_dir() else place.parent
    videos, problems = survey(folder.parent)
    found = (
        video
        for video in videos
        if video.folder == folder and (place == folder or video.name.endswith(f"/{place.name}"))
    )
    video = next(found, None)
    if video is None:
        damaged = "".join(f"; {problem}" for problem in problems if problem.startswith(f"{folder.name}: "))
        raise HeadForcingError(f"{place} is no run folder, and no video in one; `runs list` names them{damaged}")
    return video


def earlier_video(parent: Path, about: Mapping[str, Any]) -> StoredVideo | None:
    """A video of this description that an earlier version of the pack has made, whose blocks no render continues."""
    same = ("method", "seed", "size", "prompts", "video_frames")
    with suppress(HeadForcingError):  # what cannot be read is told by who reads it
        videos, _ = survey(parent)
        return next((v for v in videos if v.earlier and all(v.about.get(k) == about.get(k) for k in same)), None)
    return None


def _videos_of(folder: Path, problems: list[str]) -> list[tuple[float, StoredVideo]]:
    """The videos of a run folder, each with the time of its note; adds to `problems`."""
    notes: dict[str, tuple[dict[str, Any], float]] = {}
    # sorted, so run-*.json is first: a run of a newer format is skipped as a whole
    for path in (path for path in own_files(folder) if path.name.startswith(("run-", "video-"))):
        try:
            note, written = read_note(path), path.stat().st_mtime
        except FileNotFoundError:  # a render has just replaced it
            continue
        except (DamagedFile, OSError) as error:
            problems.append(f"{folder.name}: {_why(path, error)}; repeating the same render restores it")
            continue
        kind, key = path.stem.split("-")[:2]
        # of two with one key, which a killed process can leave, the later one
        if kind == "video" and (key not in notes or written >= notes[key][1]):
            notes[key] = note, written
    takes, videos = number_takes(notes), []
    for key, (note, written) in notes.items():
        run, earlier = RunReader(folder, note["setup"]), note["format_version"] != FORMAT_VERSION
        video = StoredVideo(f"{folder.name}/{key}", run, note["keys"], note["about"], earlier, takes[key])
        videos.append((written, video))
    return videos


def folder_bytes(folder: Path) -> int:
    """Disk space in bytes of this pack's files in a run folder."""
    total = 0
    for path in own_files(folder):
        with suppress(OSError):  # a render has just replaced it
            total += path.stat().st_size
    return total


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
                _remove(folder, done)
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
    times = [0.0]
    for path in own_files(folder):
        if path.name.startswith(f"{THUMBNAIL}-"):  # made by whoever looks at a run
            continue
        with suppress(OSError):  # a render has just replaced it
            times.append(path.stat().st_mtime)
    return max(times)


def _remove(folder: Path, done: Pruned) -> None:
    """Remove this pack's files, and the folder if it is empty then."""
    held = lock(folder / "lock")
    if held is None:
        done.stayed[folder.name] = "it is being rendered"
        return
    problem = ""
    try:
        for path in own_files(folder):
            try:
                size = path.stat().st_size
                path.unlink()
                done.freed += size
            except FileNotFoundError:
                pass
            except OSError as error:
                problem = f"{path.name} cannot be removed ({reason(error)})"
    finally:
        unlock(held, remove=not problem)
    try:
        if not problem:
            folder.rmdir()
            done.removed.append(folder)
    except OSError as error:
        problem = f"the folder cannot be removed ({reason(error)})"
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            problem = "what was ours in it is removed, other files are left"
    if problem:
        done.stayed[folder.name] = problem
