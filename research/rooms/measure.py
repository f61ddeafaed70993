"""The command `rooms`: the tables and verdicts of `evidence/PREREGISTRATION.md`, of a model of the rooms."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from ...headforcing_core.commands.arguments import Result
from ...headforcing_core.commands.compare import write_result
from ...headforcing_core.commands.parser import count
from ...headforcing_core.commands.paths import READ, folder_read, folder_written
from ...headforcing_core.demo import assets, rooms_autoencoder, word_hash, words
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import check_regular, claimed, replacing
from ...headforcing_core.hashing import digest, file_hash
from ...headforcing_core.head_profiles.profile import HeadProfile, bundled_profiles, load_profile
from ...headforcing_core.head_profiles.profiler import pick_part
from ...headforcing_core.render.comparison import Entry
from .. import ablations, role_rules
from ..answers import Answer, answer_rows, packed
from ..questions import SHUFFLES, Rendered, measured_rows
from ..statistics import Numbers
from . import detector, drawing, masks, scenes, stories
from . import judge as judging
from .judge import STORIES, RoomsJudge
from .outcomes import secondary, verdicts_of
from .tables import ROOMS_TABLES, VIDEOS, RoomsTable, Tagged
from .verdicts import GATE_STUDENT, SUPPORTS, Verdict, costs_table, gate, verdict_table

FILES = ("measured*.jsonl", *(f"{name}.{ending}" for name in (*ROOMS_TABLES, "verdicts") for ending in ("md", "json")))
SECONDARY = "Secondary endpoints, which are described and never sure:"
MEASURED_BY = (
    words, scenes, drawing, stories, rooms_autoencoder, masks, detector, judging, word_hash, role_rules, ablations,
)  # fmt: skip
"""The modules that define what a measured number is; a change of one of them makes earlier measurements unusable.

What defines a row is in the key of its videos, so that another table can be added.
"""


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `rooms` to the command line."""
    sub = command("rooms", rooms, "Measure a model of the world of rooms as the pre-registration says, with verdicts.")
    told = "folder of a training: weights, autoencoder, what the gate found; default: the embedded model, without H0"
    sub.add_argument("trained", type=folder_read("*.json", "*.safetensors"), nargs="?", metavar="FOLDER", help=told)
    sub.add_argument(
        "--out", type=folder_written(*FILES), required=True, help="folder for measurements, tables and verdicts"
    )
    sub.add_argument("--tables", nargs="+", choices=ROOMS_TABLES, metavar="TABLE", help=f"of {', '.join(ROOMS_TABLES)}")
    sub.add_argument("--videos", type=count, default=VIDEOS, help=f"per row; the pre-registration says {VIDEOS}")
    sub.add_argument("--shuffles", type=count, default=SHUFFLES, help=f"of the head roles ({SHUFFLES})")
    told = "only rows that a primary endpoint is computed from, and the truth"
    sub.add_argument("--deciding", action="store_true", help=told)
    sub.add_argument("--profile", type=READ, help="head profile with shares, of a training's student")
    sub.add_argument("--shard", default="1/1", help="measure 1/2 of the videos here, 2/2 in another process; no tables")


@dataclass(frozen=True)
class Trained:
    """Results of a training of the world of rooms: files, and the effects of memory that the gate found.

    Of the embedded model there are only the files: it was chosen by its gate, which needs the base, too.
    """

    weights: Path
    autoencoder: Path
    student: dict[str, Any] | None = None
    base: dict[str, Any] | None = None

    @classmethod
    def of(cls, folder: Path) -> Trained:
        """Read the folder; raises HeadForcingError where no student passed or the gate was measured on other files."""
        name, autoencoder = _read(folder / "chosen.json", "chosen")["chosen"], folder / "autoencoder.safetensors"
        if name is None:
            raise HeadForcingError(
                f"the gate is not passed, so no table is made: no student in {folder} remembers at least "
                f"{GATE_STUDENT}; train a model that remembers more"
            )
        check_regular(autoencoder)
        found = []
        for weights in (folder / str(name), folder / "base.safetensors"):
            check_regular(weights)
            stored = _read(weights.with_suffix(".gate.json"), "memory", "effects", "weights", "autoencoder")
            if (stored["weights"], stored["autoencoder"]) != (file_hash(weights), file_hash(autoencoder)):
                raise HeadForcingError(
                    f"{weights.with_suffix('.gate.json')} was not measured on {weights.name} and {autoencoder.name} as "
                    "they are now; give the training's command again, which measures what has changed"
                )
            found.append(stored)
        return cls(folder / str(name), autoencoder, *found)

    @property
    def gate(self) -> Verdict | None:
        """H0; None for the embedded model."""
        if self.student is None or self.base is None:
            return None
        return gate(float(self.student["memory"]), float(self.base["memory"]))

    @property
    def nearest(self) -> list[float]:
        """The effects of memory where the room was not left, the gate's positive control."""
        return [] if self.student is None else list(self.student["effects"].get("0", []))


