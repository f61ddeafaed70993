"""Forward pass of the transformer over all blocks of a batch of clips at once, for training.

Weights and arithmetic are those of `wan.forward_block`, which runs one block of one video with a KV
cache. Here every block attends to the clean blocks before it and to itself, in one pass with
gradients (teacher forcing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import torch
from torch import Tensor

from ...headforcing_core.model.rope import angles, axis_dims
from ...headforcing_core.model.wan import (
    TransformerBlock,
    WanModel,
    timestep_embedding,
)
from .sizes import BLOCK_FRAMES

KeysValues = list[tuple[Tensor, Tensor]]
"""Keys (after rotary embedding) and values of every layer, each `[batch, heads, tokens,
head_dim]`.
"""
Sights = tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
"""Attention mask as `(first, last + 1, ((first, last + 1), ...))`: these tokens attend to those
spans of tokens.
"""


def forward(
    model: WanModel,
    latents: Tensor,
    timesteps: Tensor,
    text: Tensor,
    frame_indices: Sequence[int],
    sights: Sights | None = None,
    past: KeysValues | None = None,
) -> tuple[Tensor, KeysValues]:
    """Predicted flow (noise minus clean) of several blocks, and their keys and values.

    Args:
        latents: `[batch, frames, channels, h, w]`, `frames` a multiple of three; `timesteps [batch,
            frames]` are 0 to 1000.
        text: `[batch, frames / 3, words, text_dim]`, the prompt of each block.
        sights: attention mask; None for full attention.
        past: keys and values of earlier tokens, prepended to the new ones.
    """
    batch, frames, _, _, width = latents.shape
    columns = width // model.patch_size[2]
    x = model.patch_embedding(latents.transpose(1, 2))
    rows = x.shape[3]
    x = x.flatten(3).permute(0, 2, 3, 1)  # [batch, frames, tokens, dim]
    sinusoids = timestep_embedding(timesteps.flatten(), model.freq_dim).to(x)
    e = model.time_embedding(sinusoids).unflatten(0, (batch, frames))
    modulation = model.time_projection(e).unflatten(-1, (6, -1))  # [batch, frames, 6, dim]
    context = model.text_embedding(text.flatten(0, 1))  # [batch * blocks, words, dim]
    rotation = _rotation(tuple(frame_indices), rows, columns, model.config.head_dim)
    kept: KeysValues = []
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, TransformerBlock)
        before = past[layer] if past else None
        x, k, v = _compiled_block()(
            block,
            x,
            modulation,
            context,
            model.num_heads,
            *rotation,
            sights,
            before,
        )
        kept.append((k, v))
    shift, scale = (model.head.modulation[:, None] + e[:, :, None]).unbind(2)
    x = model.head.head(model.head.norm(x) * (1 + scale[:, :, None]) + shift[:, :, None])
    _, ph, pw = model.patch_size
    # [b, f, rows, columns, ph, pw, c]
    patches = x.unflatten(2, (rows, columns)).unflatten(-1, (ph, pw, -1))
    flow = patches.permute(0, 1, 6, 2, 4, 3, 5).flatten(5, 6).flatten(3, 4)
    return flow.float(), kept


@cache
def _compiled_block() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """`_block`, compiled at its first use: importing what `torch.compile` needs takes seconds."""
    return torch.compile(_block, dynamic=False)


def _block(
    block: TransformerBlock,
    x: Tensor,
    modulation: Tensor,
    context: Tensor,
    heads: int,
    cos: Tensor,
    sin: Tensor,
    sights: Sights | None,
    before: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer on `x [batch, frames, tokens, dim]`; returns x and the layer's new keys and
    values.
    """
    shift1, scale1, gate1, shift2, scale2, gate2 = (block.modulation[:, None] + modulation)[
        :, :, :, None
    ].unbind(2)
    y = block.norm1(x) * (1 + scale1) + shift1
    attention = block.self_attn
    q = attention.norm_q(attention.q(y))
    k = attention.norm_k(attention.k(y))
    q = q.flatten(1, 2).unflatten(-1, (heads, -1)).transpose(1, 2)
    k = k.flatten(1, 2).unflatten(-1, (heads, -1)).transpose(1, 2)
    v = attention.v(y).flatten(1, 2).unflatten(-1, (heads, -1)).transpose(1, 2)
    q = _rotate(q, cos, sin)
    k = _rotate(k, cos, sin)
    keys, values = (
        (k, v) if before is None else (torch.cat((before[0], k), 2), torch.cat((before[1], v), 2))
    )
    y = _attend(q, keys, values, sights)
    x = x + attention.o(y.transpose(1, 2).flatten(2)).unflatten(1, x.shape[1:3]) * gate1

    cross = block.cross_attn
    # [batch * blocks, tokens of a block, dim]
    y = block.norm3(x).unflatten(1, (-1, BLOCK_FRAMES)).flatten(2, 3).flatten(0, 1)
    y = cross.norm_q(cross.q(y))
    text_k = cross.norm_k(cross.k(context))
    cross_q = y.unflatten(-1, (heads, -1)).transpose(1, 2)
    cross_k = text_k.unflatten(-1, (heads, -1)).transpose(1, 2)
    cross_v = cross.v(context).unflatten(-1, (heads, -1)).transpose(1, 2)
    y = _plain_attention(cross_q, cross_k, cross_v)
    x = x + cross.o(y.transpose(1, 2).flatten(2)).reshape(x.shape)
    return x + block.ffn(block.norm2(x) * (1 + scale2) + shift2) * gate2, k, v


