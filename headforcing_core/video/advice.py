"""One line of a report on what would make a render faster: the VAE elsewhere, or a tiny one, or
numbers of fewer bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from ..model.latents import WAN21, LatentFormat


def tiny_names(latents: LatentFormat) -> tuple[str, str]:
    """Beginnings of the published names of files of tiny decoders for these latents."""
    version = "2_1" if latents is WAN21 else "2_2"
    return f"lighttaew{version}.", f"taew{version}."


def faster_decoding(
    sampling: torch.device,
    decoding: torch.device,
    tiny: str | None,
    second_gpu: str,
    others: Sequence[str] = (),
) -> str:
    """A line on the cheapest gain in speed that is at hand; empty for none.

    Args:
        sampling, decoding: devices of the model and of the VAE, which is no tiny one.
        tiny: name of a file with a tiny decoder for the model's latents; None for none.
        second_gpu: how a person puts the VAE on a second GPU.
        others: further ways, in words.
    """
    ways = []
    if sampling.type == "cuda" and decoding == sampling and torch.cuda.device_count() > 1:
        ways.append(f"the VAE on the second GPU ({second_gpu})")
    if tiny is not None:
        ways.append(f"the tiny decoder {tiny} as VAE, for a draft")
    ways += others
    return f"cheapest gain in speed: {', or '.join(ways)}" if ways else ""


def eight_bit_attention(sampling: torch.device, option: str) -> list[str]:
    """Words on SageAttention, which a person chooses by an option; none if it is not installed, or
    no GPU samples.
    """
    if sampling.type != "cuda" or find_spec("sageattention") is None:
        return []
    return [f"attention that rounds to 8 bits ({option}), which changes the video slightly"]
