"""Which decoder a VAE file is for: the Wan 2.1 VAE or a tiny decoder, by name or by the tensors that it holds."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from ..errors import HeadForcingError
from ..model.latents import WAN21, LatentFormat
from ..weights.containers import read_weights
from . import tiny_decoder, wan_vae
from .memory import DecoderMemory
from .restarts import FrameCodec
from .tiny_decoder import NORMALISED, TinyDecoder, TinyVideoDecoder
from .wan_vae import check_fits

DECODERS = ("auto", "wan", *NORMALISED)


def load_codec(
    path: Path,
    device: torch.device,
    dtype: torch.dtype,
    encodes: bool = True,
    decoder: str = "auto",
    park: bool = False,
) -> FrameCodec:
    """Load the decoder of a VAE file, and its encoder if `encodes`, which tiny decoders do not have.

    `decoder` is one of `DECODERS`, `park` as in `WanVideoDecoder`. Raises HeadForcingError for another kind of file,
    before weights are read.
    """
    name = decoder_name(path, decoder, encodes)
    if name == "wan":
        return wan_vae.load_codec(path, device, dtype, encodes, park)
    weights = {str(key): tensor for key, tensor in read_weights(path)[1].items()}
    with torch.device("meta"):
        network = TinyDecoder(tiny_decoder.tiny_widths(weights) or tiny_decoder.WIDTHS)
    wan_vae.fill(network, weights, path, device, dtype, "a complete tiny decoder", "taew2_1 or lighttaew2_1")
    return FrameCodec(partial(TinyVideoDecoder, network.prepare(), name), nn.ModuleList([network]))


def decoder_memory(
    path: Path,
    size: tuple[int, int],
    dtype: torch.dtype,
    encodes: bool = False,
    decoder: str = "auto",
    latents: LatentFormat | None = None,
) -> DecoderMemory:
    """What the decoder of a VAE file takes during a render of frames of `(height, width)` pixels.

    `encodes` counts the encoder, too. Raises HeadForcingError if the file cannot do what is asked, or is for other
    latents than those given.
    """
    if not path.is_file() or decoder_name(path, decoder, encodes) == "wan":
        return wan_vae.decoder_memory(path, size, dtype, encodes, latents)
    check_fits(path, WAN21, latents)
    widths = tiny_decoder.tiny_widths({str(key): tensor for key, tensor in read_weights(path)[1].items()})
    return tiny_decoder.decoder_memory(size, dtype, widths or tiny_decoder.WIDTHS)


def decoder_name(path: Path, decoder: str, encodes: bool) -> str:
    """The name in `DECODERS`, other than `auto`, of the decoder that a file is read as.

    Tiny decoders have the same tensors; taew2_1 is published in float16, lighttaew2_1 is not.
    """
    tensors = {str(key): tensor for key, tensor in read_weights(path)[1].items()}
    tiny = tiny_decoder.tiny_widths(tensors) is not None
    if tiny and decoder == "wan":
        raise HeadForcingError(f"{path.name} is a tiny decoder, not the Wan 2.1 VAE: leave out --decoder wan.")
    if not tiny and decoder in NORMALISED:
        raise HeadForcingError(f"{path.name} is no tiny decoder: give {decoder}'s file, or leave out --decoder.")
    if not tiny:
        return "wan"
    if encodes:
        raise HeadForcingError(
            f"{path.name} is a tiny decoder, which cannot encode video frames as this render needs: use "
            f"{wan_vae.WANTED}."
        )
    if decoder != "auto":
        return decoder
    return "taew2_1" if getattr(tensors["decoder.1.weight"], "dtype", None) == torch.float16 else "lighttaew2_1"
