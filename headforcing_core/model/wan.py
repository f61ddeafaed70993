"""The transformer of Wan 2.1 text-to-video and of Wan 2.2 TI2V-5B, one block of frames at a time.

`forward_block` and `encode_prompt` run on *any* backbone with the submodules of `WanModel`, such as
ComfyUI's: they only call layers (`blocks[i].self_attn.q(x)`), so LoRA, fp8, GGUF and offloading
that a host implements inside them keep working. A weight is read only where a fused kernel replaces
a norm that the host does not modify (`norms.untouched`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels.write import write_block
from ..devices import Device, upload
from ..errors import HeadForcingError
from .latents import LatentFormat, latent_format
from .norms import add_norm, untouched
from .speech import SpeechProjection

# a module with the submodules of `WanModel`, whose classes a host may have replaced
Backbone: TypeAlias = Any


@dataclass(frozen=True)
class WanConfig:
    """Dimensions of a Wan text-to-video transformer, by default Wan 2.1's 1.3B model.

    `rope_axes`: a head's channels that are rotated by time, height and width; None: `axis_dims`. A
    subclass for another transformer has its own, and its own `latents`.
    """

    rope_axes: ClassVar[tuple[int, int, int] | None] = None

    dim: int = 1536
    ffn_dim: int = 8960
    num_layers: int = 30
    num_heads: int = 12
    in_dim: int = 16
    out_dim: int = 16
    freq_dim: int = 256
    text_dim: int = 4096
    text_len: int = 512
    patch_size: tuple[int, int, int] = (1, 2, 2)
    eps: float = 1e-6
    # of models that speech drives: numbers of a video frame's features, and of what they become
    audio_width: int = 0
    audio_dim: int = 0

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.dim % self.num_heads or self.head_dim % 2:
            raise HeadForcingError(
                f"num_heads must divide the model width {self.dim} into heads of even size, got "
                f"{self.num_heads}"
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.num_heads

    @cached_property
    def latents(self) -> LatentFormat:
        """Format of its latents."""
        return latent_format(self.out_dim)

    @cached_property
    def is_driven(self) -> bool:
        """Whether more than noise and prompts drives the model: a portrait and speech."""
        return self.audio_dim > 0


# weights of the RMS norms of queries and of keys, over all heads, and the norms' eps
Norms = tuple[Tensor, Tensor, float]


class KeyValueCache:
    """The part of `cache.base.Cache` that a pass of the transformer uses.

    Attributes:
        reads_queries: whether the clean pass must compute the last layer's queries, too.
        fused: whether `write_and_rotate` takes norms where `write_block.usable`; elsewhere it
            takes none.
        first_frame: number in the video of the first latent frame of the current pass.
    """

    reads_queries: bool = False
    fused: bool = False

    @property
    def first_frame(self) -> int:
        raise NotImplementedError

    def write_and_rotate(
        self, layer: int, k: Tensor, v: Tensor, q: Tensor | None = None, norms: Norms | None = None
    ) -> Tensor | None:
        """Store the current block's keys and values, replacing those of the previous pass; returns
        the queries as `attend` takes them, None without `q`.

        `k, v, q` are `[tokens, heads, head_dim]`, before rotary embedding, and with `norms` before
        these.
        """
        raise NotImplementedError

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attention `[tokens, heads, head_dim]` of the queries that `write_and_rotate` returned to
        each head's cached context and to the block itself.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class PromptKV:
    """A prompt's cross-attention keys and values, one `[1, heads, text_len, head_dim]` pair per
    layer; a layer without cross-attention has those of another.

    `valid_tokens` is the number of text tokens; the rest is padding, not masked in attention, as in
    Wan's own code. `text` is what keys and values are projected from, `[text_len, dim]`.
    """

    layers: list[tuple[Tensor, Tensor]]
    valid_tokens: int
    text: Tensor

    @property
    def mean_text(self) -> Tensor:
        """Mean of the text over the real tokens, `[dim]` float32."""
        return self.text[: self.valid_tokens].float().mean(dim=0)

    def mean_key(self, layer: int) -> Tensor:
        """Mean key over the real tokens for every head of a layer, `[heads, head_dim]` float32.

        Asked for layers with memory heads when two entries merge, first when the memory is full.
        """
        return self.layers[layer][0][0, :, : self.valid_tokens].float().mean(dim=1)


@dataclass(frozen=True)
class BlockInputs:
    """Inputs of a pass besides noisy latents, time steps and prompt.

    Attributes:
        channels: `[frames, more channels, h, w]`, joined to the latents before the patch embedding.
        rows: by the number of a layer, `[frames, dim]`, added to every token of a frame before it.
    """

    channels: Tensor
    rows: Mapping[int, Tensor]


def timestep_embedding(timesteps: Tensor, dim: int) -> Tensor:
    """Sinusoidal embedding `[n, dim]`, cosines first, of `timesteps [n]` (0 to 1000, on the CPU),
    float64.
    """
    half = dim // 2
    frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = timesteps.to(torch.float64)[:, None] * frequencies
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


def encode_prompt(
    backbone: Backbone, embeds: Tensor, dtype: torch.dtype, device: Device | None = None
) -> PromptKV:
    """Project text-encoder output `[tokens, text_dim]` to every layer's cross-attention keys and
    values.

    Tokens beyond the model's `text_len` are cut; padding is zeros *before* the text-embedding MLP,
    as in training. Trailing zero rows count as padding. Computed on `device`, by default that of
    the embeddings.
    """
    embeds = embeds[: backbone.text_len].to(dtype)
    # before they are moved to a GPU, which would be waited for
    rows_used = embeds.abs().amax(dim=-1).nonzero()
    valid_tokens = int(rows_used[-1]) + 1 if len(rows_used) else 1
    embeds = upload(embeds, embeds.device if device is None else device)
    padded = F.pad(embeds, (0, 0, 0, backbone.text_len - len(embeds)))
    context = backbone.text_embedding(padded[None])
    layers = []
    for block in backbone.blocks:
        attention = block.cross_attn
        k = attention.norm_k(attention.k(context))
        v = attention.v(context)
        layers.append((_split_heads(k, backbone.num_heads), _split_heads(v, backbone.num_heads)))
    return PromptKV(layers, valid_tokens, context[0])


def finish_layer(
    block: Any,
    x: Tensor,
    attended: Tensor,
    gate: Tensor,
    scale: Tensor,
    shift: Tensor,
    k: Tensor,
    v: Tensor,
) -> tuple[Tensor, Tensor]:
    """Cross-attention and FFN of a layer; returns the residual stream and the FFN output, not yet
    added to it.

    Args:
        x, attended: residual stream and self-attention output, `[1, tokens, dim]`.
        gate: of self-attention, `[frames, dim]`.
        scale, shift: modulation of the norm before the FFN, `[frames, dim]`.
        k, v: of the prompt, `[1, heads, text_len, head_dim]`.
    """
    x, y = add_norm(x, (attended, gate), block.norm3)
    y = _cross_attention(block.cross_attn, y, k, v)
    x, y = add_norm(x, (y, None), norm=block.norm2, scale=scale, shift=shift)
    return x, block.ffn(y)


def forward_block(
    backbone: Backbone,
    latents: Tensor,
    timesteps: Tensor,
    prompt: PromptKV,
    cache: KeyValueCache,
    *,
    write_only: bool = False,
    finish: Callable[..., tuple[Tensor, Tensor]] = finish_layer,
    inputs: BlockInputs | None = None,
) -> Tensor | None:
    """Run one block of latent frames through the transformer; returns the predicted flow (noise
    minus clean latents).

    Args:
        latents: `[frames, channels, h, w]` in the model's compute dtype.
        timesteps: `[frames]`, one per latent frame, 0 to 1000, on the CPU whatever the model's
            device.
        write_only: the clean pass, which only fills the cache; returns None after the last layer's
            keys and values.
        finish: `finish_layer` or an equivalent (`compiled.py`).
        inputs: further ones, of models that take more than noise and a prompt.

    Returns:
        flow `[frames, out_channels, h, w]`.
    """
    frames = latents.shape[0]
    if inputs is not None:
        latents = torch.cat((latents, inputs.channels), dim=1)
    # every loader, including ComfyUI's, keeps the patch embedding in float32
    x = backbone.patch_embedding(latents.transpose(0, 1)[None].float()).to(latents.dtype)
    rows = x.shape[3]
    x = x[0].flatten(1).T.contiguous()[None]  # [1, tokens, dim], frame after frame
    waves = timestep_embedding(timesteps, backbone.freq_dim)
    e = backbone.time_embedding(upload(waves.to(x.dtype), x.device))  # [frames, dim]
    modulation = backbone.time_projection(e).unflatten(-1, (6, -1))  # [frames, 6, dim]
    last = len(backbone.blocks) - 1
    # of all layers at once: one sum in place of one a layer; by number, since going through sharded
    # layers gathers them
    own = [backbone.blocks[layer].modulation for layer in range(last + 1)]
    modulations = _like(x, own) + modulation  # [layers, frames, 6, dim]

    # FFN output and gate of the previous layer: adding them here fuses the sum with the next norm
    added = None
    for layer, block in enumerate(backbone.blocks):
        if inputs is not None and layer in inputs.rows:
            x = _add_row(x, inputs.rows[layer])
        shift1, scale1, gate1, shift2, scale2, gate2 = modulations[layer].unbind(1)
        x, y = add_norm(x, added, norm=block.norm1, scale=scale1, shift=shift1)
        keys_only = write_only and layer == last
        attended = _self_attention(
            block.self_attn,
            y,
            layer=layer,
            heads=backbone.num_heads,
            cache=cache,
            keys_only=keys_only,
        )
        if attended is None:
            return None
        x, y = finish(block, x, attended, gate1, scale2, shift2, *prompt.layers[layer])
        added = y, gate2

    head = backbone.head
    shift, scale = (_like(x, [head.modulation])[0] + e[:, None]).unbind(1)
    _, y = add_norm(x, added, norm=head.norm, scale=scale, shift=shift)
    return _unpatch(head.head(y)[0], frames, rows, backbone.patch_size)


def _add_row(x: Tensor, row: Tensor) -> Tensor:
    """Tokens `[1, tokens, dim]`, frame after frame, with `row [frames, dim]` added to each of a
    frame."""
    return (x.unflatten(1, (row.shape[0], -1)) + row[:, None]).flatten(1, 2)


def _like(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Weights `[n, ...]` on the device and in the dtype of `x`: a host that streams weights may
    leave modulations on the CPU."""
    return torch.stack([upload(weight, x.device) for weight in weights]).to(x.dtype)


