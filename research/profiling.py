"""The command `profiling`: how much measuring names the heads of the embedded model as its bundled
profile does.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from ..cli.arguments import Result
from ..cli.parser import count, folder_written
from ..cli.values import ModelFiles
from ..headforcing_core import page
from ..headforcing_core.cache.roles import HeadRole
from ..headforcing_core.demo import assets, word_hash
from ..headforcing_core.files import replacing
from ..headforcing_core.head_profiles.profile import HeadProfile
from ..headforcing_core.head_profiles.profiler import profile_heads
from ..headforcing_core.head_profiles.rules import with_rule
from ..headforcing_core.head_profiles.shares import HeadShares, ProfileSetup
from ..headforcing_core.model.wan import WanModel
from ..headforcing_core.plan.describe import markdown_table
from ..headforcing_core.render.measured_roles import fewer_steps
from ..headforcing_core.rollout.loop import WanVideoModel
from ..headforcing_core.rollout.schedule import SCHEDULES
from ..headforcing_core.timeline.clock import BlockClock
from .rooms.measurements import embedded_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SECONDS = (3.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0)  # of every video
SEED = 5  # the bundled profile was measured with 0
ASKED_RULES = ("auto", "quota")  # the default of measured profiles, and the paper's
WAYS: dict[str, dict[str, Any]] = {
    "as bundled": {},
    "two steps": {"few_steps": True},
    "two steps, 3/4 of the area": {"few_steps": True, "size": (64, 48)},
    "two steps, 9/16 of the area": {"few_steps": True, "size": (48, 48)},
    "two steps, 1/4 of the area": {"few_steps": True, "size": (32, 32)},
    "two steps, window of 18": {"few_steps": True, "window_frames": 18},
    "two steps, window of 8": {"few_steps": True, "window_frames": 8},
}
"""Changes of the bundled profile's setup, by name. Before a render one video of two steps is
measured, at the size that memory allows.
"""


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "Measure how many heads a short measurement names like the bundled one (minutes)."
    sub = command("profiling", profiling, text)
    told = "videos of each way to measure, each of a prompt of its own (8)"
    sub.add_argument("--videos", type=count, default=8, help=told)
    out = folder_written("profiling.json", "profiling.md", "profiling.png", "*.safetensors")
    sub.add_argument("--out", type=out, default=Path("output/profiling"), help="folder")


def profiling(args: argparse.Namespace) -> Result:
    """Write the table and its plot; what is measured already is found in the folder again."""
    args.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for way, changes in WAYS.items():
        path = args.out / f"{re.sub(r'[ ,/]+', '_', way)}.safetensors"
        shares = measured(path, args.videos, changes)
        found[way] = {rule: agreement(shares, rule) for rule in ASKED_RULES}
    heads = len(list(chain(*embedded_profile().roles)))
    data = {"heads": heads, "seed": SEED, "seconds": SECONDS, "same": found}
    text = table(found)
    with replacing(args.out / "profiling.json") as temporary:
        temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    with replacing(args.out / "profiling.md") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    page.save_plot(args.out / "profiling.png", picture(found, heads))
    return Result([text], data)


def measured(
    path: Path, videos: int, changes: Mapping[str, Any], blocks: int | None = None
) -> HeadShares:
    """The shares of one way to measure, from its file or measured now; `blocks` of every video, by
    default those of the longest of `SECONDS`.
    """
    info = assets.inspect_toy(assets.model_path())
    family = SCHEDULES["self_forcing"]
    prompts = word_hash.sample_prompts(videos)
    blocks = blocks or BlockClock(family.frames_per_block).blocks_for(max(SECONDS))
    options = {"size": assets.SIZE, "seed": SEED, **changes}
    if options.pop("few_steps", False):
        family = fewer_steps(family)
    setup = ProfileSetup.of(
        info.fingerprint, info.config, prompts, blocks, family=family, **options
    )
    return measured_shares(path, setup, prompts)


def measured_shares(path: Path, setup: ProfileSetup, prompts: Sequence[str]) -> HeadShares:
    """The shares of the embedded model's heads for a setup, from their file; what is missing there
    is measured now and stored after every prompt.
    """
    shares = HeadShares.load(path) if path.exists() else HeadShares(setup)
    if shares.setup != setup:
        shares = HeadShares(setup)
    missing = shares.missing_prompts()
    if missing:
        config = assets.inspect_toy(assets.model_path()).config
        files = ModelFiles(assets.model_path(), config.num_heads)
        backbone = WanModel.from_state_dict(config, files.load(), torch.float32, "cpu")
        steps = len(missing) * setup.blocks * len(setup.sigmas)
        with tqdm(total=steps, desc=path.stem) as bar:
            profile_heads(
                WanVideoModel(backbone, torch.float32),
                config,
                shares,
                {number: word_hash.encode(prompts[number]) for number in missing},
                on_prompt=lambda _: shares.save(path),
                on_step=lambda block, step, latents: bar.update(latents is not None),
                dtype=torch.float32,
            )
    return shares


def agreement(shares: HeadShares, rule: str) -> dict[str, list[Any]]:
    """How many heads have the role that the bundled shares give by the same rule: `alone`, by each
    video, a list for each of `SECONDS`; and `together`, by the mean of all videos. A shorter video
    is the beginning of a longer one.
    """
    bundled = roles_of(embedded_profile(), rule)
    videos = len(shares.setup.prompts)
    alone = []
    together = []
    for seconds in SECONDS:
        alone.append([same(shares, [video], seconds, rule, bundled) for video in range(videos)])
        together.append(same(shares, range(videos), seconds, rule, bundled))
    return {"alone": alone, "together": together}


def same(
    shares: HeadShares,
    videos: Sequence[int],
    seconds: float,
    rule: str,
    bundled: Sequence[HeadRole],
) -> int:
    """How many heads have the bundled role after so many seconds of these videos."""
    setup = shares.setup
    blocks = BlockClock(setup.frames_per_block).blocks_for(seconds) - setup.first_block
    averaged = shares.mean(prompts=videos, blocks=range(blocks)).tolist()
    found = tuple(tuple(map(tuple, layer)) for layer in averaged)
    profile = replace(shares.profile("short"), shares=found)
    roles = roles_of(profile, rule)
    return sum(a == b for a, b in zip(roles, bundled, strict=True))


def roles_of(profile: HeadProfile, rule: str) -> list[HeadRole]:
    """The roles of all heads that a rule gives."""
    return list(chain(*with_rule(profile, rule).roles))


def table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Heads with the same role, by way, rule and seconds, in Markdown: the mean of single videos
    with the least of them, and all videos together.
    """
    header = ["measured", "rule", *(f"{seconds:g} s" for seconds in SECONDS)]
    rows = []
    for way, by_rule in found.items():
        for rule, counts in by_rule.items():
            alone = [f"{mean(each):.1f} ({min(each)})" for each in counts["alone"]]
            rows.append([way, rule, *alone, str(counts["together"][-1])])
    return markdown_table([*header, "all videos"], rows)


def picture(found: Mapping[str, Mapping[str, Mapping[str, Any]]], heads: int) -> Any:
    """The means of single videos as curves: a colour for each way, dashed by quota."""

    def draw(ax: Axes, look: page.Theme) -> None:
        colours = [f"C{number}" for number in range(len(found))]
        for (way, by_rule), colour in zip(found.items(), colours, strict=True):
            for rule, line in zip(ASKED_RULES, ("-", "--"), strict=True):
                means = [mean(each) for each in by_rule[rule]["alone"]]
                label = way if rule == ASKED_RULES[0] else None
                ax.plot(SECONDS, means, line, color=colour, marker="o", label=label, linewidth=2)
        ax.set(xlabel="seconds of one video", ylim=(heads / 2, heads), xticks=SECONDS)
        ax.grid()
        ax.legend(fontsize=page.SMALL, loc="center left", frameon=False, labelcolor=look.ink)

    panel = page.Panel(
        f"Heads with the same role as by 20 videos, of {heads}",
        "Means of single videos with other noise; solid by the default rule auto, dashed by the "
        "paper's quota. Embedded model.",
        420,
        draw,
    )
    return page.draw_page([panel], "light")
