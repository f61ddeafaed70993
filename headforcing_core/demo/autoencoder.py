"""The toy autoencoder: 64x64 video frames, 16 latent channels, spatial factor 8, 1 + 4k video frames as in Wan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..timeline.clock import TEMPORAL_STRIDE

LATENT_CHANNELS = 16
SPATIAL_FACTOR = 8
_PATCH = 4

PREVIEW_FACTORS = (
    (0.0009, -0.0048, 0.0035),
    (-0.0373, -0.0068, 0.1032),
    (-0.0008, -0.0059, 0.0045),
    (0.0551, -0.0467, 0.1061),
    (0.0029, 0.0084, -0.0215),
    (0.0698, 0.1178, 0.0336),
    (-0.0058, -0.0024, -0.0017),
    (-0.1679, -0.1305, 0.0112),
    (0.0067, 0.0030, 0.0050),
    (0.1752, 0.0791, -0.0061),
    (-0.1067, 0.0441, 0.1022),
    (0.0016, -0.0193, 0.0184),
    (0.0845, -0.0582, 0.0416),
    (-0.0221, 0.1420, 0.1482),
    (-0.0020, -0.0026, -0.0024),
    (-0.0165, 0.0191, 0.0061),
)
PREVIEW_BIAS = (-0.3394, -0.3972, -0.4442)
"""Latent pixel to colour in -1..1, see `fit_preview_factors` (`release.py` prints them)."""


class ResidualConv(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.a = nn.Conv2d(channels, channels, 3, padding=1)
        self.b = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b(F.silu(self.a(F.silu(x))))


class ToyAutoencoder(nn.Module):
    """Patch autoencoder with the parameter names of `tiny_ae_bf16.safetensors`.

    As in Wan, the first latent frame holds one video frame and every later one four. Unlike in Wan, latent frames are
    decoded independently. Latents are normalised `[frames, 16, h, w]`; videos are `[video frames, 8h, 8w, 3]` in 0..1.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, latent_channels: int = LATENT_CHANNELS, fine: int = 64, coarse: int = 128):
        super().__init__()
        video_frame = 3 * _PATCH**2
        clip = TEMPORAL_STRIDE * video_frame
        self.in_img = nn.Conv2d(video_frame, fine, 1)
        self.in_vid = nn.Conv2d(clip, fine, 1)
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
            ResidualConv(fine),
            nn.SiLU(),
        )
        self.out_img = nn.Conv2d(fine, video_frame, 1)
        self.out_vid = nn.Conv2d(fine, clip, 1)
        self.register_buffer("mean", torch.zeros(1, latent_channels, 1, 1))
        self.register_buffer("std", torch.ones(1, latent_channels, 1, 1))

    @torch.no_grad()
    def decode_chunk(self, latents: Tensor, starts_video: bool) -> Tensor:
        """Decode consecutive latent frames; `starts_video` if the first of them is the first of a video.

        Frames are decoded one at a time, because the rounding of a convolution depends on the batch size, and the
        result must not depend on the division into chunks.
        """
        outs = [self.out_img if starts_video and not place else self.out_vid for place in range(len(latents))]
        frames = latents.to(self.mean).split(1)
        return torch.cat([self._decode_patches(frame, out) for frame, out in zip(frames, outs, strict=True)])

    def decode(self, latents: Tensor) -> Tensor:
        """Decode a whole video: `n` latent frames to `4(n-1)+1` video frames."""
        return self.decode_chunk(latents, starts_video=True)

    @torch.no_grad()
    def encode(self, video_frames: Tensor) -> Tensor:
        """Encode a whole video: `4(n-1)+1` video frames to `n` latent frames (up to 3 further frames are ignored)."""
        channels_first = video_frames.to(self.mean).movedim(-1, 1)
        frames = (len(video_frames) - 1) // TEMPORAL_STRIDE
        clips = channels_first[1 : 1 + TEMPORAL_STRIDE * frames]
        clips = clips.reshape(frames, TEMPORAL_STRIDE * 3, *channels_first.shape[2:])
        first = self._encode_patches(channels_first[:1], self.in_img)
        return torch.cat([first, self._encode_patches(clips, self.in_vid)]) if frames else first

    def _decode_patches(self, latents: Tensor, out: nn.Module) -> Tensor:
        hidden = self.dec(latents * self.std + self.mean)
        patches = F.pixel_shuffle(out(hidden), _PATCH) * 0.5 + 0.5
        return patches.unflatten(1, (-1, 3)).flatten(0, 1).movedim(1, -1).clamp(0, 1)

    def _encode_patches(self, patches: Tensor, into: nn.Module) -> Tensor:
        return (self.enc(into(F.pixel_unshuffle(patches * 2 - 1, _PATCH))) - self.mean) / self.std


class ToyStreamingDecoder:
    """A `stream.StreamingDecoder`; its only state is whether the next chunk is the first."""

    def __init__(self, autoencoder: ToyAutoencoder):
        self.autoencoder = autoencoder
        self.reset()

    def reset(self) -> None:
        """Start a new video with the next chunk."""
        self._starts_video = True

    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next latent frames `[frames, 16, h, w]` to video frames `[video frames, 8h, 8w, 3]` in 0..1."""
        video_frames = self.autoencoder.decode_chunk(latents, self._starts_video)
        self._starts_video = False
        return video_frames


def fit_preview_factors(autoencoder: Any, videos: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Least-squares linear map from a latent pixel to its decoded colour, for previews during sampling.

    `videos` are latents `[frames, 16, h, w]`. The colour is the mean of the latent pixel's 8x8 patch over its four
    video frames, in -1..1 as in ComfyUI's `latent_rgb_factors`. Returns factors `[16, 3]` and bias `[3]`.
    `PREVIEW_FACTORS` and `PREVIEW_BIAS` are the rounded result for 60 clips of the toy world.
    """
    inputs, colours = [], []
    for latents in videos:
        later = autoencoder.decode(latents)[1:].movedim(-1, 1)
        patches = F.avg_pool2d(later, SPATIAL_FACTOR).unflatten(0, (-1, TEMPORAL_STRIDE)).mean(1)
        colours.append(patches.movedim(1, -1).reshape(-1, 3) * 2 - 1)
        inputs.append(latents[1:].to(later).movedim(1, -1).reshape(-1, latents.shape[1]))
    x = torch.cat(inputs)
    solution = torch.linalg.lstsq(torch.cat([x, x.new_ones(len(x), 1)], 1), torch.cat(colours)).solution
    return solution[:-1], solution[-1]
