"""RMS norm and rotary embedding of a block's queries and keys, and the write of keys and values to
the cache.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .dispatch import Arguments, Operation, noise
from .language import kernel, power_of_2, tiles, tl
from .layout import check_layout
from .rotation import rotate_pairs, rotated
from .rows import load_float, tile_mask, tile_places

ROWS = 8  # tokens of a tile


def write_block_reference(
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    k_buffer: Tensor,
    v_buffer: Tensor,
    table: Tensor,
    temporal: Tensor,
    spatial: Tensor,
) -> Tensor | None:
    """Norm and rotate a block's queries and keys, write keys and values to every head's slots,
    return the queries.

    Computed in float32 and rounded once.

    Args:
        q, k, v: `[tokens, heads * head_dim]`, frame after frame; rows of any stride. q may be None.
        norms: weights of the RMS norms of queries and keys, taken over the full width, and their
            eps; None if they are normed already.
        table: `[heads, 3]`, each `(row of the buffers for the block's first token, row of the
            result for the first query, row of temporal for the block's first frame)`. Other tokens
            and frames use the next rows; the result may order heads differently.
        temporal: `[n, 2, pairs]`.
        spatial: `[frame_tokens, 2, pairs]`, for the channels after the temporal ones.

    Returns:
        queries `[heads, tokens, head_dim]`.
    """
    heads = len(table)
    slot_row, q_row, first_rotation = table.long()[:, :, None].unbind(1)
    frame_tokens = len(spatial)
    q_weight, k_weight, eps = norms or (k, k, 0.0)
    place = torch.arange(len(k), device=k.device)
    row = first_rotation + place // frame_tokens
    angles = torch.cat(
        (temporal[row], spatial[place % frame_tokens].expand(heads, -1, -1, -1)), dim=-1
    )

    def by_head(x: Tensor) -> Tensor:
        return x.unflatten(1, (heads, -1)).transpose(0, 1)

    def normed_and_rotated(x: Tensor, weight: Tensor) -> Tensor:
        normed = x.float()
        if norms is not None:
            normed = F.rms_norm(normed, x.shape[1:], weight.float(), eps)
        return rotated(by_head(normed)[:, :, None], angles)[:, :, 0].to(x.dtype)

    rows = slot_row + place
    k_buffer[rows] = normed_and_rotated(k, k_weight)
    v_buffer[rows] = by_head(v)
    if q is None:
        return None
    queries = torch.empty(heads * len(q), k_buffer.shape[1], dtype=q.dtype, device=q.device)
    queries[q_row + place] = normed_and_rotated(q, q_weight)
    return queries.unflatten(0, (heads, -1))


@kernel
def _load_angles(
    temporal, spatial, row, place, pair, TIME_PAIRS: tl.constexpr, PAIRS: tl.constexpr
):
    """Load cosines and sines `[rows, pairs]` for `row, place [rows]` of the tokens: temporal pairs,
    then spatial.
    """
    in_time = (pair < TIME_PAIRS)[None, :]
    in_space = ((pair >= TIME_PAIRS) & (pair < PAIRS))[None, :]
    SPACE_PAIRS: tl.constexpr = PAIRS - TIME_PAIRS
    time = temporal + row[:, None] * 2 * TIME_PAIRS + pair[None, :]
    space = spatial + place[:, None] * 2 * SPACE_PAIRS + (pair - TIME_PAIRS)[None, :]
    cos = load_float(time, in_time) + load_float(space, in_space)
    sin = load_float(time + TIME_PAIRS, in_time)
    return cos, sin + load_float(space + SPACE_PAIRS, in_space)


@kernel
def _norm_and_rotate(
    x,
    weight,
    out,
    table,
    column,
    temporal,
    spatial,
    stride,
    tokens,
    frame_tokens,
    eps,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TIME_PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, DIM)
    pair = tl.arange(0, DIM // 2)
    inside = tile_mask(token, tokens, channel, HEAD_DIM)
    x += tile_places(token, channel, stride)
    squares = tl.zeros((ROWS, DIM), tl.float32)
    if NORM:
        for head in range(HEADS):
            part = load_float(x + head * HEAD_DIM, inside)
            squares += part * part
    scale = 1 / tl.sqrt(tl.sum(squares, axis=1) / (HEADS * HEAD_DIM) + eps)
    for head in range(HEADS):
        part = load_float(x + head * HEAD_DIM, inside)
        if NORM:
            factor = load_float(weight + head * HEAD_DIM + channel, channel < HEAD_DIM)
            part = part * scale[:, None] * factor[None, :]
        row = tl.load(table + head * 3 + 2) + token // frame_tokens
        known = tl.where(token < tokens, row, 0)
        cos, sin = _load_angles(
            temporal, spatial, known, token % frame_tokens, pair, TIME_PAIRS, HEAD_DIM // 2
        )
        part = rotate_pairs(part, cos, sin)
        place = tile_places(tl.load(table + head * 3 + column) + token, channel, HEAD_DIM)
        tl.store(out + place, part, mask=inside)


@kernel
def _write_kernel(
    q,
    k,
    v,
    q_weight,
    k_weight,
    q_out,
    k_buffer,
    v_buffer,
    table,
    temporal,
    spatial,
    q_stride,
    k_stride,
    v_stride,
    tokens,
    frame_tokens,
    eps,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TIME_PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    if tl.program_id(1) == 0:
        _norm_and_rotate(
            k,
            k_weight,
            k_buffer,
            table,
            0,
            temporal,
            spatial,
            k_stride,
            tokens,
            frame_tokens,
            eps,
            NORM,
            HEADS,
            HEAD_DIM,
            TIME_PAIRS,
            ROWS,
            DIM,
        )
    elif tl.program_id(1) == 1:
        token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        channel = tl.arange(0, DIM)
        inside = tile_mask(token, tokens, channel, HEAD_DIM)
        source = v + tile_places(token, channel, v_stride)
        for head in range(HEADS):
            place = tile_places(tl.load(table + head * 3) + token, channel, HEAD_DIM)
            values = tl.load(source + head * HEAD_DIM, mask=inside, other=0.0)
            tl.store(v_buffer + place, values, mask=inside)
    else:
        _norm_and_rotate(
            q,
            q_weight,
            q_out,
            table,
            1,
            temporal,
            spatial,
            q_stride,
            tokens,
            frame_tokens,
            eps,
            NORM,
            HEADS,
            HEAD_DIM,
            TIME_PAIRS,
            ROWS,
            DIM,
        )


def _launch(
    q: Tensor | None,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor, float] | None,
    k_buffer: Tensor,
    v_buffer: Tensor,
    table: Tensor,
    temporal: Tensor,
    spatial: Tensor,
) -> Tensor | None:
    heads = table.shape[0]  # `len` of a tensor is a function of Python
    tokens = k.shape[0]
    head_dim = k_buffer.shape[1]
    queries = None
    if q is not None:
        queries = torch.empty(heads, tokens, head_dim, dtype=k.dtype, device=k.device)
    some_q, some_out = (k, k_buffer) if q is None or queries is None else (q, queries)
    width = heads * head_dim
    for x in (some_q, k, v):
        fits = x.shape == (tokens, width) and x.stride(1) == 1 and x.dtype == k_buffer.dtype
        check_layout(fits, f"projections must be {k_buffer.dtype} [{tokens}, {width}]", x)
    q_weight, k_weight, eps = norms or (k, k, 0.0)
    _write_kernel[tiles(tokens, ROWS), 2 if q is None else 3](
        some_q,
        k,
        v,
        q_weight,
        k_weight,
        some_out,
        k_buffer,
        v_buffer,
        table,
        temporal,
        spatial,
        some_q.stride(0),
        k.stride(0),
        v.stride(0),
        tokens,
        spatial.shape[0],
        eps,
        NORM=norms is not None,
        HEADS=heads,
        HEAD_DIM=head_dim,
        TIME_PAIRS=temporal.shape[2],
        ROWS=ROWS,
        DIM=power_of_2(head_dim),
        num_warps=4,
    )
    return queries


def _example(device: torch.device, dtype: torch.dtype) -> Arguments:
    q, k, v = noise(72, 3, 384).to(device, dtype).unbind(1)
    q_weight, k_weight = noise(2, 384, seed=1).to(device, dtype)
    k_buffer, v_buffer = torch.zeros(2, 400, 128, dtype=dtype, device=device)
    return dict(
        q=q,
        k=k,
        v=v,
        norms=(q_weight, k_weight, 1e-6),
        k_buffer=k_buffer,
        v_buffer=v_buffer,
        table=torch.tensor(
            [[96, 72, 1], [0, 144, 0], [300, 0, 3]], dtype=torch.int32, device=device
        ),
        temporal=noise(6, 2, 22).to(device),
        spatial=noise(24, 2, 42).to(device),
    )


write_block = Operation(write_block_reference, _launch, _example)
