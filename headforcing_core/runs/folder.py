"""A run folder: finished blocks on disk, so that a render goes on where it stopped.

Blocks are stored by content. A block's key is a hash of everything it depends on: the setup (weights, head roles, size,
schedule, seed ...), and the prompts and switches of all blocks up to it. The same render queued again therefore finds
its blocks; a longer one finds those of the shorter and extends it; one with another prompt k finds all blocks before
that prompt. Where blocks are made together (Rolling Forcing), a block's key covers those made with it, and they are
stored beside it as they were then.

What a key cannot cover is how a machine rounds. Each block therefore names the very file of the block before it, and a
cache state that of its block: blocks of two renders are never joined, even where both have the same keys.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from ..cache.memory import MemoryEvent
from ..cache.state import State
from ..errors import HeadForcingError
from ..files import check_writable
from ..hashing import SHORT
from ..hashing import file_hash as file_hash
from .files import DamagedFile, files_of, named_hash, own_files, read_note, read_tensors, write_note, write_tensors

log = logging.getLogger(__name__)

Found = TypeVar("Found")


def count_blocks(folder: Path, keys: Sequence[str]) -> int:
    """How many blocks at the beginning of `keys` are stored in a run folder, by their names."""
    there = files_of(folder, "block")
    return next((place for place, key in enumerate(keys) if key[:SHORT] not in there), len(keys))


@dataclass(frozen=True)
class StoredBlock:
    """A finished block as it was stored; `unfinished` are those begun after it, where several are made together."""

    latents: Tensor
    event: MemoryEvent | None
    unfinished: tuple[Tensor, ...] = ()


class RunReader:
    """Reads the files of one setup; changes nothing.

    Attributes:
        problems: what was found damaged, one sentence each.
    """

    def __init__(self, folder: Path, setup: str):
        self.folder, self.setup = folder, setup
        self.problems: list[str] = []
        self._block_hashes: dict[str, str] = {}  # in the names of blocks that were read or saved here, by key

    def read_blocks(self, keys: Sequence[str]) -> Iterator[StoredBlock]:
        """The finished blocks at the beginning of `keys`, up to the first that is missing or damaged."""
        before, files = "", files_of(self.folder, "block")
        for key in keys:
            path = files.get(key[:SHORT])
            found = self._read(path, read_tensors)
            if path is None or found is None or found[1]["key"] != key:
                return
            tensors, fields = found
            if fields["after"] != before:
                self._set_aside(path, f"{path.name} does not go on from the block before it")
                return
            before = self._block_hashes[key] = named_hash(path)
            event = fields["event"]
            unfinished = tuple(tensors["unfinished"].unbind()) if "unfinished" in tensors else ()
            yield StoredBlock(tensors["latents"], None if event is None else MemoryEvent(**event), unfinished)

    def load_blocks(self, keys: Sequence[str]) -> list[StoredBlock]:
        """The same, all of them; only the last one has its `unfinished`."""
        blocks: list[StoredBlock] = []
        for block in self.read_blocks(keys):
            if blocks:
                blocks[-1] = replace(blocks[-1], unfinished=())
            blocks.append(block)
        return blocks

    def load_state(self, keys: Sequence[str]) -> State | None:
        """The latest intact cache state after one of these blocks, which were read before."""
        files = files_of(self.folder, "state")
        for key in reversed(keys):
            found = self._read(files.get(key[:SHORT]), read_tensors)
            if found is not None and (found[1]["key"], found[1]["after"]) == (key, self._block_hashes.get(key)):
                return found[0], found[1]["plain"]
        return None

    def load_start(self) -> Tensor | None:
        """The start frames, where there are some."""
        found = self._read(files_of(self.folder, "start").get(self.setup[:SHORT]), read_tensors)
        return found[0]["latents"] if found is not None and found[1]["key"] == self.setup else None

    def load_note(self, kind: str, keys: Sequence[str]) -> dict[str, Any] | None:
        """The note of that kind that belongs to one of these blocks."""
        files = files_of(self.folder, kind)
        notes = (self._read(files.get(key[:SHORT]), read_note) for key in keys)
        return next((note for note in notes if note is not None), None)

    def load_events(self, kind: str, keys: Sequence[str]) -> list[MemoryEvent]:
        """The events in a note of that kind; none where there is no such note."""
        note = self.load_note(kind, keys)
        return [] if note is None else [MemoryEvent(**event) for event in note["events"]]

    def _read(self, path: Path | None, read: Callable[[Path], Found]) -> Found | None:
        """What `read` finds in a file; None where it is missing or damaged."""
        if path is None:
            return None
        try:
            return read(path)
        except DamagedFile as error:
            self._set_aside(path, str(error))
        except FileNotFoundError:  # the render that owns the folder has just replaced it
            pass
        return None

    def _set_aside(self, path: Path, problem: str) -> None:
        """Take note of a file that is not used."""
        if problem not in self.problems:
            self.problems.append(problem)


class RunFolder(RunReader):
    """The files of one setup, to read and to write. Use as a context manager: it belongs to one process at a time.

    What is found damaged is removed, so that it is made again.
    """

    def __init__(self, parent: Path, setup: str, about: dict[str, Any]):
        super().__init__(parent / setup[:SHORT], setup)
        self.about = about
        self._lock = FileLock(self.folder / "lock")

    def __enter__(self) -> RunFolder:
        check_writable(self.folder / "run.json")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise HeadForcingError(
                f"another render is writing to {self.folder}; wait for it, or change the seed of this one"
            ) from None
        try:
            for leftover in own_files(self.folder):
                if leftover.suffix == ".tmp":
                    leftover.unlink(missing_ok=True)
            self.save_note("run", "", {"setup": self.setup, "about": self.about})
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def save_block(
        self,
        index: int,
        key: str,
        latents: Tensor,
        event: MemoryEvent | None,
        unfinished: Sequence[Tensor] = (),
        previous: str | None = None,
    ) -> None:
        """Store a finished block `[frames, 16, h, w]`, what episodic memory did after it, and those that are begun.

        `previous` is the key of the block before it, read or saved here; None for the first that is made.
        """
        tensors = {"latents": latents.float()}
        if unfinished:
            tensors["unfinished"] = torch.stack(tuple(unfinished)).float()
        after = "" if previous is None else self._block_hashes[previous]
        stored = self._write_tensors("block", index, key, tensors, event=event and event.to_dict(), after=after)
        self._block_hashes[key] = named_hash(stored)

    def save_state(self, index: int, key: str, state: State) -> None:
        """Store the cache state after a block; older states are removed, one is enough."""
        tensors, plain = state
        stored = self._write_tensors("state", index, key, tensors, plain=plain, after=self._block_hashes[key])
        self._keep_only(stored, "state-*.safetensors")

    def save_start(self, latents: Tensor) -> None:
        """Store the start frames `[frames, 16, h, w]` that the whole setup begins with."""
        if self.load_start() is None:
            self._write_tensors("start", 0, self.setup, {"latents": latents.float()})

    def save_video(self, keys: Sequence[str], about: dict[str, Any]) -> None:
        """Note which blocks make up a video, in order, and what it is."""
        self.save_note("video", keys[-1], {"setup": self.setup, "keys": list(keys), "about": about})

    def save_note(self, kind: str, key: str, fields: dict[str, Any]) -> None:
        """Store JSON fields that belong to a block, or to the whole setup where there is no key."""
        stem = f"{kind}-{key[:SHORT]}" if key else kind
        self._read(files_of(self.folder, kind).get(key[:SHORT] or kind), read_note)  # names damage, refuses new formats
        self._keep_only(write_note(self.folder, stem, fields), f"{stem}-*.json")

    def save_events(self, kind: str, key: str, events: Sequence[MemoryEvent]) -> None:
        """Store memory events that belong to no stored block."""
        self.save_note(kind, key, {"events": [event.to_dict() for event in events]})

    def _write_tensors(self, kind: str, index: int, key: str, tensors: dict[str, Tensor], **fields: Any) -> Path:
        stem = f"{kind}-{index:05}-{key[:SHORT]}"
        stored = write_tensors(self.folder, stem, tensors, {"key": key, **fields})
        self._keep_only(stored, f"{kind}-*-{key[:SHORT]}-*.safetensors")
        return stored

    def _keep_only(self, stored: Path, pattern: str) -> None:
        """Remove older files, once the new one is safe."""
        for path in self.folder.glob(pattern):
            if path.name != stored.name:
                path.unlink(missing_ok=True)

    def _set_aside(self, path: Path, problem: str) -> None:
        problem += "; it was removed, and is made again where it is needed"
        super()._set_aside(path, problem)
        log.warning("Head Forcing: %s (in %s)", problem, self.folder)
        path.unlink(missing_ok=True)
