"""Attention of every head to its own number of keys, read where the cache keeps them.

Two forms: over keys that carry their place in time already, and over keys that do not, for which the queries are
turned back by the distance to each key's frame (a score depends on the difference of the two indices only).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .dispatch import Operation
from .language import interpreting, kernel, power_of_2, tiles, tl
from .layout import LayoutError, check_buffers, check_rotations, check_table
from .rotation import load_turn, rotation_table, turn_pairs, turned

BLOCK_Q, BLOCK_K, WARPS, STAGES = 128, 64, 8, 2  # fits every GPU since 2020 in half precision
FLOAT32_BLOCK_Q, FLOAT32_BLOCK_K = 64, 32
LOG2_E = 1.4426950408889634  # powers of 2 are what the hardware computes


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, head_start: Tensor, head_rows: Tensor, head_order: Tensor
) -> Tensor:
    """Attention of `q [heads, tokens, head_dim]` to each head's rows of the buffers; `[tokens, heads, head_dim]`.

    Args:
        head_start, head_rows: `[heads]`, a head's first row and how many rows it sees.
        head_order: `[heads]`, the heads, the longest first, in which order they are started; no effect on the result.
    """
    out = torch.empty(q.shape[1], len(q), q.shape[2], dtype=q.dtype, device=q.device)
    for head, (start, rows) in enumerate(zip(head_start.tolist(), head_rows.tolist(), strict=True)):
        keys, values = (x[start : start + rows].float() for x in (k, v))
        scores = q[head].float() @ keys.T / q.shape[2] ** 0.5
        out[:, head] = (scores.softmax(dim=-1) @ values).to(q.dtype)
    return out


def attend_turning_reference(
    q: Tensor, k: Tensor, v: Tensor, head_start: Tensor, head_rows: Tensor, head_order: Tensor,
    query_index: Tensor, key_index: Tensor, turns: Tensor, zero_turn: int, frame_tokens: int,
) -> Tensor:  # fmt: skip
    """The same for keys and queries that are rotated spatially only; a head sees whole frames.

    Args:
        query_index: `[heads]`, the temporal index of the block's first frame; the next frame's is one more.
        key_index: `[heads, slots]`, the temporal index of every slot of a head in use.
        turns: `[n, 2, temporal pairs]`, where row `zero_turn + d` turns by `d`.
    """
    out = torch.empty(q.shape[1], len(q), q.shape[2], dtype=q.dtype, device=q.device)
    query_frame = torch.arange(q.shape[1], device=q.device) // frame_tokens
    for head, (start, rows) in enumerate(zip(head_start.tolist(), head_rows.tolist(), strict=True)):
        keys, values = (x[start : start + rows].float() for x in (k, v))
        slots = rows // frame_tokens
        turn = zero_turn + query_index[head] + query_frame - key_index[head, :slots, None]
        queries = turned(q[head].float().expand(slots, -1, -1)[:, :, None], turns[turn.long()])[:, :, 0].to(q.dtype)
        scores = queries.float() @ keys.unflatten(0, (slots, frame_tokens)).transpose(1, 2) / q.shape[2] ** 0.5
        out[:, head] = (torch.cat(tuple(scores), dim=-1).softmax(dim=-1) @ values).to(q.dtype)
    return out


@kernel
def _load_tile(x, row, known, channel, HEAD_DIM: tl.constexpr, UPCAST: tl.constexpr):
    """Rows of a buffer; `row, known` along one axis of the tile, `channel` along the other."""
    tile = tl.load(x + row * HEAD_DIM + channel, mask=known & (channel < HEAD_DIM), other=0.0)
    return tile.to(tl.float32) if UPCAST else tile


@kernel
def _attend_rows(
    acc, peak, total, q_low, q_high, k, v, first, last, scale,
    TAIL: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, LOW: tl.constexpr, BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Take rows `first` to `last` of a head into a running softmax: weighted values, maximum and sum of weights."""
    low, channel = tl.arange(0, LOW), tl.arange(0, DIM)
    for start in range(first, last, BLOCK_K):
        row = start + tl.arange(0, BLOCK_K)
        known = row < last
        keys = _load_tile(k, row[None, :], known[None, :], low[:, None], HEAD_DIM, UPCAST)
        scores = tl.dot(q_low, keys, input_precision="ieee")
        if LOW < DIM:
            keys = _load_tile(k, row[None, :], known[None, :], LOW + low[:, None], HEAD_DIM, UPCAST)
            scores = tl.dot(q_high, keys, scores, input_precision="ieee")
        if TAIL:
            scores = tl.where(known[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1) * scale)
        weights, shrink = tl.exp2(scores * scale - new_peak[:, None]), tl.exp2(peak - new_peak)
        values = _load_tile(v, row[:, None], known[:, None], channel[None, :], HEAD_DIM, UPCAST)
        acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
        total = total * shrink + tl.sum(weights, axis=1)
        peak = new_peak
    return acc, peak, total


