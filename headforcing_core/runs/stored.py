"""The videos that lie in run folders: to list, to load and to prune."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..drift.latents import RunMeter, RunReport
from ..errors import HeadForcingError
from .files import FOUND, OPENING, DamagedFile, own_files, read_note
from .folder import RunReader, StoredBlock, count_blocks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredVideo:
    """A video noted in a run folder, finished or not.

    Attributes:
        name: `folder/video`, unique below the parent folder of all runs.
        run: reads its files; `run.problems` names those that were found damaged meanwhile.
        about: as noted when the render began: prompts, pictures, fps, seed ...
    """

    name: str
    run: RunReader
    keys: list[str]
    about: dict[str, Any]

    @property
    def folder(self) -> Path:
        return self.run.folder

    def blocks(self) -> Iterator[Tensor]:
        """The finished frames from the beginning, start frames first, a few `[frames, 16, h, w]` at a time."""
        return (block.latents for block in self._stored())

    def report(self) -> RunReport:
        """What the finished blocks tell, as the render itself told it."""
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
        if start is not None:
            yield StoredBlock(start, None)
        found = start is not None
        for block in self.run.read_blocks(self.keys):
            found = True
            yield block
        if not found:
            damaged = "".join(f"; {problem}" for problem in self.run.problems)
            raise HeadForcingError(f"{self.folder} holds no finished block of this video{damaged}")

    def latents(self) -> Tensor:
        """All finished frames `[frames, 16, h, w]`, start frames included."""
        return torch.cat(list(self.blocks()))

    @property
    def finished(self) -> int:
        """How many blocks are there, by their names."""
        return count_blocks(self.folder, self.keys)


def stored_videos(parent: Path) -> list[StoredVideo]:
    """All videos noted below a folder of runs, the newest first; what cannot be read is left out and logged."""
    videos, problems = survey(parent)
    for problem in problems:
        log.warning("Head Forcing: %s", problem)
    return videos


def survey(parent: Path) -> tuple[list[StoredVideo], list[str]]:
    """All videos noted below a folder of runs, the newest first, and what cannot be read there, a sentence each."""
    videos: list[tuple[float, StoredVideo]] = []
    problems: list[str] = []
    for folder in sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []:
        notes = [path for path in own_files(folder) if path.name.startswith(("run-", "video-"))]
        try:
            for path in notes:  # the run's own comes first: a newer format is refused as a whole
                try:
                    note = read_note(path)
                except DamagedFile as error:
                    problems.append(f"{folder.name}: {error}; the same render queued again writes it anew")
                    continue
                if path.name.startswith("video-"):
                    name, run = f"{folder.name}/{path.stem.split('-')[1]}", RunReader(folder, note["setup"])
                    videos.append((path.stat().st_mtime, StoredVideo(name, run, note["keys"], note["about"])))
        except (HeadForcingError, OSError) as error:
            problems.append(str(error))
    found = {video.name: video for _, video in sorted(videos, key=lambda entry: entry[0])}  # of two, the later one
    return list(reversed(found.values())), problems


def folder_bytes(folder: Path) -> int:
    """What our files in a run folder take on disk."""
    found = 0
    for path in own_files(folder):
        with suppress(FileNotFoundError):  # a render has just replaced it
            found += path.stat().st_size
    return found


def prune(parent: Path, keep_bytes: int) -> list[Path]:
    """Remove runs, the oldest first, until those that are left take at most `keep_bytes`.

    Only folders with a readable `run-*.json` are taken for runs, only files with our names are removed, and a folder
    only where nothing else is left in it. A run that somebody renders stays.
    """
    kept, removed = 0, []
    for folder in sorted(_runs(parent), key=_last_written, reverse=True):
        kept += folder_bytes(folder)
        if kept > keep_bytes and _remove(folder):  # so does everything older
            removed.append(folder)
    return removed


def _runs(parent: Path) -> Iterator[Path]:
    for folder in parent.iterdir():
        own = own_files(folder) if folder.is_dir() and not folder.is_symlink() else []
        notes = [path for path in own if path.name.startswith("run-")]
        try:
            if any({"format_version", "setup"} <= read_note(path, any_version=True).keys() for path in notes):
                yield folder
            elif own:
                log.warning("Head Forcing: %s is left alone, it has files of a run but no run-*.json", folder)
        except (DamagedFile, OSError) as error:
            log.warning("Head Forcing: %s is left alone: %s", folder, error)


def _last_written(folder: Path) -> float:
    return max((path.stat().st_mtime for path in own_files(folder)), default=0.0)


def _remove(folder: Path) -> bool:
    """Remove our files, and the folder where it is empty then; False where somebody renders there."""
    try:
        with FileLock(folder / "lock", timeout=0):
            for path in own_files(folder):
                path.unlink(missing_ok=True)
    except Timeout:
        return False
    (folder / "lock").unlink(missing_ok=True)
    with suppress(OSError):  # other files lie there
        folder.rmdir()
    return True
