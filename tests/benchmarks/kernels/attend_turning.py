"""Attention to keys that are rotated spatially only: an alternative to storing keys fully rotated.

The queries are rotated back by the distance to each key's frame, since a score depends on the difference of the two
temporal indices only. So a key need not change when its index does, at the price of one rotation of the queries per
frame and tile.
"""

from __future__ import annotations

from typing import Any

import torch
from headforcing.kernels.attend import LOG2_E, STAGES, WARPS, attend, check_attention, load_tile
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.language import interpreting, kernel, power_of_2, tiles, tl
from headforcing.kernels.layout import check_rotations, check_table
from headforcing.kernels.rotation import load_rotation, rotate_pairs, rotated
from torch import Tensor

from .tables import rotation_table


def attend_turning_reference(
    q: Tensor, k: Tensor, v: Tensor, head_start: Tensor, head_rows: Tensor, head_order: Tensor,
    query_index: Tensor, key_index: Tensor, rotations: Tensor, zero: int, frame_tokens: int,
) -> Tensor:  # fmt: skip
    """`attend` for keys and queries that are rotated spatially only; a head sees whole frames.

    Args:
        query_index: `[heads]`, the temporal index of the block's first frame; the next frame's is one more.
        key_index: `[heads, slots]`, the temporal index of every slot of a head in use.
        rotations: `[n, 2, temporal pairs]`, where row `zero + d` rotates by `d`.
    """
    out = torch.empty(q.shape[1], len(q), q.shape[2], dtype=q.dtype, device=q.device)
    query_frame = torch.arange(q.shape[1], device=q.device) // frame_tokens
    for head, (start, rows) in enumerate(zip(head_start.tolist(), head_rows.tolist(), strict=True)):
        keys, values = (x[start : start + rows].float() for x in (k, v))
        slots = rows // frame_tokens
        row = (zero + query_index[head] + query_frame - key_index[head, :slots, None]).long()
        queries = rotated(q[head].float().expand(slots, -1, -1)[:, :, None], rotations[row])[:, :, 0].to(q.dtype)
        scores = queries.float() @ keys.unflatten(0, (slots, frame_tokens)).transpose(1, 2) / q.shape[2] ** 0.5
        out[:, head] = (torch.cat(tuple(scores), dim=-1).softmax(dim=-1) @ values).to(q.dtype)
    return out


@kernel
def _attend_rows(
    acc, peak, total, q_low, q_high, k, v, first, last, scale,
    TAIL: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, LOW: tl.constexpr, BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """As in `attend`, with the channels of the queries in two halves."""
    low, channel = tl.arange(0, LOW), tl.arange(0, DIM)
    for start in range(first, last, BLOCK_K):
        row = start + tl.arange(0, BLOCK_K)
        known = row < last
        keys = load_tile(k, row[None, :], known[None, :], low[:, None], HEAD_DIM, UPCAST)
        scores = tl.dot(q_low, keys, input_precision="ieee")
        if LOW < DIM:
            keys = load_tile(k, row[None, :], known[None, :], LOW + low[:, None], HEAD_DIM, UPCAST)
            scores = tl.dot(q_high, keys, scores, input_precision="ieee")
        if TAIL:
            scores = tl.where(known[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1) * scale)
        weights, shrink = tl.exp2(scores * scale - new_peak[:, None]), tl.exp2(peak - new_peak)
        values = load_tile(v, row[:, None], known[:, None], channel[None, :], HEAD_DIM, UPCAST)
        acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weights, axis=1)
        peak = new_peak
    return acc, peak, total


