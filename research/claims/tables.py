"""The command `table`: a table of the paper in its layout, with its numbers, and beside them what
the embedded model shows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...headforcing_core.commands.arguments import Result
from ...headforcing_core.commands.compare import write_result
from ...headforcing_core.commands.parser import count, folder_written
from ...headforcing_core.head_profiles.shares import PUBLISHED_STABILITY
from ...headforcing_core.plan.describe import markdown_table
from ..profiling import measured as measured_shares
from ..rooms.judge import STORIES
from ..rooms.measurements import complete, embedded_judge, measured_by
from ..statistics import Numbers, mean_interval, values_of
from .paper_tables import TABLES, Table

VIDEOS = 4
FIRST = 120_000  # numbers of stories that no other measurement has
STORY = "away_30"
HERE = {
    "layout": "here: room kept",
    "identity": "here: marking kept",
    "moves": "here: moves as told",
    "frames_a_head": "here: frames a head",
}
"""What is measured on the embedded model, by key of `judge.story_numbers`."""
STABILITY = "S1"
NOT_HERE = {
    "1": (
        "Table 1 (frames before the block taken from local heads, and from as many others) needs "
        "real weights and VBench; `generate --set local.recent_frames=0` makes videos of its first "
        "row, and H3 of `rooms` asks the same of the embedded model"
    ),
    "user": "the two user studies need people",
}
NUMBERS = (*NOT_HERE, *TABLES, STABILITY)


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "Print tables of the paper with its numbers, and beside them the embedded model's."
    sub = command("table", table, text)
    told = f"as the paper numbers them: {', '.join(NUMBERS)}; or all"
    sub.add_argument("number", choices=(*NUMBERS, "all"), help=told)
    told = f"stories of every row ({VIDEOS})"
    sub.add_argument("--videos", type=count, default=VIDEOS, help=told)
    out = folder_written("measured.jsonl", "table_*.md", "table_*.json", "stability.safetensors")
    told = "folder; the same command goes on there (output/tables)"
    sub.add_argument("--out", type=out, default=Path("output/tables"), help=told)


def table(args: argparse.Namespace) -> Result:
    """Measure what is missing, and write each table as Markdown and JSON."""
    args.out.mkdir(parents=True, exist_ok=True)
    asked = NUMBERS if args.number == "all" else (args.number,)
    known = measured_rows(args, [TABLES[number] for number in asked if number in TABLES])
    texts = []
    data = {}
    for number in asked:
        if number in NOT_HERE:
            texts.append(f"{NOT_HERE[number]}.")
            continue
        if number == STABILITY:
            text, found = stability_table(args)
        else:
            text, found = text_of(TABLES[number], known, args.videos)
        found["weights"] = measured_by()
        made = write_result(args.out, f"table_{number}", text=text, found=found)
        texts.append(made.text)
        data[number] = found
    return Result(["\n\n".join(texts)], data)


def measured_rows(
    args: argparse.Namespace, tables: Sequence[Table]
) -> Mapping[str, Sequence[Numbers]]:
    """The numbers of the stories of all rows, by the key of their entry."""
    entries = {
        row.entry.key: row.entry for each in tables for row in each.rows if row.entry is not None
    }
    numbers = range(FIRST, FIRST + args.videos)
    jobs = {f"{key}: {number}": (key, number) for number in numbers for key in entries}
    judge = embedded_judge()

    def measure(job: tuple[str, int]) -> Numbers:
        entry = entries[job[0]]
        looks = STORIES[STORY](job[1])
        return judge.measure_story(entry.policy, entry.roles, looks, job[1])

    known = complete(args.out / "measured.jsonl", jobs, measure, args.json)
    return {key: [known[f"{key}: {number}"] for number in numbers] for key in entries}


def text_of(
    table: Table, known: Mapping[str, Sequence[Numbers]], videos: int
) -> tuple[str, dict[str, Any]]:
    """A table with the paper's columns first, and lines on what stands in it."""
    cells = []
    rows: dict[str, dict[str, Any]] = {}
    notes = []
    for row in table.rows:
        made = [] if row.entry is None else known[row.entry.key]
        here = [shown(made, key) for key in HERE]
        cells.append([row.label, *row.paper.split(), *here])
        rows[row.label] = {"paper": dict(zip(table.columns, row.paper.split(), strict=True))}
        rows[row.label] |= {"here": dict(zip(HERE, here, strict=True)), "videos": list(made)}
        if row.missing:
            notes.append(f"- {row.label}: not made here; {row.missing}.")
    lines = [
        f"# {table.title}",
        "",
        markdown_table(["", *table.columns, *HERE.values()], cells),
        "",
        f"- The paper's numbers are of Self Forcing 1.3B; those under *here* are means of {videos} "
        "stories on the embedded model, with 95 % t intervals. They are other measures: whether a "
        "room that was left has its pictures again after 30 blocks, whether the actor has its "
        "marking, whether it moves as its prompt says.",
        f"- {table.needs}",
        *notes,
    ]
    return "\n".join(lines), {"rows": rows, "stories": videos, "story": STORY}


def shown(videos: Sequence[Numbers], key: str) -> str:
    """The mean of a number with its interval; `-` without one."""
    interval = mean_interval(values_of(videos, key))
    if interval is None:
        return "-"
    if interval.low == interval.high:
        return f"{interval.mean:.2f} ({interval.count})"
    return f"{interval.mean:.2f} ({interval.low:.2f} to {interval.high:.2f}; {interval.count})"


def stability_table(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The core stability ratios, the paper's and the embedded model's."""
    ratios = measured_shares(args.out / "stability.safetensors", 4, {}).stability()
    cells = []
    for condition, published in PUBLISHED_STABILITY.items():
        here = ratios[condition]
        pairs = [
            f"{value:.3f} / {here.get(role, float('nan')):.3f}" for role, value in published.items()
        ]
        cells.append([f"over {condition}", *pairs])
    headings = ["", *(f"{role}, paper / here" for role in next(iter(PUBLISHED_STABILITY.values())))]
    lines = [
        "# Table S1: core stability ratio",
        "",
        markdown_table(headings, cells),
        "",
        "- Here: the embedded model, 4 videos of 30 s, four evenly spaced blocks of those that are "
        "measured; the paper has AR steps 3, 12, 21 and 30.",
    ]
    return "\n".join(lines), {"paper": PUBLISHED_STABILITY, "here": ratios}
