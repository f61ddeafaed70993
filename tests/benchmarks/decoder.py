"""The VAE's decoders with random weights: the time is that of the real ones, the pictures are
not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder, TinyVideoDecoder
from headforcing.headforcing_core.video.wan_decoder import (
    Activations,
    CausalConv,
    Upsample,
    WanDecoder,
)
from headforcing.headforcing_core.video.wan_vae import WanVideoDecoder
from torch.nn import functional as F

from .case import SEED, Case


def random_decoder(case: Case) -> WanVideoDecoder:
    """The engine's decoder of the Wan VAE for a case, which goes on with the video from block to
    block.
    """
    return WanVideoDecoder(_random(case, WanDecoder, case.vae_dim), normalised=False)


def tiny_random_decoder(case: Case) -> TinyVideoDecoder:
    """A tiny decoder of the published widths."""
    return TinyVideoDecoder(_random(case, TinyDecoder), normalised=False)


def _random(case: Case, network: Any, *widths: int) -> Any:
    with torch.random.fork_rng([case.device] if case.device.type == "cuda" else []):
        torch.manual_seed(SEED)
        made = network(*widths)
        for weight in made.parameters():
            torch.nn.init.normal_(
                weight, std=weight[0].numel() ** -0.5 if weight[0].numel() > 1 else 1.0
            )
    return made.to(case.device, case.dtype).prepare()


@contextmanager
def enlarged_images() -> Iterator[None]:
    """Have decoders enlarge images and convolve them, nine products a pixel, instead of four by
    `DoublingConv`.
    """

    def forward(self: Any, x: Any, features: Any) -> Any:
        frames = self.in_time(x.total(), features)
        images = F.interpolate(frames.permute(0, 3, 1, 2), scale_factor=2.0, mode="nearest-exact")
        conv = self.resample["1"]
        y = F.conv2d(
            images, conv.weight.contiguous(memory_format=torch.channels_last), None, padding=1
        )
        return Activations(y.permute(0, 2, 3, 1).contiguous(), conv.bias)

    own = Upsample.forward
    Upsample.forward = forward
    try:
        yield
    finally:
        Upsample.forward = own


@contextmanager
def padded_outputs(multiple: int) -> Iterator[None]:
    """Give convolutions of a GPU's decoder outputs of zeros up to a multiple, all but that of the
    pictures, for which cuDNN may have a faster kernel.
    """

    def rearrange(self: CausalConv) -> None:
        outputs = len(self.weight)
        if self.weight.device.type != "cpu" and outputs > 3:
            self.weight.data = F.pad(self.weight.data, (0,) * 9 + (-outputs % multiple,))
        own(self)

    own = CausalConv.rearrange
    CausalConv.rearrange = rearrange
    try:
        yield
    finally:
        CausalConv.rearrange = own


def exactness(case: Case) -> dict[str, Any]:
    """How far the decoder is from float32 without cuDNN, whose convolutions in bf16 were wrong in
    some versions.
    """
    small = replace(
        case, width=case.width // 4 // 16 * 16 or 16, height=case.height // 4 // 16 * 16 or 16
    )
    latents = torch.randn(3, 16, small.height // 8, small.width // 8, device=case.device)
    with torch.backends.cudnn.flags(enabled=False):
        expected = random_decoder(replace(small, dtype=torch.float32)).decode(latents)
    apart = float((random_decoder(small).decode(latents) - expected).abs().mean())
    return {"mean_difference_in_0_1": apart, "right": apart < 0.02}
