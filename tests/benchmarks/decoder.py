"""The Wan VAE's decoder with random weights: the time is that of the real one, the pictures are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .case import Case

if TYPE_CHECKING:
    from headforcing.headforcing_core.video.stream import StreamingDecoder


def random_decoder(case: Case) -> tuple[StreamingDecoder | None, str]:
    """A decoder for a case, which goes on with the video from block to block, and which it is or why there is none."""
    if not case.vae_dim:
        return None, "left out"
    try:
        from headforcing.headforcing_core.video.wan_decoder import Features, WanDecoder
    except ImportError as error:
        return None, f"the engine's decoder cannot be used: {error}"
    with torch.random.fork_rng([case.device] if case.device.type == "cuda" else []):
        torch.manual_seed(case.seed)
        network = WanDecoder(case.vae_dim)
        for weight in network.parameters():
            torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5 if weight[0].numel() > 1 else 1.0)
    decoder = OwnDecoder(network.to(case.device, case.dtype).prepare(), Features)
    return decoder, f"the engine's decoder of base width {case.vae_dim}, streaming"


class OwnDecoder:
    """`video/wan_decoder.py` as a streaming decoder, whose video frames stay on the device.

    Not `WanVideoDecoder`, whose file needs the packages that write videos.
    """

    def __init__(self, network: Any, new_features: Any):
        self.network, self.new_features = network, new_features
        self.reset()

    def reset(self) -> None:
        self.features, self.begun = self.new_features(), False

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """`[frames, 16, h, w]` to `[video frames, 8h, 8w, 3]` in 0..1."""
        weight = next(self.network.parameters())
        frames = []
        for z in latents.to(weight).permute(0, 2, 3, 1):
            frames.append(self.network(z, self.features, not self.begun))
            self.begun = True
        return torch.cat(frames).float().add(1).div(2).clamp(0, 1)
