"""Hashes of values, tensors and files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor


def digest(*parts: Any) -> str:
    """128-bit hash, as hexadecimal digits, of JSON values and tensors in the given order.

    Tensors are hashed by dtype, shape and float32 values, on whatever device they are.
    """
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, Tensor):
            state.update(str((part.dtype, tuple(part.shape))).encode())
            state.update(part.detach().cpu().float().contiguous().numpy().tobytes())
        else:
            state.update(json.dumps(part, sort_keys=True, default=str).encode())
        state.update(b"\0")  # ends each part: ("ab", "c") and ("a", "bc") must differ
    return state.hexdigest()


SHORT = 16  # hexadecimal digits of a hash in a file name


def file_hash(path: Path) -> str:
    """Hash of a file's bytes, `SHORT` hexadecimal digits; every file of a run folder has its own in
    its name.
    """
    state = hashlib.blake2b(digest_size=SHORT // 2)
    with open(path, "rb") as file:
        while chunk := file.read(1 << 22):
            state.update(chunk)
    return state.hexdigest()
