"""The encoder network of the Wan 2.1 VAE, for a single video frame: the first one of a video."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .wan_decoder import (
    LATENT_CHANNELS,
    LEVELS,
    Activations,
    Attention,
    CausalConv,
    Features,
    Norm,
    ResidualBlock,
    pointwise,
)

_BLOCKS = 2  # residual blocks of a level


class Downsample(nn.Module):
    """Halves height and width."""

    def __init__(self, dim: int):
        super().__init__()
        self.resample: Any = nn.ModuleDict({"1": nn.Conv2d(dim, dim, 3)})

    def forward(self, x: Activations, features: Features, first: bool) -> Activations:
        conv = self.resample["1"]
        halved = F.conv2d(F.pad(x.total().permute(0, 3, 1, 2), (0, 1, 0, 1)), conv.weight, None, stride=2)
        return Activations(halved.permute(0, 2, 3, 1).contiguous(), conv.bias)


class WanFrameEncoder(nn.Module):
    """The encoder's weights, without those that only later frames need; 96 is the base width of the released model."""

    def __init__(self, base: int = 96):
        super().__init__()
        widths = [base * multiple for multiple in reversed(LEVELS)]
        wide = widths[-1]
        self.conv1 = nn.Conv3d(2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, 1)
        layers: list[nn.Module] = []
        for level, width in enumerate(widths):
            inputs = widths[level - 1] if level else base
            layers += [ResidualBlock(inputs if block == 0 else width, width) for block in range(_BLOCKS)]
            if level < len(widths) - 1:
                layers.append(Downsample(width))
        parts: dict[str, nn.Module] = {"conv1": CausalConv(3, base)}
        parts["downsamples"] = nn.ModuleList(layers)
        parts["middle"] = nn.ModuleList([ResidualBlock(wide, wide), Attention(wide), ResidualBlock(wide, wide)])
        parts["head"] = nn.ModuleDict({"0": Norm(wide), "2": CausalConv(wide, 2 * LATENT_CHANNELS)})
        self.encoder = nn.ModuleDict(parts)

    @torch.no_grad()
    def forward(self, video_frame: Tensor) -> Tensor:
        """Encode a video frame `[H, W, 3]` in -1..1 to the means of its latents, `[1, h, w, 16]`."""
        parts: Any = self.encoder
        features = Features()  # zeros: nothing comes before the frame
        x = features.before(parts["conv1"], video_frame[None])
        hidden = Activations(parts["conv1"](x), parts["conv1"].bias)
        for layer in (*parts["downsamples"], *parts["middle"]):
            hidden = layer(hidden, features, True)
        norm, conv = parts["head"].values()
        moments = conv(hidden.normed(norm, conv, features)) + conv.bias
        return pointwise(self.conv1, moments)[..., :LATENT_CHANNELS]
