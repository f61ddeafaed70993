"""Files of a run folder: names, atomic writing, detection of damage.

A file is named `KIND[-INDEX][-KEY]-HASH`, where HASH is a hash of its own bytes. Notes are JSON
objects, thumbnails JPEG; all other files are safetensors with a single metadata entry, because
several would be written in random order and equal contents would then give different files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import HeadForcingError
from ..files import Fields, explained, opened_folder, reason, remove_from, sync_folder
from ..hashing import SHORT, file_hash
from .notes import MOST_BYTES, fits

FORMAT_VERSION = 3

_HEX = f"[0-9a-f]{{{SHORT}}}"
# notes of earlier versions: "found", of roles that they found while sampling, and "opening", of
# what episodic memory decided about start blocks
_NOTE = rf"(run|(video|found|opening|seconds|label)-{_HEX})-{_HEX}\.json"
_TENSORS = rf"(block|state|frame|start)-\d{{5,}}-{_HEX}-{_HEX}\.safetensors"
# temporary files of a process that was killed while writing: of this module, of safetensors, of
# `check_writable`
LEFTOVER = r"\.[0-9a-f]{32}\.tmp|\.tmp[0-9A-Za-z]{6}|\.(run|probe)\.[0-9a-f]{8}(\.json)?"
_PICTURE = rf"thumbnail-{_HEX}-{_HEX}\.jpg"
_OWN_NAME = re.compile(f"{_NOTE}|{_TENSORS}|{_PICTURE}|{LEFTOVER}")
_ENTRY = "head_forcing"  # key of the metadata entry

# kinds of notes whose names other modules need
# of a finished video: the seconds that a block took, and what else a report says
FINISHED = "seconds"
LABEL = "label"  # of a video: the words of people on it, and its file
THUMBNAIL = "thumbnail"  # small picture of a block


class DamagedFile(HeadForcingError):
    """A file whose content is not what was written to it."""


def kind_of(path: Path) -> str:
    """The kind in a file's name."""
    return path.name.partition("-")[0]


def key_of(path: Path) -> str:
    """The key in a file's name; of the note `run`, which has none, "run"."""
    return path.stem.rpartition("-")[0].rpartition("-")[2]


def named_hash(path: Path) -> str:
    """The hash in a file's name."""
    return path.stem.rpartition("-")[2]


def own_files(folder: Path) -> list[Path]:
    """The files in a folder with names of this module, including temporary ones of killed
    processes, sorted.

    Raises HeadForcingError if the folder cannot be read; one that is gone has no files.
    """
    with explained(f"{folder} cannot be read"):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return [path for path in paths if _OWN_NAME.fullmatch(path.name) and path.is_file()]


def files_of(folder: Path, kind: str) -> dict[str, Path]:
    """The files of one kind by the key in their names; the file of kind `run` has no key and is
    listed as "run".

    A killed process can leave two files with one key. The later one is returned, because the files
    written after it depend on it.
    """
    found = [path for path in own_files(folder) if kind_of(path) == kind]
    return {key_of(path): path for path in sorted(found, key=_written)}


def _written(path: Path) -> tuple[int, str]:
    """Sort key: modification time in ns, then name."""
    with suppress(OSError):  # a render has just replaced it
        return path.stat().st_mtime_ns, path.name
    return 0, path.name


def read_note(path: Path) -> Fields:
    """The fields of a JSON note.

    Raises DamagedFile if the content has changed or is of another file, HeadForcingError for
    another format version.
    """
    if path.stat().st_size > MOST_BYTES:
        raise DamagedFile(f"{path.name} is not a file of a run")
    return _fields(path, read_bytes(path))


def read_block_tensors(path: Path) -> tuple[dict[str, Tensor], Fields]:
    """Tensors by name, and the JSON fields stored with them; raises as `read_note`."""
    _check_hash(path)
    fields = read_fields(path)
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, fields


