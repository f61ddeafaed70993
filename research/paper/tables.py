"""The command `table`: a table of the paper in its layout, with its numbers, and beside them what
the embedded model shows, or what `check-claim` has measured of real weights.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ...cli.arguments import Result
from ...cli.compare import write_result
from ...cli.parser import count, folder_read, folder_written
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.plan.describe import markdown_table
from ..claims.claims import EQUAL_ROWS, PAPERS_ROWS
from ..claims.paper_numbers import COLUMNS, SIX_PROMPTS
from ..rooms import pairs
from ..rooms.measurements import complete, measured_by
from ..rows import MethodRow
from ..statistics import Numbers, mean_interval, values_of
from . import ablations, demo
from .demo import DEMO_STORIES, FIRST, Demo
from .fixed_tables import FIXED_TABLES
from .paper_tables import AWAY_BLOCKS, TABLES, Row, Table

VIDEOS = 4
CODE = (demo, ablations, pairs)
NUMBERS = (*TABLES, *FIXED_TABLES)
HEADINGS = {column.heading: key for key, column in COLUMNS.items()}
Known = Mapping[str, Sequence[Numbers]]
"""The numbers of the stories of all rows, by the story and the key of their entry."""


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    text = "Print tables of the paper with its numbers, and beside them the embedded model's."
    sub = command("table", table, text)
    told = f"as the paper numbers them: {', '.join(NUMBERS)}; or all"
    sub.add_argument("number", choices=(*NUMBERS, "all"), help=told)
    told = "measure the embedded model; the default without --check"
    sub.add_argument("--demo", action="store_true", help=told)
    told = "a folder of check-claim: beside the paper's numbers stand those of its verdict.json"
    sub.add_argument("--check", type=folder_read("verdict.json"), metavar="FOLDER", help=told)
    add_amount(sub, "output/tables")


def add_amount(sub: argparse.ArgumentParser, folder: str) -> None:
    """Add `--videos` and `--out`."""
    told = f"stories of every row ({VIDEOS})"
    sub.add_argument("--videos", type=count, default=VIDEOS, help=told)
    names = ("table_*", "figure_*", "measured.jsonl", "stability.safetensors")
    told = f"folder; the same command goes on there ({folder})"
    out = folder_written(*names)
    sub.add_argument("--out", type=out, default=Path(folder), help=told)


def table(args: argparse.Namespace) -> Result:
    """Measure what is missing, and write each table as Markdown and JSON."""
    args.out.mkdir(parents=True, exist_ok=True)
    asked = NUMBERS if args.number == "all" else (args.number,)
    real: Known | None = None
    if args.check is not None:
        real = checked_rows(args.check)
    known: Known = {}
    if args.demo or real is None:
        made_here = [TABLES[number] for number in asked if number in TABLES]
        if made_here:  # else the journal is not needed
            known = measured_rows(args, made_here)
    texts = []
    data = {}
    for number in asked:
        if number in FIXED_TABLES:
            text, found = FIXED_TABLES[number](args.out)
        else:
            text, found = text_of(TABLES[number], known, real)
        found["weights"] = measured_by(CODE)
        made = write_result(args.out, f"table_{number}", text=text, found=found)
        texts.append(made.text)
        data[number] = found
    return Result(["\n\n".join(texts)], data)


def measured_rows(args: argparse.Namespace, tables: Sequence[Table]) -> Known:
    """The numbers of all rows on the embedded model, from the journal or measured now."""
    rows: dict[str, tuple[Table, MethodRow]] = {}
    for each in tables:
        for row in each.rows:
            if row.entry is not None:
                rows[row_key(each.story, row.entry)] = (each, row.entry)
    numbers = range(FIRST, FIRST + args.videos)
    jobs = {f"{key}: {number}": (key, number) for number, key in product(numbers, rows)}
    model = Demo()

    def measure(job: tuple[str, int]) -> Numbers:
        asked, entry = rows[job[0]]
        looks = DEMO_STORIES[asked.story](job[1])
        plan = model.plan(entry, looks, job[1])
        found = model.numbers(model.video(plan, looks, job[1]))
        if asked.ahead:
            found |= model.judge.one_block_ahead(plan, looks, job[1])
        return found

    known = complete(args.out / "measured.jsonl", jobs, measure, args.json, CODE)
    found: dict[str, Sequence[Numbers]] = {}
    for key in rows:
        found[key] = [known[f"{key}: {number}"] for number in numbers]
    return found


def row_key(story: str, entry: MethodRow) -> str:
    """The name of a row's numbers."""
    return f"{story}: {entry.key}"


