"""Renders of released models that fit on graphics cards: arithmetic, nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from ..headforcing_core.head_profiles.auto import AutoProfile
from ..headforcing_core.head_profiles.profile import HeadProfile
from ..headforcing_core.model.latents import WAN22
from ..headforcing_core.model.wan import WanConfig
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.remedies import remedies
from ..headforcing_core.plan.resources import (
    COMFYUI,
    MARGIN,
    RESERVED,
    MemorySavings,
    Needs,
    needs_of,
)
from ..headforcing_core.timeline.timeline import parse_timeline
from .codec import decoder_memory
from .weight_changes import command_line_savings

IN_USE = 700_000_000  # of a card: CUDA's context, the driver and a screen, in bytes
_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Fit:
    """Change with which a minute fits on a card: empty if none is needed, None if none helps."""

    how: str | None
    bytes: int = 0  # the memory that it takes then, without weights that are streamed
    resident: int = 0  # bytes of the model's weights that stay on the card


@dataclass(frozen=True)
class Card:
    """Answers for a card of `size` GiB, of which `room` bytes are free; where umT5-xxl runs, by its
    file.
    """

    size: float
    room: int
    command_line: Fit
    comfyui: Fit
    text_encoder: dict[str, str]

    @property
    def reserved(self) -> int:
        """Bytes that PyTorch reserves for the command line, as far as there is room."""
        return min(self.room, round(RESERVED * self.command_line.bytes))


# released models by a family of theirs
MODELS = {
    "self_forcing": WanConfig(),
    "longlive2": WanConfig(
        dim=3072, ffn_dim=14336, num_heads=24, in_dim=WAN22.channels, out_dim=WAN22.channels
    ),
}

WEIGHTS = {"self_forcing": 2_837_993_600, "longlive2": 9_999_575_424}  # bytes of theirs in bf16
# bytes of encoding with umT5-xxl, by its file
TEXT_ENCODERS = {"scaled fp8": 7_083_630_592, "bf16": 11_714_142_208}


def paper_heads(config: WanConfig) -> HeadProfile:
    """The paper's 90 anchor, 72 local and 198 memory heads of 360, or their shares of more, in any
    order.
    """
    heads = AutoProfile().expected(config.num_layers, config.num_heads)
    paper = config.num_layers * config.num_heads == 360
    return replace(heads, name="the paper's " + ("90/72/198 heads" if paper else "shares of heads"))


@cache
def released_needs(
    width: int, height: int, family: str = "self_forcing"
) -> tuple[RenderPlan, Needs]:
    """A minute of a released model in bf16 with the default options, decoded while it is
    sampled."""
    options = RenderOptions(width=width, height=height, model_family=family)
    config = MODELS[family]
    plan = RenderPlan.of(config, options, parse_timeline("a minute", 60.0))
    decoder = decoder_memory(None, (height, width), _DTYPE, latents=config.latents)
    return plan, needs_of(plan, _DTYPE, WEIGHTS[family], decoder=decoder)


def card(size: float, width: int, height: int, family: str = "self_forcing") -> Card:
    """Compute what fits on a card of `size` GiB."""
    plan, needs = released_needs(width, height, family)
    room = int(size * 2**30) - IN_USE - MARGIN
    places = {file: "GPU" if needed <= room else "CPU" for file, needed in TEXT_ENCODERS.items()}
    return Card(
        size,
        room,
        command_line=_fit(plan, needs, room, command_line_savings()),
        comfyui=_fit(plan, needs, room, COMFYUI),
        text_encoder=places,
    )


def _fit(plan: RenderPlan, needs: Needs, room: int, savings: MemorySavings) -> Fit:
    how = ""
    if needs.wanted(savings) > room:
        remedy = next(remedies(needs, plan, dtype=_DTYPE, room=room, savings=savings), None)
        if remedy is None:
            return Fit(None)
        how = remedy.text
        needs = remedy.needs
    return Fit(how, needs.wanted(savings), min(needs.weights, room - needs.wanted(COMFYUI)))
