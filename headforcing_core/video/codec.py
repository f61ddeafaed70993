"""The decoder of a VAE file: the Wan 2.1 VAE's or a tiny one, by name or by the tensors in the file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import HeadForcingError
from ..model.latents import WAN22, LatentFormat
from ..weights.containers import read_tensors
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
    tensors = read_tensors(path)
    name = decoder_name(tensors, path.name, decoder, encodes)
    if name == "wan":
        return wan_vae.load_codec(path, device, dtype, encodes, park)
    with torch.device("meta"):
        widths, latents = tiny_decoder.tiny_widths(tensors), tiny_decoder.tiny_latents(tensors)
        network = TinyDecoder(widths or tiny_decoder.WIDTHS, latents)
    wan_vae.fill(network, tensors, path, device, dtype, "a complete tiny decoder", " or ".join(NORMALISED))
    return FrameCodec(partial(TinyVideoDecoder, network.prepare(), name), nn.ModuleList([network]))


def decoder_memory(
    path: Path,
    size: tuple[int, int],
    dtype: torch.dtype,
    encodes: bool = False,
    decoder: str = "auto",
    latents: LatentFormat | None = None,
) -> DecoderMemory:
    """Estimate the memory of a VAE file's decoder during a render of frames of `(height, width)` pixels.

    `encodes` counts the encoder, too. Raises HeadForcingError if the file cannot do what is asked, or is for other
    latents than those given.
    """
    tensors = read_tensors(path) if path.is_file() else None
    if tensors is None or decoder_name(tensors, path.name, decoder, encodes) == "wan":
        return wan_vae.decoder_memory(path, size, dtype, encodes, latents)
    check_fits(path, found := tiny_decoder.tiny_latents(tensors), latents)
    widths = tiny_decoder.tiny_widths(tensors) or tiny_decoder.WIDTHS
    return tiny_decoder.decoder_memory(size, dtype, widths, found)


def decoder_name(tensors: Mapping[str, Tensor], file: str, decoder: str, encodes: bool) -> str:
    """The name in `DECODERS`, other than `auto`, of the decoder that a file with these tensors is read as.

    Tiny decoders of Wan 2.1 have the same tensors; taew2_1 is published in float16, lighttaew2_1 is not.
    """
    tiny = tiny_decoder.tiny_widths(tensors) is not None
    if tiny and decoder == "wan":
        raise HeadForcingError(f"{file} is a tiny decoder, not the Wan 2.1 VAE: leave out --decoder wan.")
    if not tiny and decoder in NORMALISED:
        raise HeadForcingError(f"{file} is no tiny decoder: give {decoder}'s file, or leave out --decoder.")
    if tiny and encodes:
        raise HeadForcingError(
            f"{file} is a tiny decoder, which cannot encode video frames as this render needs: use {wan_vae.WANTED}."
        )
    if not tiny:
        return "wan"
    if tiny_decoder.tiny_latents(tensors) is WAN22:
        return "taew2_2"
    if decoder != "auto":
        return decoder
    return "taew2_1" if tensors["decoder.1.weight"].dtype == torch.float16 else "lighttaew2_1"
