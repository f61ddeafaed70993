"""Frames that scenes keep, in files of a run folder: each is stored once, and states name it.

A frame never changes, and a minute with scenes has gigabytes of them: a state that is stored every
few minutes must not write them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..cache.state import KeptFrame
from ..errors import HeadForcingError
from ..hashing import SHORT
from .files import DamagedFile, own_files, read_block_tensors, read_fields, write_tensors

FRAME = "frame"  # kind of file


def write_frames(folder: Path, key: str, frames: Iterable[KeptFrame]) -> None:
    """Store the frames that have no file in the folder yet; `key` is that of the last block that
    was finished.
    """
    stored = {path.name for path in own_files(folder)}
    for frame in frames:
        if frame.file in stored:
            continue
        tensors = {f"k.{layer}": k for layer, k in enumerate(frame.k)}
        tensors |= {f"v.{layer}": v for layer, v in enumerate(frame.v)}
        fields = {"key": key, "frame": frame.frame, "index": frame.index}
        stem = f"{FRAME}-{frame.frame:05}-{key[:SHORT]}"
        frame.file = write_tensors(folder, stem, tensors, fields).name


def read_frames(folder: Path, names: Iterable[str], state: Path) -> list[KeptFrame]:
    """The frames in the files that a stored state names; DamagedFile if one is missing or
    damaged.
    """
    stored = {path.name: path for path in own_files(folder)}
    frames = []
    for name in names:
        try:
            tensors, fields = read_block_tensors(stored[name])
        except (KeyError, FileNotFoundError, DamagedFile) as error:
            found = "damaged" if isinstance(error, DamagedFile) else "missing"
            raise DamagedFile(f"{state.name} is not used, because its {name} is {found}") from error
        layers = range(len(tensors) // 2)
        frames.append(
            KeptFrame(
                frame=fields["frame"],
                index=fields["index"],
                k=[tensors[f"k.{layer}"] for layer in layers],
                v=[tensors[f"v.{layer}"] for layer in layers],
                file=name,
            )
        )
    return frames


def remove_unnamed_frames(folder: Path) -> None:
    """Remove the files of frames that no stored state names; none if a state cannot be read."""
    files = own_files(folder)
    named: set[str] = set()
    for path in files:
        if path.name.startswith("state-"):
            try:
                named.update(read_fields(path).get("frames", ()))
            except DamagedFile:  # it will not be used
                continue
            except (HeadForcingError, OSError):
                return
    for path in files:
        if path.name.startswith(f"{FRAME}-") and path.name not in named:
            with suppress(OSError):  # it only takes room
                path.unlink()
