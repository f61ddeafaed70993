"""The Wan 2.1 VAE: its file, its latents, and the decoding of a video latent frame by latent frame.

The encoder's weights are read only where video frames are encoded: start frames, and videos of several rollouts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import HeadForcingError
from ..finite import is_finite
from ..weights.containers import read_tensors
from . import wan_decoder
from .memory import DecoderMemory
from .restarts import FrameCodec
from .wan_decoder import LATENT_CHANNELS, Features, Upsample, WanDecoder
from .wan_encoder import WanEncoder

# The transformer uses (z - mean) / std of the VAE's latents z, per channel; values from vae.py of Wan 2.1.
# fmt: off
LATENTS_MEAN = (-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
                0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921)
LATENTS_STD = (2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
               3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160)
# fmt: on
WANTED = "wan_2.1_vae.safetensors (ComfyUI) or Wan2.1_VAE.pth (original)"
_BASE = 96  # base width of the released model
# Names of diffusers, which numbers the layers of the decoder's levels apart, and what they are in Wan's own file.
_DIFFUSERS = (
    (r"^quant_conv\.", "conv1."),
    (r"^post_quant_conv\.", "conv2."),
    (r"\.conv_in\.", ".conv1."),
    (r"\.norm_out\.", ".head.0."),
    (r"\.conv_out\.", ".head.2."),
    (r"\.mid_block\.resnets\.0\.", ".middle.0."),
    (r"\.mid_block\.attentions\.0\.", ".middle.1."),
    (r"\.mid_block\.resnets\.1\.", ".middle.2."),
    (r"\.down_blocks\.", ".downsamples."),
    (r"\.norm1\.", ".residual.0."),
    (r"(?<=\d)\.conv1\.", ".residual.2."),
    (r"\.norm2\.", ".residual.3."),
    (r"\.conv2\.", ".residual.6."),
    (r"\.conv_shortcut\.", ".shortcut."),
)
_OF_DIFFUSERS = re.compile(
    r"(post_)?quant_|(encoder|decoder)\.(conv_in|mid_block|up_blocks|down_blocks|norm_out|conv_out)\."
)


class WanVideoDecoder:
    """Decodes one video latent frame by latent frame, so that every division into chunks gives the same bits.

    Args:
        network: the weights, which other videos may share.
        normalised: whether the latents are as the transformer sees them. False: as the VAE does.
        park: whether features are kept in the host's memory from one chunk to the next if the VAE is on a GPU.
    """

    def __init__(self, network: WanDecoder, normalised: bool = True, park: bool = False):
        self._network = network
        weight = network.conv2.weight
        self._device, self._dtype = weight.device, weight.dtype
        self._park = park and self._device.type == "cuda"
        rows = (LATENTS_MEAN, LATENTS_STD) if normalised else ((0.0,), (1.0,))
        self._mean, self._std = (torch.tensor(row, device=self._device).view(-1, 1, 1) for row in rows)
        self.reset()

    def reset(self) -> None:
        """Forget the features: the next latent frame starts a new video."""
        self.features = Features()
        self._begun = False

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next `[frames, 16, h, w]` to `[video frames, 8h, 8w, 3]`, float32 in 0..1, on the VAE's device.

        Raises HeadForcingError for a wrong shape.
        """
        check_latents(latents)
        self.features.fetch(self._device)
        video_frames = torch.cat([self._decode_frame(frame) for frame in latents])
        if self._park:
            self.features.park()
        return video_frames

    def _decode_frame(self, frame: Tensor) -> Tensor:
        z = frame.to(self._device, torch.float32) * self._std + self._mean
        x = z.permute(1, 2, 0).to(self._dtype).contiguous()
        video_frames = self._network(x, self.features, not self._begun)
        self._begun = True
        return video_frames.float().add_(1).div_(2).clamp_(0, 1)


def check_latents(latents: Tensor) -> None:
    """Refuse what is not `[frames, 16, h, w]`."""
    if latents.ndim != 4 or latents.shape[1] != LATENT_CHANNELS or len(latents) == 0:
        raise HeadForcingError(
            f"The VAE decodes latents of shape [frames, {LATENT_CHANNELS}, h, w], got {list(latents.shape)}."
        )


def load_codec(
    path: str | Path,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    encodes: bool = True,
    park: bool = False,
) -> FrameCodec:
    """Load the Wan 2.1 VAE from ComfyUI's file, Wan's own or diffusers'; with its encoder if `encodes`.

    Dimensions are inferred from the tensors; `park` as in `WanVideoDecoder`. Raises HeadForcingError, before weights
    are read, if the file is no Wan 2.1 VAE.
    """
    path = Path(path)
    weights = _check_latents(path, read_tensors(path))
    base = _base_width(weights)
    network = nn.ModuleDict()
    with torch.device("meta"):
        decoder = WanDecoder(base)
        encoder = WanEncoder(base) if encodes else None
    network["decoder"] = fill(decoder, weights, path, device, dtype)
    decoder.prepare()
    if encoder is not None:
        network["encoder"] = fill(encoder, weights, path, device, dtype)
    encode = None if encoder is None else partial(_encode, encoder)
    return FrameCodec(partial(WanVideoDecoder, decoder, park=park), network, encode)


