"""A run folder stores finished blocks on disk, so that an interrupted render can be resumed.

Blocks are content-addressed. A block's key is a hash of everything it depends on: the setup
(weights, head roles, size, schedule, seed ...), and the prompts and switches of all blocks up to
it. Repeating a render therefore finds all its blocks; a longer render finds and extends those of
the shorter one; a render with another prompt k finds all blocks before that prompt. If a
block depends on the next ones, too (`Method.blocks_ahead`), its key covers them, and what the
method needs besides finished blocks (`Block.extra`) is stored with it.

A key cannot cover the rounding of a machine. Each block therefore stores the file hash of the block
before it, and a cache state that of its block, so that blocks of two renders with equal keys but
different rounding are never combined.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from filelock import FileLock
from torch import Tensor

from ..cache.memory import MemoryEvent
from ..cache.state import State
from ..errors import HeadForcingError
from ..files import Fields, check_writable, lock, reason, remove_matching, unlock
from ..hashing import SHORT
from .files import (
    LABEL,
    LEFTOVER,
    DamagedFile,
    files_of,
    named_hash,
    read_block_tensors,
    read_note,
    read_stored_latents,
    write_note,
    write_tensors,
)
from .frames import read_frames, remove_unnamed_frames, write_frames

log = logging.getLogger(__name__)

Content = TypeVar("Content")


def count_blocks(folder: Path, keys: Sequence[str]) -> int:
    """Number of leading `keys` with a block file in a run folder; the files are not read."""
    stored = files_of(folder, "block")
    return next((place for place, key in enumerate(keys) if key[:SHORT] not in stored), len(keys))


class Take(NamedTuple):
    """The number of a video among those of its workflow, from 1, and when its first render was
    begun, in seconds since 1970.

    Without a workflow it is that among the videos that begin with the same prompt: with another
    seed, size, later prompt or length it is another take.
    """

    number: int
    begun: float


def take_of(folder: Path, key: str, about: Fields) -> Take:
    """The take of a run folder's video, by the key in its name: that of its note, or the next one
    of the workflow or story that `about` tells, begun now. A video that another workflow made first
    gets a number here."""
    highest = 0
    begun = time.time()
    for run in [path for path in folder.parent.iterdir() if path.is_dir()]:
        with suppress(HeadForcingError):  # told where its videos are listed
            for video, path in files_of(run, "video").items():
                with suppress(HeadForcingError, OSError):
                    note = read_note(path)
                    is_here = _counted_in(note["about"]) == _counted_in(about)
                    if (run, video) == (folder, key):
                        begun = note["begun"]
                        if is_here:
                            return Take(note["take"], begun)
                    elif is_here:
                        highest = max(highest, note["take"])
    return Take(highest + 1, begun)


def _counted_in(about: Fields) -> Any:
    """The workflow or else the story whose takes are counted."""
    return about.get("workflow") or about["prompts"][:1]


@dataclass(frozen=True)
class StoredBlock:
    """A stored block."""

    latents: Tensor  # `[frames, channels, h, w]`
    event: MemoryEvent | None  # decision of episodic memory after the block
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # as in `rollout.loop.Block`


class RunReader:
    """Reads the files of one setup and never changes them.

    Attributes:
        problems: descriptions of damaged files, one sentence each.
    """

    def __init__(self, folder: Path, setup: str):
        self.folder = folder
        self.setup = setup
        self.problems: list[str] = []
        # file hash of every block that was read or saved, by key
        self._block_hashes: dict[str, str] = {}

    def read_blocks(self, keys: Sequence[str]) -> Iterator[StoredBlock]:
        """The stored blocks of the leading `keys`, up to the first that is missing or damaged."""
        before = ""
        size: tuple[int, ...] = ()
        files = files_of(self.folder, "block")
        for key in keys:
            path = files.get(key[:SHORT])
            content = self._read(path, read_stored_latents)
            # names have a part of the key only: compare the whole
            if path is None or content is None or content[1]["key"] != key:
                return
            tensors, fields = content
            latents = tensors.pop("latents")
            size = size or latents.shape[1:]
            if fields["after"] != before or latents.shape[1:] != size:
                self._set_aside(path, f"{path.name} does not continue the block before it")
                return
            before = self._block_hashes[key] = named_hash(path)
            event = fields["event"]
            if event is not None:
                event = MemoryEvent(**event)
            yield StoredBlock(latents, event, tensors)

    def load_blocks(self, keys: Sequence[str]) -> list[StoredBlock]:
        """`read_blocks` as a list; only the last block keeps its `extra`, to save memory."""
        blocks: list[StoredBlock] = []
        for block in self.read_blocks(keys):
            if blocks:
                blocks[-1] = replace(blocks[-1], extra={})
            blocks.append(block)
        return blocks

    def load_state(self, keys: Sequence[str]) -> State | None:
        """The latest intact cache state after one of these blocks, which must have been read; None
        without one.
        """
        files = files_of(self.folder, "state")
        for key in reversed(keys):
            state = self._read(files.get(key[:SHORT]), partial(self._read_state, key=key))
            if state is not None:
                return state
        return None

    def _read_state(self, path: Path, key: str) -> State | None:
        """The state in a file; None if it does not continue the block with this key."""
        tensors, fields = read_block_tensors(path)
        if fields["after"] != self._block_hashes.get(key):
            return None
        frames = read_frames(self.folder, fields.get("frames", ()), state=path)
        return State(tensors, fields["plain"], frames)

    def load_start(self) -> Tensor | None:
        """The start frames `[frames, channels, h, w]`, None if there are none."""
        path = files_of(self.folder, "start").get(self.setup[:SHORT])
        content = self._read(path, read_stored_latents)
        if content is None or content[1]["key"] != self.setup:
            return None
        return content[0]["latents"]

    def load_note(self, kind: str, key: str) -> Fields | None:
        """The note of a kind that belongs to a block, None without one."""
        return self._read(files_of(self.folder, kind).get(key[:SHORT]), read_note)

    def _read(self, path: Path | None, read: Callable[[Path], Content]) -> Content | None:
        """The content of a file, read by `read`; None if it is missing or damaged."""
        if path is None:
            return None
        try:
            # else the render that holds the lock has just replaced it
            with suppress(FileNotFoundError):
                return read(path)
        except DamagedFile as error:
            self._set_aside(path, str(error))
        except OSError as error:  # of the disk: the file may be intact, so it stays
            self._note(f"{path.name} cannot be read ({reason(error)})")
        return None

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _set_aside(self, path: Path, problem: str) -> None:
        """Record the problem of a file that is not used."""
        self._note(problem)


class RunFolder(RunReader):
    """Reads and writes the files of one setup. Use as a context manager: it locks the folder for
    one process.

    Damaged files are removed, so that they are generated again. Entering raises HeadForcingError if
    another process has the lock and keeps it for `patience` seconds, or if the folder cannot be
    written.
    """

    def __init__(self, parent: Path, setup: str, about: Fields, patience: float = 0.0):
        super().__init__(parent / setup[:SHORT], setup)
        self.about = about
        self.patience = patience
        self._lock: FileLock

    def __enter__(self) -> RunFolder:
        check_writable(self.folder / "run.json")
        held = lock(self.folder / "lock", self.patience)
        if held is None:
            raise HeadForcingError(
                f"another render is writing to {self.folder}; wait for it, or change the seed of "
                "this one"
            )
        self._lock = held
        try:
            remove_matching(self.folder, LEFTOVER, older_than=0.0)
            self.save_note("run", "", {"setup": self.setup, "about": self.about})
            remove_unnamed_frames(self.folder)  # of a render that was killed before its state
        except BaseException:
            unlock(held)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        unlock(self._lock)

    def save_block(
        self,
        index: int,
        key: str,
        latents: Tensor,
        event: MemoryEvent | None,
        extra: Mapping[str, Tensor] = MappingProxyType({}),
        previous: str | None = None,
    ) -> None:
        """Store a finished block `[frames, channels, h, w]`.

        Args:
            event: decision of episodic memory after the block.
            extra: as in `rollout.loop.Block`.
            previous: key of the block before, which must have been read or saved; None for the
                first generated block.
        """
        tensors = {"latents": latents.float()}
        tensors |= {name: tensor.float() for name, tensor in extra.items()}
        after = "" if previous is None else self._block_hashes[previous]
        stored = self._write_tensors(
            "block", index, key, tensors, event=event and event.to_dict(), after=after
        )
        self._block_hashes[key] = named_hash(stored)

    def save_state(self, index: int, key: str, state: State) -> None:
        """Store the cache state after a block and remove older states: resuming needs only the
        latest.

        The frames of scenes come first, those that are not stored yet; at last those go that only
        older states had.
        """
        write_frames(self.folder, key, state.frames)
        stored = self._write_tensors(
            "state",
            index,
            key,
            state.tensors,
            plain=state.plain,
            frames=[frame.file for frame in state.frames],
            after=self._block_hashes[key],
        )
        self._remove("state-*.safetensors", older_than=stored)
        remove_unnamed_frames(self.folder)

    def save_start(self, latents: Tensor) -> Tensor:
        """Store the start frames `[frames, channels, h, w]` of the setup, unless they are stored
        already; returns those.
        """
        stored = self.load_start()
        if stored is None:
            stored = latents.float().cpu()
            self._write_tensors("start", 0, self.setup, {"latents": stored})
        return stored

    def save_video(
        self, keys: Sequence[str], about: Fields, in_place_of: Sequence[str] = ()
    ) -> bool:
        """Store which blocks make up a video, in order, and its description; returns whether it was
        known already.

        A new video is the next take, or that of the video `in_place_of`, given by its keys, whose
        note it replaces; blocks stay.
        """
        after = keys[-1][:SHORT]
        before = in_place_of[-1][:SHORT] if in_place_of else after
        known = after in files_of(self.folder, "video")
        take = take_of(self.folder, after if known else before, about)
        note = {
            "setup": self.setup,
            "keys": list(keys),
            "about": about,
            "take": take.number,
            "begun": take.begun,
        }
        self.save_note("video", after, note)
        if before != after:
            label = files_of(self.folder, LABEL).get(before)
            if label is not None:
                label.rename(label.with_name(label.name.replace(before, after)))
            self._remove(f"video-{before}-*.json")
        return known

    def save_note(self, kind: str, key: str, fields: Fields) -> None:
        """Store JSON fields that belong to a block, or to the whole setup if `key` is empty."""
        stem = f"{kind}-{key[:SHORT]}" if key else kind
        # read first: reports damage, and raises before a newer format version is overwritten
        self.load_note(kind, key or kind)
        self._remove(f"{stem}-*.json", older_than=write_note(self.folder, stem, fields))

    def _write_tensors(
        self, kind: str, index: int, key: str, tensors: dict[str, Tensor], **fields: Any
    ) -> Path:
        stem = f"{kind}-{index:05}-{key[:SHORT]}"
        stored = write_tensors(self.folder, stem, tensors, {"key": key, **fields})
        self._remove(f"{kind}-*-{key[:SHORT]}-*.safetensors", older_than=stored)
        return stored

    def _remove(self, pattern: str, older_than: Path | None = None) -> None:
        """Remove files, but not the new one that has been stored in their place."""
        with suppress(OSError):  # of two with one key the later one counts
            for path in self.folder.glob(pattern):
                if older_than is None or path.name != older_than.name:
                    path.unlink(missing_ok=True)

    def _set_aside(self, path: Path, problem: str) -> None:
        problem += "; it was removed and is generated again if needed"
        super()._set_aside(path, problem)
        log.warning("Head Forcing: %s (in %s)", problem, self.folder)
        with suppress(OSError):  # the file that is made again counts, as the later one
            path.unlink(missing_ok=True)
