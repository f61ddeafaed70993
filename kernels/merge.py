"""Merging two entries of episodic memory into one (paper, section "Prompt-guided Compression")."""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import Arguments, Operation, noise
from .language import kernel, power_of_2, tl
from .rotation import load_rotation, rotate_pairs, rotated
from .rows import load_float, tile_mask, tile_places

ROWS = 32  # tokens of a tile


def merge_frames_reference(
    k: Tensor, v: Tensor, merges: Tensor, kept: Tensor, rotations: Tensor
) -> None:
    """Keep `s` of the `2 * s` tokens of two frames, keys rotated to the index of the merged one.

    Args:
        merges: `[n, 6]`, each `(row a, row b, target row, rotation of a, rotation of b, row of
            kept)`; one per memory head and layer. The target is frame a itself or overlaps neither.
        kept: `[groups, s]`, token numbers in frame a (0 to s-1) and b (s to 2s-1), ascending, each
            once.
        rotations: `[n, 2, temporal pairs]`.
    """
    a, b, target, rotation_a, rotation_b, group = merges.long()[:, :, None].unbind(1)
    tokens = kept.shape[1]
    chosen = kept.long()[group[:, 0]]
    of_a = chosen < tokens
    source = torch.where(of_a, a + chosen, b + chosen - tokens)
    target = target + torch.arange(tokens, device=k.device)
    rotation = rotations[torch.where(of_a, rotation_a, rotation_b)]
    k[target] = rotated(k[source][:, :, None], rotation)[:, :, 0]
    v[target] = v[source]


@kernel
def _merge_kernel(
    k,
    v,
    merges,
    kept,
    rotations,
    tokens,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    merge = merges + tl.program_id(0) * 6
    a = tl.load(merge).to(tl.int64)
    b = tl.load(merge + 1).to(tl.int64)
    target = tl.load(merge + 2).to(tl.int64)
    rotation_a = tl.load(merge + 3)
    rotation_b = tl.load(merge + 4)
    chosen_tokens = kept + tl.load(merge + 5) * tokens
    channel = tl.arange(0, DIM)
    pair = tl.arange(0, DIM // 2)
    # Tile after tile in one program: a kept token never lies before its place, so in frame a no
    # tile overwrites a token that a later one needs.
    for start in range(0, tokens, ROWS):
        token = start + tl.arange(0, ROWS)
        chosen = tl.load(chosen_tokens + token, mask=token < tokens, other=0)
        of_a = chosen < tokens
        source = tile_places(tl.where(of_a, a + chosen, b + chosen - tokens), channel, HEAD_DIM)
        place = tile_places(target + token, channel, HEAD_DIM)
        cos, sin = load_rotation(
            rotations, tl.where(of_a, rotation_a, rotation_b)[:, None], pair[None, :], PAIRS
        )
        inside = tile_mask(token, tokens, channel, HEAD_DIM)
        keys = rotate_pairs(load_float(k + source, inside), cos, sin)
        values = tl.load(v + source, mask=inside, other=0.0)
        tl.debug_barrier()
        tl.store(k + place, keys, mask=inside)
        tl.store(v + place, values, mask=inside)
        tl.debug_barrier()


def _launch(k: Tensor, v: Tensor, merges: Tensor, kept: Tensor, rotations: Tensor) -> None:
    head_dim = k.shape[1]
    # no pipelining: a load must not be taken before the store of the tile before it
    _merge_kernel[(len(merges),)](
        k,
        v,
        merges,
        kept,
        rotations,
        kept.shape[1],
        HEAD_DIM=head_dim,
        PAIRS=rotations.shape[2],
        ROWS=ROWS,
        DIM=power_of_2(head_dim),
        num_warps=4,
        num_stages=1,
    )


def _example(device: torch.device, dtype: torch.dtype) -> Arguments:
    s = 72
    k, v = noise(2, 7 * s, 128).to(device, dtype)
    kept = noise(2, 2 * s).topk(s).indices.sort().values.int()
    merges = torch.tensor(
        [[0, 2 * s, 0, 3, 1, 1], [3 * s, 4 * s, 6 * s, 2, 0, 0]], dtype=torch.int32
    )
    return dict(
        k=k,
        v=v,
        merges=merges.to(device),
        kept=kept.to(device),
        rotations=noise(4, 2, 22).to(device),
    )


merge_frames = Operation(merge_frames_reference, _launch, _example)
