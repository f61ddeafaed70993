"""The Wan VAE's decoder with random weights: the time is that of the real one, the pictures are not."""

from __future__ import annotations

import torch
from headforcing.headforcing_core.video.stream import StreamingDecoder
from headforcing.headforcing_core.video.wan_vae import DiffusersDecoder

from .case import Case


def random_decoder(case: Case) -> tuple[StreamingDecoder | None, str]:
    """The decoder of a case, which goes on with the video from block to block, or why there is none."""
    if not case.vae_dim:
        return None, "left out"
    try:
        from diffusers import AutoencoderKLWan
    except (ImportError, RuntimeError) as error:  # RuntimeError: a package of its own does not fit it
        return None, f"the package diffusers cannot be imported: {str(error).splitlines()[0]}"
    with torch.random.fork_rng([case.device] if case.device.type == "cuda" else []):
        torch.manual_seed(case.seed)
        with torch.device(case.device):
            vae = AutoencoderKLWan(base_dim=case.vae_dim).requires_grad_(False).eval()
    return DiffusersDecoder(vae.post_quant_conv.to(case.dtype), vae.decoder.to(case.dtype)), ""
