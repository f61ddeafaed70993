"""The commands `evaluate` (`QUESTIONS`, of real weights), `tables` (the paper's, also of the embedded model), and
`read-vbench` (what VBench measured of `evaluate --vbench`)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from ..headforcing_core.commands.arguments import Result, add_metric_arguments, add_source_arguments
from ..headforcing_core.commands.compare import fitting, grid_tags, run_entries, write_result
from ..headforcing_core.commands.farms import farm_of
from ..headforcing_core.commands.parser import RENDERED_FILES, folder_written
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import check_writable, claimed_folder
from ..headforcing_core.render.comparison import NOTE, Entry, grid, left_out_notes, table
from ..headforcing_core.report.learned import registry
from ..headforcing_core.report.learned.base import MeasuredVideo, Panel
from . import vbench
from .answers import answer
from .paper_tables import BUDGET, PAPER_TABLES, budget_table, budgets
from .prompts import prompts_of, stories_of
from .questions import QUESTIONS, SHUFFLES, UNJUDGED, Question, Rendered, renders_of
from .statistics import Numbers
from .videos import Scores, check_room, fitting_rows, load_metrics, plan_videos

MAX_SEEDS = 1000
MAX_VIDEOS = 10_000


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `evaluate`, `tables` and `read-vbench` to the command line."""
    sub = command("tables", tables, "Render and measure the rows of the paper's tables; no VBench scores.")
    sub.add_argument("name", choices=[*PAPER_TABLES, "budget"], help="budget computes sizes only and needs no model")
    sub.add_argument("--seeds", type=int, default=1, help="videos per row, from --seed on; the table has their means")
    tables_files = (f"{name}.{ending}" for name in (*PAPER_TABLES, "budget") for ending in ("md", "json", "mp4"))
    add_source_arguments(sub, folder_written(*tables_files, *RENDERED_FILES), required=False)

    text = "Compare methods and ablations of real weights on the same prompts and noise, in tables with intervals."
    sub = command("evaluate", evaluate, text)
    asked = "; ".join(f"{name}: {question.asks}" for name, question in QUESTIONS.items())
    sub.add_argument("questions", nargs="+", choices=QUESTIONS, metavar="QUESTION", help=asked)
    sub.add_argument("--videos", type=int, default=16, help="per row, each with its own prompts and noise (16)")
    told = f"of the head roles, in rows of shuffles, each on all videos; 0 leaves such rows empty ({SHUFFLES})"
    sub.add_argument("--shuffles", type=int, default=SHUFFLES, help=told)
    told = "lay out the videos for VBench; read-vbench reads its results"
    sub.add_argument("--vbench", type=vbench.FOLDER, metavar="FOLDER", help=told)
    add_metric_arguments(sub)
    answers = (f"{name}.{ending}" for name in QUESTIONS for ending in ("md", "json"))
    add_source_arguments(sub, folder_written(*answers, "videos/**/*"), demo=False)

    sub = command("read-vbench", read_vbench, "Read what VBench measured of `evaluate --vbench FOLDER` into tables.")
    sub.add_argument("folder", type=vbench.FOLDER)


def evaluate(args: argparse.Namespace) -> Result:
    """Write `QUESTION.md` and `QUESTION.json` for each question."""
    if args.demo:
        raise HeadForcingError("evaluate is for --weights: the embedded model is measured by `rooms`")
    if not 1 <= args.videos <= MAX_VIDEOS:
        raise HeadForcingError(f"--videos must be from 1 to {MAX_VIDEOS}, got {args.videos}")
    if not 0 <= args.shuffles <= MAX_VIDEOS:
        raise HeadForcingError(f"--shuffles must be from 0 to {MAX_VIDEOS}, got {args.shuffles}")
    if args.vbench is not None:
        check_writable(args.vbench / "export.json")
    with claimed_folder(args.out):
        return _answers(args, {name: QUESTIONS[name].with_shuffles(args.shuffles) for name in args.questions})


def _answers(args: argparse.Namespace, questions: dict[str, Question]) -> Result:
    """Answer and write each question, in a folder that is claimed; the same command goes on there."""
    begun, farm, stories = time.monotonic(), farm_of(args), {question.story for question in questions.values()}
    if len(stories) > 1:
        raise HeadForcingError("ask about one prompt and about six prompts in two commands, each with its --prompts")
    (story,) = stories
    panel, metrics = load_metrics(args)
    rows = {row.label: row for question in questions.values() for row in question.rows}
    planned, left_out = plan_videos(args, rows, {story: story_texts(args.prompts, story, args.videos)})
    scores = Scores(planned, metrics)
    unfit, needs = fitting_rows(scores.unmade(), farm)
    left_out |= unfit
    prompts = max((len(each.video.plan.timeline.segments) for each in planned), default=1)
    modelled = () if panel is None else numbers_of(panel, prompts)
    asked = {name: suit(name, question, left_out, modelled) for name, question in questions.items()}
    scores = scores.without(left_out)
    check_room(scores.unmade(), needs)
    scores.complete(farm, args.json)
    names = {(each.video.entry, each.number): each.name for each in scores.videos}

    def measure(entry: Entry | Rendered, number: int) -> Numbers:
        assert isinstance(entry, Entry)  # of real weights nobody knows the truth
        return {key: scores.known[names[entry, number]].get(key) for key in UNJUDGED + modelled}

    texts, found = [], {}
    about = {"weights": planned[0].video.source.info.fingerprint, "minutes": (time.monotonic() - begun) / 60}
    for name, question in asked.items():
        told = answer(question, args.videos, measure)
        found[name] = told.to_dict() | about
        texts.append(write_result(args.out, name, told.text(), found[name])["text"])
    if args.vbench is not None:
        scores.lay_out(args.vbench, story, args.questions, args.shuffles)
        reading = f"python -m headforcing.research read-vbench {args.vbench}"
        texts.append(f"for VBench:\n{vbench.command(args.vbench)}\n{reading}")
    return {"text": "\n\n".join(texts), "json": found}


