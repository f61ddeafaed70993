"""Decoding a long video in constant memory with whatever VAE ComfyUI loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import comfy.ldm.wan.vae
import comfy.model_management
import torch
from torch import Tensor

from ..headforcing_core.errors import HeadForcingError


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
        comfy.model_management.throw_exception_if_processing_interrupted()
        z = latents.transpose(0, 1)[None].to(device=vae.device, dtype=vae.vae_dtype)
        out = self.net.decoder(self.net.conv2(z), feat_cache=self._cache, feat_idx=[0])
        pictures = torch.cat(out, dim=2) if isinstance(out, list) else out
        return vae.process_output(pictures.to(dtype=torch.float32, copy=True))[0].movedim(0, -1).cpu()


class OverlapDecoder:
    """Any other video VAE through its public `decode`: each chunk is decoded behind a few frames of what came before.

    Approximate at the joints; memory is constant.
    """

    OVERLAP_FRAMES = 4

    def __init__(self, vae: Any):
        self.vae = vae
        self.reset()

    def reset(self) -> None:
        self._before: Tensor | None = None

    def decode(self, latents: Tensor) -> Tensor:
        comfy.model_management.throw_exception_if_processing_interrupted()
        joined = latents if self._before is None else torch.cat([self._before, latents])
        pictures = self.vae.decode(joined.transpose(0, 1)[None])[0]
        if self._before is not None:
            pictures = pictures[-4 * len(latents) :]
        self._before = joined[-self.OVERLAP_FRAMES :]
        return pictures.cpu()


def streaming_decoder(vae: Any, latent_shape: Sequence[int]) -> Any:
    """The exact streaming decoder for this VAE where there is one; loads the VAE for chunks of that shape."""
    vae.throw_exception_if_invalid()
    if (vae.latent_channels, vae.latent_dim) != (16, 3):
        kind = "video" if vae.latent_dim == 3 else "image"
        raise HeadForcingError(
            f"vae: expected the Wan 2.1 VAE, which has 16 latent channels, got one for {kind}s with "
            f"{vae.latent_channels} latent channels; load wan_2.1_vae"
        )
    needed = vae.memory_used_decode((1, 16, 3, *latent_shape[-2:]), vae.vae_dtype)
    comfy.model_management.load_models_gpu([vae.patcher], memory_required=needed)
    own = getattr(vae.first_stage_model, "streaming_decoder", None)
    if own is not None:
        return own()
    if isinstance(vae.first_stage_model, comfy.ldm.wan.vae.WanVAE):
        return WanStreamingDecoder(vae)
    return OverlapDecoder(vae)
