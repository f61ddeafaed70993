"""The VAEs of Wan 2.1 and of Wan 2.2 TI2V-5B: file, latents, and decoding of a video, one latent
frame at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import HeadForcingError
from ..model.latents import WAN21, WAN22, LatentFormat, latent_format
from ..weights.containers import all_finite
from .wan_decoder import Features
from .wan_encoder import WanEncoder

# The transformer uses (z - mean) / std of the VAE's latents z, per channel; values from vae.py of
# Wan 2.1. fmt: off
LATENTS_MEAN = (
    -0.7571,
    -0.7089,
    -0.9113,
    0.1075,
    -0.1745,
    0.9653,
    -0.1517,
    1.5508,
    0.4134,
    -0.0715,
    0.5517,
    -0.3632,
    -0.1922,
    -0.9497,
    0.2503,
    -0.2921,
)
LATENTS_STD = (
    2.8184,
    1.4541,
    2.3275,
    2.6558,
    1.2196,
    1.7708,
    2.6052,
    2.0743,
    3.2687,
    2.1526,
    2.8652,
    1.5579,
    1.6382,
    1.1253,
    2.8251,
    1.9160,
)
# values from vae2_2.py of Wan 2.2
WAN22_MEAN = (
    -0.2289,
    -0.0052,
    -0.1323,
    -0.2339,
    -0.2799,
    0.0174,
    0.1838,
    0.1557,
    -0.1382,
    0.0542,
    0.2813,
    0.0891,
    0.1570,
    -0.0098,
    0.0375,
    -0.1825,
    -0.2246,
    -0.1207,
    -0.0698,
    0.5109,
    0.2665,
    -0.2108,
    -0.2158,
    0.2502,
    -0.2055,
    -0.0322,
    0.1109,
    0.1567,
    -0.0729,
    0.0899,
    -0.2799,
    -0.1230,
    -0.0313,
    -0.1649,
    0.0117,
    0.0723,
    -0.2839,
    -0.2083,
    -0.0520,
    0.3748,
    0.0152,
    0.1957,
    0.1433,
    -0.2944,
    0.3573,
    -0.0548,
    -0.1681,
    -0.0667,
)
WAN22_STD = (
    0.4765,
    1.0364,
    0.4514,
    1.1677,
    0.5313,
    0.4990,
    0.4818,
    0.5013,
    0.8158,
    1.0344,
    0.5894,
    1.0901,
    0.6885,
    0.6165,
    0.8454,
    0.4978,
    0.5759,
    0.3523,
    0.7135,
    0.6804,
    0.5833,
    1.4146,
    0.8986,
    0.5659,
    0.7069,
    0.5338,
    0.4889,
    0.4917,
    0.4069,
    0.4999,
    0.6866,
    0.4093,
    0.5709,
    0.6065,
    0.6415,
    0.4944,
    0.5726,
    1.2042,
    0.5458,
    1.6887,
    0.3971,
    1.0600,
    0.3943,
    0.5537,
    0.5444,
    0.4089,
    0.7468,
    0.7744,
)
# fmt: on
_STATISTICS = {WAN21: (LATENTS_MEAN, LATENTS_STD), WAN22: (WAN22_MEAN, WAN22_STD)}
WANTED = {
    WAN21: "wan_2.1_vae.safetensors (ComfyUI) or Wan2.1_VAE.pth (original)",
    WAN22: "wan2.2_vae.safetensors (ComfyUI) or Wan2.2_VAE.pth (original)",
}


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
        mean, std = _STATISTICS[self.latents] if normalised else ((0.0,), (1.0,))
        self._mean = torch.tensor(mean, device=self._device).view(-1, 1, 1)
        self._std = torch.tensor(std, device=self._device).view(-1, 1, 1)
        self.reset()

    def reset(self) -> None:
        """Forget the features: the next latent frame starts a new video."""
        self.features = Features()
        self._begun = False

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next `[frames, channels, h, w]` to `[video frames, H, W, 3]`, float32 in 0..1,
        on its device.

        H and W are 8h and 8w with Wan 2.1, 16h and 16w with Wan 2.2. Raises HeadForcingError for a
        wrong shape.
        """
        if latents.ndim != 4 or latents.shape[1] != self.latents.channels or len(latents) == 0:
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
            made = self._network(z.to(self._dtype).contiguous(), self.features, not self._begun)
            video_frames.append(made.float().add_(1).div_(2).clamp_(0, 1))
            self._begun = True
        if self._park:
            self.features.park()
        return torch.cat(video_frames)


def encode(encoder: WanEncoder, video_frames: Tensor) -> Tensor:
    """Encode a video `[4(n-1)+1, H, W, 3]` in 0..1: normalised latents `[n, channels, h, w]`,
    float32.
    """
    latents = encoder(video_frames).float()
    mean, std = torch.tensor(_STATISTICS[latent_format(latents.shape[-1])], device=latents.device)
    return ((latents - mean) / std).permute(0, 3, 1, 2)


def latents_of(path: Path, weights: Mapping[str, Tensor]) -> LatentFormat:
    """The latents of a VAE of Wan with these tensors; raises HeadForcingError if this is none."""
    first = weights.get("decoder.conv1.weight")
    channels = 0 if first is None or first.ndim != 5 else first.shape[1]
    if channels in (WAN21.channels, WAN22.channels):
        return latent_format(channels)
    names = ", ".join(sorted(weights)[:3]) or "no tensors"
    what = f"it is a video VAE with {channels} latent channels" if channels else f"it holds {names}"
    raise HeadForcingError(f"{path.name} is not a VAE of Wan ({what}): use {WANTED[WAN21]}.")


def fill(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    path: Path,
    device: str | torch.device,
    dtype: torch.dtype,
    what: str,
    wanted: str,
) -> nn.Module:
    """Load tensors of a file into a module on the meta device; refuse missing, other and not finite
    ones.
    """
    ready = {}
    for name, empty in module.state_dict().items():
        tensor = weights.get(name)
        if tensor is None or tensor.shape != empty.shape:
            state = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
            raise HeadForcingError(
                f"{path.name} is not {what}: {name} is {state}, expected {list(empty.shape)}; use "
                f"{wanted}."
            )
        if not tensor.is_floating_point():
            raise HeadForcingError(
                f"{path.name} holds {name} in {tensor.dtype}, not in floating point: use {wanted}."
            )
        ready[name] = tensor.to(device, dtype)
        if not all_finite(ready[name]):
            raise HeadForcingError(
                f"{path.name} holds NaN or infinity in {name}, read as {dtype}: use {wanted}."
            )
    module.load_state_dict(ready, assign=True)
    return module.requires_grad_(False)
