"""From the processor to a device without waiting for what the device still has to do."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(x: Tensor, device: torch.device | str) -> Tensor:
    """`x` on `device`. On its way to a GPU it goes through pinned memory: a copy from any other waits for the queue."""
    if x.device.type == "cpu" and torch.device(device).type == "cuda":
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)
