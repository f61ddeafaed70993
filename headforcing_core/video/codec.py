"""The decoder of a VAE file: that of Wan 2.1 or 2.2 or a tiny one, by name or by the tensors in the file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import HeadForcingError
from ..model.latents import WAN21, WAN22, LatentFormat
from ..weights.containers import read_tensors
from . import tiny_decoder, wan_decoder, wan_vae
from .memory import DecoderMemory
from .restarts import FrameCodec
from .tiny_decoder import NORMALISED, TinyDecoder, TinyVideoDecoder
from .wan22 import Wan22Decoder, Wan22Encoder
from .wan_decoder import Upsample, WanDecoder
from .wan_encoder import WanEncoder


def load_codec(
    path: Path,
    device: torch.device | str,
    dtype: torch.dtype,
    encodes: bool = True,
    decoder: str = "auto",
    park: bool = False,
) -> FrameCodec:
    """Load the decoder of a VAE file, and its encoder if `encodes`, which tiny decoders do not have.

    Files of the VAE are ComfyUI's or Wan's own; dimensions are inferred from the tensors. `decoder` is one of
    `names.DECODERS`, `park` as in `WanVideoDecoder`. Raises HeadForcingError for another kind of file, before weights
    are read.
    """
    tensors = read_tensors(path)
    name = decoder_name(tensors, path.name, decoder, encodes)
    if name != "wan":
        with torch.device("meta"):
            widths, latents = tiny_decoder.tiny_widths(tensors), tiny_decoder.tiny_latents(tensors)
            tiny = TinyDecoder(widths or tiny_decoder.WIDTHS, latents)
        wan_vae.fill(tiny, tensors, path, device, dtype, "a complete tiny decoder", " or ".join(NORMALISED))
        return FrameCodec(partial(TinyVideoDecoder, tiny.prepare(), name), nn.ModuleList([tiny]))
    latents = wan_vae.latents_of(path, tensors)
    expected = f"a complete Wan {'2.1' if latents is WAN21 else '2.2'} VAE", wan_vae.WANTED[latents]
    wan, encoder = _networks(latents, wan_vae.base_widths(tensors, latents), encodes)
    network = nn.ModuleDict({"decoder": wan_vae.fill(wan, tensors, path, device, dtype, *expected)})
    wan.prepare()
    if encoder is not None:
        network["encoder"] = wan_vae.fill(encoder, tensors, path, device, dtype, *expected)
    encode = None if encoder is None else partial(wan_vae.encode, encoder)
    return FrameCodec(partial(wan_vae.WanVideoDecoder, wan, park=park), network, encode)


def decoder_memory(
    path: Path | None,
    size: tuple[int, int],
    dtype: torch.dtype,
    encodes: bool = False,
    decoder: str = "auto",
    latents: LatentFormat | None = None,
) -> DecoderMemory:
    """Estimate the memory of a VAE file's decoder during a render of frames of `(height, width)` pixels.

    Without a file, or where it is not there yet, it counts as the VAE released for these latents, by default Wan 2.1's.
    `encodes` counts the encoder, too. Raises HeadForcingError if the file cannot do what is asked, or is for other
    latents than those given.
    """
    found = latents or WAN21
    bases = wan_vae.BASES[found]
    if path is not None and path.is_file():
        tensors = read_tensors(path)
        if decoder_name(tensors, path.name, decoder, encodes) != "wan":
            wan_vae.check_fits(path, found := tiny_decoder.tiny_latents(tensors), latents)
            return tiny_decoder.decoder_memory(size, dtype, tiny_decoder.tiny_widths(tensors), found)
        wan_vae.check_fits(path, found := wan_vae.latents_of(path, tensors), latents)
        bases = wan_vae.base_widths(tensors, found)
    wan, encoder = _networks(found, bases, encodes)
    with torch.device("meta"):
        wan.to(dtype).prepare()
    made = [layer.spread for layer in wan.modules() if isinstance(layer, Upsample)]
    tensors_held = (*made, *wan.parameters(), *(encoder.to(dtype).parameters() if encoder else ()))
    given = (size[0] // found.stride, size[1] // found.stride), dtype, bases[0], found
    return DecoderMemory(
        sum(tensor.nbytes for tensor in tensors_held if tensor is not None),
        wan_decoder.held_bytes(*given),
        wan_decoder.peak_bytes(*given),
    )


def _networks(latents: LatentFormat, bases: tuple[int, int], encodes: bool) -> tuple[WanDecoder, WanEncoder | None]:
    """Decoder and encoder of these base widths on the meta device, without values."""
    decoder, encoder = (WanDecoder, WanEncoder) if latents is WAN21 else (Wan22Decoder, Wan22Encoder)
    with torch.device("meta"):
        return decoder(bases[0]), encoder(bases[1]) if encodes else None


def decoder_name(tensors: Mapping[str, Tensor], file: str, decoder: str, encodes: bool) -> str:
    """The name in `names.DECODERS`, other than `auto`, of the decoder that a file with these tensors is read as.

    Tiny decoders of Wan 2.1 have the same tensors; taew2_1 is published in float16, lighttaew2_1 is not.
    """
    tiny = tiny_decoder.tiny_widths(tensors) is not None
    if tiny and decoder == "wan":
        raise HeadForcingError(f"{file} is a tiny decoder, not the Wan 2.1 VAE: leave out --decoder wan.")
    if not tiny and decoder in NORMALISED:
        raise HeadForcingError(f"{file} is no tiny decoder: give {decoder}'s file, or leave out --decoder.")
    if tiny and encodes:
        raise HeadForcingError(
            f"{file} is a tiny decoder, which cannot encode video frames as this render needs: use "
            f"{wan_vae.WANTED[WAN21]}."
        )
    if not tiny:
        return "wan"
    if tiny_decoder.tiny_latents(tensors) is WAN22:
        return "taew2_2"
    if decoder != "auto":
        return decoder
    return "taew2_1" if tensors["decoder.1.weight"].dtype == torch.float16 else "lighttaew2_1"
