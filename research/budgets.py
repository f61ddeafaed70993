"""The command `budget`: the paper's table of cache budgets, of the caches here."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from ..headforcing_core.commands.arguments import Result
from ..headforcing_core.methods.registry import method_policy
from ..headforcing_core.model.wan import WanConfig
from ..headforcing_core.render.cards import paper_heads
from ..headforcing_core.render.describe import markdown_table
from ..headforcing_core.render.plan import RenderPlan
from ..headforcing_core.rollout.schedule import schedule
from ..headforcing_core.timeline.timeline import parse_timeline
from .questions import NEWER


@dataclass(frozen=True)
class Budget:
    """Frame-slots of one method with 30x12 heads: here, in the paper (None without one), and `why` they differ."""

    label: str
    method: str
    paper: int | None = None
    why: str = ""
    frame_slots: int = 0


_BUDGETS = (
    Budget("Self Forcing", "self_forcing_window_21", 7560),
    Budget(
        "Deep Forcing",
        "deep_forcing",
        5760,
        "16 frames are the budget, which a compression leaves; in the authors' code the window fills up to 21 before "
        "the next one, and the queries of 4 frames, kept without values, take the room of 2",
    ),
    Budget(
        "Infinity-RoPE",
        "infinity_rope",
        2880,
        "the paper takes a window of 8 frames, the authors' code has one of 6, sink and current block included",
    ),
    Budget("LongLive", "longlive", 4320),
    Budget("Head Forcing", "head_forcing", 3096),
    *(Budget(row.label, row.method) for row in NEWER),
)


def budgets() -> list[Budget]:
    """The rows of the table, from the cache shapes of a one-minute video."""
    config, minute, made = WanConfig(), parse_timeline("a minute", 60.0), []
    for row in _BUDGETS:
        policy, profile = method_policy(row.method), paper_heads(config)
        plan = RenderPlan.make(config, policy, schedule("self_forcing"), minute, 832, 480, profile=profile)
        made.append(replace(row, frame_slots=plan.shape.frame_slots))
    return made


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `budget` to the commands."""
    command("budget", budget, "Compute the paper's table of cache budgets; needs no model.")


def budget(args: argparse.Namespace) -> Result:
    """A Markdown table, and a line for each number that differs from the paper's."""
    rows, heads = budgets(), WanConfig().num_layers * WanConfig().num_heads
    ours = next(row.frame_slots for row in rows if row.method == "head_forcing")
    cells = [
        [row.label, f"{row.frame_slots / heads:.3g}", f"{row.frame_slots:,}", f"{row.frame_slots / ours:.1%}"]
        + ["not in it" if row.paper is None else f"{row.paper:,}"]
        for row in rows
    ]
    differing = [
        f"{row.label}: the paper counts {row.paper:,} ({row.paper / heads:.3g} a head), the cache of "
        f"`{row.method}` here takes {row.frame_slots:,}{f' ({row.why})' if row.why else ''}."
        for row in rows
        if row.paper is not None and row.frame_slots != row.paper
    ]
    table = markdown_table(["method", "frames a head", "frame-slots", "relative", "in the paper"], cells)
    return {"text": "\n".join([table, "", *differing]), "json": {"rows": [asdict(row) for row in rows]}}
