"""Renders of released models that fit on graphics cards: arithmetic, nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from ..cache.policy import HeadRole
from ..head_profiles.profile import HeadProfile
from ..model.latents import WAN22
from ..model.wan import WanConfig, WanModel
from ..timeline.timeline import parse_timeline
from ..video.codec import decoder_memory
from ..weights.umt5 import weights_bytes
from .options import RenderOptions
from .plan import RenderPlan
from .remedies import remedies
from .resources import COMFYUI, COMMAND_LINE, MARGIN, Host, Needs, needs_of

IN_USE = 700_000_000  # of a card: CUDA's context, the driver and a screen, in bytes
SECONDS = 60.0
_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Fit:
    """Change with which a minute fits on a card.

    Attributes:
        how: what must be changed about the render; empty if nothing, None if nothing helps.
        bytes: the memory that it takes then, without weights that are streamed.
        resident: bytes of the model's weights that stay on the card.
    """

    how: str | None
    bytes: int = 0
    resident: int = 0


@dataclass(frozen=True)
class Card:
    """Answers for a card of `size` GiB, of which `room` bytes are free; where umT5-xxl runs, by its file."""

    size: float
    room: int
    command_line: Fit
    comfyui: Fit
    text_encoder: dict[str, str]


# released models by a family of theirs
MODELS = {
    "self_forcing": WanConfig(),
    "longlive2": WanConfig(dim=3072, ffn_dim=14336, num_heads=24, in_dim=WAN22.channels, out_dim=WAN22.channels),
}


def paper_heads(config: WanConfig) -> HeadProfile:
    """The paper's 90 anchor, 72 local and 198 memory heads of 360, or their shares of more; the cache's size depends
    only on their numbers."""
    times = config.num_layers * config.num_heads // 360
    counts = {HeadRole.ANCHOR: 90 * times, HeadRole.LOCAL: 72 * times, HeadRole.MEMORY: 198 * times}
    roles = [role for role, count in counts.items() for _ in range(count)]
    layers = tuple(tuple(roles[i : i + config.num_heads]) for i in range(0, len(roles), config.num_heads))
    name = "the paper's " + ("90/72/198 heads" if times == 1 else "shares of heads")
    return HeadProfile(name, config.num_layers, config.num_heads, layers)


@cache
def released_needs(width: int, height: int, family: str = "self_forcing") -> tuple[RenderPlan, Needs]:
    """A minute of a released model in bf16 with the default options, decoded while it is sampled.

    For a model without a bundled head profile the heads have the paper's shares.
    """
    options, config = RenderOptions(width=width, height=height, model_family=family), MODELS[family]
    profile = None if family == "self_forcing" else paper_heads(config)
    plan = options.plan(config, parse_timeline("a minute", SECONDS), profile=profile)
    decoder = decoder_memory(None, (height, width), _DTYPE, latents=config.latents)
    return plan, needs_of(plan, _DTYPE, _weight_bytes(family), decoder=decoder)


@cache
def _weight_bytes(family: str) -> int:
    config = MODELS[family]
    with torch.device("meta"):  # of one layer: all layers are alike, and thirty take a while to make
        model = WanModel(replace(config, num_layers=1))
    numbers = _numbers(model) + (config.num_layers - 1) * _numbers(model.blocks)
    return numbers * _DTYPE.itemsize


def _numbers(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def card(size: float, width: int, height: int, family: str = "self_forcing") -> Card:
    """Compute what fits on a card of `size` GiB."""
    plan, needs = released_needs(width, height, family)
    room = int(size * 2**30) - IN_USE - MARGIN
    places = {file: "GPU" if needed <= room else "CPU" for file, needed in text_encoders().items()}
    return Card(size, room, _fit(plan, needs, room, COMMAND_LINE), _fit(plan, needs, room, COMFYUI), places)


@cache
def text_encoders() -> dict[str, int]:
    """Bytes of encoding a prompt with umT5-xxl, by its file."""
    kinds = {"scaled fp8": (torch.float8_e4m3fn, torch.float16), "bf16": (_DTYPE, _DTYPE)}
    return {file: weights_bytes(released_umt5(*dtypes), _DTYPE) for file, dtypes in kinds.items()}


def _fit(plan: RenderPlan, needs: Needs, room: int, host: Host) -> Fit:
    how, wanted = "", needs.wanted(host)
    if wanted > room:
        remedy = next(remedies(needs, plan, _DTYPE, room, host), None)
        if remedy is None:
            return Fit(None)
        how, wanted, needs = remedy.text, remedy.bytes, remedy.needs
    resident = min(needs.weights, room - needs.besides_weights)
    return Fit(how, wanted, resident)


def released_umt5(matrices: torch.dtype, others: torch.dtype) -> dict[str, Tensor]:
    """The weights of umT5-xxl's encoder under transformers' names, on the meta device."""
    dim, wide, heads, layers, vocabulary, buckets = 4096, 10240, 64, 24, 256384, 32
    shapes: dict[str, Sequence[int]] = {"shared.weight": (vocabulary, dim), "encoder.final_layer_norm.weight": (dim,)}
    for layer in range(layers):
        block = f"encoder.block.{layer}.layer."
        shapes |= {f"{block}0.SelfAttention.{name}.weight": (dim, dim) for name in "qkvo"}
        shapes |= {f"{block}1.DenseReluDense.{name}.weight": (wide, dim) for name in ("wi_0", "wi_1")}
        shapes[f"{block}1.DenseReluDense.wo.weight"] = (dim, wide)
        shapes[f"{block}0.SelfAttention.relative_attention_bias.weight"] = (buckets, heads)
        shapes |= {f"{block}{part}.layer_norm.weight": (dim,) for part in range(2)}
    kinds = {name: others if len(shape) == 1 or name.endswith(("shared.weight", "bias.weight")) else matrices
             for name, shape in shapes.items()}  # fmt: skip
    return {name: torch.empty(shape, dtype=kinds[name], device="meta") for name, shape in shapes.items()}
