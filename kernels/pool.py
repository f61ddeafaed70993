"""Pooled keys: what episodic memory compares frames by (paper, Eq. 4)."""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import Arguments, Operation, noise
from .language import kernel, power_of_2, tl
from .rotation import load_rotation, rotate_pairs, rotated
from .rows import load_float, tile_mask, tile_places

ROWS = 64  # tokens of a tile


def pooled_keys_reference(
    k: Tensor, frames: Tensor, rotations: Tensor, frame_tokens: int
) -> Tensor:
    """The mean key of frames, `[n, head_dim]` float32, rotated: by minus its index, a key has no
    temporal rotation.

    Args:
        frames: `[n, 2]`, each `(first row, rotation)`; one per memory head and layer.
        rotations: `[n, 2, temporal pairs]`.
    """
    rows = frames.long()[:, :1] + torch.arange(frame_tokens, device=k.device)
    # all tokens of a frame rotate alike, so their mean does
    mean = k[rows].float().mean(dim=1, keepdim=True)
    return rotated(mean, rotations[frames.long()[:, 1]])[:, 0]


@kernel
def _pool_kernel(
    k,
    frames,
    rotations,
    out,
    frame_tokens,
    HEAD_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    frame = tl.program_id(0)
    channel = tl.arange(0, DIM)
    first = tl.load(frames + 2 * frame).to(tl.int64)
    cos, sin = load_rotation(
        rotations, tl.load(frames + 2 * frame + 1), tl.arange(0, DIM // 2), PAIRS
    )
    total = tl.zeros((1, DIM), tl.float32)
    for start in range(0, frame_tokens, ROWS):
        token = start + tl.arange(0, ROWS)
        inside = tile_mask(token, frame_tokens, channel, HEAD_DIM)
        keys = load_float(k + tile_places(first + token, channel, HEAD_DIM), inside)
        total += tl.sum(keys, axis=0)[None, :]
    mean = rotate_pairs(total / frame_tokens, cos[None, :], sin[None, :])
    tl.store(out + frame * HEAD_DIM + channel[None, :], mean, mask=(channel < HEAD_DIM)[None, :])


def _launch(k: Tensor, frames: Tensor, rotations: Tensor, frame_tokens: int) -> Tensor:
    head_dim = k.shape[1]
    out = torch.empty(len(frames), head_dim, dtype=torch.float32, device=k.device)
    _pool_kernel[(len(frames),)](
        k,
        frames,
        rotations,
        out,
        frame_tokens,
        HEAD_DIM=head_dim,
        PAIRS=rotations.shape[2],
        ROWS=ROWS,
        DIM=power_of_2(head_dim),
        num_warps=4,
    )
    return out


def _example(device: torch.device, dtype: torch.dtype) -> Arguments:
    s = 72
    k = noise(4 * s, 128).to(device, dtype)
    rotations = noise(3, 2, 22).to(device)
    frames = torch.tensor([[0, 2], [2 * s, 0], [3 * s, 1]], dtype=torch.int32, device=device)
    return dict(k=k, frames=frames, rotations=rotations, frame_tokens=s)


pooled_keys = Operation(pooled_keys_reference, _launch, _example)
