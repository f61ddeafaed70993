"""Rotation of adjacent channel pairs, by angles or rows of a table: what all kernels and references
compute.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .language import kernel, tl


def rotated(x: Tensor, rotations: Tensor) -> Tensor:
    """`x [..., tokens, head_dim]` with its first channels rotated by `rotations [..., 2,
    pairs]`.
    """
    cos, sin = rotations.unbind(-2)
    rest = x[..., 2 * cos.shape[-1] :]
    return torch.cat(
        (rotate(x[..., : 2 * cos.shape[-1]], cos[..., None, :], sin[..., None, :]), rest), dim=-1
    )


@kernel
def load_rotation(rotations, row, pair, PAIRS: tl.constexpr):
    """Cosines and sines of a row of a table; pairs beyond the table's are left alone by cosine 1
    and sine 0.
    """
    known = pair < PAIRS
    place = rotations + row * 2 * PAIRS + pair
    return tl.load(place, mask=known, other=1.0), tl.load(place + PAIRS, mask=known, other=0.0)


@kernel
def rotate_pairs(x, cos, sin):
    """Rotate the float32 tile `x [rows, channels]` by `cos, sin [rows or 1, channels / 2]`."""
    even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))
    return tl.reshape(
        tl.join(even * cos - odd * sin, even * sin + odd * cos), (x.shape[0], x.shape[1])
    )


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor | None = None) -> Tensor:
    """Rotate adjacent channel pairs of `x [..., d]` by angles given as `cos, sin [..., d/2]`
    (broadcast, float32).

    Computed in float32 and rounded once. `out`, if given, gets the result and may be `x` itself.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    even_out, odd_out = out.unflatten(-1, (-1, 2)).unbind(-1)
    # all of them first, because `out` may be `x`
    products = even * cos, odd * sin, even * sin, odd * cos
    torch.sub(*products[:2], out=even_out)
    torch.add(*products[2:], out=odd_out)
    return out
