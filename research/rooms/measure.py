"""The command `rooms`: the tables and verdicts of `evidence/PREREGISTRATION.md`, of the embedded
model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...cli.arguments import Result
from ...cli.compare import write_result
from ...cli.parser import count, folder_written
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.hashing import digest
from ..rows import MethodRow, Rendered
from ..statistics import Numbers
from .answers import Answer, answer
from .judge import STORIES, RoomsJudge
from .measurements import (
    Known,
    complete,
    embedded_judge,
    measured_by,
    measured_files,
)
from .tables import ROOMS_TABLES, VIDEOS
from .verdicts import costs_table, gate, secondary, verdict_table, verdicts_of

GATES = Path(__file__).parents[1] / "evidence" / "rooms"
RESULTS = (*ROOMS_TABLES, "verdicts")
FILES = (
    "measured.jsonl",
    *(f"{name}.md" for name in RESULTS),
    *(f"{name}.json" for name in RESULTS),
)
SECONDARY = "Secondary endpoints, which are described and never sure:"


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command(
        "rooms",
        rooms,
        "Measure the embedded model as the pre-registration says, with verdicts.",
    )
    told = "folder for measurements, tables and verdicts; the same command goes on there"
    sub.add_argument("--out", type=folder_written(*FILES), required=True, help=told)
    sub.add_argument(
        "--tables",
        nargs="+",
        choices=ROOMS_TABLES,
        metavar="TABLE",
        help=f"of {', '.join(ROOMS_TABLES)}",
    )
    sub.add_argument(
        "--videos",
        type=count,
        default=VIDEOS,
        help=f"per row; the pre-registration says {VIDEOS}",
    )


def rooms(args: argparse.Namespace) -> Result:
    """Measure what is missing, then write the tables that are asked for, and the verdicts of all
    that were measured.
    """
    if args.videos > 1000:
        raise HeadForcingError(f"--videos must be from 1 to 1000, got {args.videos}")
    student = stored_gate("student")
    base = stored_gate("base")
    asked = list(args.tables or ROOMS_TABLES)
    wanted = {job.key: job for job in jobs(asked, args.videos)}
    known = complete(
        args.out / "measured.jsonl",
        wanted,
        partial(measured, embedded_judge()),
        args.json,
    )
    answers = {name: answer_of(name, args.videos, known) for name in ROOMS_TABLES}
    texts = []
    found = {}
    by = measured_by()
    for name in asked:
        found[name] = {**answers[name].to_dict(), "weights": by}
        text = answers[name].text()
        made = write_result(args.out, name, text=text, found=found[name], indent=None)
        texts.append(made.text)
    verdicts = [gate(student["memory"], base["memory"]), *verdicts_of(answers)]
    beside = secondary(answers, student["effects"]["0"])
    told = {
        "verdicts": [verdict.to_dict() for verdict in verdicts],
        "secondary": beside,
    }
    found["verdicts"] = told | {"weights": by, "files": measured_files()}
    text = "\n".join([verdict_table(verdicts), *costs_table(verdicts), "", SECONDARY, "", *beside])
    texts.append(write_result(args.out, "verdicts", text=text, found=found["verdicts"]).text)
    return Result(["\n\n".join(texts)], found)


def stored_gate(name: str) -> dict[str, Any]:
    """The gate's stored numbers of the `student`, the embedded model, or of its `base`;
    HeadForcingError where they are of other files than those that are measured now."""
    path = GATES / f"{name}.gate.json"
    files = measured_files()
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if found["autoencoder"] != files["autoencoder"] or (
        name == "student" and found["weights"] != files["model"]
    ):
        raise HeadForcingError(
            f"{path} was not measured on the embedded model: measure it with the command `gate`"
        )
    return found


@dataclass(frozen=True)
class VideoJob:
    """One video to measure; `key` names it in the journal, with a hash of what defines it."""

    table: str
    row: MethodRow | Rendered
    number: int

    @property
    def key(self) -> str:
        table = ROOMS_TABLES[self.table]
        definition = digest(repr((self.row, table.story, table.ahead)))[:8]
        return f"{self.table}: {self.row.label}: {self.number}: {definition}"


def jobs(tables: Iterable[str], videos: int) -> Iterator[VideoJob]:
    """All videos of the tables, of every row in turn; a row of shuffles as one for each of them."""
    for name in tables:
        table = ROOMS_TABLES[name]
        rows: list[MethodRow | Rendered] = [
            *(row for row in table.rows if isinstance(row, Rendered)),
            *table.entries,
        ]
        for number in table.numbers(videos):
            for row in rows:
                yield VideoJob(name, row, number)


def measured(judge: RoomsJudge, job: VideoJob) -> Numbers:
    """Make and measure one video."""
    table = ROOMS_TABLES[job.table]
    row = job.row
    number = job.number
    looks = STORIES[table.story](number)
    if isinstance(row, Rendered):
        return judge.measure_truth(looks, number, row.encoded, table.ahead)
    return judge.measure_story(row.method, row.roles, looks, number, row.shuffle, table.ahead)


def answer_of(name: str, videos: int, known: Known) -> Answer:
    """A table of the measurements; rows that have not all of the videos are empty.

    A video without a marking in the first block, which is the same in all rows but the rendered
    ones, has no identity.
    """
    table = ROOMS_TABLES[name]

    def stored(row: MethodRow | Rendered) -> list[Numbers]:
        found = [known.get(VideoJob(name, row, number).key) for number in table.numbers(videos)]
        if None in found:
            return []
        return [dict(video) for video in found if video is not None]

    unmarked = set()
    for entry in table.entries:
        for place, video in enumerate(stored(entry)):
            if video["identity"] is None:
                unmarked.add(place)

    def measured_row(row: MethodRow | Rendered) -> list[Numbers]:
        found = stored(row)
        if found and isinstance(row, MethodRow):
            for place in unmarked:
                found[place]["identity"] = None
                found[place]["identity_by_chance"] = None
        return found

    return answer(table, measured_row)
