"""The memory layout of keys and values that the kernels expect, and checks of it.

**Buffers.** Keys and values are two tensors `[total_rows, head_dim]`, contiguous, for one layer or for several in
sequence. A row is one token of one head. A head's rows are adjacent, slot after slot; a slot is the `frame_tokens` rows
of one latent frame. Heads follow each other without gaps:

    | head a: slot 0 | slot 1 | .. | head b: slot 0 | slot 1 | .. | head c: ..

Heads may be in any order and have any number of slots, 0 included. The rows in use are the first ones of a head. The
order of the slots does not affect attention, because keys are stored with their temporal rotation.

**Tables.** Small int32 tensors on the same device hold row numbers, so that launch parameters depend on shapes alone:
`head_start [heads]` is a head's first row, `head_rows [heads]` the number of rows in use. Row numbers count from the
beginning of the whole buffer, so one launch can process many heads and layers.

**Rotations.** A table of rotations `[n, 2, pairs]` float32 holds cosines and sines for the first `2 * pairs` channels.
Other tables refer to a rotation by its row; the caller decides which temporal index a row belongs to. Rotating by
`b - a` moves a key from index `a` to index `b`. Adjacent channels form a pair, see `headforcing_core/model/rope.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayoutError(ValueError):
    """The memory layout of a kernel's arguments is wrong: an error in the calling code, not in user input."""


def check_buffers(k: Tensor, v: Tensor) -> int:
    """Check key and value buffers; returns head_dim."""
    if k.ndim != 2 or k.shape != v.shape or not (k.is_contiguous() and v.is_contiguous()) or k.dtype != v.dtype:
        raise LayoutError(
            "keys and values must be contiguous [rows, head_dim] of one dtype, "
            f"got {list(k.shape)} {k.dtype} and {list(v.shape)} {v.dtype}"
        )
    return k.shape[1]


def check_table(name: str, table: Tensor, *shape: int | None) -> None:
    """Check an int32 table of this shape; None stands for any size."""
    fits = table.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, table.shape, strict=True))
    if not fits or table.dtype != torch.int32 or not table.is_contiguous():
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise LayoutError(f"{name} must be contiguous int32 [{wanted}], got {list(table.shape)} {table.dtype}")


def check_rotations(name: str, table: Tensor, head_dim: int) -> int:
    """Check a table of rotations; returns how many pairs of channels it rotates."""
    if table.ndim != 3 or table.shape[1] != 2 or table.dtype != torch.float32 or not table.is_contiguous():
        raise LayoutError(f"{name} must be contiguous float32 [n, 2, pairs], got {list(table.shape)} {table.dtype}")
    if 2 * table.shape[2] > head_dim:
        raise LayoutError(f"{name} rotates {table.shape[2]} pairs, but a head has {head_dim} channels")
    return table.shape[2]
