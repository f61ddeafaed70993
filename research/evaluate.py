"""The command `evaluate`: tables of `QUESTIONS`, of real weights."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..headforcing_core.commands.arguments import (
    Result,
    add_farm_arguments,
    add_file_arguments,
    add_metric_arguments,
    add_render_arguments,
)
from ..headforcing_core.commands.compare import write_result
from ..headforcing_core.commands.farms import farm_of
from ..headforcing_core.commands.parser import READ, TEXT, folder_written
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import check_writable, claimed_folder
from ..headforcing_core.render.comparison import Entry, left_out_notes
from ..headforcing_core.report.learned import registry
from . import vbench
from .answers import answer
from .prompts import prompts_of, stories_of
from .questions import QUESTIONS, SHUFFLES, UNJUDGED, Question, Rendered
from .statistics import Numbers
from .videos import MAX_VIDEOS, Scores, check_left, load_metrics, plan_videos


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `evaluate` to the commands."""
    text = "Compare methods and ablations of real weights on the same prompts and noise, in tables with intervals."
    sub = command("evaluate", evaluate, text)
    asked = "; ".join(f"{name}: {question.asks}" for name, question in QUESTIONS.items())
    sub.add_argument("questions", nargs="+", choices=QUESTIONS, metavar="QUESTION", help=asked)
    sub.add_argument("--weights", type=READ, required=True, help="checkpoint, .safetensors or .pt; needs --vae")
    told = '@FILE: one prompt a line, or for six prompts a line {"prompts": [six texts]} for each video'
    sub.add_argument("--prompts", type=TEXT, help=told)
    sub.add_argument("--seconds", type=float, default=0.0, help="of each video; default: the timeline's length")
    answers = (f"{name}.{ending}" for name in QUESTIONS for ending in ("md", "json"))
    out, told = folder_written(*answers, "videos/**/*"), "folder; the same command goes on there"
    sub.add_argument("--out", type=out, default=Path("output/evaluate"), help=told)
    sub.add_argument("--videos", type=int, default=16, help="per row, each with its own prompts and noise (16)")
    told = f"of the head roles, in rows of shuffles, each on all videos; 0 leaves such rows empty ({SHUFFLES})"
    sub.add_argument("--shuffles", type=int, default=SHUFFLES, help=told)
    told = "lay out the videos for VBench; the same command then takes up its results"
    sub.add_argument("--vbench", type=vbench.FOLDER, metavar="FOLDER", help=told)
    add_metric_arguments(sub)
    add_file_arguments(sub)
    add_render_arguments(sub)
    add_farm_arguments(sub)
    sub.set_defaults(demo=False)


def evaluate(args: argparse.Namespace) -> Result:
    """Write `QUESTION.md` and `QUESTION.json` for each question; the same command goes on in the folder."""
    for name, least in (("videos", 1), ("shuffles", 0)):
        if not least <= (given := getattr(args, name)) <= MAX_VIDEOS:
            raise HeadForcingError(f"--{name} must be from {least} to {MAX_VIDEOS}, got {given}")
    if args.vbench is not None:
        check_writable(args.vbench / "prompts.json")
    questions = {name: QUESTIONS[name].with_shuffles(args.shuffles) for name in args.questions}
    if len(stories := {question.story for question in questions.values()}) > 1:
        raise HeadForcingError("ask about one prompt and about six prompts in two commands, each with its --prompts")
    (story,) = stories
    prompts = story_texts(args.prompts, story, args.videos)
    with claimed_folder(args.out):
        return _answers(args, questions, story, prompts)


def _answers(args: argparse.Namespace, questions: dict[str, Question], story: str, prompts: list[str]) -> Result:
    farm, (_, metrics) = farm_of(args), load_metrics(args)
    rows = {row.label: row for question in questions.values() for row in question.rows}
    planned, left_out = plan_videos(args, rows, {story: prompts})
    scores = Scores(planned, metrics)
    left_out |= scores.leave_out_unfit(farm)[0]
    for question in questions.values():
        check_left([row.label for row in question.rows], left_out)
    scores.complete(farm, args.json)
    line = [] if args.vbench is None else [scores.add_vbench(args.vbench, story)]
    keys = (*UNJUDGED, *(registry.COLUMNS | vbench.COLUMNS))
    columns = tuple(key for key in keys if any(key in scores.known[each.name] for each in scores.videos))
    names = {(each.video.entry, each.number): each.name for each in scores.videos}

    def measured(row: Entry | Rendered) -> list[Numbers]:
        made = [scores.known[names[row, number]] for number in range(args.videos) if isinstance(row, Entry)]
        return [{key: numbers.get(key) for key in columns} for numbers in made]

    texts, found = [], {}
    for name, question in questions.items():
        kept = tuple(row for row in question.rows if row.label not in left_out)
        missing = {row.label: left_out[row.label] for row in question.rows if row not in kept}
        note = "\n".join(filter(None, [question.note, *left_out_notes(missing)]))
        made = answer(replace(question, rows=kept, columns=columns, note=note), measured)
        found[name] = made.to_dict() | {"weights": planned[0].video.source.info.fingerprint}
        texts.append(write_result(args.out, name, made.text(), found[name])["text"])
    return {"text": "\n\n".join([*texts, *line]), "json": found}


def story_texts(given: str | None, story: str, count: int) -> list[str]:
    """One timeline for each video: lines of one prompt, or lines of JSON."""
    if story == "one_prompt":
        return prompts_of(given, count)
    if given is None:
        raise HeadForcingError('--prompts must name a file with a line {"prompts": [six texts]} for each video')
    return stories_of(given, count, "--prompts")
