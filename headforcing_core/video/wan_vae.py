"""The Wan 2.1 VAE for the command line (ComfyUI has its own).

The network is that of diffusers, from the optional `pip install "headforcing[vae]"`, which is imported when a VAE is
loaded. The encoder's weights are read only for videos of several rollouts.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import HeadForcingError
from ..weights.containers import read_weights
from .restarts import FrameCodec

LATENT_CHANNELS = 16
# The transformer uses (z - mean) / std of the VAE's latents z, per channel; values from vae.py of Wan 2.1.
# fmt: off
LATENTS_MEAN = (-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
                0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921)
LATENTS_STD = (2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
               3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160)
# fmt: on
CHANNELS_LAST = ("cuda",)  # devices whose half-precision convolutions otherwise transpose every input and output
_WANTED = "wan_2.1_vae.safetensors (ComfyUI) or Wan2.1_VAE.pth (original)"


class DiffusersDecoder:
    """Decodes one video, latent frame by latent frame, with diffusers' decoder.

    The state is the feature cache of its causal convolutions, which each store the two previous frames.
    """

    def __init__(self, post_quant_conv: nn.Module, decoder: nn.Module):
        self._post_quant_conv = post_quant_conv
        self._decoder = decoder
        weight = next(decoder.parameters())
        self._device, self._dtype = weight.device, weight.dtype
        if self._device.type in CHANNELS_LAST:
            formats = {5: torch.channels_last_3d, 4: torch.channels_last}
            for weight in (*post_quant_conv.parameters(), *decoder.parameters()):
                weight.data = weight.data.contiguous(memory_format=formats.get(weight.ndim, torch.contiguous_format))
        self._mean = torch.tensor(LATENTS_MEAN, device=self._device).view(1, -1, 1, 1, 1)
        self._std = torch.tensor(LATENTS_STD, device=self._device).view(1, -1, 1, 1, 1)
        # One cache entry for each causal convolution; the decoder fills them in the order of its calls.
        self._convolutions = sum(isinstance(module, nn.Conv3d) for module in decoder.modules())
        self.reset()

    def reset(self) -> None:
        """Clear the feature cache: the next latent frame starts a new video."""
        self._features: list[Any] = [None] * self._convolutions
        self._begun = False

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next normalised `[frames, 16, h, w]` to `[video frames, 8h, 8w, 3]`, float32 in 0..1 on the CPU.

        The result does not depend on how a video is divided into chunks. Memory: the frames of this chunk and the
        feature cache. Raises HeadForcingError for a wrong shape.
        """
        if latents.ndim != 4 or latents.shape[1] != LATENT_CHANNELS or len(latents) == 0:
            raise HeadForcingError(
                f"The VAE decodes latents of shape [frames, {LATENT_CHANNELS}, h, w], got {list(latents.shape)}."
            )
        return torch.cat([self._decode_frame(frame) for frame in latents])

    def _decode_frame(self, frame: Tensor) -> Tensor:
        z = frame.to(self._device, torch.float32)[None, :, None] * self._std + self._mean  # [1, 16, 1, h, w]
        x = self._post_quant_conv(z.to(self._dtype))
        video_frames = self._decoder(x, feat_cache=self._features, feat_idx=[0], first_chunk=not self._begun)
        self._begun = True
        return video_frames[0].float().add(1).div(2).clamp(0, 1).permute(1, 2, 3, 0).cpu()  # [1 or 4, H, W, 3]


def load_codec(
    path: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.bfloat16, encodes: bool = True
) -> FrameCodec:
    """Load the Wan 2.1 VAE from ComfyUI's file, Wan's own or diffusers'; with its encoder if `encodes`.

    Dimensions are inferred from the tensors. Raises HeadForcingError, before weights are read, if the file is no Wan
    2.1 VAE or diffusers is missing.
    """
    path = Path(path)
    _, tensors, _ = read_weights(path)
    native = _check_latents(path, tensors)
    diffusers, converter = _optional_diffusers()
    names = ("decoder.", "conv2.", "post_quant_conv.", *(("encoder.", "conv1.", "quant_conv.") if encodes else ()))
    weights: dict[str, Any] = {str(name): tensor for name, tensor in tensors.items() if str(name).startswith(names)}
    if native:
        weights = converter.convert_wan_vae_to_diffusers(weights)
    norm = weights.get("decoder.norm_out.gamma")  # as long as the base width
    with torch.device("meta"):
        vae = diffusers.AutoencoderKLWan(base_dim=96 if norm is None else len(norm))
    if "first_chunk" not in inspect.signature(vae.decoder.forward).parameters:
        raise _needs_diffusers(f"version {diffusers.__version__} is too old")
    for part in ("post_quant_conv", "decoder", *(("encoder", "quant_conv") if encodes else ())):
        _fill(vae.get_submodule(part).eval(), f"{part}.", weights, path, device, dtype)
    encode = partial(_encode_first_frame, vae.encoder, vae.quant_conv) if encodes else None
    return FrameCodec(partial(DiffusersDecoder, vae.post_quant_conv, vae.decoder), vae, encode)


