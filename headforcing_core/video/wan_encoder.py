"""The encoder network of the Wan 2.1 VAE, latent frame by latent frame: 1 video frame, then 4 for
each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..model.latents import WAN21
from ..timeline.clock import TEMPORAL_STRIDE
from .wan_decoder import (
    LEVELS,
    Activations,
    CausalConv,
    Features,
    Norm,
    middle,
    pointwise,
    residual_blocks,
    run_parts,
)

# after these levels; height and width are halved after each but the last
HALVES_FRAMES = (False, True, True)
BLOCKS = 2  # residual blocks of a level


class Downsample(nn.Module):
    """Halves height and width, and from the second latent frame on the number of frames."""

    def __init__(self, dim: int, halves_frames: bool):
        super().__init__()
        self.resample: Any = nn.ModuleDict({"1": nn.Conv2d(dim, dim, 3, stride=2)})
        self.time_conv = CausalConv(dim, dim, side=1) if halves_frames else None

    def forward(self, x: Activations, features: Features) -> Activations:
        padded = F.pad(x.total().permute(0, 3, 1, 2), (0, 1, 0, 1))
        frames = self.resample["1"](padded).permute(0, 2, 3, 1).contiguous()
        time_conv = self.time_conv
        if time_conv is not None:
            # this convolution reads one frame of the past, not two
            before = features.before(time_conv, frames)[1:]
            if features.begun:
                taps = time_conv.weight[..., 0, 0].unbind(2)
                pairs = [F.linear(before[i : i - 2 or None : 2], tap) for i, tap in enumerate(taps)]
                return Activations(pairs[0] + pairs[1] + pairs[2], time_conv.bias)
        return Activations(frames)


class WanEncoder(nn.Module):
    """The encoder's weights, by default in the base width of the released model."""

    latents = WAN21
    colours = 3
    base = 96

    def __init__(self, base: int = 0):
        super().__init__()
        base = base or self.base
        widths = [base * multiple for multiple in reversed(LEVELS)]
        moments = 2 * self.latents.channels
        wide = widths[-1]
        self.conv1 = nn.Conv3d(moments, moments, 1)
        self.encoder = nn.ModuleDict(
            {
                "conv1": CausalConv(self.colours, base),
                "downsamples": nn.ModuleList(self.levels(widths)),
                "middle": middle(wide),
                "head": nn.ModuleDict({"0": Norm(wide), "2": CausalConv(wide, moments)}),
            }
        )

    def levels(self, widths: list[int]) -> list[nn.Module]:
        """The layers from the narrowest level to the widest."""
        layers = []
        for level, width in enumerate(widths):
            layers += residual_blocks(widths[max(0, level - 1)], width, BLOCKS)
            if level < len(HALVES_FRAMES):
                layers.append(Downsample(width, HALVES_FRAMES[level]))
        return layers

    @torch.no_grad()
    def forward(self, video_frames: Tensor) -> Tensor:
        """Encode a whole video `[4(n-1)+1, H, W, 3]` in 0..1 to the means of its latents, `[n, h,
        w, 16]`.

        A latent frame is encoded at a time, so that memory use does not grow with the length.
        """
        # zeros: nothing comes before the video
        features = Features()
        latents = []
        starts = tuple(range(1, len(video_frames), TEMPORAL_STRIDE))
        for frames in video_frames.tensor_split(starts):
            clip = frames.to(self.conv1.weight).contiguous()
            latents.append(self._next(clip * 2 - 1, features))
        return torch.cat(latents)

    def _next(self, clip: Tensor, features: Features) -> Tensor:
        """The next latent frame `[1, h, w, 16]`, from its video frames `[1 or 4, H, W, 3]` in
        -1..1.
        """
        moments = run_parts(self.encoder, clip, features)
        return pointwise(self.conv1, moments)[..., : self.conv1.out_channels // 2]
