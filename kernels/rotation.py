"""Rotation of adjacent channel pairs, as every kernel and every reference does it."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .language import kernel, tl


def rotation_table(angles: Tensor) -> Tensor:
    """Angles `[n, pairs]` in radians, float64, as a table of rotations `[n, 2, pairs]` float32."""
    return torch.stack((angles.cos(), angles.sin()), dim=1).float()


@functools.cache
def no_turn(device: torch.device) -> Tensor:
    """A table of one rotation, by nothing."""
    return rotation_table(torch.zeros(1, 1, dtype=torch.float64)).to(device)


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """The first channels of `x [..., tokens, head_dim]` turned by `turns [..., 2, pairs]`, the others as they are."""
    cos, sin = turns.unbind(-2)
    rest = x[..., 2 * cos.shape[-1] :]
    return torch.cat((rotate(x[..., : 2 * cos.shape[-1]], cos[..., None, :], sin[..., None, :]), rest), dim=-1)


@kernel
def load_turn(turns, turn, pair, PAIRS: tl.constexpr):
    """Cosines and sines of row `turn` of a table; pairs beyond the table's are left alone by cosine 1 and sine 0."""
    known = pair < PAIRS
    place = turns + turn * 2 * PAIRS + pair
    return tl.load(place, mask=known, other=1.0), tl.load(place + PAIRS, mask=known, other=0.0)


@kernel
def turn_pairs(x, cos, sin):
    """The tile `x [rows, channels]`, float32, turned by `cos, sin [rows or 1, channels / 2]`."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (x.shape[0], x.shape[1]))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
    """Turn adjacent channel pairs of `x [..., d]` by angles given as `cos, sin [..., d/2]` (broadcast, float32).

    Computed in float32 and rounded once, into `out` where one is given, which may be `x` itself.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    even_out, odd_out = out.unflatten(-1, (-1, 2)).unbind(-1)
    products = even * cos, odd * sin, even * sin, odd * cos  # all of them before anything is overwritten
    torch.sub(*products[:2], out=even_out)
    torch.add(*products[2:], out=odd_out)
    return out
