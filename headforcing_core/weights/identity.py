"""Identity of a model, under which blocks and head profiles are kept: a hash in which every bit of
every weight counts.

Each MiB of a tensor is reduced to its CRC-32, which is fast; the CRCs, names, types and shapes are
then hashed.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..files import cache_folder, replacing
from ..hashing import digest
from .shards import shard_files

CHUNK = 1 << 20  # bytes reduced to one CRC
_THREADS = min(8, os.cpu_count() or 1)
_VERSION = 1  # of what `identity` computes
# a file written later than this ago may change again without another time of change
_SETTLED_SECONDS = 2.0


def identity(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """16 hexadecimal digits for all tensors in this order, wherever they lie; settings for them
    belong into names.
    """
    found = hashlib.blake2b(digest_size=8)
    rest = iter(tensors)
    with ThreadPoolExecutor(_THREADS) as pool:  # CRCs are computed without Python's lock
        # few tensors at a time: they may be mapped from a file larger than memory
        while batch := list(islice(rest, _THREADS)):
            checked = pool.map(checksums, [tensor for _, tensor in batch])
            for (name, tensor), values in zip(batch, checked, strict=True):
                found.update(repr((name, str(tensor.dtype), tuple(tensor.shape))).encode())
                found.update(b"".join(value.to_bytes(4, "little") for value in values))
    return found.hexdigest()


def file_identity(path: Path, part: str, compute: Callable[[], str]) -> str:
    """The identity of a part of a model, kept in the user's cache folder by path, size, inode and
    times of change of its files."""
    folder = cache_folder()
    files = shard_files(path)
    stats = [each.stat() for each in files]
    if folder is None or time.time() - max(stat.st_mtime for stat in stats) < _SETTLED_SECONDS:
        return compute()
    facts = [(stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats]
    places = [str(file.resolve()) for file in files]
    kept = folder / "identities" / digest(_VERSION, places, facts, part)
    with suppress(OSError, ValueError):
        stored = kept.read_text(encoding="ascii")
        if re.fullmatch("[0-9a-f]{16}", stored):
            return stored
    name = compute()
    with suppress(OSError, HeadForcingError), replacing(kept) as temporary:
        temporary.write_text(name, encoding="ascii")
    return name


def checksums(tensor: Tensor) -> list[int]:
    """The CRC-32 of each MiB of a tensor's bytes, on the CPU: a GPU's are copied there."""
    found = []
    for part in _parts(tensor):
        row = part.cpu().contiguous().flatten().view(torch.uint8)
        found += [zlib.crc32(chunk.numpy().data) for chunk in torch.split(row, CHUNK)]
    return found


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors that a tensor is made of: itself, or those inside a quantised one."""
    if hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _parts(getattr(tensor, name))
    else:
        yield tensor.detach().as_subclass(Tensor)
