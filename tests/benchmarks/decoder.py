"""The Wan VAE's decoder with random weights: the time is that of the real one, the pictures are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

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
    network = _random(case, WanDecoder, case.vae_dim)
    return OwnDecoder(network, Features), f"the engine's decoder of base width {case.vae_dim}, streaming"


def tiny_random_decoder(case: Case) -> tuple[StreamingDecoder, str]:
    """A tiny decoder of the published widths, and which it is."""
    from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder, TinyVideoDecoder

    return TinyVideoDecoder(_random(case, TinyDecoder), "taew2_1"), "a tiny decoder of the published widths"


def _random(case: Case, network: Any, *widths: int) -> Any:
    with torch.random.fork_rng([case.device] if case.device.type == "cuda" else []):
        torch.manual_seed(case.seed)
        made = network(*widths)
        for weight in made.parameters():
            torch.nn.init.normal_(weight, std=weight[0].numel() ** -0.5 if weight[0].numel() > 1 else 1.0)
    return made.to(case.device, case.dtype).prepare()


@contextmanager
def enlarged_images() -> Iterator[None]:
    """Have decoders enlarge images and convolve them, nine products a pixel, instead of four by `DoublingConv`."""
    from headforcing.headforcing_core.video.wan_decoder import Activations, Upsample

    def forward(self: Any, x: Any, features: Any, first: bool) -> Any:
        frames = self.in_time(x.total(), features, first)
        images = F.interpolate(frames.permute(0, 3, 1, 2), scale_factor=2.0, mode="nearest-exact")
        conv = self.resample["1"]
        y = F.conv2d(images, conv.weight.contiguous(memory_format=torch.channels_last), None, padding=1)
        return Activations(y.permute(0, 2, 3, 1).contiguous(), conv.bias)

    own, Upsample.forward = Upsample.forward, forward
    try:
        yield
    finally:
        Upsample.forward = own


def exactness(case: Case) -> dict[str, Any]:
    """How far the decoder is from float32 without cuDNN, whose convolutions in bf16 were wrong in some versions."""
    small = replace(case, width=case.width // 4 // 16 * 16 or 16, height=case.height // 4 // 16 * 16 or 16)
    latents = torch.randn(3, 16, small.height // 8, small.width // 8, device=case.device)
    decoder, _ = random_decoder(small)
    exact, which = random_decoder(replace(small, dtype=torch.float32))
    if decoder is None or exact is None:
        return {"not_available": which}
    with torch.backends.cudnn.flags(enabled=False):
        expected = exact.decode(latents)
    apart = float((decoder.decode(latents) - expected).abs().mean())
    return {"decoder": which, "mean_difference_in_0_1": apart, "right": apart < 0.02}


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
