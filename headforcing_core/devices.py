"""Asynchronous host-to-device copy."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(x: Tensor, device: torch.device | str) -> Tensor:
    """Copy `x` to `device`; from the CPU to a GPU without blocking the host.

    The copy goes through pinned memory: one from pageable memory waits until the GPU has finished all queued work.
    """
    if x.device.type == "cpu" and torch.device(device).type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)