def read_stored_latents(path: Path) -> tuple[dict[str, Tensor], Fields]:
    """`read_block_tensors` of a block or of start frames, with `latents [frames, channels, h, w]`
    among the tensors; raises as `read_note`.
    """
    tensors, fields = read_block_tensors(path)
    latents = tensors.get("latents")
    if (
        latents is None
        or latents.ndim != 4
        or latents.dtype != torch.float32
        or not latents.numel()
        or not torch.isfinite(latents).all()
    ):
        raise DamagedFile(f"{path.name} holds no latents")
    return tensors, fields


def read_fields(path: Path) -> Fields:
    """The JSON fields that are stored with tensors; raises as `read_note`, but does not see what
    has changed in the tensors.
    """
    try:
        with safe_open(path, "pt") as file:
            return _fields(path, (file.metadata() or {}).get(_ENTRY, ""))
    except SafetensorError as error:
        raise DamagedFile(f"{path.name} is not a file of a run") from error


def read_bytes(path: Path) -> bytes:
    """The bytes of a file; raises DamagedFile if they have changed."""
    _check_hash(path)
    return path.read_bytes()


def write_bytes(folder: Path, stem: str, suffix: str, data: bytes) -> Path:
    """Store bytes in a new file `STEM-HASH` with this suffix; returns its path."""
    return _write(folder, stem, suffix, lambda path: path.write_bytes(data))


def write_note(folder: Path, stem: str, fields: Fields) -> Path:
    """Store JSON fields in a new file `STEM-HASH.json`; returns its path."""
    text = json.dumps(
        {"format_version": FORMAT_VERSION, **fields}, sort_keys=True, indent=1, default=str
    )
    return write_bytes(folder, stem, ".json", text.encode("utf-8"))


def write_tensors(folder: Path, stem: str, tensors: dict[str, Tensor], fields: Fields) -> Path:
    """Store tensors and JSON fields in a new file `STEM-HASH.safetensors`; returns its path."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    entry = {_ENTRY: json.dumps({"format_version": FORMAT_VERSION, **fields}, sort_keys=True)}
    return _write(
        folder, stem, ".safetensors", lambda path: save_file(on_cpu, path, metadata=entry)
    )


def _write(folder: Path, stem: str, suffix: str, write: Callable[[Path], Any]) -> Path:
    """Write a temporary file, flush it to disk and rename it to `STEM-HASH`; HeadForcingError if
    the disk fails.
    """
    with opened_folder(folder) as handle:
        try:
            return _write_new(folder, stem, suffix, write)
        except HeadForcingError:
            # also in a folder that was renamed meanwhile
            for name in [] if handle is None else os.listdir(handle):
                if re.fullmatch(LEFTOVER, name):
                    remove_from(handle, folder / name)
            raise


def _write_new(folder: Path, stem: str, suffix: str, write: Callable[[Path], Any]) -> Path:
    temporary = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        path = folder / f"{stem}-{file_hash(temporary)}{suffix}"
        os.replace(temporary, path)
        sync_folder(folder)
        return path
    except (OSError, SafetensorError) as error:
        advice = ": the folder is gone; queue the same render again"
        with suppress(OSError):
            advice = (
                f" ({shutil.disk_usage(folder).free / 1e9:.1f} GB free): make room and queue the "
                "same render again, everything finished so far is kept there"
            )
        raise HeadForcingError(f"{reason(error)}: {folder} cannot be written{advice}") from error
    finally:
        with suppress(OSError):  # the next run removes it
            temporary.unlink(missing_ok=True)


def _check_hash(path: Path) -> None:
    if file_hash(path) != named_hash(path):
        raise DamagedFile(f"{path.name} is damaged")


def _fields(path: Path, text: str | bytes) -> Fields:
    known = False
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        fields = json.loads(text)
        version = fields["format_version"]
        known = version != FORMAT_VERSION or fits(kind_of(path), fields)
    if not known:
        raise DamagedFile(f"{path.name} is not a file of a run")
    if version != FORMAT_VERSION:
        raise HeadForcingError(
            f"{path} has format version {version!r}, this version of Head Forcing reads "
            f"{FORMAT_VERSION}; update the pack, or move the folder away"
        )
    return fields
