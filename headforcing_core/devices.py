"""Copies to a device that nothing waits for, and the memory that a device has free."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor


def upload(x: Tensor, device: torch.device | str) -> Tensor:
    """Copy `x` to `device`; from the CPU to a GPU without blocking the host.

    The copy goes through pinned memory: one from pageable memory waits until the GPU has finished all queued work.
    """
    if x.device.type == "cpu" and torch.device(device).type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)


def free_memory(device: torch.device | str) -> int | None:
    """Bytes that this process can still allocate on a device, what PyTorch keeps for later included.

    None where that is not known: on a CPU outside Linux, and on kinds of devices that cannot be asked.
    """
    device = torch.device(device)
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    if device.type == "mps" and hasattr(torch.mps, "recommended_max_memory"):
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    if device.type == "cpu":
        with suppress(OSError, KeyError):
            info = dict(re.findall(r"(?m)^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii")))
            return 1024 * (int(info["MemAvailable"]) + int(info.get("SwapFree", 0)))
    return None
