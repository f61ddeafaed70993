"""The Wan VAE's decoder with random weights: the time is that of the real one, the pictures are not."""

from __future__ import annotations

import torch
from headforcing.headforcing_core.video.stream import StreamingDecoder
from headforcing.headforcing_core.video.wan_decoder import WanDecoder
from headforcing.headforcing_core.video.wan_vae import WanVideoDecoder

from .case import Case


def random_decoder(case: Case) -> tuple[StreamingDecoder | None, str]:
    """The decoder of a case, which goes on with the video from block to block, or why there is none."""
    if not case.vae_dim:
        return None, "left out"
    network = WanDecoder(case.vae_dim)
    generator = torch.Generator().manual_seed(case.seed)
    for weight in network.parameters():
        weight.data.normal_(std=weight[0].numel() ** -0.5 if weight[0].numel() > 1 else 1.0, generator=generator)
    return WanVideoDecoder(network.to(case.device, case.dtype).prepare()), ""