@lru_cache(maxsize=32)
def _rotation(
    frame_indices: tuple[int, ...], rows: int, columns: int, head_dim: int
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every token's three positions, `[tokens, head_dim / 2]`."""
    places = torch.cartesian_prod(
        torch.tensor(frame_indices), torch.arange(rows), torch.arange(columns)
    )
    angle = torch.cat(
        [angles(place, dim) for place, dim in zip(places.T, axis_dims(head_dim), strict=True)],
        dim=1,
    )
    return angle.cos().float(), angle.sin().float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return (
        torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
        .flatten(-2)
        .to(x.dtype)
    )


def _attend(q: Tensor, k: Tensor, v: Tensor, sights: Sights | None) -> Tensor:
    """Attention of each group of tokens to its spans."""
    outputs = []
    for start, stop, spans in sights or ((0, q.shape[2], ((0, k.shape[2]),)),):
        keys = torch.cat([k[:, :, a:b] for a, b in spans], 2)
        values = torch.cat([v[:, :, a:b] for a, b in spans], 2)
        outputs.append(_plain_attention(q[:, :, start:stop], keys, values))
    return torch.cat(outputs, 2)


def _plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention with `baddbmm`: a compiler replaces `@` by fused attention, whose gradient is slow
    on CPUs.
    """
    queries = q.flatten(0, 1)
    keys = k.flatten(0, 1)
    values = v.flatten(0, 1)
    nothing = q.new_zeros(())
    scores = torch.baddbmm(
        nothing, queries, keys.transpose(1, 2), beta=0, alpha=q.shape[-1] ** -0.5
    )
    return torch.bmm(scores.softmax(-1).to(values.dtype), values).unflatten(0, q.shape[:2])


@lru_cache(maxsize=8)
def teacher_forcing(blocks: int, block_tokens: int) -> Sights:
    """Mask of `[clean blocks but the last | noisy blocks]`: each attends to the clean blocks before
    it and itself.
    """
    spans = [
        (start, start + block_tokens) for start in range(0, blocks * block_tokens, block_tokens)
    ]
    shift = spans[-1][0]
    clean = [(start, stop, ((0, stop),)) for start, stop in spans[:-1]]
    noisy = [
        (start + shift, stop + shift, ((0, start), (start + shift, stop + shift)))
        for start, stop in spans
    ]
    return (*clean, *noisy)


def teacher_forced_flow(
    model: WanModel, clean: Tensor, noisy: Tensor, timesteps: Tensor, text: Tensor
) -> Tensor:
    """Flow of every block of `noisy [batch, frames, channels, h, w]`, conditioned on the clean
    blocks before it.

    `timesteps [batch, frames]` are those of the noisy latent frames; clean ones have timestep 0.
    """
    frames = clean.shape[1]
    context = clean[:, :-BLOCK_FRAMES]
    times = torch.cat((torch.zeros_like(timesteps[:, :-BLOCK_FRAMES]), timesteps), 1)
    indices = (*range(frames - BLOCK_FRAMES), *range(frames))
    tokens = (
        BLOCK_FRAMES
        * clean.shape[3]
        * clean.shape[4]
        // (model.patch_size[1] * model.patch_size[2])
    )
    sights = teacher_forcing(frames // BLOCK_FRAMES, tokens)
    flow, _ = forward(
        model,
        torch.cat((context, noisy), 1),
        timesteps=times,
        text=torch.cat((text[:, :-1], text), 1),
        frame_indices=indices,
        sights=sights,
    )
    return flow[:, -frames:]
