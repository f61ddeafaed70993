"""The command `rooms`: the tables and verdicts of `evidence/PREREGISTRATION.md`, of a model of the rooms."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...headforcing_core.commands.arguments import Result
from ...headforcing_core.commands.compare import write_result
from ...headforcing_core.commands.parser import READ, count, folder_read, folder_written
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.hashing import digest
from ...headforcing_core.head_profiles.profiler import pick_part
from ...headforcing_core.render.comparison import Entry
from ..answers import Answer, answer_rows, packed
from ..questions import SHUFFLES, Rendered
from ..statistics import Numbers
from .judge import STORIES, RoomsJudge
from .measurements import MEASURED_BY, Known, Trained, complete, hashes_of
from .tables import ROOMS_TABLES, VIDEOS, RoomsTable, Tagged
from .verdicts import SUPPORTS, costs_table, secondary, verdict_table, verdicts_of

FILES = ("measured*.jsonl", *(f"{name}.{ending}" for name in (*ROOMS_TABLES, "verdicts") for ending in ("md", "json")))
SECONDARY = "Secondary endpoints, which are described and never sure:"


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `rooms` to the command line."""
    sub = command("rooms", rooms, "Measure a model of the world of rooms as the pre-registration says, with verdicts.")
    told = "folder of a training: weights, autoencoder, what the gate found; default: the embedded model, without H0"
    sub.add_argument("trained", type=folder_read("*.json", "*.safetensors"), nargs="?", metavar="FOLDER", help=told)
    told = "folder for measurements, tables and verdicts"
    sub.add_argument("--out", type=folder_written(*FILES), required=True, help=told)
    sub.add_argument("--tables", nargs="+", choices=ROOMS_TABLES, metavar="TABLE", help=f"of {', '.join(ROOMS_TABLES)}")
    sub.add_argument("--videos", type=count, default=VIDEOS, help=f"per row; the pre-registration says {VIDEOS}")
    sub.add_argument("--shuffles", type=count, default=SHUFFLES, help=f"of the head roles ({SHUFFLES})")
    told = "only rows that a primary endpoint is computed from, and the truth"
    sub.add_argument("--deciding", action="store_true", help=told)
    sub.add_argument("--profile", type=READ, help="head profile with shares, of a training's student")
    sub.add_argument("--shard", default="1/1", help="measure 1/2 of the videos here, 2/2 in another process; no tables")


def rooms(args: argparse.Namespace) -> Result:
    """Measure what is missing, then write `TABLE.md`, `TABLE.json` and `verdicts.md`, `verdicts.json`."""
    for name, most in (("videos", 1000), ("shuffles", 1000)):
        if not 0 < getattr(args, name) <= most:
            raise HeadForcingError(f"--{name} must be from 1 to {most}, got {getattr(args, name)}")
    mine = pick_part(args.videos, args.shard)
    trained = Trained.embedded() if args.trained is None else Trained.of(args.trained)
    if (passed := trained.gate) is not None and passed.outcome != SUPPORTS:
        raise HeadForcingError(
            f"the gate is not passed, so no table is made: {passed.found}; train a model that remembers more"
        )
    tables = {name: table.with_shuffles(args.shuffles) for name, table in ROOMS_TABLES.items()}
    asked = {name: tables[name] for name in args.tables or tables}
    profile = trained.profile(args.profile)
    files = trained.measured_on(profile)
    weights = digest(files, hashes_of(MEASURED_BY))
    part = "" if args.shard == "1/1" else "-" + args.shard.replace("/", "-of-")
    journal, begun = args.out / f"measured{part}.jsonl", time.monotonic()
    wanted = {job.key: job for job in jobs(asked, mine, args.deciding)}
    known = complete(journal, weights, wanted, partial(measured, trained.judge(profile)), args.json)
    if part:
        seconds = time.monotonic() - begun
        return {"text": f"measured {journal}", "json": {"measured": str(journal), "seconds": seconds}}
    answers = {name: answer_of(name, table, args.videos, known) for name, table in tables.items()}
    return _tables(args.out, asked, answers, {"weights": weights, "files": files}, trained)


