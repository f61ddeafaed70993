"""How long roles are measured before the first render, by count: the operations of the 1.3B model at
the rates of `gains.py`.

    python tests/benchmarks/run.py measuring        prints the table of docs/head_profiles.md
"""

from __future__ import annotations

import torch
from headforcing.headforcing_core.head_profiles.shares import ProfileSetup
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.plan.describe import markdown_table
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.request import RenderRequest
from headforcing.headforcing_core.plan.resources import Needs, needs_of
from headforcing.headforcing_core.render.measured_roles import setup_for
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.memory import DecoderMemory

from .gains import CARDS, REST_BYTES, UNCOUNTED, Card

WAN = WanConfig()
WAN_VAE = DecoderMemory(weights=152_000_000, held=1_890_000_000, peak=3_040_000_000)
TOKENS = 4680  # of the block whose other work `REST_BYTES` is, in so many
PASSES = 5


def needs_and_setup(decoder: DecoderMemory, **options: int) -> tuple[Needs, ProfileSetup]:
    """The needs of a minute with the 1.3B model, and how its roles are measured."""
    chosen = RenderOptions(seconds=60, **options)
    timeline = parse_timeline("a fox", **chosen.timeline_arguments)
    job = RenderRequest(WAN, chosen, timeline, dtype=torch.bfloat16).job()
    needs = needs_of(job.plan, torch.bfloat16, 0, decoder=decoder)
    return needs, setup_for(job, needs)


def seconds_on(card: Card, setup: ProfileSetup) -> float:
    """The seconds that a measurement takes, without those of loading and compiling."""
    peak = card.tflops * 1e12
    tokens = setup.frames_per_block * setup.shape(WAN).frame_tokens
    passes = setup.blocks * (len(setup.sigmas) + 1)
    rest = UNCOUNTED * REST_BYTES / (card.gbs * 1e9)
    of_video = passes / PASSES * tokens / TOKENS * rest
    for linear, attention in setup.flops(WAN):
        of_video += (linear / card.linears + attention / card.attention) / peak
    return len(setup.prompts) * of_video


def table() -> str:
    """Seconds by card, in Markdown."""
    _, setup = needs_and_setup(WAN_VAE)
    seconds = [f"{seconds_on(card, setup):.0f}" for card in CARDS]
    header = ["seconds to measure roles", *(card.name for card in CARDS)]
    return markdown_table(header, [[f"default render, at {setup.width}x{setup.height}", *seconds]])