def suit(name: str, question: Question, left_out: Mapping[str, str], modelled: tuple[str, ...]) -> Question:
    """The question without rows that are left out, and with the columns that are measured.

    Only scores of texts say whether prompts are followed; no number says which video is the better one. Raises
    HeadForcingError if Head Forcing or all other rows are left out.
    """
    mine = {row.label: left_out[row.label] for row in question.rows if row.label in left_out}
    last = question.rows[-1].label
    if last in mine or len(mine) == len(question.rows) - 1:
        label, why = (last, mine[last]) if last in mine else next(iter(mine.items()))
        raise HeadForcingError(f"no row of {name!r} besides {last} fits; {label}: {why}" if label != last else why)
    answers = question.story == "six_prompts" and "text_score" in modelled
    return replace(
        question,
        rows=tuple(row for row in question.rows if row.label not in mine),
        columns=UNJUDGED + modelled,
        primary="text_score" if answers else "",
        note="\n".join(filter(None, [question.note, *left_out_notes(mine)])),
    )


def numbers_of(panel: Panel, prompts: int) -> tuple[str, ...]:
    """The keys of the numbers that videos with up to so many prompts have, those that tables have columns for."""
    video = MeasuredVideo(1.0, [(float(start), "") for start in range(prompts)])
    return tuple(key for key in panel.begin(video).numbers() if key in registry.COLUMNS)


def story_texts(given: str | None, story: str, count: int) -> list[str]:
    """One timeline for each video: lines of one prompt, or lines of JSON."""
    if story == "one_prompt":
        return prompts_of(given, count)
    if given is None:
        raise HeadForcingError('--prompts must name a file with a line {"prompts": [six texts]} for each video')
    return stories_of(given, count, "--prompts")


def read_vbench(args: argparse.Namespace) -> Result:
    """Write `QUESTION-vbench.md` and `QUESTION-vbench.json` into the folder of an export."""
    folder: Path = args.folder
    exported, measured = vbench.read_export(folder), vbench.read_results(folder)
    if unknown := set(exported.questions) - set(QUESTIONS):
        raise HeadForcingError(
            f"{folder} is about {unknown.pop()!r}, which is no question of `evaluate`: export it anew"
        )

    def numbers(row: Entry | Rendered, number: int) -> Numbers:
        assert isinstance(row, Entry)  # videos without a model are not exported
        return dict.fromkeys(vbench.COLUMNS) | measured.get((row.key, exported.files[row.key][number]), {})

    texts, found = [], {}
    for name in exported.questions:
        question = QUESTIONS[name].with_shuffles(exported.shuffles)
        rows = question.rows
        there = tuple(row for row in rows if all(entry.key in exported.files for entry in renders_of(row)))
        if not there or there[-1] != rows[-1]:
            raise HeadForcingError(f"{folder} has no row {rows[-1].label!r}: export it anew")
        left_out = (f"not laid out: {row.label}" for row in rows if row not in there)
        note = "\n".join(filter(None, [question.note, *left_out]))
        # none of VBench's numbers answers a question of `evaluate`
        question = replace(question, rows=there, columns=tuple(vbench.COLUMNS), primary="", note=note)
        told = answer(question, exported.videos, numbers)
        found[name] = told.to_dict()
        texts.append(write_result(folder, f"{name}-vbench", told.text(), found[name])["text"])
    return {"text": "\n\n".join(texts), "json": found}


def tables(args: argparse.Namespace) -> Result:
    """Write `NAME.md` and `NAME.json` of one of the paper's tables, the videos, and a grid of the first seed's videos.

    The rows are those of the question of that name, but all use one timeline, and are measured like `compare`.
    """
    if args.name == "budget":
        sizes = budgets()
        text = f"{BUDGET} (frame-slots, 30x12 heads)\n\n{budget_table(sizes)}"
        return write_result(args.out, "budget", text, {"caption": BUDGET, "rows": [asdict(row) for row in sizes]})
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
    return write_result(args.out, args.name, "\n".join(told), found, [f"grid     {made.path}"])
