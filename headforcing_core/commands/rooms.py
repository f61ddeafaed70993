"""The command `rooms`: every table and verdict of `tests/evidence/PREREGISTRATION.md`, from a finished training."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tqdm import tqdm

from ..demo import assets, detector, rooms_detector, rooms_drawing, rooms_judge, rooms_stories, word_hash
from ..demo import judge as toy_judge
from ..demo import rooms as rooms_world
from ..demo.judge import inspect_toy
from ..demo.rooms import Look
from ..demo.rooms_judge import STORIES, RoomsJudge
from ..errors import HeadForcingError
from ..files import check_regular, claimed, replacing
from ..hashing import digest, file_hash
from ..head_profiles.profile import HeadProfile, load_profile
from ..head_profiles.profile_setup import ProfileSetup
from ..head_profiles.profiler import BUDGETS, profile_heads, shard
from ..head_profiles.shares import HeadShares
from ..methods import ablations
from ..model.wan import WanModel
from ..rollout.schedule import SCHEDULES
from ..rollout.wan_video_model import WanVideoModel
from ..studies import rooms_questions
from ..studies.answers import Answer, mean_numbers, packed
from ..studies.comparison import Entry
from ..studies.questions import SHUFFLES, Numbers, Rendered, Shuffles
from ..studies.rooms_questions import ROOMS_TABLES, VIDEOS, RoomsTable, Tagged
from ..studies.rooms_verdicts import secondary, verdicts_of
from ..studies.verdicts import GATE_STUDENT, SUPPORTS, costs_table, gate, verdict_table
from ..timeline.clock import BlockClock
from .arguments import Result
from .compare import written
from .kept import claimed_after

FIRST_PROMPT = 60_000  # numbers of the prompts that the head profile is measured on; no table uses them
SECONDARY = "Secondary endpoints, which are described and never sure:"
MEASURED_BY = (
    rooms_world, rooms_drawing, rooms_stories, detector, rooms_detector, toy_judge, rooms_judge, rooms_questions,
    ablations,
)  # fmt: skip
"""The modules that define what a measured number is; a change of one of them makes earlier measurements unusable."""
PROFILE_PATIENCE = 6 * 3600.0  # seconds to wait for another process that measures the profile


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `rooms` to the command line."""
    sub = command("rooms", rooms, "Measure a model of the world of rooms as the pre-registration says, with verdicts.")
    sub.add_argument("trained", type=Path, help="folder of the training: weights, autoencoder, what the gate found")
    sub.add_argument("--out", type=Path, required=True, help="folder for measurements, tables and verdicts")
    sub.add_argument("--tables", nargs="+", choices=ROOMS_TABLES, metavar="TABLE", help=f"of {', '.join(ROOMS_TABLES)}")
    sub.add_argument("--videos", type=int, default=VIDEOS, help=f"per row; the pre-registration says {VIDEOS}")
    sub.add_argument("--shuffles", type=int, default=SHUFFLES, help=f"of the head roles ({SHUFFLES})")
    sub.add_argument("--deciding", action="store_true", help="only rows that a primary endpoint is computed from")
    sub.add_argument("--profile", type=Path, help="head profile with shares; measured if it is not given")
    sub.add_argument("--shard", default="1/1", help="measure 1/2 of the videos here, 2/2 in another process; no tables")


@dataclass(frozen=True)
class Trained:
    """What a training of the world of rooms has left: files, and the effects of memory that the gate found."""

    weights: Path
    autoencoder: Path
    student: dict[str, Any]
    base: dict[str, Any]

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
    def nearest(self) -> list[float]:
        """The effects of memory where the room was not left, the gate's positive control."""
        return list(self.student["effects"].get("0", []))


def rooms(args: argparse.Namespace) -> Result:
    """Measure what is missing, then write `TABLE.md`, `TABLE.json` and `verdicts.md`, `verdicts.json`."""
    for name, most in (("videos", 1000), ("shuffles", 1000)):
        if not 0 < getattr(args, name) <= most:
            raise HeadForcingError(f"--{name} must be from 1 to {most}, got {getattr(args, name)}")
    mine = shard(args.videos, args.shard)
    trained = Trained.of(args.trained)
    passed = gate(float(trained.student["memory"]), float(trained.base["memory"]))
    if passed.outcome != SUPPORTS:
        raise HeadForcingError(
            f"the gate is not passed, so no table is made: {passed.found}; train a model that remembers more"
        )
    tables = {name: ROOMS_TABLES[name].with_shuffles(args.shuffles) for name in args.tables or ROOMS_TABLES}
    profile = profile_of(args, trained)
    weights = digest(file_hash(trained.weights), file_hash(trained.autoencoder), profile.to_json(), measuring_code())
    part = "" if args.shard == "1/1" else "-" + args.shard.replace("/", "-of-")
    journal = args.out / f"measured{part}.jsonl"
    with claimed(journal):
        mend(journal)
        known = read_journals(args.out, weights)
        begun = time.monotonic()
        torch.set_num_threads(1)  # several are slower for a model this small
        judge = RoomsJudge(str(trained.weights), str(trained.autoencoder), profile)
        measure(judge, list(jobs(tables, mine, args.deciding)), known, journal, weights, args.json)
        seconds = time.monotonic() - begun
    if part:
        return {"text": f"measured {journal}", "json": {"measured": str(journal), "seconds": seconds}}
    return _tables(args.out, tables, args.videos, known, weights, trained)


