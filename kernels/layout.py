"""The memory layout of keys and values that the kernels expect.

**Buffers.** Keys and values are two tensors `[total_rows, head_dim]`, contiguous, for one layer or
for several in sequence. A row is one token of one head. A head's rows are adjacent, slot after
slot; a slot is the `frame_tokens` rows of one latent frame. Heads follow each other without gaps,
in any order and with any number of slots, 0 included:

    | head a: slot 0 | slot 1 | .. | head b: slot 0 | slot 1 | .. | head c: ..

The rows in use are the first ones of a head. Keys are stored with their temporal rotation, so that
slots may lie in any order.

**Tables.** Small contiguous int32 tensors on the same device hold row numbers, counted from the
beginning of the whole buffer, so that launch parameters depend on shapes alone and one launch can
process many heads and layers.

**Rotations.** A contiguous table of rotations `[n, 2, pairs]` float32 holds cosines and sines for
the first `2 * pairs` channels. Other tables refer to a rotation by its row; the caller decides
which temporal index a row belongs to. Rotating by `b - a` moves a key from index `a` to index `b`.
Adjacent channels form a pair, see `headforcing_core/model/rope.py`.
"""

from __future__ import annotations

from torch import Tensor


class LayoutError(ValueError):
    """The memory layout of a kernel's arguments is wrong: an error in the calling code, not in user
    input.
    """


def check_layout(fits: bool, expected: str, found: Tensor) -> None:
    """Raise LayoutError unless a tensor that a kernel addresses lies as it expects."""
    if not fits:
        raise LayoutError(
            f"{expected}, got {list(found.shape)} {found.dtype} with strides {found.stride()}"
        )
