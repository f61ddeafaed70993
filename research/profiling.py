"""The command `profiling`: how much measuring names the heads of the embedded model as its bundled
profile does.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from ..headforcing_core import page
from ..headforcing_core.commands.arguments import Result
from ..headforcing_core.commands.parser import count, folder_written
from ..headforcing_core.commands.values import ModelFiles
from ..headforcing_core.demo import assets, word_hash
from ..headforcing_core.files import replacing
from ..headforcing_core.head_profiles.profile import classify
from ..headforcing_core.head_profiles.profiler import profile_heads
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
WAYS: dict[str, dict[str, Any]] = {
    "as bundled": {},
    "two steps": {"few_steps": True},
    "two steps, 3/4 of the area": {"few_steps": True, "size": (64, 48)},
    "two steps, 1/4 of the area": {"few_steps": True, "size": (32, 32)},
    "window of 8 frames": {"window_frames": 8},
}
"""Changes of the bundled profile's setup, by name. Before a render one video of two steps is
measured, at the size that memory allows.
"""
LOOKS = ("-", "--", "-.", ":", (0, (1, 3)))


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "Measure how many heads a short measurement names like the bundled one (minutes)."
    sub = command("profiling", profiling, text)
    told = "videos of each way to measure, each of a prompt of its own (4)"
    sub.add_argument("--videos", type=count, default=4, help=told)
    out = folder_written("profiling.json", "profiling.md", "profiling.png", "*.safetensors")
    sub.add_argument("--out", type=out, default=Path("output/profiling"), help="folder")


def profiling(args: argparse.Namespace) -> Result:
    """Write the table and its plot; what is measured already is found in the folder again."""
    args.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for way, changes in WAYS.items():
        shares = measured(
            args.out / f"{re.sub(r'[ ,/]+', '_', way)}.safetensors", args.videos, changes
        )
        found[way] = agreement(shares)
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
    shares = HeadShares.load(path) if path.exists() else HeadShares(setup)
    if shares.setup != setup:
        shares = HeadShares(setup)
    missing = shares.missing_prompts()
    if missing:
        files = ModelFiles(assets.model_path(), info.config.num_heads)
        backbone = WanModel.from_state_dict(info.config, files.load(), torch.float32, "cpu")
        with tqdm(total=len(missing) * blocks * len(setup.sigmas), desc=path.stem) as bar:
            profile_heads(
                WanVideoModel(backbone, torch.float32),
                info.config,
                shares,
                {number: word_hash.encode(prompts[number]) for number in missing},
                on_prompt=lambda _: shares.save(path),
                on_step=lambda block, step, latents: bar.update(latents is not None),
                dtype=torch.float32,
            )
    return shares


def agreement(shares: HeadShares) -> dict[str, list[int]]:
    """By number of videos, how many heads have the role of the bundled profile after each of
    `SECONDS`: a shorter video is the beginning of a longer one."""
    bundled = list(chain(*embedded_profile().roles))
    setup = shares.setup
    found: dict[str, list[int]] = {}
    for videos in (1, 2, 4, 8, 16):
        if videos > len(setup.prompts):
            break
        found[str(videos)] = []
        for seconds in SECONDS:
            blocks = BlockClock(setup.frames_per_block).blocks_for(seconds) - setup.first_block
            mean = shares.mean(prompts=range(videos), blocks=range(blocks))
            roles = chain(*classify(mean.tolist()))
            same = [a == b for a, b in zip(roles, bundled, strict=True)]
            found[str(videos)].append(sum(same))
    return found


def table(found: Mapping[str, Mapping[str, list[int]]]) -> str:
    """Heads with the same role, by way, videos and seconds, in Markdown."""
    header = ["measured", "videos", *(f"{seconds:g} s" for seconds in SECONDS)]
    rows = []
    for way, by_videos in found.items():
        for videos, same in by_videos.items():
            rows.append([way, videos, *map(str, same)])
    return markdown_table(header, rows)


def picture(found: Mapping[str, Mapping[str, list[int]]], heads: int) -> Any:
    """The same as curves."""

    def draw(ax: Axes, look: page.Theme) -> None:
        colours = list(look.roles.values())
        for (way, by_videos), style in zip(found.items(), LOOKS, strict=False):
            for (videos, same), colour in zip(by_videos.items(), colours, strict=False):
                label = f"{way}, {videos} video{'s' if videos != '1' else ''}"
                ax.plot(
                    SECONDS,
                    same,
                    linestyle=style,
                    color=colour,
                    marker="o",
                    label=label,
                    linewidth=2,
                )
        ax.set(xlabel="seconds of every video", ylim=(heads / 2, heads), xticks=SECONDS)
        ax.grid()
        ax.legend(fontsize=page.SMALL, loc="upper left", frameon=False, labelcolor=look.ink)

    panel = page.Panel(
        f"Heads with the same role as in the bundled profile, of {heads}",
        "The bundled profile was measured with 20 videos of 30 s and other noise. Embedded model.",
        420,
        draw,
    )
    return page.draw_page([panel], "light")
