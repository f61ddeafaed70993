"""Tiny decoders for Wan's latents (TAEHV): many times faster than the VAE, with less detail, for
previews.

Layers have the names of the published files. A layer with memory reads its own input of the frame
before, so a video is decoded latent frame by latent frame, exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..model.latents import WAN21, LatentFormat, latent_format
from ..weights.containers import Weights
from .wan_decoder import DoublingConv, made_bytes
from .wan_vae import WanVideoDecoder

# whether it takes latents as the transformer sees them; taew2_2 is for Wan 2.2 and makes cells of
# 2x2 pixels
NORMALISED = {"taew2_1": True, "lighttaew2_1": False, "taew2_2": True}
WIDTHS = (256, 128, 64, 64)
# place of the first layer of a level, which has three with memory, then one that makes frames
_LAYERS = (3, 9, 15)
_FRAMES = (1, 2, 2)  # that the last layer of a level makes of one
_LIMIT = 3.0  # latents are squashed to -3..3

Past = dict[nn.Module, Tensor]  # the last frame of every layer with memory


class MemoryBlock(nn.Module):
    """Three convolutions of a frame and the one before, added to the frame."""

    def __init__(self, dim: int):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(2 * dim, dim, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(dim, dim, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(dim, dim, 3, padding=1),
        )

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """`[t, C, H, W]`; the last frame is left in `past`."""
        before = past.get(self, torch.zeros_like(x[:1]))
        past[self] = x[-1:].clone()
        hidden = self.conv(torch.cat([x, torch.cat([before, x[:-1]])], dim=1))
        return F.relu_(hidden.add_(x))


class Grow(nn.Module):
    """Makes several frames of one, pixel by pixel."""

    def __init__(self, dim: int, frames: int):
        super().__init__()
        self.frames = frames
        self.conv = nn.Conv2d(dim, frames * dim, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).unflatten(1, (self.frames, -1)).flatten(0, 1)


class TinyDecoder(nn.Module):
    """The decoder's weights."""

    def __init__(self, widths: tuple[int, ...] = WIDTHS, latents: LatentFormat = WAN21):
        super().__init__()
        self.widths = widths
        self.latents = latents
        self.cell = latents.stride // WAN21.stride
        layers: dict[str, nn.Module] = {"1": nn.Conv2d(latents.channels, widths[0], 3, padding=1)}
        for start, frames, width, after in zip(_LAYERS, _FRAMES, widths, widths[1:], strict=False):
            for place in range(start, start + 3):
                layers[str(place)] = MemoryBlock(width)
            # frames are made before the image is enlarged, which gives the same and is a quarter of
            # the work
            layers[str(start + 4)] = Grow(width, frames)
            layers[str(start + 5)] = DoublingConv(width, after, bias=False)
        layers["22"] = nn.Conv2d(widths[-1], 3 * self.cell**2, 3, padding=1)
        self.decoder = nn.ModuleDict(layers)

    def prepare(self) -> TinyDecoder:
        """Make what is computed from the weights. Call it when they are in place, on their
        device.
        """
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
            if isinstance(layer, DoublingConv):
                layer.prepare()
        return self.requires_grad_(False).eval()

    def forward(self, z: Tensor, past: Past) -> Tensor:
        """Decode a latent frame `[1, channels, h, w]` to `[4, 3, H, W]` in about 0..1; `past`
        belongs to the video.
        """
        first, *layers, last = self.decoder.values()
        x = F.relu_(first(torch.tanh(z / _LIMIT) * _LIMIT))
        for layer in layers:
            x = layer(x, past) if isinstance(layer, MemoryBlock) else layer(x)
        x = last(F.relu_(x))
        return x if self.cell == 1 else F.pixel_shuffle(x, self.cell)

    def memory(self, latent_size: tuple[int, int], dtype: torch.dtype) -> tuple[int, int]:
        """Bytes held between chunks, and the most while one of latents of `(h, w)` is decoded,
        these included.
        """
        pixels = latent_size[0] * latent_size[1]
        number = pixels * dtype.itemsize
        first, second, third, last = self.widths
        held = number * 3 * (first + 4 * second + 16 * third)
        # the peak is in the last level: the frames made, and enlarged, or their input with the
        # frame before
        peak = number * 4 * (16 * third + 64 * last)
        return held, held + peak + pixels * made_bytes(self.latents)


class TinyVideoDecoder(WanVideoDecoder):
    """Decodes one video with a tiny decoder; some take latents as the transformer sees them, see
    `NORMALISED`.
    """

    def reset(self) -> None:
        """Forget the frames before: the next latent frame starts a new video."""
        self._past: Past = {}

    def _decode(self, latents: Tensor) -> Tensor:
        video_frames = []
        for z in latents.to(self._dtype).split(1):
            unseen = 0 if self._past else 3  # only the last one is of a first latent frame
            made = self._network(
                z.contiguous(memory_format=torch.channels_last), self._past
            ).permute(0, 2, 3, 1)
            video_frames.append(made[unseen:].float().clamp_(0, 1))
        return torch.cat(video_frames)


def tiny_sizes(weights: Weights) -> tuple[tuple[int, ...], LatentFormat] | None:
    """The widths and the latents of a tiny decoder with these tensors; None if they are of
    something else.
    """
    names = [f"decoder.{place}.weight" for place in (1, 8, 14, 20)]
    convs = [weights[name] for name in names if name in weights and weights[name].ndim == 4]
    if len(convs) < len(names) or not all(map(len, convs)):
        return None
    latents = latent_format(convs[0].shape[1])
    if convs[0].shape[1] != latents.channels:
        return None
    return tuple(map(len, convs)), latents