@kernel
def _attend_frame(
    acc, peak, total, q_low, q_high, k, v, first, rows, scale,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, LOW: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """`rows` rows from row `first` on: whole tiles, which need no mask, and then the rest."""
    whole = first + rows // BLOCK_K * BLOCK_K
    acc, peak, total = _attend_rows(
        acc, peak, total, q_low, q_high, k, v, first, whole, scale, False, HEAD_DIM, DIM, LOW, BLOCK_K, UPCAST
    )
    return _attend_rows(
        acc, peak, total, q_low, q_high, k, v, whole, first + rows, scale, True, HEAD_DIM, DIM, LOW, BLOCK_K, UPCAST
    )


@kernel
def _attend_kernel(
    q, k, v, out, head_start, head_rows, head_order, query_index, key_index, turns,
    zero_turn, slots, frame_tokens, tokens, scale,
    TURN: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAIRS: tl.constexpr, DIM: tl.constexpr,
    LOW: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    # LOW channels hold all that turn with time; where that is half of them, only this half is turned, frame by frame
    head = tl.load(head_order + tl.program_id(1))
    token = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    known, low, channel = (token < tokens)[:, None], tl.arange(0, LOW), tl.arange(0, DIM)
    row = (head * tokens + token).to(tl.int64)[:, None]
    q_low = _load_tile(q, row, known, low[None, :], HEAD_DIM, UPCAST)
    q_high = _load_tile(q, row, known, LOW + low[None, :], HEAD_DIM, UPCAST) if LOW < DIM else q_low
    start, rows = tl.load(head_start + head).to(tl.int64), tl.load(head_rows + head)
    k += start * HEAD_DIM
    v += start * HEAD_DIM
    acc = tl.zeros((BLOCK_Q, DIM), tl.float32)
    peak = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    if TURN:
        index = zero_turn + tl.load(query_index + head) + tl.minimum(token, tokens - 1) // frame_tokens
        for slot in range(rows // frame_tokens):
            turn = index - tl.load(key_index + head * slots + slot)
            cos, sin = load_turn(turns, turn[:, None], tl.arange(0, LOW // 2)[None, :], PAIRS)
            q_turned = turn_pairs(q_low.to(tl.float32), cos, sin).to(q_low.dtype)
            acc, peak, total = _attend_frame(
                acc, peak, total, q_turned, q_high, k, v, slot * frame_tokens, frame_tokens, scale,
                HEAD_DIM, DIM, LOW, BLOCK_K, UPCAST,
            )  # fmt: skip
    else:
        acc, peak, total = _attend_frame(
            acc, peak, total, q_low, q_high, k, v, 0, rows, scale, HEAD_DIM, DIM, LOW, BLOCK_K, UPCAST
        )
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    place = (token.to(tl.int64)[:, None] * HEADS + head) * HEAD_DIM + channel[None, :]
    tl.store(out + place, result, mask=known & (channel < HEAD_DIM)[None, :])


def _run(
    q: Tensor, k: Tensor, v: Tensor, head_start: Tensor, head_rows: Tensor, head_order: Tensor,
    query_index: Tensor, key_index: Tensor, turns: Tensor, zero_turn: int, frame_tokens: int, turn: bool,
) -> Tensor:  # fmt: skip
    head_dim = check_buffers(k, v)
    if q.ndim != 3 or not q.is_contiguous() or q.shape[2] != head_dim or q.dtype != k.dtype:
        raise LayoutError(f"q must be contiguous {k.dtype} [heads, tokens, {head_dim}], got {list(q.shape)} {q.dtype}")
    heads, tokens, _ = q.shape
    for name, table in (("head_start", head_start), ("head_rows", head_rows), ("head_order", head_order)):
        check_table(name, table, heads)
    pairs = check_rotations("turns", turns, head_dim) if turn else 0
    dim = max(16, power_of_2(head_dim))  # a matrix unit takes 16 channels at least
    half = turn and 2 * pairs <= dim // 2 and dim >= 32
    block_q, block_k = (FLOAT32_BLOCK_Q, FLOAT32_BLOCK_K) if q.dtype == torch.float32 else (BLOCK_Q, BLOCK_K)
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    _attend_kernel[tiles(tokens, block_q), heads](
        q, k, v, out, head_start, head_rows, head_order, query_index, key_index, turns,
        zero_turn, key_index.shape[-1], frame_tokens, tokens, LOG2_E / head_dim**0.5,
        TURN=turn, HEADS=heads, HEAD_DIM=head_dim, PAIRS=pairs, DIM=dim, LOW=dim // 2 if half else dim,
        BLOCK_Q=block_q, BLOCK_K=block_k, UPCAST=q.dtype == torch.bfloat16 and interpreting(),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out


def _launch(q: Tensor, k: Tensor, v: Tensor, head_start: Tensor, head_rows: Tensor, head_order: Tensor) -> Tensor:
    unused = head_start
    return _run(q, k, v, head_start, head_rows, head_order, unused, unused, unused, 0, 1, turn=False)


def _launch_turning(
    q: Tensor, k: Tensor, v: Tensor, head_start: Tensor, head_rows: Tensor, head_order: Tensor,
    query_index: Tensor, key_index: Tensor, turns: Tensor, zero_turn: int, frame_tokens: int,
) -> Tensor:  # fmt: skip
    check_table("query_index", query_index, len(q))
    check_table("key_index", key_index, len(q), None)
    return _run(
        q, k, v, head_start, head_rows, head_order, query_index, key_index, turns, zero_turn, frame_tokens, turn=True
    )


def _example(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    s = 40
    q = torch.randn(3, 2 * s, 128, generator=generator)
    k, v = torch.randn(2, 10 * s, 128, generator=generator).to(device, dtype)

    def table(*rows: Any) -> Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=device)

    return dict(
        q=(2 * q).to(device, dtype), k=k, v=v, head_start=table(8 * s, 0, 5 * s), head_rows=table(2 * s, 4 * s, 3 * s),
        head_order=table(1, 2, 0),
    )  # fmt: skip


def _example_turning(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    angle = torch.linspace(-4, 8, 13)[:, None] * torch.rand(22, generator=generator)
    more = dict(
        query_index=torch.tensor([0, 2, 1], dtype=torch.int32, device=device),
        key_index=torch.tensor([[1, 0, 9, 9], [0, 4, 2, 3], [2, 0, 1, 9]], dtype=torch.int32, device=device),
        turns=rotation_table(angle).to(device), zero_turn=4, frame_tokens=40,
    )  # fmt: skip
    return _example(device, dtype) | more


attend = Operation(attend_reference, _launch, _example)
attend_turning = Operation(attend_turning_reference, _launch_turning, _example_turning)
