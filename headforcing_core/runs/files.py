"""The files of a run folder: what they are called, how they are written whole, and how damage in them is noticed.

A file is called `KIND[-INDEX][-KEY]-HASH`, where the hash is that of its own bytes. Notes are JSON objects, all others
are safetensors with one entry of metadata, so that equal contents are equal files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import HeadForcingError
from ..hashing import SHORT, file_hash

FORMAT_VERSION = 2

_HEX = f"[0-9a-f]{{{SHORT}}}"
_NOTE = rf"(run|(video|found|opening|seconds)-{_HEX})-{_HEX}\.json"
_TENSORS = rf"(block|state|start)-\d{{5,}}-{_HEX}-{_HEX}\.safetensors"
_LEFTOVER = r"\.[0-9a-f]{32}\.tmp"  # of a process that was killed while writing
_OWN_NAME = re.compile(f"{_NOTE}|{_TENSORS}|{_LEFTOVER}")
_ENTRY = "head_forcing"  # of the metadata


class DamagedFile(HeadForcingError):
    """A file that does not hold what was once written to it."""


def named_hash(path: Path) -> str:
    """The hash in a file's name."""
    return path.stem.rpartition("-")[2]


def own_files(folder: Path) -> list[Path]:
    """The files in a folder that have a name of ours, leftovers included; whatever else lies there is not."""
    return [path for path in sorted(folder.iterdir()) if _OWN_NAME.fullmatch(path.name) and path.is_file()]


def files_of(folder: Path, kind: str) -> dict[str, Path]:
    """The files of one kind by the key in their name (`run` has none, its kind stands for it), from one listing.

    Of two with one key, which a kill can leave, the later one: what came after it was made from it.
    """
    found: dict[str, Path] = {}
    for name in os.listdir(folder) if folder.is_dir() else ():
        if name.startswith(f"{kind}-") and _OWN_NAME.fullmatch(name):
            path, key = folder / name, name.split("-")[-2]
            found[key] = max(path, found[key], key=_written) if key in found else path
    return found


def _written(path: Path) -> tuple[int, str]:
    return (path.stat().st_mtime_ns if path.exists() else 0), path.name


def read_note(path: Path, any_version: bool = False) -> dict[str, Any]:
    """The fields of a JSON note; `DamagedFile` unless it is as it was written."""
    _check_hash(path)
    note = _object(path, path.read_text(encoding="utf-8"))
    if not any_version:
        _check_version(path, note)
    return note


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the fields that were stored with them; `DamagedFile` unless all is as it was written."""
    _check_hash(path)
    with safe_open(path, "pt") as file:
        fields = _object(path, (file.metadata() or {}).get(_ENTRY, ""))
        _check_version(path, fields)
        return {name: file.get_tensor(name) for name in file.keys()}, fields


def write_note(folder: Path, stem: str, fields: dict[str, Any]) -> Path:
    """Store JSON fields under a name that begins with `stem`."""
    text = json.dumps({"format_version": FORMAT_VERSION, **fields}, sort_keys=True, indent=1, default=str)
    return _write(folder, stem, ".json", lambda path: path.write_text(text, encoding="utf-8"))


def write_tensors(folder: Path, stem: str, tensors: dict[str, Tensor], fields: dict[str, Any]) -> Path:
    """Store tensors and JSON fields under a name that begins with `stem`."""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    entry = {_ENTRY: json.dumps({"format_version": FORMAT_VERSION, **fields}, sort_keys=True)}
    return _write(folder, stem, ".safetensors", lambda path: save_file(held, path, metadata=entry))


def _write(folder: Path, stem: str, suffix: str, write: Callable[[Path], Any]) -> Path:
    temporary = folder / f".{uuid.uuid4().hex}.tmp"
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        path = folder / f"{stem}-{file_hash(temporary)}{suffix}"
        os.replace(temporary, path)
        return path
    except (OSError, SafetensorError) as error:
        free = shutil.disk_usage(folder).free / 1e9
        raise HeadForcingError(
            f"{folder} cannot be written ({error}; {free:.1f} GB free): make room and queue the same render again, "
            "everything finished so far is kept there"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _object(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DamagedFile(f"{path.name} is no file of a run")
    return found


def _check_hash(path: Path) -> None:
    if file_hash(path) != named_hash(path):
        raise DamagedFile(f"{path.name} is damaged")


def _check_version(path: Path, fields: dict[str, Any]) -> None:
    version = fields.get("format_version")
    if version != FORMAT_VERSION:
        raise HeadForcingError(
            f"{path} has format version {version}, this version of Head Forcing reads {FORMAT_VERSION}; "
            "update the pack, or move the folder away"
        )


FOUND = "found"  # kind of the file that holds what the warm-up of an auto profile found


OPENING = "opening"  # of the one with the memory events of start blocks


SECONDS = "seconds"  # of the one with the seconds a block took
