"""Models in several files: which files belong together, from any one of them, their index, or their
folder.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ..errors import HeadForcingError

_INDEX = ".index.json"
_NUMBERED = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{1,5})-of-(?P<count>\d{1,5})(?P<ending>\.(?:safetensors|bin|pt|pth))"
)
_MOST_FILES = 1000
_MOST_INDEX_BYTES = 16 << 20
# any file of a model in several has such a name
NAMES = re.compile(r"-of-\d|^(?:non_)?block|\.index\.json$")
# LightX2V: a file for each layer, and one for the rest
_BLOCK = re.compile(r"block_(\d{1,3})\.safetensors")
_REST = "non_block.safetensors"


def shard_files(path: Path) -> list[Path]:
    """The files of a model, in order: several, or a whole one.

    `path` is one of the files, the index that names them, or the folder that holds one such model.
    Raises HeadForcingError that names a missing file.
    """
    if os.path.isdir(path):  # also for names that the system does not allow
        return _in_folder(path)
    if path.name.endswith(_INDEX):
        return _of_index(path)
    numbered = _NUMBERED.fullmatch(path.name)
    if numbered is not None:
        return _numbered(path, numbered)
    if _BLOCK.fullmatch(path.name) or path.name == _REST:
        return _by_block(path.parent)
    return [path]


def _in_folder(folder: Path) -> list[Path]:
    indices = sorted(folder.glob(f"*{_INDEX}"))
    if len(indices) == 1:
        return _of_index(indices[0])
    if (folder / _REST).is_file():
        return _by_block(folder)
    numbered = [path for path in folder.glob("*-of-*") if _NUMBERED.fullmatch(path.name)]
    if numbered and not indices:
        return shard_files(min(numbered))
    raise HeadForcingError(f"{folder} is a folder: choose a file in it")


def _of_index(index: Path) -> list[Path]:
    try:
        if index.stat().st_size > _MOST_INDEX_BYTES:
            raise ValueError("it is too large")
        fields = json.loads(index.read_text("utf-8"))
        names = set(fields["weight_map"].values())
        if not 0 < len(names) <= _MOST_FILES or any(Path(name).name != name for name in names):
            raise ValueError("it names no files beside it")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HeadForcingError(
            f"{index.name} is no index of a model in several files ({str(error)[:80]}): download "
            "it again"
        ) from error
    return _present([index.with_name(name) for name in sorted(names)])


def _numbered(path: Path, found: re.Match[str]) -> list[Path]:
    count = int(found["count"])
    if not 0 < count <= _MOST_FILES:
        raise HeadForcingError(
            f"{path.name} states {count} files, expected 1 to {_MOST_FILES}: rename it"
        )
    digits = len(found["number"])
    end = f"of-{found['count']}{found['ending']}"
    numbers = range(1, count + 1)
    return _present(
        [path.with_name(f"{found['stem']}-{number:0{digits}}-{end}") for number in numbers]
    )


def _by_block(folder: Path) -> list[Path]:
    blocks = [_BLOCK.fullmatch(path.name) for path in folder.glob("block_*.safetensors")]
    last = max((int(block[1]) for block in blocks if block), default=0)
    layers = [folder / f"block_{number}.safetensors" for number in range(last + 1)]
    return _present([folder / _REST, *layers])


def _present(files: list[Path]) -> list[Path]:
    missing = [path for path in files if not path.is_file()]
    if missing:
        raise HeadForcingError(
            f"{missing[0].name} is missing, one of the {len(files)} files of this model: download "
            "it, too"
        )
    return files
