"""Moving frames between slots, with their keys re-rotated to a new temporal index (paper, "Fused
Triton Kernels").

The roll at the end of a block, admission to episodic memory and rotating keys in place differ in
the table only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .dispatch import Arguments, Operation, noise
from .language import kernel, power_of_2, tiles, tl
from .rotation import load_rotation, rotate_pairs, rotated
from .rows import load_float, tile_mask, tile_places

ROWS = 32  # tokens of a tile


def move_frames_reference(
    k_from: Tensor,
    v_from: Tensor,
    k_to: Tensor,
    v_to: Tensor,
    moves: Tensor,
    rotations: Tensor,
    frame_tokens: int,
) -> None:
    """Copy frames, keys rotated, to rows of `k_to, v_to`, which may be the buffers they come from.

    Args:
        moves: `[chains, length, 3]`, each `(from row, to row, rotation)`, or a negative row to
            skip. A chain is carried out in order; different ones run at the same time and must not
            touch each other's rows.
        rotations: `[n, 2, temporal pairs]`.
    """
    token = torch.arange(frame_tokens, device=k_to.device)
    for step in moves.long().unbind(1):
        step = step[step[:, 0] >= 0]
        source = step[:, 0, None] + token
        target = step[:, 1, None] + token
        k_to[target] = rotated(k_from[source], rotations[step[:, 2]])
        v_to[target] = v_from[source]


@kernel
def _move_kernel(
    k_from,
    v_from,
    k_to,
    v_to,
    moves,
    rotations,
    length,
    frame_tokens,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    IN_PLACE: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, DIM)
    inside = tile_mask(token, frame_tokens, channel, HEAD_DIM)
    move = moves + tl.program_id(1) * length * 3
    for _ in range(length):
        first = tl.load(move)
        if first >= 0:
            to = tl.load(move + 1)
            source = tile_places(first + token, channel, HEAD_DIM)
            target = tile_places(to + token, channel, HEAD_DIM)
            cos, sin = load_rotation(rotations, tl.load(move + 2), tl.arange(0, DIM // 2), PAIRS)
            keys = load_float(k_from + source, inside)
            moved = inside
            if IN_PLACE:  # values of keys that only turn stay where they are
                moved = inside & (first != to)
            values = tl.load(v_from + source, mask=moved, other=0.0)
            keys = rotate_pairs(keys, cos[None, :], sin[None, :])
            tl.debug_barrier()  # every thread has read what is now overwritten
            tl.store(k_to + target, keys, mask=inside)
            tl.store(v_to + target, values, mask=moved)
            tl.debug_barrier()  # and the next move reads what was written
        move += 3


def _launch(
    k_from: Tensor,
    v_from: Tensor,
    k_to: Tensor,
    v_to: Tensor,
    moves: Tensor,
    rotations: Tensor,
    frame_tokens: int,
) -> None:
    head_dim = k_from.shape[1]
    chains, length, _ = moves.shape
    if chains:
        # no pipelining: a load must not be taken before the store of the move before it
        _move_kernel[tiles(frame_tokens, ROWS), chains](
            k_from,
            v_from,
            k_to,
            v_to,
            moves,
            rotations,
            length,
            frame_tokens,
            HEAD_DIM=head_dim,
            PAIRS=rotations.shape[2],
            IN_PLACE=v_from.data_ptr() == v_to.data_ptr(),
            ROWS=ROWS,
            DIM=power_of_2(head_dim),
            num_warps=4,
            num_stages=1,
        )


def _example(device: torch.device, dtype: torch.dtype) -> Arguments:
    s = 40
    k, v = noise(2, 9 * s, 128).to(device, dtype)
    rotations = noise(5, 2, 22).to(device)
    chains = [[[2, 0, 3], [3, 2, 1], [0, 1, 4]], [[5, 5, 2], [-1, 0, 0], [8, 6, 0]]]
    moves = torch.tensor(chains, dtype=torch.int32) * torch.tensor([s, s, 1], dtype=torch.int32)
    return dict(
        k_from=k,
        v_from=v,
        k_to=k,
        v_to=v,
        moves=moves.to(device),
        rotations=rotations,
        frame_tokens=s,
    )


move_frames = Operation(move_frames_reference, _launch, _example)


def in_sequence(order: Sequence[int], spare: int) -> list[tuple[int, int]]:
    """Moves `(from slot, to slot)`, to be made one after another, that bring slot `order[i]` to
    place `i`.

    A slot is never overwritten while it is still needed; `spare` is a free slot, used where slots
    change places.
    """
    waiting = {place: slot for place, slot in enumerate(order) if place != slot}
    moves = []
    while waiting:
        needed = set(waiting.values())
        place = next((place for place in waiting if place not in needed), None)
        if place is None:  # only circles are left: what lies in one place steps aside
            place = next(iter(waiting))
            moves.append((place, spare))
            waiting = {to: spare if slot == place else slot for to, slot in waiting.items()}
        moves.append((waiting.pop(place), place))
    return moves
