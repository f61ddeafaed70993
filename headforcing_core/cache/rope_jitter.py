"""Rotary jitter (LoL, arXiv 2601.16914): a rotary base of its own for the temporal axis of every head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..model.rope import THETA, RotaryEmbedding


def jittered_bases(strength: float, layers: int, heads: int) -> Tensor:
    """The base of every head, `[layers, heads]` float64: `THETA (1 + strength e)` with fixed `e` from U(-1, 1)."""
    drawn = torch.rand(layers, heads, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return THETA * (1 + strength * (2 * drawn - 1))


class JitteredRotary(RotaryEmbedding):
    """A `RotaryEmbedding` for some heads of one layer, each with its own base of the temporal angles.

    Args:
        bases: `[heads]` float64 for tensors `[heads, frames, s, d]`, or `[]` for those of a single head.
    """

    def __init__(self, bases: Tensor, head_dim: int, rows: int, columns: int, device: torch.device | str = "cpu"):
        super().__init__(head_dim, rows, columns, device)
        self.bases = bases
        # there is one object per layer and group, so each remembers less than the one for all heads
        self._temporal = lru_cache(maxsize=16)(self._temporal_rotations)

    def _temporal_rotations(self, frame_indices: tuple[int, ...]) -> Tensor:
        exponents = -torch.arange(0, self.temporal_dim, 2, dtype=torch.float64) / self.temporal_dim
        frequencies = self.bases[..., None, None] ** exponents  # [heads, 1, pairs]
        angle = torch.tensor(frame_indices, dtype=torch.float64)[:, None] * frequencies
        return self._rotations(angle)[..., None, :, :]

    def rotate(self, x: Tensor, frame_indices: Sequence[int], out: Tensor | None = None) -> Tensor:
        # one axis after the other: a table of all axes for every head would be as large as the keys themselves
        rotated = self.rerotate(self.rotate_spatial(x), frame_indices)
        return rotated if out is None else out.copy_(rotated)


def describe_jitter(strength: float, bases: Tensor) -> str:
    """One line for a report."""
    low, high = float(bases.min()), float(bases.max())
    return f"rope jitter {strength:g}: rotary bases from {low:,.0f} to {high:,.0f} in place of {THETA:,.0f}"
