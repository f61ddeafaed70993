"""Tables of rotations: built from angles, and read in a kernel."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .language import kernel, tl


def rotation_table(angles: Tensor) -> Tensor:
    """Angles `[n, pairs]` in radians, float64, as a table of rotations `[n, 2, pairs]` float32."""
    return torch.stack((angles.cos(), angles.sin()), dim=1).float()


@functools.cache
def no_rotation(device: torch.device) -> Tensor:
    """A table of one rotation, by nothing."""
    return rotation_table(torch.zeros(1, 1, dtype=torch.float64)).to(device)


@kernel
def load_rotation(rotations, row, pair, PAIRS: tl.constexpr):
    """Cosines and sines of a row of a table; pairs beyond the table's are left alone by cosine 1 and sine 0."""
    known = pair < PAIRS
    place = rotations + row * 2 * PAIRS + pair
    return tl.load(place, mask=known, other=1.0), tl.load(place + PAIRS, mask=known, other=0.0)
