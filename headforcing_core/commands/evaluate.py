"""The command that answers `evaluate.QUESTIONS`: on the toy world, where the truth is known, or on real weights."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from ..demo.judge import Judge, mixed, one_prompt, six_prompts, there_and_back
from ..errors import HeadForcingError
from ..files import check_writable
from ..head_profiles.prompts import PROFILING_PROMPTS
from ..render.resources import check_disk, in_turn
from ..studies.comparison import Entry
from ..studies.questions import QUESTIONS, UNJUDGED, Measure, Numbers, Question, Rendered, Row, answer
from ..timeline.timeline import Timeline
from .arguments import Result, choose_profile, embeddings, read_text
from .compare import Loaded, Source, add_source_arguments, own_arguments, written
from .render import checked_needs

MAX_VIDEOS = 10_000
STORIES: dict[str, Callable[[int], list[Timeline]]] = {
    "mixed": lambda count: mixed(count, seconds=81 / 16),
    "still": lambda count: one_prompt(count, seconds=81 / 16),
    "one_prompt": lambda count: one_prompt(count, seconds=60.0),
    "six_prompts": lambda count: six_prompts(count, seconds=60.0),
    "there_and_back": lambda count: there_and_back(count, blocks=16),
}
ANY_WORLD = ("one_prompt", "six_prompts")  # stories that need no toy world


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `evaluate` to the command line."""
    text = "Tables with intervals: methods and ablations on the same prompts and noise, with the demo or real weights."
    sub = command("evaluate", evaluate, text)
    asked = "; ".join(f"{name}: {question.asks}" for name, question in QUESTIONS.items())
    sub.add_argument("questions", nargs="+", choices=QUESTIONS, metavar="QUESTION", help=asked)
    sub.add_argument("--videos", type=int, default=16, help="of every row, each with its own prompts and noise (16)")
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
    questions = {name: QUESTIONS[name] for name in args.questions}
    check_writable(args.out / "probe")
    videos = ToyVideos(args) if args.demo else RealVideos(args, questions)
    texts, found = [], {}
    for name, question in questions.items():
        question, begun = videos.suited(question), time.monotonic()
        with tqdm(total=len(question.rows) * args.videos, desc=name, unit="video", disable=args.json) as bar:
            told = answer(question, args.videos, videos.measure(question.story, bar.update))
        text = "\n\n".join(filter(None, [question.asks, told.table(), question.note]))
        about = {**told.to_dict(), "weights": videos.fingerprint, "minutes": (time.monotonic() - begun) / 60}
        texts.append(written(args.out, name, text, about)["text"])
        found[name] = about
    return {"text": "\n\n".join(texts), "json": found}


class ToyVideos:
    """Videos of the toy world, made in memory; each is made once, also where several questions ask for it."""

    def __init__(self, args: argparse.Namespace):
        self.judge, self.videos = Judge(args.demo_weights, args.demo_autoencoder), args.videos
        self.fingerprint = self.judge.info.fingerprint
        self._known: dict[Any, Numbers] = {}

    def suited(self, question: Question) -> Question:
        return question

    def measure(self, story: str, on_video: Callable[[], Any]) -> Measure:
        timelines = STORIES[story](self.videos) if story in STORIES else []

        def made(row: Row, number: int) -> Numbers:
            if isinstance(row, Rendered):
                return self.judge.measure_rendered(timelines[number], seed=number, encoded=row.encoded)
            if timelines:
                return self.judge.measure(row.policy, row.roles, timelines[number], seed=number)
            return self.judge.history_losses(row.policy, row.roles, number)

        def measured(row: Row, number: int) -> Numbers:
            settings = row if isinstance(row, Rendered) else (row.policy, row.roles)
            key = (story, settings, number)
            if key not in self._known:
                self._known[key] = made(row, number)
            on_video()
            return self._known[key]

        return measured


class RealVideos:
    """Videos of real weights, which are written to the folder, and what can be measured without knowing the truth."""

    def __init__(self, args: argparse.Namespace, questions: dict[str, Question]):
        stories = {question.story for question in questions.values()}
        if strange := stories.difference(ANY_WORLD):
            unfit = next(name for name, question in questions.items() if question.story in strange)
            raise HeadForcingError(f"the question {unfit!r} can only be asked about the toy world: give --demo")
        if len(stories) > 1:
            raise HeadForcingError(
                "ask about one prompt and about six prompts in two commands, each with its --prompts"
            )
        self.args = args
        self.sources = [self._source(text) for text in story_texts(args.prompts, stories.pop(), args.videos)]
        self._check()
        texts = list(dict.fromkeys(text for source in self.sources for text in source.texts))
        self._embeds = dict(zip(texts, embeddings(args, texts, self.sources[0].device), strict=True))
        self._loaded: Loaded | None = None
        self.fingerprint = self.sources[0].info.fingerprint

    def _source(self, text: str) -> Source:
        return Source.inspect(argparse.Namespace(**vars(self.args) | {"prompts": text}))

    def _check(self) -> None:
        """Everything that can be refused, room on the disk for all videos included, before anything is loaded."""
        needs = []
        for entry in dict.fromkeys(entry for name in self.args.questions for entry in _entries(QUESTIONS[name])):
            for number, source in enumerate(self.sources):
                own = own_arguments(source.args, entry, self.args.seed + number)
                plan = source.planned(entry, own)(profile=choose_profile(own.profile))
                one_of = source.dtype, source.device, source.info, own.video
                needs.append(checked_needs(own, plan, *one_of, decode=source.decode, disk=False))
        check_disk(in_turn(needs), self.args.runs, self.args.out)

    def suited(self, question: Question) -> Question:
        return replace(question, columns=UNJUDGED)

    def measure(self, story: str, on_video: Callable[[], Any]) -> Measure:
        def measured(entry: Row, number: int) -> Numbers:
            assert isinstance(entry, Entry)  # only the toy world can be rendered, see `ANY_WORLD`
            source = self.sources[number]
            embeds = [self._embeds[text] for text in source.texts]
            loaded = (
                source.load(False, embeds)
                if self._loaded is None
                else replace(self._loaded, source=source, embeds=embeds)
            )
            self._loaded = loaded
            own = own_arguments(source.args, entry, self.args.seed + number)
            found = loaded.render(entry, self.args.seed + number, own, source.planned(entry, own))
            on_video()
            return {key: found.drift[key] for key in UNJUDGED}

        return measured


def _entries(question: Question) -> list[Entry]:
    return [row for row in question.rows if isinstance(row, Entry)]


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
