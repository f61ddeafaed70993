"""The VAE decoder of a benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .case import Case

if TYPE_CHECKING:
    from headforcing.headforcing_core.video.stream import StreamingDecoder


def random_decoder(case: Case) -> tuple[StreamingDecoder | None, str]:
    """A decoder with random weights, which goes on with the video from block to block, and which it is or why not."""
    if not case.vae_dim:
        return None, "left out"
    try:
        from headforcing.headforcing_core.video.wan_decoder import WanDecoder
        from headforcing.headforcing_core.video.wan_vae import WanVideoDecoder
    except ImportError as error:
        return None, f"the engine's decoder cannot be used: {error}"
    with torch.random.fork_rng([case.device] if case.device.type == "cuda" else []), torch.device(case.device):
        torch.manual_seed(case.seed)
        network = WanDecoder(case.vae_dim)
        for weight in network.parameters():
            weight.data.normal_(std=weight[0].numel() ** -0.5 if weight[0].numel() > 1 else 1.0)
    decoder = WanVideoDecoder(network.to(case.dtype).prepare())
    return decoder, f"the engine's decoder of base width {case.vae_dim}, streaming"
