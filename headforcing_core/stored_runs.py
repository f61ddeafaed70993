"""The videos that lie in run folders: to list, to load and to prune."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from .errors import HeadForcingError
from .run import RunFolder, StoredBlock, count_blocks
from .run_report import RunMeter, RunReport
from .video_rollout import FOUND, OPENING

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredVideo:
    """A video noted in a run folder, finished or not.

    Attributes:
        name: `folder/video`, unique below the parent folder of all runs.
        about: as noted when the render began: prompts, pictures, fps, seed ...
    """

    name: str
    folder: Path
    setup: str
    keys: list[str]
    about: dict[str, Any]

    def blocks(self) -> Iterator[Tensor]:
        """The finished frames from the beginning, start frames first, a few `[frames, 16, h, w]` at a time."""
        return (block.latents for block in self._stored())

    def report(self) -> RunReport:
        """What the finished blocks tell, as the render itself told it."""
        meter = RunMeter()
        events = [event for kind in (OPENING, FOUND) for event in self._run.load_events(kind, self.keys)]
        for block in self._stored():
            for latents in block.latents.split(self.about.get("frames_per_block", len(block.latents))):
                meter.add(latents)
            if block.event is not None:
                events.append(block.event)
        return meter.report(events)

    def _stored(self) -> Iterator[StoredBlock]:
        run = self._run
        start = run.load_start()
        if start is None and self.about.get("start_frames"):
            raise HeadForcingError(f"the start frames of this video in {self.folder} are missing or damaged")
        if start is not None:
            yield StoredBlock(start, None)
        found = start is not None
        for key in self.keys:
            blocks = run.load_blocks([key])
            if not blocks:
                break
            found = True
            yield blocks[0]
        if not found:
            raise HeadForcingError(f"{self.folder} holds no finished block of this video")

    def latents(self) -> Tensor:
        """All finished frames `[frames, 16, h, w]`, start frames included."""
        return torch.cat(list(self.blocks()))

    @property
    def _run(self) -> RunFolder:
        run = RunFolder(self.folder.parent, self.setup, {})
        run.folder = self.folder  # it may have been renamed or copied
        return run

    @property
    def finished(self) -> int:
        """How many blocks are there."""
        return count_blocks(self.folder, self.keys)


def stored_videos(parent: Path) -> list[StoredVideo]:
    """All videos noted below a folder of runs, the newest first; unreadable notes are left out."""
    found: list[tuple[float, StoredVideo]] = []
    for path in parent.glob("*/video-*.json"):
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            setup = next(iter(path.parent.glob("run-*.json"))).read_text(encoding="utf-8")
            name = f"{path.parent.name}/{path.stem.split('-')[1]}"
            video = StoredVideo(name, path.parent, json.loads(setup)["setup"], fields["keys"], fields["about"])
            found.append((path.stat().st_mtime, video))
        except (OSError, ValueError, KeyError, StopIteration, TypeError) as error:
            log.warning("Head Forcing: %s cannot be read: %s", path, error)
    return [video for _, video in sorted(found, key=lambda entry: -entry[0])]


def folder_bytes(folder: Path) -> int:
    """What a run folder takes on disk."""
    return sum(path.stat().st_size for path in folder.iterdir())


def prune(parent: Path, keep_bytes: int) -> list[Path]:
    """Remove whole run folders, the oldest first, until those that are left take at most `keep_bytes`."""
    folders = sorted(
        (folder for folder in parent.iterdir() if any(folder.glob("run-*.json")) or any(folder.glob("block-*"))),
        key=lambda folder: max(path.stat().st_mtime for path in folder.iterdir()),
        reverse=True,
    )
    kept, removed = 0, []
    for folder in folders:
        size = folder_bytes(folder)
        if kept + size <= keep_bytes:
            kept += size
            continue
        try:
            with FileLock(folder / "lock", timeout=0):
                for path in folder.iterdir():
                    if path.name != "lock":
                        path.unlink()
        except Timeout:  # somebody renders there
            continue
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(folder)
    return removed
