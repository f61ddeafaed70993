"""How long roles are measured before the first render, by count: floating-point operations of the
1.3B model, at the rates of a GPU. Run as a program it prints the table.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

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

WAN = WanConfig()
WAN_VAE = DecoderMemory(weights=152_000_000, held=1_890_000_000, peak=3_040_000_000)
FULL_TOKENS = 4680  # of a block at 832x480, whose other work `rest` is
PASSES = 5  # of such a block


@dataclass(frozen=True)
class Rates:
    """Rates of a GPU: operations a second in linear layers and in attention, and the seconds that
    all else in a block of 832x480 takes.
    """

    linear: float
    attention: float
    rest: float


H100 = Rates(734e12, 459e12, 0.048)
RTX_4090 = Rates(155e12, 142e12, 0.101)
GPUS = {"H100 (rates as measured)": H100, "RTX 4090 (rates estimated)": RTX_4090}


def needs_and_setup(decoder: DecoderMemory, **options: int) -> tuple[Needs, ProfileSetup]:
    """The needs of a minute with the 1.3B model, and how its roles are measured."""
    chosen = RenderOptions(seconds=60, **options)
    timeline = parse_timeline("a fox", **chosen.timeline_arguments)
    job = RenderRequest(WAN, chosen, timeline, dtype=torch.bfloat16).job()
    needs = needs_of(job.plan, torch.bfloat16, 0, decoder=decoder)
    return needs, setup_for(job, needs)


def seconds_on(rates: Rates, setup: ProfileSetup) -> float:
    """The seconds that a measurement takes, without those of loading and compiling."""
    tokens = setup.frames_per_block * setup.shape(WAN).frame_tokens
    passes = setup.blocks * (len(setup.sigmas) + 1)
    of_video = passes * rates.rest / PASSES * tokens / FULL_TOKENS
    for linear, attention in setup.flops(WAN):
        of_video += linear / rates.linear + attention / rates.attention
    return len(setup.prompts) * of_video


def table() -> str:
    """Seconds by GPU, in Markdown."""
    _, setup = needs_and_setup(WAN_VAE)
    rows = []
    for gpu, rates in GPUS.items():
        size = f"{setup.width}x{setup.height}"
        rows.append([gpu, size, f"{seconds_on(rates, setup):.1f}"])
    return markdown_table(["GPU", "measured at", "seconds"], rows)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
