"""How keys and values lie in memory for the kernels, and the checks that they do.

**Buffers.** Keys and values are two tensors `[total_rows, head_dim]`, contiguous, for one layer or for several laid end
to end. A row is one token of one head. A head's rows are adjacent, slot after slot, a slot being the `frame_tokens`
rows of one frame, and heads follow each other without gaps:

    | head a: slot 0 | slot 1 | .. | head b: slot 0 | slot 1 | .. | head c: ..

Heads may come in any order and have any number of slots, none included. The rows in use are the first ones of a head.
Attention does not care for the order of the slots, because a key's place in time is rotated into it.

**Tables.** Small int32 tensors on the same device say where things are, so that a launch depends on shapes alone:
`head_start [heads]` is a head's first row, `head_rows [heads]` how many rows are in use. Other kernels name rows the
same way. Row numbers are those of the whole buffer, so one launch may serve many heads and layers.

**Rotations.** A table of rotations `[n, 2, pairs]` float32 holds cosines and sines for the first `2 * pairs` channels.
Tables name a rotation by its row; which temporal index a row stands for is the caller's choice. Rotating by `b - a`
moves a key from index `a` to index `b`. Adjacent channels form a pair, see `headforcing_core/model/rope.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayoutError(ValueError):
    """A kernel was given tensors that do not lie as it needs them; a mistake in the calling code."""


def check_buffers(k: Tensor, v: Tensor) -> int:
    """Keys and values as described above; returns head_dim."""
    if k.ndim != 2 or k.shape != v.shape or not (k.is_contiguous() and v.is_contiguous()) or k.dtype != v.dtype:
        raise LayoutError(
            "keys and values must be contiguous [rows, head_dim] of one dtype, "
            f"got {list(k.shape)} {k.dtype} and {list(v.shape)} {v.dtype}"
        )
    return k.shape[1]


def check_table(name: str, table: Tensor, *shape: int | None) -> None:
    """An int32 table of this shape; None stands for any size."""
    fits = table.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, table.shape, strict=True))
    if not fits or table.dtype != torch.int32 or not table.is_contiguous():
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise LayoutError(f"{name} must be contiguous int32 [{wanted}], got {list(table.shape)} {table.dtype}")


def check_rotations(name: str, table: Tensor, head_dim: int) -> int:
    """A table of rotations; returns how many pairs of channels it rotates."""
    if table.ndim != 3 or table.shape[1] != 2 or table.dtype != torch.float32 or not table.is_contiguous():
        raise LayoutError(f"{name} must be contiguous float32 [n, 2, pairs], got {list(table.shape)} {table.dtype}")
    if 2 * table.shape[2] > head_dim:
        raise LayoutError(f"{name} rotates {table.shape[2]} pairs, but a head has {head_dim} channels")
    return table.shape[2]