@torch.no_grad()
def _encode_first_frame(encoder: nn.Module, quant_conv: nn.Module, video_frame: Tensor) -> Tensor:
    """Encode a video frame `[H, W, 3]` in 0..1 as a video of one frame: normalised latents `[1, 16, h, w]`, float32."""
    weight = next(encoder.parameters())
    x = video_frame.to(weight) * 2 - 1
    moments = quant_conv(encoder(x.permute(2, 0, 1)[None, :, None]))[0, :, 0].float()  # [32, h, w], means first
    mean, std = (torch.tensor(row, device=weight.device).view(-1, 1, 1) for row in (LATENTS_MEAN, LATENTS_STD))
    return ((moments[:LATENT_CHANNELS] - mean) / std)[None]


def decode_bytes(path: Path, size: tuple[int, int], dtype: torch.dtype) -> int:
    """Estimated memory in bytes for decoding frames of `(height, width)` pixels: ComfyUI's formula plus the weights."""
    height, width = size
    return 2200 * height * width * dtype.itemsize + (path.stat().st_size if path.is_file() else 0)


def _check_latents(path: Path, tensors: Mapping[Any, Any]) -> bool:
    """Whether the names are Wan's own and not diffusers'; raises HeadForcingError if this is no Wan 2.1 VAE."""
    native = "decoder.conv1.weight" in tensors
    first = tensors.get("decoder.conv1.weight" if native else "decoder.conv_in.weight")
    if not isinstance(first, Tensor) or first.ndim != 5:
        names = ", ".join(sorted(map(str, tensors))[:3]) or "no tensors"
        raise HeadForcingError(f"{path.name} is not a Wan 2.1 VAE (it holds {names}): use {_WANTED}.")
    if first.shape[1] != LATENT_CHANNELS:
        which = "the VAE of Wan 2.2" if first.shape[1] == 48 else "another video VAE"
        raise HeadForcingError(
            f"{path.name} is {which}, with {first.shape[1]} latent channels where Self Forcing models have "
            f"{LATENT_CHANNELS}: use {_WANTED}."
        )
    return native


def _fill(
    module: nn.Module,
    prefix: str,
    weights: Mapping[str, Any],
    path: Path,
    device: str | torch.device,
    dtype: torch.dtype,
) -> None:
    """Load the tensors `prefix + name` of a file one by one into a module on the meta device."""
    ready = {}
    for name, empty in module.state_dict().items():
        tensor = weights.get(prefix + name)
        if not isinstance(tensor, Tensor) or tensor.shape != empty.shape:
            state = "missing" if tensor is None else f"of shape {list(getattr(tensor, 'shape', []))}"
            raise HeadForcingError(
                f"{path.name} is not a complete Wan 2.1 VAE: {prefix}{name} is {state}, expected "
                f"{list(empty.shape)}; use {_WANTED}."
            )
        ready[name] = tensor.to(device, dtype)
    module.load_state_dict(ready, assign=True)
    module.requires_grad_(False)


def _optional_diffusers() -> tuple[Any, Any]:
    try:
        import diffusers
        from diffusers.loaders import single_file_utils

        _ = diffusers.AutoencoderKLWan, single_file_utils.convert_wan_vae_to_diffusers  # both are imported lazily
    except (ImportError, AttributeError, RuntimeError) as error:  # RuntimeError: incompatible with another package
        raise _needs_diffusers(str(error).strip().split("\n")[0]) from error
    return diffusers, single_file_utils


def _needs_diffusers(reason: str) -> HeadForcingError:
    return HeadForcingError(
        f'Decoding video needs the package diffusers, 0.35 or newer ({reason}): run `pip install "headforcing[vae]"`, '
        "or write --latents and decode them in ComfyUI."
    )
