"""The command `distances`: at which distances the roles of heads are measured most steadily, on the
embedded model and the stories of the third pre-registration.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ..cli.arguments import Result
from ..cli.parser import count, folder_written
from ..headforcing_core.cache.roles import HeadRole
from ..headforcing_core.demo import assets
from ..headforcing_core.files import replacing
from ..headforcing_core.head_profiles.shares import HeadShares, ProfileSetup
from ..headforcing_core.plan.describe import markdown_table
from ..headforcing_core.render.measured_roles import fewer_steps
from ..headforcing_core.rollout.schedule import SCHEDULES
from .profiling import ASKED_RULES, measured_shares, roles_of
from .rooms.judge import STORIES
from .rooms.measurements import embedded_profile
from .rooms.memory_alone import STORY, VIDEOS

FIRST = 105_000
SEED = FIRST


@dataclass(frozen=True)
class Way:
    """A way to measure a story: videos of its first prompts, with so many blocks."""

    blocks: int
    prompts: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)  # of `ProfileSetup`
    repeats: int = 1  # videos of each prompt, with noise of their own


CONTIGUOUS = {"rope": "contiguous"}
WAYS = {
    "30 s, absolute positions": Way(41),
    "30 s, contiguous positions": Way(41, options=CONTIGUOUS),
    "30 s, contiguous, window of 12": Way(41, options={**CONTIGUOUS, "window_frames": 12}),
    "15 s, contiguous positions": Way(21, options=CONTIGUOUS),
    "21 frames": Way(7),
    "21 frames, two prompts": Way(7, 2),
    "21 frames, four prompts": Way(7, 4),
    "21 frames, one prompt, four videos": Way(7, repeats=4),
}
"""In a window of 21 frames that is not full yet absolute and contiguous positions are the same."""


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "Measure at which distances head roles of the embedded model are steady (an hour)."
    sub = command("distances", distances, text)
    sub.add_argument("--videos", type=count, default=VIDEOS, help=f"stories ({VIDEOS})")
    out = folder_written("distances.json", "distances.md", "*.safetensors")
    sub.add_argument("--out", type=out, default=Path("output/distances"), help="folder")


def distances(args: argparse.Namespace) -> Result:
    """Write the table; what is measured already is found in the folder again."""
    args.out.mkdir(parents=True, exist_ok=True)
    found = {}
    named = {}
    for name, way in WAYS.items():
        shares = measured(args.out, way, args.videos)
        found[name] = {
            "blocks": way.blocks * way.prompts * way.repeats,
            **{rule: steadiness(shares, rule) for rule in ASKED_RULES},
        }
        named[name] = {rule: roles(shares.mean(dim=0), rule) for rule in ASKED_RULES}
    heads = len(named[next(iter(WAYS))]["auto"])
    alike = []
    for a, b in combinations(WAYS, 2):
        same_roles = {rule: same(named[a][rule], named[b][rule]) for rule in ASKED_RULES}
        alike.append({"ways": [a, b], **same_roles})
    data = {"first": FIRST, "stories": args.videos, "heads": heads, "ways": found, "alike": alike}
    text = table(found)
    with replacing(args.out / "distances.json") as temporary:
        temporary.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    with replacing(args.out / "distances.md") as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return Result([text], data)


def measured(folder: Path, way: Way, stories: int) -> Tensor:
    """The shares of every story `[stories, layers, heads, 3]`, from the folder or measured now.

    A shorter video is the beginning of a longer one, and is not measured again.
    """
    alike = [other for other in WAYS.values() if other.options == way.options]
    if way.repeats > 1:
        shares = video_shares(folder, stories, way)
    elif way.prompts == 1:
        shares = video_shares(folder, stories, max(alike, key=lambda other: other.blocks))
    else:
        shares = video_shares(folder, stories, max(alike, key=lambda other: other.prompts))
    each = len(shares.setup.prompts) // stories
    blocks = range(way.blocks - shares.setup.first_block)
    of_stories = []
    for story in range(stories):
        prompts = range(story * each, story * each + way.prompts * way.repeats)
        of_stories.append(shares.mean(prompts, blocks))
    return torch.stack(of_stories)


def video_shares(folder: Path, stories: int, way: Way) -> HeadShares:
    """The videos of all stories, two denoising steps of each block, from their file or made now."""
    texts: list[str] = []
    for number in range(FIRST, FIRST + stories):
        of_story = list(dict.fromkeys(look.prompt for look in STORIES[STORY](number)))
        texts += of_story[: way.prompts] * way.repeats
    info = assets.inspect_toy(assets.model_path())
    setup = ProfileSetup.of(
        info.fingerprint,
        info.config,
        tuple(texts),
        way.blocks,
        family=fewer_steps(SCHEDULES["self_forcing"]),
        size=assets.SIZE,
        seed=SEED,
        **way.options,
    )
    name = [way.blocks, way.prompts, way.repeats, *way.options.values()]
    path = folder / f"{'_'.join(map(str, name))}.safetensors"
    return measured_shares(path, setup, texts)


def roles(shares: Tensor, rule: str) -> list[HeadRole]:
    """The roles of all heads by a rule, from shares `[layers, heads, 3]`."""
    found = replace(embedded_profile(), shares=shares.tolist())
    return roles_of(found, rule)


def same(a: Sequence[HeadRole], b: Sequence[HeadRole]) -> int:
    """The number of heads with the same role in both."""
    return sum(x == y for x, y in zip(a, b, strict=True))


def steadiness(shares: Tensor, rule: str) -> dict[str, Any]:
    """Heads with the same role by shares `[stories, layers, heads, 3]`: `halves`, by the even and
    the odd stories; `alone`, by each story and by all others.
    """
    halves = [roles(shares[start::2].mean(dim=0), rule) for start in (0, 1)]
    alone = []
    for story in range(len(shares)):
        others = torch.cat([shares[:story], shares[story + 1 :]]).mean(dim=0)
        alone.append(same(roles(shares[story], rule), roles(others, rule)))
    return {"halves": same(*halves), "alone": alone}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Heads with the same role, by way and rule, in Markdown."""
    header = ["measured", "blocks"]
    for rule in ASKED_RULES:
        header += [f"{rule}: half and half", f"{rule}: a story and the others"]
    rows = []
    for way, numbers in found.items():
        row = [way, str(numbers["blocks"])]
        for rule in ASKED_RULES:
            counts = numbers[rule]
            row += [
                str(counts["halves"]),
                f"{mean(counts['alone']):.1f} ({min(counts['alone'])})",
            ]
        rows.append(row)
    return markdown_table(header, rows)
