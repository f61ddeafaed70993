"""The commands `evaluate` (`QUESTIONS`) and `tables` (the paper's), with the toy world or with real weights."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from ..demo.judge import Judge, mixed, one_prompt, six_prompts, there_and_back
from ..errors import HeadForcingError
from ..farm.farm import Farm
from ..files import check_regular, claimed_folder
from ..head_profiles.prompts import PROFILING_PROMPTS
from ..studies.answers import Answer, answer, measured_rows
from ..studies.comparison import NOTE, Entry, grid, left_out_notes, table
from ..studies.paper_tables import BUDGET, PAPER_TABLES, budget_table, budgets
from ..studies.questions import QUESTIONS, SHUFFLES, UNJUDGED, Measure, Numbers, Question, Rendered, Shuffles
from ..timeline.timeline import Timeline
from .arguments import Result, farm_of, portable, read_text
from .compare import (
    ComparedVideo,
    add_source_arguments,
    check_videos,
    fitting,
    grid_tags,
    run_compared,
    run_entries,
    source_of_files,
    written,
)
from .kept import Kept, check_roles

MAX_SEEDS = 1000
MAX_VIDEOS = 10_000
STORIES: dict[str, Callable[[int], list[Timeline]]] = {
    "mixed": lambda count: mixed(count, seconds=81 / 16),
    "still": lambda count: one_prompt(count, seconds=81 / 16),
    "one_prompt": lambda count: one_prompt(count, seconds=60.0),
    "six_prompts": lambda count: six_prompts(count, seconds=60.0),
    "there_and_back": lambda count: there_and_back(count, blocks=16),
}
ANY_WORLD = ("one_prompt", "six_prompts")  # stories that do not need the toy world


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
    add_source_arguments(sub)


def evaluate(args: argparse.Namespace) -> Result:
    """Write `QUESTION.md` and `QUESTION.json` for each question."""
    if not 1 <= args.videos <= MAX_VIDEOS:
        raise HeadForcingError(f"--videos must be from 1 to {MAX_VIDEOS}, got {args.videos}")
    if args.demo and (args.prompts is not None or args.seconds):
        raise HeadForcingError(
            "--prompts and --seconds are for --weights: with --demo each question has its own videos"
        )
    if not 0 <= args.shuffles <= MAX_VIDEOS:
        raise HeadForcingError(f"--shuffles must be from 0 to {MAX_VIDEOS}, got {args.shuffles}")
    if args.only_known and args.known is None:
        raise HeadForcingError("--only-known needs --known FILE, an answer in JSON that the table is computed from")
    if args.known is not None and (len(args.questions) > 1 or not args.demo):
        raise HeadForcingError("--known is for one question, with --demo")
    questions = {name: _with_shuffles(QUESTIONS[name], args.shuffles) for name in args.questions}
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
    return {"text": "\n\n".join(texts), "json": found}


def _text(told: Answer) -> str:
    return "\n\n".join(filter(None, [told.question.asks, told.table(), told.question.note]))


def _with_shuffles(question: Question, count: int) -> Question:
    rows = [replace(row, count=count) if isinstance(row, Shuffles) else row for row in question.rows]
    return replace(question, rows=tuple(rows))


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


class RealVideos:
    """Videos of real weights, written to the folder, with the metrics that need no ground truth."""

    def __init__(self, args: argparse.Namespace, questions: dict[str, Question], farm: Farm):
        self._args, self._farm = args, farm
        stories = {question.story for question in questions.values()}
        if strange := stories.difference(ANY_WORLD):
            unfit = next(name for name, question in questions.items() if question.story in strange)
            raise HeadForcingError(f"the question {unfit!r} can only be asked about the toy world: give --demo")
        if len(stories) > 1:
            raise HeadForcingError(
                "ask about one prompt and about six prompts in two commands, each with its --prompts"
            )
        self._stories = story_texts(args.prompts, stories.pop(), args.videos)
        self._common = source_of_files(args, self._stories[0])
        sources = [self._common, *map(self._common.with_prompts, self._stories[1:])]
        rows = dict.fromkeys(row for question in questions.values() for row in measured_rows(question, args.videos))
        self._videos = {
            (entry, number): ComparedVideo.of(source, entry, args.seed + number, args.out)
            for entry in rows
            if isinstance(entry, Entry)
            for number, source in enumerate(sources)
        }
        check_videos(list(self._videos.values()), farm)
        texts = list(dict.fromkeys(text for source in sources for text in source.texts))
        self._embeds = dict(zip(texts, self._common.encode(texts), strict=True))
        jobs = {
            video.path.stem: (video.source.job(video.plan, self._embeds_of(video)), video.source)
            for video in self._videos.values()
        }
        check_roles(jobs, farm)
        self._setups = {name: job.setup for name, (job, _) in jobs.items()}
        self.fingerprint = self._common.info.fingerprint

    def suited(self, question: Question) -> Question:
        rows = [row for row in question.rows if not isinstance(row, Rendered)]  # nobody knows the truth
        return replace(question, rows=tuple(rows), columns=UNJUDGED, primary="motion")

    def measure(self, story: str, rows: Sequence[Entry | Rendered], on_video: Callable[[], Any]) -> Measure:
        """Make all videos of the rows; returns how to look each of them up."""
        wanted = {self._videos[key].path.stem: key for key in self._videos if key[0] in rows}
        shared = {text: self._farm.share(embed) for text, embed in self._embeds.items()}
        jobs, found = {}, {}
        for name, (entry, number) in wanted.items():
            video = self._videos[entry, number]
            embeds = [shared[text] for text in video.source.texts]
            jobs[name] = video.job(self._args, self._stories[number], embeds, False, self._farm)
        for name, made in run_compared(jobs, self._setups, self._farm):
            found[wanted[name]] = {key: made.drift[key] for key in UNJUDGED}
            on_video()

        def measured(entry: Entry | Rendered, number: int) -> Numbers:
            assert isinstance(entry, Entry)  # only the toy world can be rendered, see `ANY_WORLD`
            return found[entry, number]

        return measured

    def _embeds_of(self, video: ComparedVideo) -> list[Tensor]:
        return [self._embeds[text] for text in video.source.texts]


def story_texts(given: str | None, story: str, count: int) -> list[str]:
    """One timeline for each video: lines of one prompt, or lines of JSON such as `{"prompts": ["...", "..."]}`."""
    if given is None and story == "one_prompt":
        lines = list(PROFILING_PROMPTS)
    elif given is None:
        raise HeadForcingError('--prompts must name a file with a line {"prompts": [six texts]} for each video')
    else:
        lines = [line for line in read_text(given).splitlines() if line.strip()]
    if len(lines) < count:
        raise HeadForcingError(f"--videos asks for {count} videos, but there are prompts for {len(lines)}")
    for line in lines[:count] if story == "six_prompts" else ():
        try:
            prompts = json.loads(line)["prompts"]
        except (ValueError, KeyError, TypeError):
            prompts = None
        if not isinstance(prompts, list) or len(prompts) < 2:
            raise HeadForcingError(f'each line must be JSON like {{"prompts": ["...", "..."]}}, got {line[:60]!r}')
    return lines[:count]
