"""Frames that scenes keep, in files of a run folder: each is stored once, and states name it.

A frame never changes, and a minute with scenes has gigabytes of them: a state that is stored every
few minutes must not write them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..cache.state import KeptFrame, pack
from ..errors import HeadForcingError
from ..hashing import SHORT
from .files import DamagedFile, kind_of, own_files, read_block_tensors, read_fields, write_tensors

FRAME = "frame"  # kind of file


def write_frames(folder: Path, key: str, frames: Iterable[KeptFrame]) -> None:
    """Store the frames that have no file in the folder yet; `key` is that of the last block that
    was finished.
    """
    stored = {path.name for path in own_files(folder)}
    for frame in frames:
        if frame.file in stored:
            continue
        tensors = pack({"k": frame.k, "v": frame.v}).tensors
        fields = {"frame": frame.frame, "index": frame.index}
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
            layers = range(len(tensors) // 2)
            k = [tensors[f"state.k.{layer}"] for layer in layers]
            v = [tensors[f"state.v.{layer}"] for layer in layers]
        except (KeyError, FileNotFoundError, DamagedFile) as error:
            found = "damaged" if isinstance(error, DamagedFile) else "missing"
            raise DamagedFile(f"{state.name} is not used, because its {name} is {found}") from error
        frames.append(KeptFrame(fields["frame"], fields["index"], k=k, v=v, file=name))
    return frames


def remove_unnamed_frames(folder: Path) -> None:
    """Remove the files of frames that no stored state names; none if a state cannot be read."""
    named: set[str] = set()
    with suppress(HeadForcingError, OSError):  # what stays only takes room
        for state in folder.glob("state-*"):
            named.update(read_fields(state).get("frames", ()))
        for path in own_files(folder):
            if kind_of(path) == FRAME and path.name not in named:
                path.unlink(missing_ok=True)
