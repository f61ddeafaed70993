"""The commands `evaluate` (`QUESTIONS`) and `tables` (the paper's), with the toy world or with real weights."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ..demo.judge import Judge, mixed, one_prompt, six_prompts, there_and_back
from ..errors import HeadForcingError
from ..farm.farm import Farm
from ..files import check_regular, check_writable, claimed_folder
from ..studies.answers import Answer, answer, measured_rows
from ..studies.comparison import NOTE, Entry, grid, left_out_notes, table
from ..studies.paper_tables import BUDGET, PAPER_TABLES, budget_table, budgets
from ..studies.questions import QUESTIONS, SHUFFLES, Measure, Numbers, Question, Rendered, with_shuffles
from ..timeline.timeline import Timeline
from .arguments import Result, farm_of, portable
from .compare import add_source_arguments, fitting, grid_tags, run_entries, written
from .kept import Kept
from .metrics import add_metric_arguments
from .real_videos import RealVideos
from .vbench import export_videos

MAX_SEEDS = 1000
MAX_VIDEOS = 10_000
STORIES: dict[str, Callable[[int], list[Timeline]]] = {
    "mixed": lambda count: mixed(count, seconds=81 / 16),
    "still": lambda count: one_prompt(count, seconds=81 / 16),
    "one_prompt": lambda count: one_prompt(count, seconds=60.0),
    "six_prompts": lambda count: six_prompts(count, seconds=60.0),
    "there_and_back": lambda count: there_and_back(count, blocks=16),
}


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `evaluate` and `tables` to the command line."""
    sub = command("tables", tables, "Render and measure the rows of the paper's tables; no VBench scores.")
    sub.add_argument("name", choices=[*PAPER_TABLES, "budget"], help="budget computes sizes only and needs no model")
    sub.add_argument("--seeds", type=int, default=1, help="videos per row, from --seed on; the table has their means")
    add_source_arguments(sub, required=False)

    text = "Compare methods and ablations on the same prompts and noise, in tables with confidence intervals."
    sub = command("evaluate", evaluate, text)
    asked = "; ".join(f"{name}: {question.asks}" for name, question in QUESTIONS.items())
    sub.add_argument("questions", nargs="+", choices=QUESTIONS, metavar="QUESTION", help=asked)
    sub.add_argument("--videos", type=int, default=16, help="per row, each with its own prompts and noise (16)")
    sub.add_argument(
        "--shuffles",
        type=int,
        default=SHUFFLES,
        help=f"of the head roles, in rows of shuffles, each on all videos; 0 leaves such rows empty ({SHUFFLES})",
    )
    sub.add_argument(
        "--known",
        type=Path,
        metavar="FILE",
        help="an answer in JSON to the question: rows that it holds for as many videos are not made again",
    )
    sub.add_argument("--only-known", action="store_true", help="with --known: make nothing, other rows stay empty")
    sub.add_argument("--demo-weights", help="with --demo: another model of the toy world, .safetensors")
    sub.add_argument("--demo-autoencoder", help="with --demo: the autoencoder that belongs to it")
    sub.add_argument(
        "--vbench", type=Path, metavar="FOLDER", help="lay out the videos for VBench; read-vbench reads its results"
    )
    add_metric_arguments(sub)
    add_source_arguments(sub)


def evaluate(args: argparse.Namespace) -> Result:
    """Write `QUESTION.md` and `QUESTION.json` for each question."""
    if not 1 <= args.videos <= MAX_VIDEOS:
        raise HeadForcingError(f"--videos must be from 1 to {MAX_VIDEOS}, got {args.videos}")
    if args.demo and (args.prompts is not None or args.seconds):
        raise HeadForcingError(
            "--prompts and --seconds are for --weights: with --demo each question has its own videos"
        )
    if args.demo and (args.metric_models is not None or args.vbench is not None):
        raise HeadForcingError(
            "--metric-models and --vbench are for --weights: with --demo the truth about the videos is known"
        )
    if args.vbench is not None:
        check_writable(args.vbench / "export.json")
    if not 0 <= args.shuffles <= MAX_VIDEOS:
        raise HeadForcingError(f"--shuffles must be from 0 to {MAX_VIDEOS}, got {args.shuffles}")
    if args.only_known and args.known is None:
        raise HeadForcingError("--only-known needs --known FILE, an answer in JSON that the table is computed from")
    if args.known is not None and (len(args.questions) > 1 or not args.demo):
        raise HeadForcingError("--known is for one question, with --demo")
    questions = {name: with_shuffles(QUESTIONS[name], args.shuffles) for name in args.questions}
    with claimed_folder(args.out):
        return _answers(args, questions)


