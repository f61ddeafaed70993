"""What single changes and sums of them would bring on other cards: arithmetic from counts, beside what was measured.

    python tests/benchmarks/run.py gains        prints the table of docs/speed.md

A block's time is its products at a share of the card's peak, and what else it reads and writes at
the card's bandwidth. The shares are assumptions, except those of the H100, which were measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from headforcing.headforcing_core.model.latents import WAN21
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from headforcing.headforcing_core.video.wan_decoder import Features, WanDecoder
from torch.utils.flop_counter import FlopCounterMode

from .case import SCHEDULE, VIDEO_FRAMES, Case
from .rows import HEAD_FORCING

# that norms, writes to the cache, GELU and the order of heads read and write in a block
REST_BYTES = 70e9
VAE_BYTES, TINY_BYTES = 75e9, 11.3e9
UNCOUNTED = 1.2  # time of small kernels beside what they read and write
REAL_TIME = 16  # video frames a second
MEASURED = Path(__file__).with_name("gpu")


@dataclass(frozen=True)
class Card:
    """A GPU: dense bf16 products with float32 sums in TFLOP/s, memory in GB/s, and the share of the
    products that each kind of work reaches. Factors say how much faster a change makes its work; 1
    if it does nothing there.
    """

    name: str
    tflops: float
    gbs: float
    linears: float = 0.93
    attention: float = 0.86
    convolutions: float = 0.5
    fp8: float = 1.0
    nvfp4: float = 1.0
    fp16_sums: float = 1.0
    sage: float = 2.4


CARDS = (
    Card("H100", 989, 3350, linears=0.74, attention=0.46, convolutions=0.305, fp8=1.45, sage=1.5),
    Card("5090", 209.5, 1792, fp8=1.7, nvfp4=2.7, fp16_sums=1.8, sage=2.8),
    Card("4090", 165, 1008, fp8=1.7, fp16_sums=1.8),
    Card("3060", 25.6, 360, fp16_sums=1.8, sage=2.1),
)


@dataclass(frozen=True)
class Work:
    """The work of a block in FLOP, and its decoder's in FLOP and bytes."""

    linears: float
    attention: float
    convolutions: float
    decoded_bytes: float
    passes: int

    def seconds(self, card: Card) -> float:
        """The time on a card, one part after another."""
        peak = card.tflops * 1e12
        bandwidth = card.gbs * 1e9
        rest = UNCOUNTED * REST_BYTES / bandwidth
        products = self.linears / card.linears + self.attention / card.attention
        decoding = self.convolutions / (peak * card.convolutions)
        if self.decoded_bytes == TINY_BYTES:  # its layers are narrow: memory counts
            decoding += self.decoded_bytes / bandwidth
        return products / peak + rest + decoding


@cache
def counted(tiny: bool = False) -> Work:
    """The work of a block of the real model, contexts full: denoising passes and the clean one."""
    case = Case(device=torch.device("meta"))
    config = case.config
    passes = len(SCHEDULE.sigmas) + 1
    tokens = SCHEDULE.frames_per_block * case.frame_tokens
    weights = 6 * config.dim**2 + 2 * config.dim * config.ffn_dim
    groups = case.shape(HEAD_FORCING, 40).layer_sizes.groups
    keys = sum(heads * keys for heads, keys in groups)
    prompt = config.num_heads * config.text_len
    layers = passes * config.num_layers
    return Work(
        linears=layers * 2 * tokens * weights,
        attention=layers * 4 * tokens * (keys + prompt) * config.dim // config.num_heads,
        convolutions=_decoding(case, tiny),
        decoded_bytes=TINY_BYTES if tiny else VAE_BYTES,
        passes=passes,
    )


