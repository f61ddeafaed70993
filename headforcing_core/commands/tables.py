"""The command that makes the paper's tables anew, with the embedded model or with real weights."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict

from ..errors import HeadForcingError
from ..files import check_writable
from ..studies.comparison import NOTE, grid, table
from ..studies.paper_tables import BUDGET, PAPER_TABLES, budget_table, budgets
from .arguments import Result
from .compare import add_source_arguments, grid_tags, run_entries, written

MAX_SEEDS = 1000


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `tables` to the command line."""
    sub = command("tables", tables, "The rows of the paper's tables, rendered and measured; no VBench scores.")
    sub.add_argument("name", choices=[*PAPER_TABLES, "budget"], help="budget computes sizes only and needs no model")
    sub.add_argument("--seeds", type=int, default=1, help="videos for each row, from --seed on; the table has means")
    add_source_arguments(sub, required=False)


def tables(args: argparse.Namespace) -> Result:
    """Write `NAME.md` and `NAME.json`, and beside them the videos and a grid of the first seed's."""
    if args.name == "budget":
        check_writable(args.out / "probe")
        sizes = budgets()
        text = f"{BUDGET} (frame-slots, 30x12 heads)\n\n{budget_table(sizes)}"
        return written(args.out, "budget", text, {"caption": BUDGET, "rows": [row.to_dict() for row in sizes]})
    if not args.demo and args.weights is None:
        raise HeadForcingError(f"the table {args.name!r} is rendered: give --demo, or --weights with what they need")
    if not 1 <= args.seeds <= MAX_SEEDS:
        raise HeadForcingError(f"--seeds must be from 1 to {MAX_SEEDS}, got {args.seeds}")
    chosen = PAPER_TABLES[args.name]
    seeds = list(range(args.seed, args.seed + args.seeds))
    rows, about = run_entries(args, chosen.rows, seeds)
    made = grid(args.out / f"{args.name}.mp4", rows, metadata=grid_tags(rows, about))
    told = [chosen.caption, "", table(rows), "", *filter(None, [chosen.note]), NOTE]
    if args.seeds > 1:
        told.append(f"Means over {args.seeds} seeds, {seeds[0]} to {seeds[-1]}.")
    if args.demo:
        told.append("Made by the embedded toy model: what these rows say of real weights is nothing.")
    found = {
        "caption": chosen.caption,
        "note": chosen.note,
        "seeds": seeds,
        "about": about,
        "entries": [asdict(entry) for entry in chosen.rows],
        "grid": str(made.path),
        "rows": [row.to_dict() for row in rows],
    }
    return written(args.out, args.name, "\n".join(told), found, [f"grid     {made.path}"])