def rooms(args: argparse.Namespace) -> Result:
    """Measure what is missing, then write `TABLE.md`, `TABLE.json` and `verdicts.md`, `verdicts.json`."""
    for name, most in (("videos", 1000), ("shuffles", 1000)):
        if not 0 < getattr(args, name) <= most:
            raise HeadForcingError(f"--{name} must be from 1 to {most}, got {getattr(args, name)}")
    mine = pick_part(args.videos, args.shard)
    embedded = Trained(assets.model_path(), assets.autoencoder_path())
    trained = embedded if args.trained is None else Trained.of(args.trained)
    if (passed := trained.gate) is not None and passed.outcome != SUPPORTS:
        raise HeadForcingError(
            f"the gate is not passed, so no table is made: {passed.found}; train a model that remembers more"
        )
    tables = {name: table.with_shuffles(args.shuffles) for name, table in ROOMS_TABLES.items()}
    asked = {name: tables[name] for name in args.tables or tables}
    profile = profile_of(args.profile, trained)
    files = measured_on(trained, profile)
    weights = digest(files, measuring_code())
    part = "" if args.shard == "1/1" else "-" + args.shard.replace("/", "-of-")
    journal = args.out / f"measured{part}.jsonl"
    with claimed(journal):
        mend(journal)
        known = read_journals(args.out, weights)
        begun = time.monotonic()
        torch.set_num_threads(1)  # several are slower for a model this small
        judge = RoomsJudge(trained.weights, trained.autoencoder, profile)
        measure(judge, list(jobs(asked, mine, args.deciding)), known, journal, weights, args.json)
        seconds = time.monotonic() - begun
    if part:
        return {"text": f"measured {journal}", "json": {"measured": str(journal), "seconds": seconds}}
    answers = {name: answer_of(name, table, args.videos, known) for name, table in tables.items()}
    return _tables(args.out, asked, answers, {"weights": weights, "files": files}, trained)


def measured_on(trained: Trained, profile: HeadProfile) -> dict[str, str]:
    """The hashes of the files that the measurements are of."""
    return {
        "model": file_hash(trained.weights),
        "autoencoder": file_hash(trained.autoencoder),
        "profile": digest(profile.to_json()),
    }


def _tables(
    out: Path, asked: Iterable[str], answers: Mapping[str, Answer], about: Mapping[str, Any], trained: Trained
) -> Result:
    """Write the asked tables, and the verdicts of all that was measured."""
    texts, found = [], {}
    for name, told in ((name, answers[name]) for name in asked):
        found[name] = packed({**told.to_dict(), "weights": about["weights"]})
        text = "\n\n".join([told.question.asks, told.table(), told.question.note])
        texts.append(write_result(out, name, text, found[name], indent=None)["text"])
    passed = trained.gate
    verdicts = [*([] if passed is None else [passed]), *verdicts_of(answers)]
    beside = secondary(answers, trained.nearest)
    told_verdicts = {"verdicts": [verdict.to_dict() for verdict in verdicts], "secondary": beside, **about}
    text = "\n".join([verdict_table(verdicts), *costs_table(verdicts), "", SECONDARY, "", *beside])
    texts.append(write_result(out, "verdicts", text, told_verdicts)["text"])
    return {"text": "\n\n".join(texts), "json": {**found, "verdicts": told_verdicts}}


# ------------------------------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class VideoJob:
    """One video to measure; `key` names it in the journal, with a hash of what defines it."""

    table: str
    row: Entry | Rendered
    number: int

    @property
    def key(self) -> str:
        row, table = self.row, ROOMS_TABLES[self.table]
        shuffle = f" {row.shuffle}" if isinstance(row, Entry) and _shuffled(row) else ""
        made = row.encoded if isinstance(row, Rendered) else (row.policy, row.roles, row.shuffle, _tag(row))
        definition = digest(repr((made, table.question.story, table.ahead)))[:8]
        return f"{self.table}: {row.label}{shuffle}: {self.number}: {definition}"


