"""A run folder: finished blocks on disk, so that a render goes on where it stopped.

Blocks are stored by content. A block's key is a hash of everything it depends on: the setup (weights, head roles, size,
schedule, seed ...), and the prompts and switches of all blocks up to it. The same render queued again therefore finds
its blocks; a longer one finds those of the shorter and extends it; one with another prompt k finds all blocks before
that prompt. Where blocks are made together (Rolling Forcing), a block's key covers those made with it, and they are
stored beside it as they were then.

Every file carries a hash of its own bytes in its name, is written under a temporary name and moved, and is checked when
it is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .cache_state import State
from .errors import HeadForcingError
from .files import check_writable
from .memory import MemoryEvent

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
SHORT = 16  # characters of a hash in a file name


def digest(*parts: Any) -> str:
    """A hash of JSON values and tensors, in order."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            found.update(str((part.dtype, tuple(part.shape))).encode())
            found.update(part.detach().cpu().float().contiguous().numpy().tobytes())
        else:
            found.update(json.dumps(part, sort_keys=True, default=str).encode())
        found.update(b"\0")
    return found.hexdigest()


def block_keys(setup: str, prompts: Sequence[str]) -> list[str]:
    """The key of every block, from the setup's hash and the hash of each block's prompt and switch."""
    keys, key = [], setup
    for prompt in prompts:
        key = digest(key, prompt)
        keys.append(key)
    return keys


def count_blocks(folder: Path, keys: Sequence[str]) -> int:
    """How many blocks at the beginning of `keys` are stored in a run folder, by their names."""
    there = {path.name.split("-")[2] for path in folder.glob("block-*.safetensors")}
    return next((place for place, key in enumerate(keys) if key[:SHORT] not in there), len(keys))


@dataclass(frozen=True)
class StoredBlock:
    """A finished block as it was stored; `unfinished` are those begun after it, where several are made together."""

    latents: Tensor
    event: MemoryEvent | None
    unfinished: tuple[Tensor, ...] = ()