def _unpatch(x: Tensor, frames: int, rows: int, patch_size: tuple[int, int, int]) -> Tensor:
    """Tokens `[frames * rows * columns, patch height * patch width * channels]` as `[frames,
    channels, h, w]`.
    """
    _, ph, pw = patch_size
    # [f, rows, columns, ph, pw, c]
    patches = x.reshape(frames, rows, -1, ph, pw, x.shape[-1] // (ph * pw))
    return patches.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def _self_attention(
    attention: Any, x: Tensor, layer: int, heads: int, cache: KeyValueCache, keys_only: bool
) -> Tensor | None:
    """Self-attention of `x [1, tokens, dim]` through the cache; with `keys_only` just fills it and
    returns None.
    """
    q: Tensor | None = None
    fused = cache.fused and write_block.usable(x.device, x.dtype)
    joined = attention.joined if isinstance(attention, Attention) else None
    if fused and joined is not None and not keys_only:
        q, k, v = F.linear(x[0], *joined).chunk(3, dim=-1)
    else:
        k = attention.k(x)[0]
        v = attention.v(x)[0]
        if not keys_only:
            q = attention.q(x)[0]
    norm_q = attention.norm_q
    norm_k = attention.norm_k
    norms = None
    if fused and untouched(norm_q, k) and untouched(norm_k, k):
        norms = (norm_q.weight.to(k.dtype), norm_k.weight.to(k.dtype), norm_k.eps)
    else:
        q = None if q is None else norm_q(q)
        k = norm_k(k)
    if q is not None:
        q = q.unflatten(-1, (heads, -1))
    k = k.unflatten(-1, (heads, -1))
    queries = cache.write_and_rotate(layer, k, v.unflatten(-1, (heads, -1)), q=q, norms=norms)
    return None if queries is None else attention.o(cache.attend(layer, queries).flatten(1)[None])


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """`[1, tokens, dim]` -> `[1, heads, tokens, head_dim]`."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _cross_attention(attention: Any, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = _split_heads(attention.norm_q(attention.q(x)), k.shape[1])
    out = F.scaled_dot_product_attention(q, k, v)
    return attention.o(out.transpose(1, 2).flatten(2))


class Attention(nn.Module):
    """Projections and norms of one attention layer; `forward_block` computes the attention itself.

    Attributes:
        joined: weight and bias of q, k and v one after another, which theirs are views of; None
            where they are apart.
    """

    joined: tuple[Tensor, Tensor] | None = None

    def __init__(self, config: WanConfig):
        super().__init__()
        self.q = nn.Linear(config.dim, config.dim)
        self.k = nn.Linear(config.dim, config.dim)
        self.v = nn.Linear(config.dim, config.dim)
        self.o = nn.Linear(config.dim, config.dim)
        # the RMS is over the full width, before the split into heads
        self.norm_q = nn.RMSNorm(config.dim, eps=config.eps)
        self.norm_k = nn.RMSNorm(config.dim, eps=config.eps)

    def join(self) -> None:
        """Lay the weights of q, k and v one after another."""
        layers = (self.q, self.k, self.v)
        weight = torch.cat([layer.weight for layer in layers])
        bias = torch.cat([layer.bias for layer in layers])
        for layer, own_weight, own_bias in zip(layers, weight.chunk(3), bias.chunk(3), strict=True):
            layer.weight = nn.Parameter(own_weight, requires_grad=False)
            layer.bias = nn.Parameter(own_bias, requires_grad=False)
        self.joined = weight, bias


class TransformerBlock(nn.Module):
    def __init__(self, config: WanConfig):
        super().__init__()
        dim = config.dim
        self.norm1 = nn.LayerNorm(dim, config.eps, elementwise_affine=False)
        self.self_attn = Attention(config)
        self.norm3 = nn.LayerNorm(dim, config.eps)
        self.cross_attn = Attention(config)
        self.norm2 = nn.LayerNorm(dim, config.eps, elementwise_affine=False)
        self.ffn = nn.Sequential(
            nn.Linear(dim, config.ffn_dim),
            nn.GELU(approximate="tanh"),
            nn.Linear(config.ffn_dim, dim),
        )
        self.modulation = nn.Parameter(torch.zeros(1, 6, dim))


class Head(nn.Module):
    def __init__(self, config: WanConfig):
        super().__init__()
        patch_values = config.out_dim * math.prod(config.patch_size)
        self.norm = nn.LayerNorm(config.dim, config.eps, elementwise_affine=False)
        self.head = nn.Linear(config.dim, patch_values)
        self.modulation = nn.Parameter(torch.zeros(1, 2, config.dim))


class WanModel(nn.Module):
    """Parameters of a Wan text-to-video transformer of any size; run it with `forward_block`."""

    def __init__(self, config: WanConfig):
        super().__init__()
        self.config = config
        self.num_heads = config.num_heads
        self.text_len = config.text_len
        self.freq_dim = config.freq_dim
        self.patch_size = config.patch_size
        dim = config.dim
        self.patch_embedding = nn.Conv3d(config.in_dim, dim, config.patch_size, config.patch_size)
        self.text_embedding = nn.Sequential(
            nn.Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), nn.Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(
            nn.Linear(config.freq_dim, dim), nn.SiLU(), nn.Linear(dim, dim)
        )
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.num_layers))
        self.head = Head(config)
        if config.is_driven:
            projection = SpeechProjection(config)
            self.audio_proj = projection.audio_proj
            self.audio_cond_projs = projection.audio_cond_projs

    @classmethod
    def from_state_dict(
        cls,
        config: WanConfig,
        state_dict: dict[str, Tensor],
        dtype: torch.dtype,
        device: Device = "cpu",
    ) -> WanModel:
        """Build a model that uses the given tensors as its parameters, without initialisation and
        without a copy; RuntimeError for tensors that do not fill it (`weights.layouts` checks
        files).
        """
        with torch.device("meta"):
            model = cls(config)
        model.load_state_dict(state_dict, assign=True)
        model = model.requires_grad_(False).eval().to(device=device, dtype=dtype)
        model.patch_embedding.float()
        return model

    @torch.no_grad()
    def join_projections(self) -> None:
        """Let one product compute queries, keys and values where the fused kernel takes them:
        fewer, larger launches.

        Called last: weights that are moved or replaced afterwards would not be the ones in use.
        """
        block: Any
        for block in self.blocks:
            block.self_attn.join()