def _answers(args: argparse.Namespace, questions: dict[str, Question]) -> Result:
    """Answer and write each question, in a folder that is claimed."""
    if args.only_known:
        (name, question), stored = *questions.items(), read_answer(args.known)
        told = Answer.from_dict(question, stored)
        about = {**told.to_dict(), "weights": stored["weights"], "minutes": stored["minutes"]}
        return {"text": written(args.out, name, _text(told), about)["text"], "json": {name: about}}
    farm = farm_of(args)
    videos = ToyVideos(args, farm) if args.demo else RealVideos(args, questions, farm)
    texts, found = [], {}
    with farm:
        for name, question in questions.items():
            question, begun = videos.suited(question), time.monotonic()
            known, spent = None, 0.0
            if args.known is not None:
                stored = read_answer(args.known)
                if stored["weights"] != videos.fingerprint:
                    raise HeadForcingError(f"{args.known} is about other weights than those that are evaluated")
                known, spent = Answer.from_dict(question, stored), stored["minutes"]
            rows = measured_rows(question, args.videos, known)
            with tqdm(total=len(rows) * args.videos, desc=name, unit="video", disable=args.json) as bar:
                told = answer(question, args.videos, videos.measure(question.story, rows, bar.update), known)
            minutes = spent + (time.monotonic() - begun) / 60
            about = {**told.to_dict(), "weights": videos.fingerprint, "minutes": minutes}
            texts.append(written(args.out, name, _text(told), about)["text"])
            found[name] = about
    if isinstance(videos, RealVideos) and args.vbench is not None:
        texts.append(export_videos(args.vbench, args.questions, args.shuffles, videos.made()))
    return {"text": "\n\n".join(texts), "json": found}


def _text(told: Answer) -> str:
    return "\n\n".join(filter(None, [told.question.asks, told.table(), told.question.note]))


def read_answer(path: Path) -> dict[str, Any]:
    """A stored answer; raises HeadForcingError for any other file."""
    check_regular(path)
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if {"rows", "weights", "minutes"} <= set(found):
            return found
    except (ValueError, TypeError) as error:
        raise HeadForcingError(f"{path} is no answer that `evaluate` has written: {error}") from error
    raise HeadForcingError(f"{path} is no answer that `evaluate` has written")


def tables(args: argparse.Namespace) -> Result:
    """Write `NAME.md` and `NAME.json` of one of the paper's tables, the videos, and a grid of the first seed's videos.

    The rows are those of the question of that name, but all use one timeline, and are measured like `compare`.
    """
    if args.name == "budget":
        sizes = budgets()
        text = f"{BUDGET} (frame-slots, 30x12 heads)\n\n{budget_table(sizes)}"
        return written(args.out, "budget", text, {"caption": BUDGET, "rows": [row.to_dict() for row in sizes]})
    if not args.demo and args.weights is None:
        raise HeadForcingError(f"the table {args.name!r} is rendered: give --demo, or --weights with what they need")
    if not 1 <= args.seeds <= MAX_SEEDS:
        raise HeadForcingError(f"--seeds must be from 1 to {MAX_SEEDS}, got {args.seeds}")
    with claimed_folder(args.out):
        return _paper_table(args)