@kernel
def _attend_turning_kernel(
    q, k, v, out, head_start, head_rows, head_order, query_index, key_index, rotations,
    zero, slots, frame_tokens, tokens, scale,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAIRS: tl.constexpr, DIM: tl.constexpr, LOW: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # LOW channels hold all that rotate with time; where that is half of them, only this half rotates, frame by frame
    head = tl.load(head_order + tl.program_id(1))
    token = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    known, low, channel = (token < tokens)[:, None], tl.arange(0, LOW), tl.arange(0, DIM)
    row = (head * tokens + token).to(tl.int64)[:, None]
    q_low = load_tile(q, row, known, low[None, :], HEAD_DIM, UPCAST)
    q_high = load_tile(q, row, known, LOW + low[None, :], HEAD_DIM, UPCAST) if LOW < DIM else q_low
    start, rows = tl.load(head_start + head).to(tl.int64), tl.load(head_rows + head)
    k += start * HEAD_DIM
    v += start * HEAD_DIM
    acc = tl.zeros((BLOCK_Q, DIM), tl.float32)
    peak = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    index = zero + tl.load(query_index + head) + tl.minimum(token, tokens - 1) // frame_tokens
    for slot in range(rows // frame_tokens):
        by = index - tl.load(key_index + head * slots + slot)
        cos, sin = load_rotation(rotations, by[:, None], tl.arange(0, LOW // 2)[None, :], PAIRS)
        q_rotated = rotate_pairs(q_low.to(tl.float32), cos, sin).to(q_low.dtype)
        first = slot * frame_tokens
        whole = first + frame_tokens // BLOCK_K * BLOCK_K
        acc, peak, total = _attend_rows(
            acc, peak, total, q_rotated, q_high, k, v, first, whole, scale, False, HEAD_DIM, DIM, LOW, BLOCK_K, UPCAST
        )
        acc, peak, total = _attend_rows(
            acc, peak, total, q_rotated, q_high, k, v, whole, first + frame_tokens, scale, True, HEAD_DIM, DIM, LOW,
            BLOCK_K, UPCAST,
        )  # fmt: skip
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    place = (token.to(tl.int64)[:, None] * HEADS + head) * HEAD_DIM + channel[None, :]
    tl.store(out + place, result, mask=known & (channel < HEAD_DIM)[None, :])


def _launch(
    q: Tensor, k: Tensor, v: Tensor, head_start: Tensor, head_rows: Tensor, head_order: Tensor,
    query_index: Tensor, key_index: Tensor, rotations: Tensor, zero: int, frame_tokens: int,
) -> Tensor:  # fmt: skip
    head_dim, block_q, block_k = check_attention(q, k, v, head_start, head_rows, head_order)
    heads, tokens, _ = q.shape
    check_table("query_index", query_index, heads)
    check_table("key_index", key_index, heads, None)
    pairs = check_rotations("rotations", rotations, head_dim)
    dim = max(16, power_of_2(head_dim))  # a matrix unit takes 16 channels at least
    half = 2 * pairs <= dim // 2 and dim >= 32
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    _attend_turning_kernel[tiles(tokens, block_q), heads](
        q, k, v, out, head_start, head_rows, head_order, query_index, key_index, rotations,
        zero, key_index.shape[-1], frame_tokens, tokens, LOG2_E / head_dim**0.5,
        HEADS=heads, HEAD_DIM=head_dim, PAIRS=pairs, DIM=dim, LOW=dim // 2 if half else dim,
        BLOCK_Q=block_q, BLOCK_K=block_k, UPCAST=q.dtype == torch.bfloat16 and interpreting(),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


def _example(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    angle = torch.linspace(-4, 8, 13)[:, None] * torch.rand(22, generator=generator)
    more = dict(
        query_index=torch.tensor([0, 2, 1], dtype=torch.int32, device=device),
        key_index=torch.tensor([[1, 0, 9, 9], [0, 4, 2, 3], [2, 0, 1, 9]], dtype=torch.int32, device=device),
        rotations=rotation_table(angle).to(device), zero=4, frame_tokens=40,
    )  # fmt: skip
    return attend.example(device, dtype) | more


attend_turning = Operation(attend_turning_reference, _launch, _example)
