"""The VAEs of Wan 2.1 and of Wan 2.2 TI2V-5B: file, latents, and decoding of a video, one latent
frame at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..model.latents import WAN21, WAN22, LatentFormat, latent_format
from ..weights.containers import Weights
from .wan_decoder import Features
from .wan_encoder import WanEncoder

# by the name of a `LatentFormat`, values from vae.py of Wan 2.1 and vae2_2.py of Wan 2.2
_STATISTICS = json.loads(
    Path(__file__).with_name("latent_statistics.json").read_text(encoding="utf-8")
)
WANTED = {
    WAN21: "wan_2.1_vae.safetensors (ComfyUI) or Wan2.1_VAE.pth (original)",
    WAN22: "wan2.2_vae.safetensors (ComfyUI) or Wan2.2_VAE.pth (original)",
}


def statistics(latents: LatentFormat) -> Tensor:
    """Mean and standard deviation of each channel `[2, channels]`: the transformer uses (z - mean)
    / std of the VAE's latents z.
    """
    found = _STATISTICS[latents.name]
    return torch.tensor([found["mean"], found["std"]])


class WanVideoDecoder:
    """Decodes one video latent frame by latent frame, so that every division into chunks gives the
    same bits.

    Args:
        network: a `WanDecoder`, which other videos may share.
        normalised: whether the latents are as the transformer sees them, not as the VAE does.
        park: keep features in the host's memory between chunks if the VAE is on a GPU.
    """

    def __init__(self, network: Any, normalised: bool = True, park: bool = False):
        self._network = network
        self.latents = network.latents
        weight = next(network.parameters())
        self._device = weight.device
        self._dtype = weight.dtype
        self._park = park and self._device.type == "cuda"
        mean_and_std = statistics(self.latents) if normalised else torch.tensor([[0.0], [1.0]])
        self._mean, self._std = mean_and_std.to(self._device)[..., None, None]
        self.reset()

    def reset(self) -> None:
        """Forget the features: the next latent frame starts a new video."""
        self.features = Features()

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next `[frames, channels, h, w]` to `[video frames, H, W, 3]`, float32 in 0..1,
        on its device.

        H and W are 8h and 8w with Wan 2.1, 16h and 16w with Wan 2.2. Raises HeadForcingError for a
        wrong shape.
        """
        if latents.shape[1] != self.latents.channels:
            raise HeadForcingError(
                f"The VAE decodes latents of shape [frames, {self.latents.channels}, h, w], got "
                f"{list(latents.shape)}."
            )
        return self._decode(latents.to(self._device, torch.float32) * self._std + self._mean)

    def _decode(self, latents: Tensor) -> Tensor:
        """Decode latents as the network takes them, `[frames, channels, h, w]` float32."""
        self.features.fetch(self._device)
        video_frames = []
        for z in latents.permute(0, 2, 3, 1):
            made = self._network(z.to(self._dtype).contiguous(), self.features)
            video_frames.append(made.float().add_(1).div_(2).clamp_(0, 1))
        if self._park:
            self.features.park()
        return torch.cat(video_frames)


def encode(encoder: WanEncoder, video_frames: Tensor) -> Tensor:
    """Encode a video `[4(n-1)+1, H, W, 3]` in 0..1: normalised latents `[n, channels, h, w]`,
    float32.
    """
    latents = encoder(video_frames).float()
    mean, std = statistics(latent_format(latents.shape[-1])).to(latents.device)
    return ((latents - mean) / std).permute(0, 3, 1, 2)


def latents_of(path: Path, weights: Weights) -> LatentFormat:
    """The latents of a VAE of Wan with these tensors; raises HeadForcingError if this is none."""
    first = weights.get("decoder.conv1.weight")
    what = f"it holds {', '.join(sorted(weights)[:3]) or 'no tensors'}"
    if first is not None and first.ndim == 5:
        channels = first.shape[1]
        if channels in (WAN21.channels, WAN22.channels):
            return latent_format(channels)
        what = f"it is a video VAE with {channels} latent channels"
    raise HeadForcingError(f"{path.name} is not a VAE of Wan ({what}): use {WANTED[WAN21]}.")
