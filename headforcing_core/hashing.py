"""Hashes of values, tensors and files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor


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


SHORT = 16  # characters of a hash in a file name


def file_hash(path: Path) -> str:
    """A hash of a file's bytes, as it stands in the name of every file of a run."""
    found = hashlib.blake2b(digest_size=SHORT // 2)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            found.update(chunk)
    return found.hexdigest()
