"""Attention of every head to its own number of keys, read from the cache's buffers, where keys are
fully rotated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dispatch import Arguments, Operation, noise
from .language import interpreting, kernel, power_of_2, tiles, tl
from .layout import check_layout

# a tile fits every GPU since 2020
BLOCK_Q = 128
BLOCK_K = 64
FLOAT32_BLOCK_Q = 64
FLOAT32_BLOCK_K = 32
WARPS = 8
STAGES = 2
LOG2_E = 1.4426950408889634  # powers of 2 are what the hardware computes


def attend_reference(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, sums: Tensor | None = None
) -> Tensor:
    """Attention of `q [heads, tokens, head_dim]` to each head's rows of the buffers; `[tokens,
    heads, head_dim]`.

    Args:
        table: `[heads, 2]`, each `(first row, number of rows)` that a head attends to.
        sums: `[heads, tokens]` float32, gets the log-sum-exp of every query's scores; minus
            infinity for a head without rows.
    """
    out = torch.empty(q.shape[1], len(q), q.shape[2], dtype=q.dtype, device=q.device)
    for head, (start, rows) in enumerate(table.tolist()):
        keys = k[start : start + rows].float()
        values = v[start : start + rows].float()
        scores = q[head].float() @ keys.T / q.shape[2] ** 0.5
        out[:, head] = (scores.softmax(dim=-1) @ values).to(q.dtype)
        if sums is not None:
            sums[head] = scores.logsumexp(dim=-1)
    return out


@kernel
def load_tile(x, row, known, channel, HEAD_DIM: tl.constexpr, UPCAST: tl.constexpr):
    """Load a tile of rows; `row` and the mask `known` run along one axis of the tile, `channel`
    along the other.
    """
    tile = tl.load(x + row * HEAD_DIM + channel, mask=known & (channel < HEAD_DIM), other=0.0)
    return tile.to(tl.float32) if UPCAST else tile


@kernel
def _attend_rows(
    acc,
    peak,
    total,
    queries,
    k,
    v,
    first,
    last,
    scale,
    TAIL: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Add rows `first` to `last` of a head to an online softmax: weighted values, maximum and sum
    of weights.
    """
    channel = tl.arange(0, DIM)
    for start in range(first, last, BLOCK_K):
        row = start + tl.arange(0, BLOCK_K)
        known = row < last
        keys = load_tile(k, row[None, :], known[None, :], channel[:, None], HEAD_DIM, UPCAST)
        scores = tl.dot(queries, keys, input_precision="ieee")
        if TAIL:
            scores = tl.where(known[None, :], scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        values = load_tile(v, row[:, None], known[:, None], channel[None, :], HEAD_DIM, UPCAST)
        acc = tl.dot(
            weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee"
        )
        total = total * shrink + tl.sum(weights, axis=1)
        peak = new_peak
    return acc, peak, total


@kernel
def _attend_kernel(
    q,
    k,
    v,
    out,
    sums,
    table,
    tokens,
    scale,
    SUMS: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
):
    head = tl.program_id(1)
    token = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    known = (token < tokens)[:, None]
    channel = tl.arange(0, DIM)
    row = (head * tokens + token).to(tl.int64)[:, None]
    queries = load_tile(q, row, known, channel[None, :], HEAD_DIM, UPCAST)
    start = tl.load(table + 2 * head).to(tl.int64)
    rows = tl.load(table + 2 * head + 1)
    k += start * HEAD_DIM
    v += start * HEAD_DIM
    acc = tl.zeros((BLOCK_Q, DIM), tl.float32)
    peak = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    whole = rows // BLOCK_K * BLOCK_K  # whole tiles need no mask; the last, partial one does
    acc, peak, total = _attend_rows(
        acc, peak, total, queries, k, v, 0, whole, scale, False, HEAD_DIM, DIM, BLOCK_K, UPCAST
    )
    acc, peak, total = _attend_rows(
        acc, peak, total, queries, k, v, whole, rows, scale, True, HEAD_DIM, DIM, BLOCK_K, UPCAST
    )
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    place = (token.to(tl.int64)[:, None] * HEADS + head) * HEAD_DIM + channel[None, :]
    tl.store(out + place, result, mask=known & (channel < HEAD_DIM)[None, :])
    if SUMS:
        row_sums = (peak + tl.log2(total)) * 0.6931471805599453  # ln 2
        tl.store(sums + head * tokens + token, row_sums, mask=token < tokens)


def _launch(q: Tensor, k: Tensor, v: Tensor, table: Tensor, sums: Tensor | None = None) -> Tensor:
    heads, tokens, head_dim = q.shape
    for x in (q, k, v):
        fits = x.is_contiguous() and x.dtype == q.dtype and x.shape[-1] == head_dim
        check_layout(
            fits, f"queries, keys and values must be contiguous {q.dtype} [.., {head_dim}]", x
        )
    if sums is not None:
        fits = sums.is_contiguous() and sums.dtype == torch.float32
        check_layout(fits, "sums must be contiguous float32", sums)
    block_q, block_k = (
        (FLOAT32_BLOCK_Q, FLOAT32_BLOCK_K) if q.dtype == torch.float32 else (BLOCK_Q, BLOCK_K)
    )
    out = torch.empty(tokens, heads, head_dim, dtype=q.dtype, device=q.device)
    _attend_kernel[tiles(tokens, block_q), heads](
        q,
        k,
        v,
        out,
        out if sums is None else sums,
        table,
        tokens,
        LOG2_E / head_dim**0.5,
        SUMS=sums is not None,
        HEADS=heads,
        HEAD_DIM=head_dim,
        DIM=max(16, power_of_2(head_dim)),  # `tl.dot` needs at least 16 channels
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        UPCAST=q.dtype == torch.bfloat16 and interpreting(),
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out


def _example(device: torch.device, dtype: torch.dtype) -> Arguments:
    s = 40
    q = 2 * noise(3, 2 * s, 128)
    k, v = noise(2, 10 * s, 128, seed=1).to(device, dtype)

    table = [[8 * s, 2 * s], [0, 4 * s], [5 * s, 3 * s]]
    return dict(
        q=q.to(device, dtype),
        k=k,
        v=v,
        table=torch.tensor(table, dtype=torch.int32, device=device),
        sums=torch.zeros(3, 2 * s, device=device),
    )


attend = Operation(attend_reference, _launch, _example)
