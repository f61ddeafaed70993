"""Wan's 3-D rotary position embedding, split into a spatial part and a temporal part.

A head's channels are three groups, `[temporal | height | width]`. Inside a group of width `d`,
adjacent channels `(2i, 2i+1)` are one complex number that is rotated by `position * 10000^(-2i/d)`
radians. The temporal rotation of a cached key can be changed alone (paper, section "Head-wise RoPE
Re-encoding").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from ...kernels.rotation import rotate
from ..devices import Device, upload
from ..errors import HeadForcingError

THETA = 10000.0
COMPLEX_DEVICES = ("cpu", "cuda")  # other devices support complex numbers partly or not at all


def axis_dims(head_dim: int) -> tuple[int, int, int]:
    """Channels of the temporal, height and width groups: 128 -> (44, 42, 42); HeadForcingError if
    it has no room.
    """
    if head_dim < 6 or head_dim % 2:
        raise HeadForcingError(
            f"head_dim must be even and at least 6 to hold three rotary axes, got {head_dim}"
        )
    spatial = 2 * (head_dim // 6)
    return head_dim - 2 * spatial, spatial, spatial


def angles(positions: Tensor, dim: int) -> Tensor:
    """Rotation angles in radians, float64: `positions [n]` -> `[n, dim/2]`."""
    exponents = -torch.arange(0, dim, 2, dtype=torch.float64, device=positions.device) / dim
    frequencies = THETA**exponents
    return positions.to(torch.float64)[:, None] * frequencies


def by_head(x: Tensor, frame_tokens: int) -> Tensor:
    """Queries, keys or values `[frames * frame_tokens, heads, d]` as a view `[heads, frames,
    frame_tokens, d]`.
    """
    return x.unflatten(0, (-1, frame_tokens)).permute(2, 0, 1, 3)


def _rounded_up(indices: int) -> int:
    """To 64, so that a growing video rarely needs new tables."""
    return -(-indices // 64) * 64


class RotaryEmbedding:
    """Rotations for latent frames of `rows x columns` tokens, at any temporal index.

    Angles are computed in float64 from the integer index: low-precision ones become
    indistinguishable in long videos. `axes`: channels of the three groups, by default Wan's.
    """

    def __init__(
        self,
        head_dim: int,
        rows: int,
        columns: int,
        device: Device = "cpu",
        axes: tuple[int, int, int] | None = None,
    ):
        self.temporal_dim, height_dim, width_dim = axes or axis_dims(head_dim)
        self.device = torch.device(device)
        self.frame_tokens = rows * columns
        height = angles(torch.arange(rows), height_dim)[:, None].expand(rows, columns, -1)
        width = angles(torch.arange(columns), width_dim)[None].expand(rows, columns, -1)
        self._spatial = self._rotations(
            torch.cat((height, width), dim=-1).reshape(self.frame_tokens, -1)
        )
        # every layer and pass of a block asks for the same few sets of indices
        self._temporal = lru_cache(maxsize=64)(self._temporal_rotations)
        self._all = lru_cache(maxsize=8)(self._all_rotations)
        self._table = lru_cache(maxsize=4)(self._kernel_table)

    def _rotations(self, angle: Tensor) -> Tensor:
        """`[..., pairs, 2]`, cosines and sines."""
        return upload(torch.stack((angle.cos(), angle.sin()), dim=-1).float(), self.device)

    def _temporal_rotations(self, frame_indices: tuple[int, ...]) -> Tensor:
        return self._rotations(angles(torch.tensor(frame_indices), self.temporal_dim))[:, None]

    def _all_rotations(self, frame_indices: tuple[int, ...]) -> Tensor:
        """Of all axes, `[frames, frame_tokens, head_dim / 2, 2]`."""
        place = (len(frame_indices), self.frame_tokens, -1, -1)
        return torch.cat(
            (self._temporal(frame_indices).expand(place), self._spatial.expand(place)), dim=-2
        )

    def tables(self, indices: int) -> tuple[Tensor, Tensor]:
        """Temporal rotations for the indices 0 to at least `indices - 1`, and spatial ones for
        every token of a frame.

        Both in the kernels' layout `[rotations, 2, pairs]`: cosines, then sines.
        """
        return self._table(0, _rounded_up(indices)), self._spatial_table

    def differences(self, most: int) -> tuple[Tensor, int]:
        """Temporal rotations by differences of indices up to at least `most`, as `tables`, and the
        row that rotates by 0."""
        most = _rounded_up(max(most, 1))
        return self._table(-most, most + 1), most

    def _kernel_table(self, first: int, end: int) -> Tensor:
        rotations = self._rotations(angles(torch.arange(first, end), self.temporal_dim))
        return rotations.transpose(1, 2).contiguous()

    @cached_property
    def _spatial_table(self) -> Tensor:
        return self._spatial.transpose(1, 2).contiguous()

    def _rotate(self, x: Tensor, rotations: Tensor, out: Tensor | None = None) -> Tensor:
        if x.device.type not in COMPLEX_DEVICES:
            cos, sin = rotations.unbind(-1)
            return rotate(x, cos, sin, out)
        # one complex multiplication: several times faster than `rotate`, because pairs are never
        # taken apart
        out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
        pairs = x.float().view(torch.complex64)
        turns = rotations.view(torch.complex64)[..., 0]
        if out.dtype == torch.float32:
            torch.mul(pairs, turns, out=out.view(torch.complex64))
        else:
            out.copy_((pairs * turns).view(torch.float32))
        return out

    def rotate(self, x: Tensor, frame_indices: Sequence[int], out: Tensor | None = None) -> Tensor:
        """Rotate all axes of `x [..., frames, frame_tokens, head_dim]`: the two rotations below in
        one step.
        """
        return self._rotate(x, self._all(tuple(frame_indices)), out)

    def rotate_spatial(self, x: Tensor) -> Tensor:
        """Rotate the height and width channels of `x [..., frames, frame_tokens, head_dim]` by
        token position.
        """
        t = self.temporal_dim
        return torch.cat((x[..., :t], self._rotate(x[..., t:], self._spatial)), dim=-1)

    def rotate_temporal(self, x: Tensor, frame_indices: Sequence[int]) -> Tensor:
        """Rotate the temporal channels of `x [..., frames, frame_tokens, head_dim]` by one index
        per frame.

        Indices may be negative: rotating a key encoded at index `a` by `b - a` re-encodes it at
        index `b`.
        """
        return self.rerotate(x.clone(memory_format=torch.contiguous_format), frame_indices)

    def rerotate(self, x: Tensor, differences: Sequence[int]) -> Tensor:
        """Re-rotate the temporal channels of `x [..., frames, frame_tokens, head_dim]` in place,
        one index a frame.

        A key at temporal index `a` moves to index `b` by the difference `b - a`, since `R(b - a)
        R(a) = R(b)`.
        """
        temporal = x[..., : self.temporal_dim]
        self._rotate(temporal, self._temporal(tuple(differences)), out=temporal)
        return x
