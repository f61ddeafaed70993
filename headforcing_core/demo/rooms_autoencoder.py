"""The autoencoder of the world of rooms: 16 channels, spatial factor 8, 1 + 4k video frames, as in
Wan.

The decoder looks at the latent frame before, against jumps, and its last layers at whole video
frames, against seams.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from ..timeline.clock import TEMPORAL_STRIDE

LATENT_CHANNELS = 16
# latent pixel to colour in -1..1, as `research/training/train.py` prints it
_PREVIEW = json.loads(Path(__file__).with_name("rooms_preview.json").read_text("utf-8"))
PREVIEW_FACTORS = _PREVIEW["factors"]
PREVIEW_BIAS = _PREVIEW["bias"]
_PATCH = 4
_FULL_CHANNELS = 24  # of the hidden layer at full resolution


class ResidualConv(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1)
        self.b = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.silu(self.a(F.silu(x))))


class RoomsAutoencoder(nn.Module):
    """Encodes latent frames one by one; decodes each with the one before it.

    Latents are normalised `[frames, channels, h, w]`; videos are `[video frames, 8h, 8w, 3]` in
    0..1.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, latent_channels: int = LATENT_CHANNELS, fine: int = 64, coarse: int = 128):
        super().__init__()
        colours = 3
        clip = 3 * TEMPORAL_STRIDE
        self.in_img = nn.Conv2d(colours * _PATCH**2, fine, 1)
        self.in_vid = nn.Conv2d(clip * _PATCH**2, fine, 1)
        self.enc = nn.Sequential(
            ResidualConv(fine),
            nn.PixelUnshuffle(2),
            nn.Conv2d(4 * fine, coarse, 1),
            ResidualConv(coarse),
            ResidualConv(coarse),
            nn.SiLU(),
            nn.Conv2d(coarse, latent_channels, 1),
        )
        self.dec = nn.Sequential(
            nn.Conv2d(latent_channels, coarse, 3, padding=1),
            ResidualConv(coarse),
            ResidualConv(coarse),
            nn.Conv2d(coarse, 4 * fine, 1),
            nn.PixelShuffle(2),
            ResidualConv(fine),
        )
        self.time = nn.Conv2d(2 * fine, fine, 3, padding=1)  # this latent frame and the one before
        self.space = nn.Sequential(ResidualConv(fine), nn.SiLU())
        self.out_img = nn.Conv2d(fine, colours * _PATCH**2, 1)
        self.out_vid = nn.Conv2d(fine, clip * _PATCH**2, 1)
        self.full_img = _full_resolution(colours)
        self.full_vid = _full_resolution(clip)
        nn.init.zeros_(self.time.weight)
        self.register_buffer("mean", torch.zeros(1, latent_channels, 1, 1))
        self.register_buffer("std", torch.ones(1, latent_channels, 1, 1))

    def encode_raw(self, video_frames: Tensor) -> Tensor:
        """Latents before normalisation, of clips `[batch, 4(n-1)+1, 3, 8h, 8w]` to `[batch, n, 16,
        h, w]`.
        """
        batch, length = video_frames.shape[:2]
        signed = video_frames * 2 - 1
        image = F.pixel_unshuffle(signed[:, 0], _PATCH)
        first = self.enc(self.in_img(image))[:, None]
        if length == 1:
            return first
        clips = signed[:, 1:].unflatten(1, (-1, TEMPORAL_STRIDE))
        clips = clips.flatten(0, 1).flatten(1, 2)
        later = self.enc(self.in_vid(F.pixel_unshuffle(clips, _PATCH)))
        return torch.cat((first, later.unflatten(0, (batch, -1))), 1)

    @torch.no_grad()
    def encode(self, video_frames: Tensor) -> Tensor:
        """Encode a whole video: `4(n-1)+1` video frames to `n` latent frames (up to 3 further
        frames are ignored).
        """
        whole = 1 + (len(video_frames) - 1) // TEMPORAL_STRIDE * TEMPORAL_STRIDE
        latents = self.encode_raw(video_frames[:whole].to(self.mean).movedim(-1, 1)[None])[0]
        return (latents - self.mean) / self.std

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode a whole video: `n` latent frames to `4(n-1)+1` video frames."""
        return RoomsStreamingDecoder(self).decode(latents)

    def raw(self, latents: Tensor) -> Tensor:
        return latents * self.std + self.mean

    def mix(self, hidden: Tensor, before: Tensor) -> Tensor:
        """Features of latent frames, at twice their size, with those of the frames before."""
        return self.space(hidden + self.time(F.silu(torch.cat((before, hidden), 1))))

    def draw(self, hidden: Tensor, first: bool) -> Tensor:
        """Video frames `[n, 1 or 4, 3, 8h, 8w]` from hidden features `[n, fine, 2h, 2w]`."""
        out, full = (self.out_img, self.full_img) if first else (self.out_vid, self.full_vid)
        patches = F.pixel_shuffle(out(hidden), _PATCH)
        return ((patches + full(patches)) * 0.5 + 0.5).unflatten(1, (-1, 3))


def load_rooms_autoencoder(path: str | Path) -> RoomsAutoencoder:
    """A trained autoencoder, ready for inference."""
    autoencoder = RoomsAutoencoder()
    autoencoder.load_state_dict(load_file(path))
    return autoencoder.float().eval().requires_grad_(False)


def _full_resolution(channels: int) -> nn.Sequential:
    """Layers on whole video frames, which change nothing before they are trained."""
    last = nn.Conv2d(_FULL_CHANNELS, channels, 3, padding=1)
    for parameter in last.parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(nn.Conv2d(channels, _FULL_CHANNELS, 3, padding=1), nn.SiLU(), last)


class RoomsStreamingDecoder:
    """A `stream.StreamingDecoder`; its state is the features of the last latent frame.

    Latent frames are decoded one at a time: the rounding of a convolution depends on the size of a
    batch.
    """

    def __init__(self, autoencoder: RoomsAutoencoder):
        self.autoencoder = autoencoder
        self.reset()

    def reset(self) -> None:
        self._before: Tensor | None = None

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next `[frames, channels, h, w]` to `[video frames, 8h, 8w, 3]` in 0..1."""
        network = self.autoencoder
        parts = []
        for latent in latents.to(network.mean).split(1):
            before = self._before
            hidden = network.dec(network.raw(latent))
            mixed = network.mix(hidden, hidden if before is None else before)
            parts.append(network.draw(mixed, before is None)[0].movedim(1, -1).clamp(0, 1))
            self._before = hidden
        return torch.cat(parts)