class RunFolder:
    """The files of one setup. Use as a context manager: it belongs to one process at a time.

    Attributes:
        problems: what was found damaged and will be made again, one sentence each.
    """

    def __init__(self, parent: Path, setup: str, about: dict[str, Any]):
        self.folder = parent / setup[:SHORT]
        self.setup, self.about = setup, about
        self.problems: list[str] = []
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
            self._check_version()
            for leftover in self.folder.glob(".*.tmp"):  # of a process that was killed while writing
                leftover.unlink(missing_ok=True)
            self._write_json("run", {"setup": self.setup, "about": self.about})
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    # --- blocks

    def load_blocks(self, keys: Sequence[str]) -> list[StoredBlock]:
        """The finished blocks at the beginning of `keys`, up to the first that is missing or damaged.

        Only the last one has its `unfinished`.
        """
        blocks: list[StoredBlock] = []
        for key in keys:
            found = self._load("block", key)
            if found is None:
                break
            tensors, plain = found
            event = plain["event"]
            if blocks:
                blocks[-1] = replace(blocks[-1], unfinished=())
            unfinished = tuple(tensors["unfinished"].unbind()) if "unfinished" in tensors else ()
            blocks.append(StoredBlock(tensors["latents"], None if event is None else MemoryEvent(**event), unfinished))
        return blocks

    def save_block(
        self,
        index: int,
        key: str,
        latents: Tensor,
        event: MemoryEvent | None,
        unfinished: Sequence[Tensor] = (),
    ) -> None:
        """Store a finished block `[frames, 16, h, w]`, what episodic memory did after it, and those that are begun."""
        plain = {"event": None if event is None else event.to_dict()}
        tensors = {"latents": latents.float()}
        if unfinished:
            tensors["unfinished"] = torch.stack(tuple(unfinished)).float()
        self._save("block", index, key, tensors, plain)

    # --- cache states

    def load_state(self, keys: Sequence[str]) -> State | None:
        """The latest intact cache state after one of these blocks."""
        for key in reversed(keys):
            found = self._load("state", key)
            if found is not None:
                return found
        return None

    def save_state(self, index: int, key: str, state: State) -> None:
        """Store the cache state after a block; older states are removed, one is enough."""
        self._keep_only(self._save("state", index, key, *state), "state-*.safetensors")

    def save_start(self, latents: Tensor) -> None:
        """Store the start frames `[frames, 16, h, w]` that the whole setup begins with."""
        if self._load("start", self.setup) is None:
            self._save("start", 0, self.setup, {"latents": latents.float()}, {})

    def load_start(self) -> Tensor | None:
        """The start frames, where there are some."""
        found = self._load("start", self.setup)
        return None if found is None else found[0]["latents"]

    # --- small things

    def save_video(self, keys: Sequence[str], about: dict[str, Any]) -> None:
        """Note which blocks make up a video, in order, and what it is."""
        self._write_json(f"video-{keys[-1][:SHORT]}", {"keys": list(keys), "about": about})

    def save_text(self, kind: str, key: str, text: str) -> None:
        """Store a small text that belongs to a block."""
        self._store(f"{kind}-{key[:SHORT]}", ".json", lambda path: path.write_text(text, encoding="utf-8"))

    def save_events(self, kind: str, key: str, events: Sequence[MemoryEvent]) -> None:
        """Store memory events that belong to no stored block."""
        self.save_text(kind, key, json.dumps({"events": [event.to_dict() for event in events]}))

    def load_events(self, kind: str, keys: Sequence[str]) -> list[MemoryEvent]:
        """The events in a text of that kind; none where there is no such text."""
        text = self.load_text(kind, keys)
        return [] if text is None else [MemoryEvent(**event) for event in json.loads(text)["events"]]

    def load_text(self, kind: str, keys: Sequence[str]) -> str | None:
        """The text of that kind that belongs to one of these blocks."""
        for key in keys:
            path = self._find(f"{kind}-{key[:SHORT]}-*.json")
            if path is not None and self._intact(path):
                return path.read_text(encoding="utf-8")
        return None

    # --- files

    def _check_version(self) -> None:
        path = self._find("run-*.json")
        if path is None or not self._intact(path):
            return
        version = json.loads(path.read_text(encoding="utf-8")).get("format_version")
        if version != FORMAT_VERSION:
            raise HeadForcingError(
                f"{path} has format version {version}, this version of Head Forcing reads {FORMAT_VERSION}; "
                "update the pack, or move the folder away"
            )

    def _save(self, kind: str, index: int, key: str, tensors: dict[str, Tensor], plain: dict[str, Any]) -> Path:
        tags = {"plain": json.dumps(plain), "key": key}
        held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        stem = f"{kind}-{index:05}-{key[:SHORT]}"
        return self._store(stem, ".safetensors", lambda path: save_file(held, path, metadata=tags))

    def _load(self, kind: str, key: str) -> State | None:
        path = self._find(f"{kind}-*-{key[:SHORT]}-*.safetensors")
        if path is None or not self._intact(path):
            return None
        with safe_open(path, "pt") as file:
            tags = file.metadata()
            if tags["key"] != key:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(tags["plain"])

    def _write_json(self, stem: str, fields: dict[str, Any]) -> None:
        text = json.dumps({"format_version": FORMAT_VERSION, **fields}, indent=1, default=str)
        stored = self._store(stem, ".json", lambda path: path.write_text(text, encoding="utf-8"))
        self._keep_only(stored, f"{stem}-*.json")

    def _keep_only(self, stored: Path, pattern: str) -> None:
        """Remove older files, once the new one is safe."""
        for path in self.folder.glob(pattern):
            if path.name != stored.name:
                path.unlink(missing_ok=True)

    def _store(self, stem: str, suffix: str, write: Callable[[Path], Any]) -> Path:
        temporary = self.folder / f".{uuid.uuid4().hex}.tmp"
        try:
            write(temporary)
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())
            path = self.folder / f"{stem}-{file_hash(temporary)}{suffix}"
            os.replace(temporary, path)
            return path
        except (OSError, SafetensorError) as error:
            free = shutil.disk_usage(self.folder).free / 1e9
            raise HeadForcingError(
                f"{self.folder} cannot be written ({error}; {free:.1f} GB free): make room and queue the "
                "same render again, everything finished so far is kept there"
            ) from error
        finally:
            temporary.unlink(missing_ok=True)

    def _find(self, pattern: str) -> Path | None:
        return next(iter(sorted(self.folder.glob(pattern))), None)

    def _intact(self, path: Path) -> bool:
        if file_hash(path) == path.stem.rpartition("-")[2]:
            return True
        self.problems.append(f"{path.name} is damaged and will be made again")
        log.warning("Head Forcing: %s in %s is damaged and will be made again", path.name, self.folder)
        path.unlink(missing_ok=True)
        return False


def file_hash(path: Path) -> str:
    """A hash of a file's bytes, as it stands in the name of every file of a run."""
    found = hashlib.blake2b(digest_size=SHORT // 2)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            found.update(chunk)
    return found.hexdigest()
