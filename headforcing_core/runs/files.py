"""Files of a run folder: names, atomic writing, detection of damage.

A file is named `KIND[-INDEX][-KEY]-HASH`, where HASH is a hash of its own bytes. Notes are JSON objects; all other
files are safetensors with a single metadata entry, because several would be written in random order and equal contents
would then give different files.
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
_LEFTOVER = r"\.[0-9a-f]{32}\.tmp"  # temporary file of a process that was killed while writing
_OWN_NAME = re.compile(f"{_NOTE}|{_TENSORS}|{_LEFTOVER}")
_ENTRY = "head_forcing"  # key of the metadata entry

# kinds of notes whose names other modules need
FOUND = "found"  # head profile and memory events of the warm-up of an auto profile
OPENING = "opening"  # memory events of the start blocks
SECONDS = "seconds"  # seconds that a block took


class DamagedFile(HeadForcingError):
    """A file whose content is not what was written to it."""


def named_hash(path: Path) -> str:
    """The hash in a file's name."""
    return path.stem.rpartition("-")[2]


def own_files(folder: Path) -> list[Path]:
    """The files in a folder with names of this module, including temporary ones of killed processes, sorted."""
    return [path for path in sorted(folder.iterdir()) if _OWN_NAME.fullmatch(path.name) and path.is_file()]


def files_of(folder: Path, kind: str) -> dict[str, Path]:
    """The files of one kind by the key in their names; the file of kind `run` has no key and is listed as "run".

    A killed process can leave two files with one key. The later one is returned, because the files written after it
    depend on it.
    """
    by_key: dict[str, Path] = {}
    for name in os.listdir(folder) if folder.is_dir() else ():
        if name.startswith(f"{kind}-") and _OWN_NAME.fullmatch(name):
            path, key = folder / name, name.split("-")[-2]
            by_key[key] = max(path, by_key[key], key=_written) if key in by_key else path
    return by_key


def _written(path: Path) -> tuple[int, str]:
    """Sort key: modification time in ns, then name."""
    return (path.stat().st_mtime_ns if path.exists() else 0), path.name


def read_note(path: Path, any_version: bool = False) -> dict[str, Any]:
    """The fields of a JSON note.

    Raises DamagedFile if the content has changed, HeadForcingError for another format version unless `any_version`.
    """
    _check_hash(path)
    note = _object(path, path.read_text(encoding="utf-8"))
    if not any_version:
        _check_version(path, note)
    return note


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and the JSON fields stored with them.

    Raises DamagedFile if the content has changed, HeadForcingError for another format version.
    """
    _check_hash(path)
    with safe_open(path, "pt") as file:
        fields = _object(path, (file.metadata() or {}).get(_ENTRY, ""))
        _check_version(path, fields)
        return {name: file.get_tensor(name) for name in file.keys()}, fields


def write_note(folder: Path, stem: str, fields: dict[str, Any]) -> Path:
    """Store JSON fields in a new file `STEM-HASH.json`; returns its path."""
    text = json.dumps({"format_version": FORMAT_VERSION, **fields}, sort_keys=True, indent=1, default=str)
    return _write(folder, stem, ".json", lambda path: path.write_text(text, encoding="utf-8"))


def write_tensors(folder: Path, stem: str, tensors: dict[str, Tensor], fields: dict[str, Any]) -> Path:
    """Store tensors and JSON fields in a new file `STEM-HASH.safetensors`; returns its path."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    entry = {_ENTRY: json.dumps({"format_version": FORMAT_VERSION, **fields}, sort_keys=True)}
    return _write(folder, stem, ".safetensors", lambda path: save_file(on_cpu, path, metadata=entry))


def _write(folder: Path, stem: str, suffix: str, write: Callable[[Path], Any]) -> Path:
    """Write a temporary file, flush it to disk and rename it to `STEM-HASH`; HeadForcingError if the disk fails."""
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
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise DamagedFile(f"{path.name} is not a file of a run")
    return fields


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