def _tables(
    out: Path, asked: Iterable[str], answers: Mapping[str, Answer], about: Mapping[str, Any], trained: Trained
) -> Result:
    """Write the asked tables, and the verdicts of all that was measured."""
    texts, found = [], {}
    for name in asked:
        found[name] = packed({**answers[name].to_dict(), "weights": about["weights"]})
        texts.append(write_result(out, name, answers[name].text(), found[name], indent=None)["text"])
    verdicts = [*filter(None, [trained.gate]), *verdicts_of(answers)]
    beside = secondary(answers, trained.nearest)
    told_verdicts = {"verdicts": [verdict.to_dict() for verdict in verdicts], "secondary": beside, **about}
    text = "\n".join([verdict_table(verdicts), *costs_table(verdicts), "", SECONDARY, "", *beside])
    texts.append(write_result(out, "verdicts", text, told_verdicts)["text"])
    return {"text": "\n\n".join(texts), "json": {**found, "verdicts": told_verdicts}}


@dataclass(frozen=True)
class VideoJob:
    """One video to measure; `key` names it in the journal, with a hash of what defines it."""

    table: str
    row: Entry | Rendered
    number: int

    @property
    def key(self) -> str:
        row, table = self.row, ROOMS_TABLES[self.table]
        shuffle = f" {row.shuffle}" if isinstance(row, Entry) and _turn(row) == 3 else ""
        made = row.encoded if isinstance(row, Rendered) else (row.policy, row.roles, row.shuffle, _tag(row))
        definition = digest(repr((made, table.question.story, table.ahead)))[:8]
        return f"{self.table}: {row.label}{shuffle}: {self.number}: {definition}"


def jobs(tables: Mapping[str, RoomsTable], mine: list[int], deciding: bool) -> Iterator[VideoJob]:
    """All videos of the tables, a video of every row in turn: rows that decide, the truth, others, their shuffles.

    With `deciding` only the first two of these.
    """
    for turn in range(2 if deciding else 4):
        for name, table in tables.items():
            rows = [row for row in table.entries(deciding=not turn) if not turn or _turn(row) == turn]
            for index in mine:
                yield from (VideoJob(name, row, table.first + index) for row in rows)


def _turn(row: Entry | Rendered) -> int:
    """The turn in which a row that does not decide is measured."""
    if isinstance(row, Rendered):
        return 1
    return 3 if row.roles == "shuffled" else 2


def _tag(row: Entry) -> str:
    return row.tag if isinstance(row, Tagged) else ""


def measured(judge: RoomsJudge, job: VideoJob) -> Numbers:
    """Make and measure one video."""
    table, row, number = ROOMS_TABLES[job.table], job.row, job.number
    looks = STORIES[table.question.story](number)
    if isinstance(row, Rendered):
        return judge.measure_truth(looks, number, row.encoded, table.ahead)
    return judge.measure_story(row.policy, row.roles, looks, number, row.shuffle, table.ahead, _tag(row))


def answer_of(name: str, table: RoomsTable, videos: int, known: Known) -> Answer:
    """A table of the measurements; rows that have not all of the videos are empty.

    A video without a marking in the first block, which is the same in all rows but the rendered ones, has no identity.
    """

    def stored(row: Entry | Rendered) -> list[Numbers]:
        found = [known.get(VideoJob(name, row, number).key) for number in table.numbers(videos)]
        return [] if None in found else [dict(video) for video in found if video is not None]

    modelled = [stored(row) for row in table.question.entries]
    unmarked = {i for found in modelled for i, video in enumerate(found) if video["identity"] is None}

    def measured_row(row: Entry | Rendered) -> list[Numbers]:
        found = stored(row)
        for i in unmarked if found and isinstance(row, Entry) else ():
            found[i]["identity"] = found[i]["identity_by_chance"] = None
        return found

    return answer_rows(table.question, measured_row)
