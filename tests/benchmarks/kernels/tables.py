"""Tables of rotations in the layout of the kernels."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def rotation_table(angles: Tensor) -> Tensor:
    """Angles `[n, pairs]` in radians, float64, as a table of rotations `[n, 2, pairs]` float32."""
    return torch.stack((angles.cos(), angles.sin()), dim=1).float()


@functools.cache
def no_rotation(device: torch.device) -> Tensor:
    """A table of one rotation, by nothing."""
    return rotation_table(torch.zeros(1, 1, dtype=torch.float64)).to(device)