def _decoding(case: Case, tiny: bool) -> float:
    """FLOP of decoding a block's latent frames after the first, on tensors without numbers."""
    height, width = case.height // 8, case.width // 8
    z = torch.empty(height, width, WAN21.channels, device="meta")
    with torch.device("meta"), torch.no_grad():
        network = (TinyDecoder() if tiny else WanDecoder()).prepare()
        state = {} if tiny else Features()
        given = z.permute(2, 0, 1)[None] if tiny else z
        network(given, state)
        with FlopCounterMode(display=False) as counter:
            network(given, state)
    return SCHEDULE.frames_per_block * counter.get_total_flops()


# ------------------------------------------------------------------------------------- the table

Change = Callable[[Card, Work], tuple[Card, Work]]


def tiny(card: Card, work: Work) -> tuple[Card, Work]:
    return card, replace(
        work, convolutions=counted(tiny=True).convolutions, decoded_bytes=TINY_BYTES
    )


def elsewhere(card: Card, work: Work) -> tuple[Card, Work]:
    return card, replace(work, convolutions=0.0)


def two_steps(card: Card, work: Work) -> tuple[Card, Work]:
    share = 3 / work.passes
    return card, replace(work, linears=share * work.linears, attention=share * work.attention)


def sage(card: Card, work: Work) -> tuple[Card, Work]:
    return replace(card, attention=card.attention * card.sage), work


def fp8(card: Card, work: Work) -> tuple[Card, Work]:
    return replace(card, linears=card.linears * card.fp8), work


def nvfp4(card: Card, work: Work) -> tuple[Card, Work]:
    return replace(card, linears=card.linears * card.nvfp4), work


def fp16_sums(card: Card, work: Work) -> tuple[Card, Work]:
    return replace(card, linears=card.linears * card.fp16_sums), work


TINY, SAGE, FP8 = "tiny decoder", "sage attention", "fp8 linears"
CHANGES: dict[str, tuple[Change, ...]] = {
    "as it is": (),
    f"{TINY} (drafts)": (tiny,),
    "VAE on an equal second GPU": (elsewhere,),
    f"{SAGE} (inexact)": (sage,),
    f"{FP8} (inexact)": (fp8,),
    "fp16 sums in linears, ComfyUI only (inexact)": (fp16_sums,),
    "NVFP4 linears (not built)": (nvfp4,),
    "2 instead of 4 steps (needs such weights)": (two_steps,),
    f"{TINY} + sage": (tiny, sage),
    f"{TINY} + sage + fp8": (tiny, sage, fp8),
    f"{TINY} + sage + fp16 sums": (tiny, sage, fp16_sums),
    f"{TINY} + sage + NVFP4": (tiny, sage, nvfp4),
}
# the measurements of the part `video` that are these rows
TASKS = {
    "as it is": "sampled and decoded",
    f"{TINY} (drafts)": "sampled, decoded by a tiny VAE",
    "VAE on an equal second GPU": "sampled",
}


def fps(card: Card, changes: Iterable[Change]) -> float | None:
    """Video frames a second on a card; None if a change does nothing there."""
    work = counted()
    for change in changes:
        before = card, work
        card, work = change(card, work)
        if (card, work) == before:
            return None
    return VIDEO_FRAMES / work.seconds(card)


def measured(title: str) -> float | None:
    """Frames a second of the second half of a video on an H100; None where nothing was measured."""
    found = None
    for file in sorted(MEASURED.glob("h100_*_video.json")):
        task = json.loads(file.read_text("utf-8"))["tasks"].get(TASKS.get(title, ""), {})
        found = task.get("steady_fps", found)
    return found


def table() -> str:
    """The rows of docs/speed.md, in Markdown."""
    names = " | ".join(card.name for card in CARDS)
    lines = [f"| frames a second | H100, measured | {names} |", "| --- |" + " --- |" * 5]
    for title, changes in CHANGES.items():
        cells = [measured(title), *(fps(card, changes) for card in CARDS)]
        shown = " | ".join("" if cell is None else f"{cell:.3g}" for cell in cells)
        lines.append(f"| {title} | {shown} |")
    return "\n".join(lines)
