"""The command `real-heads`: what follows from attention shares of the published weights that others
measured.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ..cli.arguments import Result
from ..cli.parser import folder_written
from ..headforcing_core import page
from ..headforcing_core.cache.roles import HeadRole
from ..headforcing_core.head_profiles.profile import (
    MIDDLE,
    SINK,
    HeadProfile,
    bundled_profiles,
    by_head,
    load_profile,
)
from .ablations import function_with_floor

FACTS = Path(__file__).parent / "evidence" / "real_heads.json"
MOST = 36  # heads with the largest middle share: a tenth of all
OWN_BLOCK = 850  # thousandths, which the paper says of its local heads
WINDOW = 21  # latent frames that were measured
# places in the facts of a head: the error of its output with eight frames, as a role keeps them
ERRORS = {HeadRole.LOCAL: 3, HeadRole.ANCHOR: 4, HeadRole.MEMORY: 5}


def add_parsers(command: Any) -> None:
    sub = command(
        "real-heads",
        real_heads,
        "Compute what others' attention shares of Self Forcing say about the rules of roles.",
    )
    out = folder_written("real_heads.png")
    sub.add_argument("--out", type=out, default=Path("output/real_heads"), help="folder")


def real_heads(args: argparse.Namespace) -> Result:
    """Print the numbers and draw `real_heads.png`."""
    args.out.mkdir(parents=True, exist_ok=True)
    page.save_plot(args.out / "real_heads.png", picture())
    found = numbers()
    return Result([f"{name}: {value}" for name, value in found.items()], found)


def numbers() -> dict[str, int | str]:
    """What the page of evidence says, computed."""
    facts = by_head(json.loads(FACTS.read_text("utf-8"))["heads"])
    function = load_profile(bundled_profiles()["self_forcing"])
    listed = by_head(load_profile(bundled_profiles()["forcing_kv_self_forcing"]).roles)
    roles = by_head(function.roles)
    most = sorted(facts, key=lambda at: -facts[at][1])[:MOST]
    agreeing = [at for at in roles if (roles[at] == "memory") == (listed[at] == "memory")]
    floored = function_with_floor(replace(function, measured={"window_frames": WINDOW}))
    quota = {at: fact[2] for at, fact in facts.items()}
    memory = [facts[at] for at in roles if roles[at] == "memory"]
    return {
        "heads": len(facts),
        "most_middle": MOST,
        "of_them_anchors_by_quota": sum(facts[at][2] == "anchor" for at in most),
        "of_them_memory_by_function": sum(roles[at] == "memory" for at in most),
        "memory_or_not_as_forcing_kv": len(agreeing),
        "own_block_above_0.85": sum(fact[0] > OWN_BLOCK for fact in facts.values()),
        "memory_heads_better_with_old_and_recent": sum(
            fact[ERRORS[HeadRole.ANCHOR]] < fact[ERRORS[HeadRole.MEMORY]] for fact in memory
        ),
        "error_by_quota": error(facts, quota),
        "error_by_function": error(facts, roles),
        "error_by_forcing_kv": error(facts, listed),
        "error_all_old_and_recent": error(facts, dict.fromkeys(facts, HeadRole.ANCHOR)),
        "by_quota": counted(Counter(quota.values())),
        "by_function": counted(Counter(chain(*function.roles))),
        "by_function_with_the_earlier_floor": counted(Counter(chain(*floored.roles))),
    }


def error(facts: Mapping[Any, Any], roles: Mapping[Any, str]) -> str:
    """The errors of all heads, summed, each with the eight frames of its role."""
    return f"{sum(facts[at][ERRORS[HeadRole(role)]] for at, role in roles.items()) / 1000:.1f}"


def counted(counts: Counter[Any]) -> str:
    """The number of heads of each role, as text."""
    return ", ".join(f"{counts[role]} {role}" for role in HeadRole)


def picture() -> Any:
    """First frame against middle, a mark for each head, by both rules."""
    function = load_profile(bundled_profiles()["self_forcing"])
    facts = by_head(json.loads(FACTS.read_text("utf-8"))["heads"])
    quota = {at: fact[2] for at, fact in facts.items()}
    return page.draw_page(
        [
            panel("By the paper's quota", function, quota),
            panel("By function", function, by_head(function.roles)),
        ],
        "light",
    )


def panel(title: str, profile: HeadProfile, roles: dict[Any, str]) -> page.Panel:
    """The heads with the colours of these roles."""
    shares = by_head(profile.shares)

    def draw(ax: Any, look: page.Theme) -> None:
        for role, marker in zip(HeadRole, "os^", strict=True):
            chosen = [shares[at] for at in shares if roles[at] == role]
            ax.scatter(
                [100 * share[SINK] for share in chosen],
                [100 * share[MIDDLE] for share in chosen],
                color=look.roles[role],
                marker=marker,
                s=26,
                label=f"{len(chosen)} {role}",
            )
        ax.set(xlabel="attention to the first frame, % (estimated)", ylabel="to the middle, %")
        ax.grid()
        page.draw_legend(ax, look)

    told = "360 heads of self_forcing_dmd.pt, measured by others."
    return page.Panel(title, told, 300, draw)