def _encode(encoder: WanEncoder, video_frames: Tensor) -> Tensor:
    """Encode a video `[4(n-1)+1, H, W, 3]` in 0..1: normalised latents `[n, 16, h, w]`, float32."""
    latents = encoder(video_frames).float()
    mean, std = (torch.tensor(row, device=latents.device) for row in (LATENTS_MEAN, LATENTS_STD))
    return ((latents - mean) / std).permute(0, 3, 1, 2)


def decoder_memory(
    path: Path | None, size: tuple[int, int], dtype: torch.dtype, encodes: bool = False
) -> DecoderMemory:
    """Estimate the VAE's memory during a render of frames of `(height, width)` pixels.

    Without a file, or where it is not there yet, it counts as the released one.
    """
    base = _BASE
    if path is not None and path.is_file():
        base = _base_width(_check_latents(path, read_tensors(path)))
    with torch.device("meta"):
        decoder = WanDecoder(base).to(dtype).prepare()
        encoder = WanEncoder(base).to(dtype) if encodes else None
    made = (layer.spread for layer in decoder.modules() if isinstance(layer, Upsample))
    tensors = (*decoder.parameters(), *(encoder.parameters() if encoder else ()), *made)
    latent_size = size[0] // 8, size[1] // 8
    return DecoderMemory(
        sum(tensor.nbytes for tensor in tensors if tensor is not None),
        wan_decoder.held_bytes(latent_size, dtype, base),
        wan_decoder.peak_bytes(latent_size, dtype, base),
    )


def _base_width(weights: Mapping[str, Tensor]) -> int:
    norm = weights.get("decoder.head.0.gamma")
    return len(norm) if norm is not None and norm.numel() and norm.ndim else _BASE


def _check_latents(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under Wan's own names; raises HeadForcingError if this is no Wan 2.1 VAE."""
    weights = {wan_name(name): tensor for name, tensor in tensors.items()}
    first = weights.get("decoder.conv1.weight")
    if first is None or first.ndim != 5:
        names = ", ".join(sorted(tensors)[:3]) or "no tensors"
        raise HeadForcingError(f"{path.name} is not a Wan 2.1 VAE (it holds {names}): use {WANTED}.")
    if first.shape[1] != LATENT_CHANNELS:
        which = "the VAE of Wan 2.2" if first.shape[1] == 48 else "another video VAE"
        raise HeadForcingError(
            f"{path.name} is {which}, with {first.shape[1]} latent channels where Self Forcing models have "
            f"{LATENT_CHANNELS}: use {WANTED}."
        )
    return weights


def wan_name(name: str) -> str:
    """A tensor's name in Wan's own file; that is what it has already unless diffusers gave it."""
    if not _OF_DIFFUSERS.match(name):
        return name
    for pattern, wan in _DIFFUSERS:
        name = re.sub(pattern, wan, name)
    per_level = wan_decoder.BLOCKS + 1
    name = re.sub(r"\.up_blocks\.(\d)\.upsamplers\.0", lambda m: f".upsamples.{per_level * int(m[1]) + 3}", name)
    return re.sub(
        r"\.up_blocks\.(\d)\.resnets\.(\d)", lambda m: f".upsamples.{per_level * int(m[1]) + int(m[2])}", name
    )


def fill(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    path: Path,
    device: str | torch.device,
    dtype: torch.dtype,
    what: str = "a complete Wan 2.1 VAE",
    wanted: str = WANTED,
) -> nn.Module:
    """Load the tensors of a file one by one into a module on the meta device.

    Raises HeadForcingError for one that is missing, of another shape or no finite numbers.
    """
    ready = {}
    for name, empty in module.state_dict().items():
        tensor = weights.get(name)
        if tensor is None or tensor.shape != empty.shape:
            state = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
            raise HeadForcingError(
                f"{path.name} is not {what}: {name} is {state}, expected {list(empty.shape)}; use {wanted}."
            )
        if not tensor.is_floating_point():
            raise HeadForcingError(f"{path.name} holds {name} in {tensor.dtype}, not in floating point: use {wanted}.")
        ready[name] = tensor.to(device, dtype)
        if not is_finite(ready[name]):
            raise HeadForcingError(f"{path.name} holds NaN or infinity in {name}, read as {dtype}: use {wanted}.")
    module.load_state_dict(ready, assign=True)
    return module.requires_grad_(False)