def _paper_table(args: argparse.Namespace) -> Result:
    """Render and write one table, in a folder that is claimed."""
    chosen = PAPER_TABLES[args.name]
    seeds = list(range(args.seed, args.seed + args.seeds))
    entries, left_out = fitting(args, chosen.rows) if chosen.optional else (list(chosen.rows), {})
    rows, about = run_entries(args, entries, seeds)
    made = grid(args.out / f"{args.name}.mp4", rows, metadata=grid_tags(rows, about))
    told = [chosen.caption, "", table(rows), "", *filter(None, [chosen.note]), NOTE, *left_out_notes(left_out)]
    if args.seeds > 1:
        told.append(f"Means over {args.seeds} seeds, {seeds[0]} to {seeds[-1]}.")
    if args.demo:
        told.append("Made by the embedded toy model: these rows say nothing about real weights.")
    found = {
        "caption": chosen.caption,
        "note": chosen.note,
        "seeds": seeds,
        "about": about,
        "entries": [asdict(entry) for entry in entries],
        "left_out": left_out,
        "grid": str(made.path),
        "rows": [row.to_dict() for row in rows],
    }
    return written(args.out, args.name, "\n".join(told), found, [f"grid     {made.path}"])


@dataclass(frozen=True)
class ToyJob:
    """A video of the toy world as a worker gets it.

    Attributes:
        weights: files of the model and the autoencoder, as for `Judge`.
        timeline: None for the loss after a long past.
        judge: where the worker is this process; others load their own.
    """

    weights: tuple[str | None, str | None]
    row: Entry | Rendered
    number: int
    timeline: Timeline | None
    judge: Judge | None


_judges = Kept()


def judge_video(job: ToyJob) -> Numbers:
    """Make and measure one video of the toy world; to be called in any process."""
    judge = job.judge or _judges.get(job.weights, lambda: Judge(*job.weights))
    row, number, timeline = job.row, job.number, job.timeline
    if isinstance(row, Rendered):
        assert timeline is not None  # see `QUESTIONS`
        return judge.measure_rendered(timeline, seed=number, encoded=row.encoded)
    if timeline is None:
        return judge.history_losses(row.policy, row.roles, number, row.shuffle)
    return judge.measure(row.policy, row.roles, timeline, number, row.shuffle)


class ToyVideos:
    """Videos of the toy world, made in memory; a video that several questions use is made once."""

    def __init__(self, args: argparse.Namespace, farm: Farm):
        self.weights, self.videos, self.farm = (args.demo_weights, args.demo_autoencoder), args.videos, farm
        if farm.parallel:
            given = portable(args)
            self.weights = given.demo_weights, given.demo_autoencoder
        self.judge = Judge(*self.weights)
        self.fingerprint = self.judge.info.fingerprint
        self._known: dict[Any, Numbers] = {}

    def suited(self, question: Question) -> Question:
        return question

    def measure(self, story: str, rows: Sequence[Entry | Rendered], on_video: Callable[[], Any]) -> Measure:
        """Make what is not known of the rows' videos; returns how to look each of them up."""
        jobs: dict[str, ToyJob] = {}
        keys: dict[str, Any] = {}
        timelines = STORIES[story](self.videos) if story in STORIES else [None] * self.videos
        for row in rows:
            for number, timeline in enumerate(timelines):
                key, name = _key(story, row, number), f"{_name(row)}, video {number}"
                if key in self._known or key in keys.values():
                    on_video()
                    continue
                keys[name] = key
                judge = None if self.farm.parallel else self.judge
                jobs[name] = ToyJob(self.weights, row, number, timeline, judge)
        for outcome in self.farm.run(judge_video, jobs):
            self._known[keys[outcome.name]] = outcome.get()
            on_video()
        return lambda row, number: self._known[_key(story, row, number)]


def _key(story: str, row: Entry | Rendered, number: int) -> Any:
    """What a video of the toy world depends on."""
    return story, row if isinstance(row, Rendered) else (row.policy, row.roles, row.shuffle), number


def _name(row: Entry | Rendered) -> str:
    return row.label if isinstance(row, Rendered) else f"{row.label} ({row.roles}, shuffle {row.shuffle})"