Known = dict[str, Numbers]


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
    return 3 if _shuffled(row) else 2


def _shuffled(row: Entry | Rendered) -> bool:
    return isinstance(row, Entry) and row.roles == "shuffled"


def _tag(row: Entry) -> str:
    return row.tag if isinstance(row, Tagged) else ""


def measure(judge: RoomsJudge, wanted: list[VideoJob], known: Known, journal: Path, weights: str, quiet: bool) -> None:
    """Measure the videos that are not known yet, and append each to the journal."""
    todo = [job for job in wanted if job.key not in known]
    with journal.open("a", encoding="utf-8") as file:
        for job in tqdm(todo, unit="video", disable=quiet):
            known[job.key] = measured(judge, job)
            file.write(json.dumps({"video": job.key, "weights": weights, "numbers": known[job.key]}) + "\n")
            file.flush()


def measured(judge: RoomsJudge, job: VideoJob) -> Numbers:
    """Make and measure one video."""
    table, row, number = ROOMS_TABLES[job.table], job.row, job.number
    looks = STORIES[table.question.story](number)
    if isinstance(row, Rendered):
        found = judge.measure_truth(looks, number, row.encoded, table.ahead)
    else:
        found = judge.measure_story(row.policy, row.roles, looks, number, row.shuffle, table.ahead, _tag(row))
    return {name: None if value is None else round(value, 5) for name, value in found.items()}


def measuring_code() -> list[str]:
    """Hashes of the files that define a measurement, so that none made by other code is taken for one of this code."""
    return [file_hash(Path(str(module.__file__))) for module in MEASURED_BY]


def mend(journal: Path) -> None:
    """Remove a last line that was cut off when a process died."""
    if journal.exists() and (text := journal.read_text("utf-8")) and not text.endswith("\n"):
        with replacing(journal) as partial:
            partial.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")


def read_journals(folder: Path, weights: str) -> Known:
    """The measurements of all journals of a folder; raises HeadForcingError for those of another model or code."""
    known: Known = {}
    for path in sorted(folder.glob("measured*.jsonl")):
        for line in path.read_text("utf-8").split("\n")[:-1]:  # another process may be writing the last one
            found = json.loads(line)
            if found["weights"] != weights:
                raise HeadForcingError(
                    f"{path} was measured with another model, autoencoder or head profile, or by other code (one of "
                    f"{', '.join(module.__name__.rpartition('.')[2] for module in MEASURED_BY)}); choose another folder"
                )
            known[found["video"]] = found["numbers"]
    return known


def answer_of(name: str, table: RoomsTable, videos: int, known: Known) -> Answer:
    """A table of the measurements; rows that have not all of the videos are empty.

    A video without a marking in the first block, which is the same in all rows but the rendered ones, has no identity.
    """

    numbers = table.numbers(videos)

    def stored(row: Entry | Rendered) -> list[Numbers | None]:
        return [known.get(VideoJob(name, row, number).key) for number in numbers]

    modelled = [found for row in measured_rows(table.question) if None not in (found := stored(row))]
    unmarked = {i for found in modelled for i, video in enumerate(found) if video and video["identity"] is None}

    def measured_row(row: Entry | Rendered) -> tuple[Numbers, ...]:
        found = [dict(video) for video in stored(row) if video is not None]
        if len(found) < len(numbers):
            return ()
        for i in () if isinstance(row, Rendered) else unmarked:
            found[i]["identity"] = found[i]["identity_by_chance"] = None
        return tuple(found)

    return answer_rows(table.question, measured_row)


def profile_of(given: Path | None, trained: Trained) -> HeadProfile:
    """The given head profile, or the bundled one of the embedded model.

    Raises HeadForcingError for a profile of other weights.
    """
    profile = load_profile(given or bundled_profiles()["toy_world"])
    if profile.measured.get("fingerprint") != assets.inspect_toy(trained.weights).fingerprint:
        raise HeadForcingError(
            f"--profile must name the head profile of {trained.weights}; "
            f"`headforcing profile profile.json --demo --demo-weights {trained.weights}` measures it"
        )
    return profile


def _read(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON object with these keys; raises HeadForcingError for any other file."""
    check_regular(path)
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        missing = [key for key in keys if key not in found]
    except (ValueError, TypeError) as error:
        raise HeadForcingError(f"{path} must be a JSON object, as the training writes it: {error}") from error
    if missing:
        raise HeadForcingError(f"{path} has no {missing[0]!r}; give the folder of a finished training of the rooms")
    return found