def text_of(table: Table, known: Known, real: Known | None = None) -> tuple[str, dict[str, Any]]:
    """A table with the paper's numbers, those of real weights after them, and below it one of the
    embedded model.
    """
    rows: dict[str, dict[str, Any]] = {}
    papers = []
    here = []
    videos = 0
    for row in table.rows:
        cells = _papers_cells(table, row)
        stored: dict[str, Any] = {"paper": dict(zip(table.columns, cells, strict=True))}
        if real is not None:
            measured = [_checked(column, row, real) for column in table.columns]
            stored["checked"] = dict(zip(table.columns, measured, strict=True))
            cells = [f"{said} / {found}" for said, found in zip(cells, measured, strict=True)]
        papers.append([row.label, *cells])
        if row.entry is not None and known:
            made = known[row_key(table.story, row.entry)]
            videos = len(made)
            texts_here = [mean_text(made, key) for key in table.here]
            here.append([row.label, *texts_here])
            stored |= {"here": dict(zip(table.here, texts_here, strict=True))}
            stored["videos"] = list(made)
        rows[row.label] = stored
    lines = [f"# {table.title}", "", markdown_table(["", *table.columns], papers)]
    if here:
        told = "one story" if videos == 1 else f"{videos} stories"
        lines += ["", f"The embedded model, {told}:", ""]
        lines.append(markdown_table(["", *table.here.values()], here))
    lines += ["", *_notes(table, bool(here), real is not None)]
    return "\n".join(lines), {"rows": rows, "stories": videos, "story": table.story}


def _papers_cells(table: Table, row: Row) -> list[str]:
    return row.paper.split() or ["-"] * len(table.columns)


def _notes(table: Table, is_measured: bool, is_checked: bool) -> list[str]:
    """Lines on what stands in a table."""
    notes = ["- The paper's numbers are of Self Forcing 1.3B."]
    if is_checked:
        notes.append(f"- {CHECKED}")
    if is_measured:
        blocks = AWAY_BLOCKS[table.story]
        notes.append(f"- {MEASURED.format(blocks=blocks)}")
    notes.append(f"- {table.needs}")
    if table.remark:
        notes.append(f"- {table.remark}")
    missing: dict[str, list[str]] = {}
    for row in table.rows:
        if row.missing:
            missing.setdefault(row.missing, []).append(row.label)
    for why, labels in missing.items():
        notes.append(f"- Not made here: {', '.join(labels)}; {why}.")
    return notes


MEASURED = (
    "Those of the embedded model are means with the number of stories, of several with 95 % t "
    "intervals, in "
    "which a room is left for {blocks} blocks and comes back. They are other measures. *Room "
    "kept*: whether the pictures on the walls are those of the first visit; beside it those of the "
    "room just left, which a cache that changes nothing shows. *Return happened*: whether the "
    "walls named before and at the return were seen. *Departure and return frame*: the cosine of "
    "the autoencoder's latents of the two, as RememBench pairs frames. *Moves as told*: memory can "
    "freeze a video. *Score*: the mean of what the prompts say, in the last quarter."
)
CHECKED = (
    "After the stroke: means of `check-claim`'s videos with 95 % t intervals and their number. "
    "The paper's are VBench-Long's; `VBench` marks numbers of whole videos by plain VBench, `own` "
    "those of research/metrics."
)


def mean_text(videos: Sequence[Numbers], key: str) -> str:
    """The mean of a number with its interval; `-` without one."""
    interval = mean_interval(values_of(videos, key))
    if interval is None:
        return "-"
    if interval.low == interval.high:
        return f"{interval.mean:.2f} ({interval.count})"
    return f"{interval.mean:.2f} ({interval.low:.2f} to {interval.high:.2f}; {interval.count})"


# ------------------------------------------------------------------------------------- real weights


def checked_rows(folder: Path) -> Known:
    """The numbers of all rows in a verdict of `check-claim`, by story and key of their entry."""
    path = folder / "verdict.json"
    named = PAPERS_ROWS | EQUAL_ROWS
    try:
        rows = json.loads(path.read_text("utf-8"))["rows"]
        found = {}
        for name, stories in rows.items():
            key = named[name].key if name in named else name
            for story, videos in stories.items():
                found[f"{story}: {key}"] = [dict(video) for video in videos]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadForcingError(
            f"{path} is no verdict of check-claim ({error!r}): give the folder of a finished one"
        ) from error
    return found


def _checked(column: str, row: Row, real: Known) -> str:
    """The mean that was measured for a cell, marked by the program that measured it."""
    if row.entry is None:
        return "-"
    if column.startswith("CLIP "):
        part = int(column.split()[1].partition("-")[0]) // 10 + 1
        videos = real.get(f"{SIX_PROMPTS}: {row.entry.key}", ())
        return _marked(mean_text(videos, f"text_score_{part}"), "own")
    if column not in HEADINGS:
        return "-"
    asked = COLUMNS[HEADINGS[column]]
    videos = real.get(f"{asked.story}: {row.entry.key}", ())
    scale = 100.0 if asked.percent else 1.0
    for key in asked.keys:
        scaled: list[Numbers] = []
        for video in videos:
            value = video.get(key)
            scaled.append({key: None if value is None else scale * value})
        text = mean_text(scaled, key)
        if text != "-":
            return _marked(text, asked.program(key))
    return "-"


def _marked(text: str, program: str) -> str:
    return text if text == "-" or program == "VBench-Long" else f"{text} {program}"
