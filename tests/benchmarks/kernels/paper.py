"""The three fused kernels the paper describes (section "Fused Triton Kernels"), for comparing speeds.

The paper keeps keys with their spatial rotation only and, after every update, assembles each head's context, gives it
its place in time and packs it for attention. The engine keeps contexts assembled instead. The work is the same as that
of `move_frames` and `merge_frames`, so these kernels are those, with other tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from headforcing.kernels.merge import merge_frames
from headforcing.kernels.move import move_frames
from torch import Tensor

from .tables import no_rotation


def rolling_update(k: Tensor, v: Tensor, moves: Tensor, frame_tokens: int) -> None:
    """The roll of every head's cache in one launch; `moves` as for `move_frames`, every rotation 0."""
    move_frames(k, v, k, v, moves, no_rotation(k.device), frame_tokens)


def episodic_update(k: Tensor, v: Tensor, merges: Tensor, kept: Tensor, admissions: Tensor) -> None:
    """Merge two entries of every memory head, then move the new entry in.

    Args:
        merges, kept: as for `merge_frames`, every rotation 0; no rows where nothing is merged.
        admissions: as `moves` for `move_frames`, every rotation 0.
    """
    still = no_rotation(k.device)
    merge_frames(k, v, merges, kept, still)
    move_frames(k, v, k, v, admissions, still, kept.shape[1])


def packing(contexts: Sequence[Sequence[int]], frame_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tables for packing every head's context: `contexts[head]` is the first row of each of its frames, in order.

    Returns:
        moves `[frames, 1, 3]` whose rotations are the frames' places 0, 1, .. in their context; head_start and
        head_rows `[heads]` of the packed buffers.
    """
    moves, starts, rows = [], [], 0
    for context in contexts:
        starts.append(rows)
        for index, row in enumerate(context):
            moves.append([[row, rows, index]])
            rows += frame_tokens
    lengths = [len(context) * frame_tokens for context in contexts]
    return (
        torch.tensor(moves, dtype=torch.int32).reshape(-1, 1, 3),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
    )


def assemble(
    k: Tensor, v: Tensor, k_packed: Tensor, v_packed: Tensor, moves: Tensor, rotations: Tensor, frame_tokens: int
) -> None:
    """Assembly, temporal rotation and packing of all heads' contexts in one launch; tables from `packing`.

    Args:
        rotations: `[n, 2, temporal pairs]`, whose row `i` rotates by `i`.
    """
    move_frames(k, v, k_packed, v_packed, moves, rotations, frame_tokens)
