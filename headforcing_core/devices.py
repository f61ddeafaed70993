"""Copies to a device without waiting, tables kept there, and the free memory of a device."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

Device = torch.device | str
ROOT = Path("/")  # of the file systems in which Linux describes memory
# of PyTorch, there and on Windows, of C++, of Python where the system starts no thread, and of the
# driver, for memory outside PyTorch's own pool
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "can't start new thread",
    "CUDA error: out of memory",
    "HIP error: out of memory",
)
# of a driver that pins no memory here
_CANNOT_PIN = ("operation not supported",)

PIECE_BYTES = 32 << 20  # of pinned memory: a power of two, as PyTorch's allocator rounds to one

# bytes of a GPU for the libraries of this process and for other programs, as far as they grow
LEFT_TO_OTHERS = 300_000_000

# decorator of a function that makes index tables on a device: enough are kept for all layers in
# several blocks, since tables change as contexts grow
kept_tables = lru_cache(maxsize=512)


def upload(x: Tensor, device: Device) -> Tensor:
    """Copy `x` to `device`; from the CPU to a GPU without blocking the host.

    The copy goes through pinned memory: one from pageable memory waits until the GPU has finished
    all queued work. It is that copy if the system pins no more.
    """
    if x.device.type == "cpu" and torch.device(device).type == "cuda":
        pinned = x if x.is_pinned() else host_memory(x).copy_(x)
        return pinned.to(device, non_blocking=True)
    return x.to(device)


def download(x: Tensor) -> Tensor:
    """A copy of `x` in main memory; from a GPU without blocking the host: read it after `settle`,
    or upload it.
    """
    if x.device.type != "cuda":
        return x.to("cpu", copy=True)
    return host_memory(x).copy_(x, non_blocking=True)


def download_together(parts: Sequence[Tensor]) -> list[Tensor]:
    """Copies in main memory of tensors of one dtype, as `download`: views of a few large pieces.

    PyTorch rounds every piece of pinned memory up to a power of two, and copies each by itself. A
    piece is as large as `PIECE_BYTES` allows without cutting a tensor.
    """
    if not parts or parts[0].device.type != "cuda":
        return [part.to("cpu", copy=True) for part in parts]
    copies: list[Tensor] = []
    for group in in_pieces(parts):
        joined = torch.cat([part.flatten() for part in group])
        piece = host_memory(joined).copy_(joined, non_blocking=True)
        split = torch.split(piece, [part.numel() for part in group])
        copies += [part.view(like.shape) for part, like in zip(split, group, strict=True)]
    return copies


def in_pieces(parts: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors in order, in groups of at most `PIECE_BYTES`; a larger one is alone."""
    groups: list[list[Tensor]] = []
    size = 0
    for part in parts:
        size += part.nbytes
        if not groups or size > PIECE_BYTES:
            groups.append([])
            size = part.nbytes
        groups[-1].append(part)
    return groups


def pinned_bytes(size: int) -> int:
    """Main memory that so many bytes of large `download_together` take at most, with what pieces
    are rounded up by.
    """
    return size + size // 4


def host_memory(like: Tensor) -> Tensor:
    """An uninitialised tensor in main memory, with shape and dtype of another: pinned, so that a
    GPU copies while the host goes on, or pageable if the system pins no more.
    """
    try:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=torch.cuda.is_available())
    except RuntimeError as error:  # Windows pins about half of the memory
        if not is_out_of_memory(error) and not any(words in str(error) for words in _CANNOT_PIN):
            raise
        return torch.empty(like.shape, dtype=like.dtype)


def settle(device: Device) -> None:
    """Wait until all downloads from a device are there."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(device: Device) -> int | None:
    """Bytes that this process can still allocate on a device, what PyTorch keeps for later
    included.

    None where that is not known: on a CPU outside Linux, and on kinds of devices that cannot be
    asked.
    """
    device = torch.device(device)
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return min(_host_rooms(ROOT), default=None) if device.type == "cpu" else None


def empty_cache(device: Device) -> None:
    """Give back to the driver what PyTorch keeps of a GPU's memory for later."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def stay_on_card(device: Device) -> None:
    """On Windows, let PyTorch take no more of a GPU than is free now.

    Beyond that the driver would take main memory, which is many times slower, in place of an error.
    At its own limit PyTorch frees what it keeps for later and goes on, as on Linux.
    """
    if sys.platform == "win32" and torch.device(device).type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        room = free + torch.cuda.memory_reserved(device) - LEFT_TO_OTHERS
        torch.cuda.set_per_process_memory_fraction(min(1, max(0, room / total)), device)


def _host_rooms(root: Path) -> Iterator[int]:
    """Bytes that Linux leaves this process: of the machine, and by the control groups (containers)
    that it is in.
    """
    with suppress(OSError, KeyError):
        info = _numbers(root / "proc/meminfo")
        yield 1024 * (info["MemAvailable"] + info.get("SwapFree", 0))
    base = root / "sys/fs/cgroup"
    with suppress(OSError):
        own = (
            base
            / (root / "proc/self/cgroup").read_text(encoding="utf-8").partition("0::/")[2].strip()
        )
        for group in (group for group in (own, *own.parents) if base in (group, *group.parents)):
            with suppress(OSError, ValueError, KeyError):  # no limit is "max"
                limit = int((group / "memory.max").read_text("ascii"))
                used = int((group / "memory.current").read_text("ascii"))
                # what only holds files' pages counts as free
                stat = _numbers(group / "memory.stat")
                yield max(0, limit - used + stat["active_file"] + stat["inactive_file"])


def _numbers(file: Path) -> dict[str, int]:
    return {
        name: int(value)
        for name, value in re.findall(r"(?m)^(\w+):?\s+(\d+)", file.read_text(encoding="utf-8"))
    }


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: PyTorch has a class of its own only for that of a
    GPU.
    """
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or any(words in str(error) for words in _OUT_OF_MEMORY)
