"""The encoder network of the Wan 2.1 VAE, latent frame by latent frame: 1 video frame, then 4 for each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..timeline.clock import TEMPORAL_STRIDE
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

HALVES_FRAMES = (False, True, True)  # after these levels; height and width are halved after each but the last
_BLOCKS = 2  # residual blocks of a level


class Downsample(nn.Module):
    """Halves height and width, and from the second latent frame on the number of frames."""

    def __init__(self, dim: int, halves_frames: bool):
        super().__init__()
        self.resample: Any = nn.ModuleDict({"1": nn.Conv2d(dim, dim, 3)})
        self.time_conv = CausalConv(dim, dim, side=1) if halves_frames else None

    def forward(self, x: Activations, features: Features, first: bool) -> Activations:
        conv, time_conv = self.resample["1"], self.time_conv
        halved = F.conv2d(F.pad(x.total().permute(0, 3, 1, 2), (0, 1, 0, 1)), conv.weight, conv.bias, stride=2)
        frames = halved.permute(0, 2, 3, 1).contiguous()
        if time_conv is not None:
            before = features.before(time_conv, frames)[1:]  # this convolution reads one frame of the past, not two
            if not first:
                taps = time_conv.weight[..., 0, 0].unbind(2)
                pairs = [F.linear(before[i : i - 2 or None : 2], tap) for i, tap in enumerate(taps)]
                return Activations(pairs[0] + pairs[1] + pairs[2], time_conv.bias)
        return Activations(frames)


class WanEncoder(nn.Module):
    """The encoder's weights; 96 is the base width of the released model."""

    def __init__(self, base: int = 96):
        super().__init__()
        widths = [base * multiple for multiple in reversed(LEVELS)]
        wide = widths[-1]
        self.conv1 = nn.Conv3d(2 * LATENT_CHANNELS, 2 * LATENT_CHANNELS, 1)
        layers: list[nn.Module] = []
        for level, width in enumerate(widths):
            inputs = widths[level - 1] if level else base
            layers += [ResidualBlock(inputs if block == 0 else width, width) for block in range(_BLOCKS)]
            if level < len(HALVES_FRAMES):
                layers.append(Downsample(width, HALVES_FRAMES[level]))
        parts: dict[str, nn.Module] = {"conv1": CausalConv(3, base)}
        parts["downsamples"] = nn.ModuleList(layers)
        parts["middle"] = nn.ModuleList([ResidualBlock(wide, wide), Attention(wide), ResidualBlock(wide, wide)])
        parts["head"] = nn.ModuleDict({"0": Norm(wide), "2": CausalConv(wide, 2 * LATENT_CHANNELS)})
        self.encoder = nn.ModuleDict(parts)

    @torch.no_grad()
    def forward(self, video_frames: Tensor) -> Tensor:
        """Encode a whole video `[4(n-1)+1, H, W, 3]` in 0..1 to the means of its latents, `[n, h, w, 16]`.

        A latent frame is encoded at a time, so that memory use does not grow with the length.
        """
        weight, features = self.conv1.weight, Features()  # zeros: nothing comes before the video
        later = video_frames[1:]
        clips = [video_frames[:1], *(later.split(TEMPORAL_STRIDE) if len(later) else ())]  # none of an image
        return torch.cat(
            [self._next(clip.to(weight).contiguous() * 2 - 1, features, not place) for place, clip in enumerate(clips)]
        )

    def _next(self, clip: Tensor, features: Features, first: bool) -> Tensor:
        """The next latent frame `[1, h, w, 16]`, from its video frames `[1 or 4, H, W, 3]` in -1..1."""
        parts: Any = self.encoder
        hidden = Activations(parts["conv1"](features.before(parts["conv1"], clip)), parts["conv1"].bias)
        for layer in (*parts["downsamples"], *parts["middle"]):
            hidden = layer(hidden, features, first)
        norm, conv = parts["head"].values()
        moments = conv(hidden.normed(norm, conv, features)) + conv.bias
        return pointwise(self.conv1, moments)[..., : self.conv1.out_channels // 2]