def _tables(
    out: Path, tables: Mapping[str, RoomsTable], videos: int, known: Known, weights: str, trained: Trained
) -> Result:
    """Write what the measurements say."""
    answers = {name: answer_of(name, table, videos, known) for name, table in tables.items()}
    texts, found = [], {}
    for name, told in answers.items():
        found[name] = packed({**told.to_dict(), "weights": weights})
        text = "\n\n".join([told.question.asks, told.table(), told.question.note])
        texts.append(written(out, name, text, found[name], indent=None)["text"])
    passed = gate(float(trained.student["memory"]), float(trained.base["memory"]))
    verdicts = [passed, *verdicts_of(answers)]
    beside = secondary(answers, trained.nearest)
    about = {"verdicts": [verdict.to_dict() for verdict in verdicts], "secondary": beside, "weights": weights}
    text = "\n".join([verdict_table(verdicts), *costs_table(verdicts), "", SECONDARY, "", *beside])
    texts.append(written(out, "verdicts", text, about)["text"])
    return {"text": "\n\n".join(texts), "json": {**found, "verdicts": about}}


# ------------------------------------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class VideoJob:
    """One video to measure; `key` names it in the journal."""

    table: str
    row: Entry | Rendered
    number: int

    @property
    def key(self) -> str:
        shuffle = f" {self.row.shuffle}" if isinstance(self.row, Entry) and self.row.roles == "shuffled" else ""
        return f"{self.table}: {self.row.label}{shuffle}: {self.number}"


Known = dict[str, Numbers]


def jobs(tables: Mapping[str, RoomsTable], mine: list[int], deciding: bool) -> Iterator[VideoJob]:
    """All videos of the tables, a video of every row in turn: rows that decide first, shuffles that do not last."""
    for turn in range(1 if deciding else 3):
        for name, table in tables.items():
            rows = [row for row in table.entries(deciding=not turn) if not turn or _shuffled(row) == (turn == 2)]
            for index in mine:
                yield from (VideoJob(name, row, table.first + index) for row in rows)


def _shuffled(row: Entry | Rendered) -> bool:
    return isinstance(row, Entry) and row.roles == "shuffled"


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
        tag = row.tag if isinstance(row, Tagged) else ""
        found = judge.measure_story(row.policy, row.roles, looks, number, row.shuffle, table.ahead, tag)
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
        lines = path.read_text("utf-8").splitlines(keepends=True)
        for line in (line for line in lines if line.endswith("\n")):  # another process may be writing the last one
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

    def made(row: Entry | Rendered) -> tuple[Numbers, ...]:
        found = [known.get(VideoJob(name, row, number).key) for number in table.numbers(videos)]
        return () if None in found else tuple(dict(numbers) for numbers in found if numbers is not None)

    numbers: list[tuple[Numbers, ...]] = []
    shuffles: dict[int, tuple[tuple[Numbers, ...], ...]] = {}
    modelled = []
    for i, row in enumerate(table.question.rows):
        parts = tuple(made(entry) for entry in (row.entries if isinstance(row, Shuffles) else (row,)))
        if not isinstance(row, Rendered):
            modelled += [part for part in parts if part]
        if isinstance(row, Shuffles) and all(parts):
            shuffles[i] = parts
        numbers.append(() if isinstance(row, Shuffles) else parts[0])
    for same in zip(*modelled, strict=True):
        if any(video["identity"] is None for video in same):
            for video in same:
                video["identity"] = video["identity_by_chance"] = None
    for i, parts in shuffles.items():
        numbers[i] = tuple(mean_numbers(same) for same in zip(*parts, strict=True))
    return Answer(table.question, tuple(numbers), shuffles)


# ------------------------------------------------------------------------------------------------------- head profile


def profile_of(args: argparse.Namespace, trained: Trained) -> HeadProfile:
    """The given head profile, or that of the folder, which is measured if it is not there."""
    if args.profile is not None:
        return load_profile(args.profile)
    path = args.out / "profile.json"
    with claimed_after(PROFILE_PATIENCE, path, path.with_suffix(".safetensors")):
        if not path.exists():
            measured_profile(trained.weights, path, args.json)
        return load_profile(path)


def measured_profile(weights: Path, path: Path, quiet: bool) -> None:
    """Measure the head profile of a model as `profile --preset full` does; goes on where it was interrupted."""
    count, seconds = BUDGETS["full"]
    family, info = SCHEDULES["self_forcing"], inspect_toy(weights)
    texts = tuple(Look.draw(np.random.default_rng(FIRST_PROMPT + i)).prompt for i in range(count))
    blocks = BlockClock(family.frames_per_block).blocks_for(seconds)
    size = assets.LATENT_WIDTH * 8, assets.LATENT_HEIGHT * 8
    setup = ProfileSetup.of(info.fingerprint, info.config, texts, blocks, family, size)
    shares, stored = HeadShares(setup), path.with_suffix(".safetensors")
    if stored.exists() and (earlier := HeadShares.load(stored)).setup == setup:
        shares.merge(earlier)
    todo = shares.missing_prompts()
    backbone = WanModel.from_state_dict(info.config, load_file(weights), torch.float32)
    model = WanVideoModel(backbone, [word_hash.encode(text) for text in texts], torch.float32)
    with tqdm(total=len(todo), unit="prompt", desc="profiling", disable=quiet) as bar:

        def store(prompt: int) -> None:
            shares.save(stored)
            bar.update()

        profile_heads(model, info.config, shares, todo, on_prompt=store, dtype=torch.float32)
    shares.profile(path.stem, {"source": f"measured on {weights.name}"}).save(path)


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
