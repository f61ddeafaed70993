"""Decoding a long video in constant memory with whatever VAE ComfyUI loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comfy.ldm.wan.vae
import comfy.model_management
import torch
from torch import Tensor

from ..headforcing_core.errors import HeadForcingError

_LONGEST_CHUNK_FRAMES = 4  # a block of three, and one that was held back


class WanStreamingDecoder:
    """The native Wan VAE, decoding a video chunk by chunk with its causal feature cache carried along (exact)."""

    def __init__(self, vae: Any):
        self.vae, self.net = vae, vae.first_stage_model
        # the counting function was renamed between the supported versions
        wan_vae = comfy.ldm.wan.vae
        count = getattr(wan_vae, "count_cache_layers", None) or wan_vae.count_conv3d
        self._cache_slots = count(self.net.decoder)
        self.reset()

    def reset(self) -> None:
        self._cache: list[Any] = [None] * self._cache_slots

    def decode(self, latents: Tensor) -> Tensor:
        """`[frames, 16, h, w]` -> `[pictures, H, W, 3]` in 0..1."""
        vae = self.vae
        z = latents.transpose(0, 1)[None].to(device=vae.device, dtype=vae.vae_dtype)
        out = self.net.decoder(self.net.conv2(z), feat_cache=self._cache, feat_idx=[0])
        pictures = torch.cat(out, dim=2) if isinstance(out, list) else out
        return vae.process_output(pictures.to(dtype=torch.float32, copy=True))[0].movedim(0, -1).cpu()


class OverlapDecoder:
    """Any other video VAE through its public `decode`: each chunk is decoded behind a few frames of what came before.

    Exact for TAEHV, ComfyUI's tiny decoders for drafts, whose memory goes back 5.25 frames; for others approximate at
    the joints. Memory is constant.
    """

    OVERLAP_FRAMES = 6

    def __init__(self, vae: Any):
        self.vae = vae
        self.reset()

    def reset(self) -> None:
        self._before: Tensor | None = None

    def decode(self, latents: Tensor) -> Tensor:
        joined = latents if self._before is None else torch.cat([self._before, latents])
        pictures = self.vae.decode(joined.transpose(0, 1)[None])[0]
        if self._before is not None:
            pictures = pictures[-4 * len(latents) :]
        self._before = joined[-self.OVERLAP_FRAMES :]
        return pictures.cpu()


def check_vae(vae: Any) -> None:
    """Refuse what is not a VAE for Wan 2.1's latents."""
    vae.throw_exception_if_invalid()
    if (vae.latent_channels, vae.latent_dim) != (16, 3):
        kind = "video" if vae.latent_dim == 3 else "image"
        raise HeadForcingError(
            f"vae: expected the Wan 2.1 VAE, which has 16 latent channels, got one for {kind}s with "
            f"{vae.latent_channels} latent channels; load wan_2.1_vae"
        )


def decode_bytes(vae: Any, latent_size: Sequence[int]) -> int:
    """What ComfyUI expects decoding one chunk to take, for latents of `(h, w)`."""
    return int(vae.memory_used_decode((1, 16, _LONGEST_CHUNK_FRAMES, *latent_size), vae.vae_dtype))


def decoder_of(vae: Any) -> Any:
    """The streaming decoder for this VAE, the exact one where there is one. Its weights must be in place."""
    own = getattr(vae.first_stage_model, "streaming_decoder", None)
    if own is not None:
        return own()
    if isinstance(vae.first_stage_model, comfy.ldm.wan.vae.WanVAE):
        return WanStreamingDecoder(vae)
    return OverlapDecoder(vae)


def load_decoder(vae: Any, latent_size: Sequence[int]) -> Any:
    """Check a VAE, load its weights and room for one chunk of latents of `(h, w)`, and give its streaming decoder."""
    check_vae(vae)
    needed = decode_bytes(vae, latent_size)
    comfy.model_management.load_models_gpu([vae.patcher], memory_required=needed)
    return decoder_of(vae)
