"""The decoder of a VAE file: that of Wan 2.1 or 2.2 or a tiny one, by name or by the tensors in the
file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.model.latents import WAN21, WAN22, LatentFormat
from ..headforcing_core.video import wan_vae
from ..headforcing_core.video.memory import DecoderMemory
from ..headforcing_core.video.restarts import FrameCodec
from ..headforcing_core.video.stream import StreamingDecoder
from ..headforcing_core.video.tiny_decoder import (
    NORMALISED,
    TinyDecoder,
    TinyVideoDecoder,
    tiny_sizes,
)
from ..headforcing_core.video.wan22 import Wan22Decoder, Wan22Encoder
from ..headforcing_core.video.wan_decoder import WanDecoder
from ..headforcing_core.video.wan_encoder import WanEncoder
from ..headforcing_core.weights.containers import Weights, all_finite, read_tensors, tensor_of

_NETWORKS: dict[LatentFormat, tuple[type[WanDecoder], type[WanEncoder]]] = {
    WAN21: (WanDecoder, WanEncoder),
    WAN22: (Wan22Decoder, Wan22Encoder),
}


def load_codec(
    path: Path,
    device: torch.device | str,
    dtype: torch.dtype,
    encodes: bool = True,
    decoder: str = "auto",
    park: bool = False,
) -> FrameCodec:
    """Load the decoder of a VAE file of ComfyUI or Wan, and its encoder if `encodes`, which tiny
    decoders do not have.

    `decoder` is one of `names.DECODERS`, `park` as in `WanVideoDecoder`. Raises HeadForcingError
    for another kind of file, before weights are read.
    """
    tensors = read_tensors(path)
    name, network, encoder = _networks(path, tensors, decoder, encodes)
    what = "a complete tiny decoder"
    wanted = " or ".join(NORMALISED)
    if name == "wan":
        what = f"a complete Wan {'2.1' if network.latents is WAN21 else '2.2'} VAE"
        wanted = wan_vae.WANTED[network.latents]
    parts = nn.ModuleDict({"decoder": network})
    encode = None
    if encoder is not None:
        parts["encoder"] = encoder
        encode = partial(wan_vae.encode, encoder)
    for part in parts.values():
        _fill(part, tensors, path.name, what, wanted=wanted, device=device, dtype=dtype)
    network.prepare()
    make: Callable[[], StreamingDecoder] = partial(wan_vae.WanVideoDecoder, network, park=park)
    if isinstance(network, TinyDecoder):
        make = partial(TinyVideoDecoder, network, normalised=not NORMALISED[name])
    return FrameCodec(make, parts, encode)


def _fill(
    module: nn.Module, weights: Weights, file: str, what: str, wanted: str, **to: Any
) -> None:
    """Load tensors of a file into a module on the meta device; refuse missing, other and not finite
    ones.
    """
    ready = {}
    for name, empty in module.state_dict().items():
        tensor = tensor_of(
            weights, name, empty.shape, f"{file} is not {what}", advice=f"; use {wanted}"
        )
        if not tensor.is_floating_point():
            raise HeadForcingError(
                f"{file} holds {name} in {tensor.dtype}, not in floating point: use {wanted}."
            )
        ready[name] = tensor.to(**to)
        if not all_finite(ready[name]):
            raise HeadForcingError(
                f"{file} holds NaN or infinity in {name}, read as {to['dtype']}: use {wanted}."
            )
    module.load_state_dict(ready, assign=True)
    module.requires_grad_(False)


def is_tiny(path: Path) -> bool:
    """Whether a file holds a tiny decoder and not a VAE of Wan."""
    return tiny_latents(path) is not None


def tiny_latents(path: Path) -> LatentFormat | None:
    """The latents that a file's tiny decoder is for; None for another file."""
    sizes = tiny_sizes(read_tensors(path))
    return None if sizes is None else sizes[1]


def decoder_memory(
    path: Path | None,
    size: tuple[int, int],
    dtype: torch.dtype,
    encodes: bool = False,
    decoder: str = "auto",
    latents: LatentFormat | None = None,
) -> DecoderMemory:
    """Estimate the memory of a VAE file's decoder during a render of frames of `(height, width)`
    pixels.

    A file that is not there (yet) counts as the VAE released for these latents, by default Wan
    2.1's. Raises HeadForcingError if the file cannot do what is asked, or is for other latents than
    those given.
    """
    if path is not None and path.is_file():
        _, network, encoder = _networks(path, read_tensors(path), decoder, encodes)
        if latents not in (None, network.latents):
            raise HeadForcingError(
                f"{path.name} is a VAE for {network.latents.channels} latent channels, the model "
                f"has {latents.channels}: use {wan_vae.WANTED[latents]}."
            )
    else:
        network, encoder = _wan_networks(latents or WAN21, {}, encodes)
    network.to(dtype).prepare()
    held = chain(
        network.parameters(), network.buffers(), encoder.to(dtype).parameters() if encoder else ()
    )
    stride = network.latents.stride
    return DecoderMemory(
        sum(tensor.nbytes for tensor in held),
        *network.memory((size[0] // stride, size[1] // stride), dtype),
    )


def _networks(
    path: Path, tensors: Weights, decoder: str, encodes: bool
) -> tuple[str, WanDecoder | TinyDecoder, WanEncoder | None]:
    """Name as in `names.DECODERS`, decoder and encoder of a file, in the sizes of its tensors and
    without values.

    Tiny decoders of Wan 2.1 have the same tensors; taew2_1 is published in float16, lighttaew2_1 is
    not.
    """
    sizes = tiny_sizes(tensors)
    if sizes is None:
        if decoder in NORMALISED:
            raise HeadForcingError(
                f"{path.name} is no tiny decoder: give {decoder}'s file, or leave out --decoder."
            )
        return "wan", *_wan_networks(wan_vae.latents_of(path, tensors), tensors, encodes)
    if decoder == "wan":
        raise HeadForcingError(
            f"{path.name} is a tiny decoder, not the Wan 2.1 VAE: leave out --decoder wan."
        )
    if encodes:
        raise HeadForcingError(
            f"{path.name} is a tiny decoder, which cannot encode video frames as this render "
            f"needs: use {wan_vae.WANTED[WAN21]}."
        )
    with torch.device("meta"):
        tiny = TinyDecoder(*sizes)
    if tiny.latents is WAN22:
        return "taew2_2", tiny, None
    if decoder == "auto":
        decoder = (
            "taew2_1" if tensors["decoder.1.weight"].dtype == torch.float16 else "lighttaew2_1"
        )
    return decoder, tiny, None


def _wan_networks(
    latents: LatentFormat, tensors: Weights, encodes: bool
) -> tuple[WanDecoder, WanEncoder | None]:
    """Decoder and encoder in the base widths of the tensors; in those of the released model where
    one is missing.
    """
    base = _length(tensors, "decoder.head.0.gamma")
    encoder_base = _length(tensors, "encoder.conv1.weight")
    decoder, encoder = _NETWORKS[latents]
    with torch.device("meta"):
        return decoder(base), encoder(encoder_base) if encodes else None


def _length(tensors: Weights, name: str) -> int:
    """The rows of a tensor, 0 if it is missing."""
    return tensors[name].shape[:1].numel() if name in tensors else 0
