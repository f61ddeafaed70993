"""Tables whose numbers are the same measure in the paper and here: core stability, budgets of
caches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...cli.cards import paper_heads
from ...headforcing_core.head_profiles.profile import classify, stability
from ...headforcing_core.head_profiles.shares import (
    FIXED_STEP,
    PUBLISHED_STABILITY,
    HeadShares,
)
from ...headforcing_core.model.wan import WanConfig
from ...headforcing_core.plan.describe import markdown_table
from ...headforcing_core.plan.options import RenderOptions
from ...headforcing_core.plan.plan import RenderPlan
from ...headforcing_core.timeline.timeline import parse_timeline
from .. import profiling

STEPS = (3, 12, 21, 30)  # AR steps of the paper, from 1
PROMPTS = 4
BUDGETS = {
    "Self Forcing": ("self_forcing_window_21", "21 (uniform)", 7560, "244.2%"),
    "Deep Forcing": ("deep_forcing", "16 (uniform)", 5760, "186.0%"),
    "Infinity-RoPE": ("infinity_rope", "8 (uniform)", 2880, "93.0%"),
    "LongLive": ("longlive", "12 (uniform)", 4320, "139.5%"),
    "Head Forcing": ("head_forcing", "4 / 7 / 11 (head-wise)", 3096, "100.0%"),
}
"""Method here, and the paper's frames a head, frame-slots and relative budget."""
Made = tuple[str, dict[str, Any]]


def core_stability(shares: HeadShares, steps: Sequence[int]) -> dict[str, dict[str, float]]:
    """Core stability ratios under the paper's conditions: over these AR steps in one prompt and the
    third denoising step; over denoising steps and over prompts at the second of the AR steps.
    """
    setup = shares.setup
    blocks = [step - 1 - setup.first_block for step in steps]
    at = blocks[1]
    runs = {
        "blocks": [((0,), (block,), (FIXED_STEP,)) for block in blocks],
        "steps": [((0,), (at,), (step,)) for step in range(len(setup.sigmas))],
        "prompts": [((prompt,), (at,), (FIXED_STEP,)) for prompt in range(len(setup.prompts))],
    }
    found = {}
    for condition, cells in runs.items():
        roles = []
        for prompts, places, denoising in cells:
            mean = shares.mean(prompts=prompts, blocks=places, steps=denoising)
            roles.append(classify(mean.tolist()))
        found[condition] = stability(roles)
    return found


def stability_table(out: Path) -> Made:
    """Table S1, of the paper and of the embedded model."""
    shares = profiling.measured(out / "stability.safetensors", PROMPTS, {}, STEPS[-1])
    ratios = core_stability(shares, STEPS)
    cells = []
    for condition, published in PUBLISHED_STABILITY.items():
        here = ratios[condition]
        pairs = [f"{value:.3f} / {here[role]:.3f}" for role, value in published.items()]
        cells.append([f"over {CONDITIONS[condition]}", *pairs])
    roles = next(iter(PUBLISHED_STABILITY.values()))
    headings = ["", *(f"{role}, paper / here" for role in roles)]
    lines = [
        "# Table S1: core stability ratio",
        "",
        markdown_table(headings, cells),
        "",
        f"- Here: the embedded model, {PROMPTS} videos of {STEPS[-1]} blocks, at the paper's AR "
        f"steps {', '.join(map(str, STEPS))} and its third denoising step. It does not "
        f"say at which AR step the other two rows are: here at {STEPS[1]}.",
    ]
    return "\n".join(lines), {"paper": PUBLISHED_STABILITY, "here": ratios}


CONDITIONS = {"blocks": "AR steps", "steps": "denoising steps", "prompts": "prompts"}


def budget_table(out: Path) -> Made:
    """Table S6: frame-slots of one minute of the 1.3B model."""
    config = WanConfig()
    minute = parse_timeline("a minute", 60.0)
    heads = paper_heads(config)
    slots = {}
    for label, (method, *_) in BUDGETS.items():
        plan = RenderPlan.of(config, RenderOptions(method_name=method), minute, profile=heads)
        slots[label] = plan.shape.frame_slots
    count = config.num_layers * config.num_heads
    cells = []
    for label, (_, frames, papers, share) in BUDGETS.items():
        mine = slots[label]
        cells.append(
            [
                label,
                f"{frames} / {mine / count:.3g}",
                f"{papers:,} / {mine:,}",
                f"{share} / {100 * mine / slots['Head Forcing']:.1f}%",
            ]
        )
    headings = ["paper / here", "Cache per Head", "Frame-slots", "Relative Budget"]
    lines = [
        "# Table S6: budget of the caches",
        "",
        markdown_table(headings, cells),
        "",
        "- Computed from the plan of a minute with 30x12 heads in the paper's roles; why two rows "
        "differ is said in research/README.md, below Budgets.",
    ]
    return "\n".join(lines), {"slots": slots}


FIXED_TABLES: dict[str, Callable[[Path], Made]] = {"S1": stability_table, "S6": budget_table}
