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
_MAX_INDEX_BYTES = 8_000_000  # of a 14B model it has 0.1 MB
_NUMBERED = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{1,5})-of-(?P<count>0*[1-9]\d{0,2})"
    r"(?P<ending>\.(?:safetensors|bin|pt|pth))"
)
# any file of a model in several has such a name
NAMES = re.compile(r"-of-\d|^(?:non_)?block|\.index\.json$")
# LightX2V: a file for each layer, and one for the rest
_BLOCK = re.compile(r"block_(\d{1,3})\.safetensors")
_REST = "non_block.safetensors"
# the files of a folder by which the others are found
_FIRST = (re.compile(r".*\.index\.json"), re.compile(r"non_block\.safetensors"), _NUMBERED)


def shard_files(path: Path) -> list[Path]:
    """The files of a model, in order: several, or a whole one.

    `path` is one of the files, the index that names them, or the folder that holds one such model.
    Raises HeadForcingError that names a missing file.
    """
    if os.path.isdir(path):  # also for names that the system does not allow
        path = _first_file(path)
    numbered = _NUMBERED.fullmatch(path.name)
    if path.name.endswith(_INDEX):
        names = _names_in(path)
    elif numbered is not None:
        digits = len(numbered["number"])
        end = f"of-{numbered['count']}{numbered['ending']}"
        numbers = range(1, int(numbered["count"]) + 1)
        names = [f"{numbered['stem']}-{number:0{digits}}-{end}" for number in numbers]
    elif _BLOCK.fullmatch(path.name) or path.name == _REST:
        blocks = [_BLOCK.fullmatch(each.name) for each in path.parent.glob("block_*")]
        last = max((int(block[1]) for block in blocks if block), default=0)
        names = [_REST, *(f"block_{number}.safetensors" for number in range(last + 1))]
    else:
        return [path]
    files = [path.with_name(name) for name in names]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise HeadForcingError(
            f"{missing[0].name} is missing, one of the {len(files)} files of this model: download "
            "it, too"
        )
    return files


def _first_file(folder: Path) -> Path:
    for pattern in _FIRST:
        found = {  # one of each model
            _NUMBERED.sub(r"\g<stem> \g<count> \g<ending>", path.name): path
            for path in folder.glob("*")
            if pattern.fullmatch(path.name)
        }
        if len(found) == 1:
            return found.popitem()[1]
        if found:
            break
    raise HeadForcingError(f"{folder} is a folder: choose a file in it")


def _names_in(index: Path) -> list[str]:
    try:
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise ValueError("it is too large")
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("it names no files beside it")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise HeadForcingError(
            f"{index.name} is no index of a model in several files ({str(error)[:80]}): download "
            "it again"
        ) from error
    return sorted(names)
