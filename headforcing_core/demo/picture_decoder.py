"""A decoder of the world of rooms for what is shown: the same latents, four times as large and
sharp.

Its network predicts fields (`picture_fields`) with one to eight cells for a latent pixel; no layer
runs at the size of the picture. It reads the features of the 64-pixel decoder, which encodes,
restarts and measures as before.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from ..timeline.clock import TEMPORAL_STRIDE
from .picture_drawing import draw
from .picture_fields import FARTHEST, MOVING, OUTLINES, STILL
from .rooms_autoencoder import LATENT_CHANNELS, RoomsAutoencoder

_READ = 64  # features of the 64-pixel decoder
_STILL = sum(STILL.values())
_MOVING = sum(MOVING.values())


class DilatedResidual(nn.Module):
    def __init__(self, channels: int, dilation: int = 1):
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=dilation, dilation=dilation)
        self.b = nn.Conv2d(channels, channels, 1)
        with torch.no_grad():
            self.b.weight *= 0.3
            assert self.b.bias is not None
            self.b.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.silu(self.a(F.silu(x))))


class PictureNetwork(nn.Module):
    """From a latent frame and the one before to the fields of its four video frames."""

    limits: Tensor

    def __init__(self, coarse: int = 168, middle: int = 96, fine: int = 64):
        super().__init__()
        self.start = nn.Conv2d(2 * LATENT_CHANNELS + 1, coarse, 3, padding=1)
        self.coarse = nn.Sequential(
            DilatedResidual(coarse),
            DilatedResidual(coarse, 2),
            DilatedResidual(coarse),
            nn.SiLU(),
            nn.Conv2d(coarse, 4 * middle, 1),
            nn.PixelShuffle(2),
        )
        self.read_middle = nn.Conv2d(_READ, middle, 1)
        self.middle = nn.Sequential(DilatedResidual(middle), DilatedResidual(middle), nn.SiLU())
        self.fields = nn.Conv2d(middle, _STILL + TEMPORAL_STRIDE * _MOVING, 1)
        self.grow = nn.Conv2d(middle, 4 * fine, 1)
        self.read_fine = nn.Conv2d(_READ, 4 * fine, 1)
        self.fine = nn.Sequential(nn.PixelShuffle(2), DilatedResidual(fine), nn.SiLU())
        self.outlines = nn.Conv2d(fine, 4 * TEMPORAL_STRIDE * len(OUTLINES), 3, padding=1)
        for layer in (self.read_middle, self.read_fine):
            nn.init.normal_(layer.weight, std=0.05)
        self.register_buffer("limits", torch.tensor([*FARTHEST.values()]), persistent=False)

    def forward(
        self, latents: Tensor, before: Tensor, features: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outlines `[n, 4, 5, 8h, 8w]` and the other fields `[n, 4, 21, 2h, 2w]` of latent frames
        `[n, 16, h, w]`.

        `before` are the latent frames before, `features` those of `RoomsAutoencoder.mix`, and
        `first [n]` is 1 for a video's first latent frame, whose `before` is itself and whose last
        video frame counts.
        """
        begins = first.to(latents)[:, None, None, None]
        begins = begins.expand_as(latents[:, :1])
        hidden = self.start(torch.cat((latents, before, begins), 1))
        hidden = self.coarse(hidden)
        hidden = self.middle(hidden + self.read_middle(features))

        still, moving = self.fields(hidden).float().split((_STILL, _MOVING * TEMPORAL_STRIDE), 1)
        still = still[:, None].repeat_interleave(TEMPORAL_STRIDE, 1)
        moving = moving.unflatten(1, (TEMPORAL_STRIDE, _MOVING))
        places, kinds = moving.split((_MOVING - MOVING["kind"], MOVING["kind"]), 2)
        others = torch.cat((still, places, kinds.softmax(2)), 2)

        fine = self.fine(self.grow(hidden) + self.read_fine(features))
        outlines = F.pixel_shuffle(self.outlines(fine), 2).float()
        outlines = outlines.unflatten(1, (TEMPORAL_STRIDE, len(OUTLINES)))
        return outlines * self.limits[:, None, None], others


@torch.no_grad()
def read_features(autoencoder: RoomsAutoencoder, latents: Tensor, before: Tensor) -> Tensor:
    """Features `[n, 64, 2h, 2w]` of latent frames in the 64-pixel decoder, with those before."""
    hidden = autoencoder.dec(autoencoder.raw(torch.cat((latents, before))))
    return autoencoder.mix(*hidden.chunk(2))


SCALE = 4  # a side of the pictures, in sides of the frames that the model was trained on


class PictureDecoder(nn.Module):
    """The network with the autoencoder whose features it reads and whose frames can be encoded."""

    def __init__(self, network: PictureNetwork, autoencoder: RoomsAutoencoder):
        super().__init__()
        self.network = network
        self.autoencoder = autoencoder

    def decode(self, latents: Tensor) -> Tensor:
        """Decode a whole video: `n` latent frames `[n, 16, h, w]` to `4(n-1)+1` video frames `[...,
        32h, 32w, 3]` in 0..1."""
        return PictureStreamingDecoder(self).decode(latents)


def decoding_bytes(frames: int, height: int, width: int) -> int:
    """Most bytes that decoding so many latent frames `[16, height, width]` at once takes besides
    the weights: one frame while it is drawn, which takes as much as the video frames of 20, and all
    video frames, separate and joined. `tests/benchmarks/run.py picture` measures three frames.
    """
    video_frames = TEMPORAL_STRIDE * 3 * (8 * SCALE) ** 2 * height * width
    return (20 + 2 * frames) * video_frames * torch.float32.itemsize


class PictureStreamingDecoder:
    """A `stream.StreamingDecoder` whose state is the last latent frame.

    Latent frames are decoded one at a time: the rounding of a convolution depends on the size of a
    batch.
    """

    def __init__(self, decoder: PictureDecoder):
        self.network = decoder.network
        self.autoencoder = decoder.autoencoder
        self.reset()

    def reset(self) -> None:
        self._before: Tensor | None = None

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next `[frames, 16, h, w]` to `[video frames, 32h, 32w, 3]` in 0..1."""
        parts = []
        for latent in latents.to(self.autoencoder.mean).split(1):
            outlines, others = self._fields(latent)
            parts.append(draw(outlines, others, SCALE).movedim(1, -1))
            self._before = latent
        return torch.cat(parts)

    def _fields(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Fields of the video frames of one latent frame: four, of a video's first one."""
        before = self._before
        first = latent.new_zeros(1)
        shown = slice(None)
        if before is None:
            before = latent
            first = latent.new_ones(1)
            shown = slice(TEMPORAL_STRIDE - 1, None)
        features = read_features(self.autoencoder, latent, before)
        outlines, others = self.network(latent, before, features, first)
        return outlines[0, shown], others[0, shown]


def load_picture_network(path: str | Path) -> PictureNetwork:
    """A trained network, ready for inference."""
    network = PictureNetwork()
    network.load_state_dict(load_file(path))
    return network.float().eval().requires_grad_(False)
