"""The commands `evaluate` (`QUESTIONS`, of real weights) and `tables` (the paper's, also of the embedded model)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict

from tqdm import tqdm

from ..headforcing_core.commands.arguments import Result
from ..headforcing_core.commands.compare import (
    RENDERED_FILES,
    add_source_arguments,
    fitting,
    grid_tags,
    run_entries,
    write_result,
)
from ..headforcing_core.commands.farm_arguments import farm_of
from ..headforcing_core.commands.metrics import add_metric_arguments
from ..headforcing_core.commands.paths import folder_written
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import check_writable, claimed_folder
from ..headforcing_core.render.comparison import NOTE, grid, left_out_notes, table
from . import vbench
from .answers import Answer, answer
from .paper_tables import BUDGET, PAPER_TABLES, budget_table, budgets
from .questions import QUESTIONS, SHUFFLES, Question, measured_rows, with_shuffles
from .read_vbench import export_videos
from .real_videos import RealVideos

MAX_SEEDS = 1000
MAX_VIDEOS = 10_000


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `evaluate` and `tables` to the command line."""
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
    sub.add_argument(
        "--shuffles",
        type=int,
        default=SHUFFLES,
        help=f"of the head roles, in rows of shuffles, each on all videos; 0 leaves such rows empty ({SHUFFLES})",
    )
    sub.add_argument(
        "--vbench",
        type=vbench.FOLDER,
        metavar="FOLDER",
        help="lay out the videos for VBench; read-vbench reads its results",
    )
    add_metric_arguments(sub)
    answers = (f"{name}.{ending}" for name in QUESTIONS for ending in ("md", "json"))
    add_source_arguments(sub, folder_written(*answers, *RENDERED_FILES), demo=False)


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
        return _answers(args, {name: with_shuffles(QUESTIONS[name], args.shuffles) for name in args.questions})


def _answers(args: argparse.Namespace, questions: dict[str, Question]) -> Result:
    """Answer and write each question, in a folder that is claimed."""
    farm = farm_of(args)
    videos = RealVideos(args, questions, farm)
    texts, found = [], {}
    with farm:
        for name, question in questions.items():
            question, begun = videos.suited(question), time.monotonic()
            rows = measured_rows(question)
            with tqdm(total=len(rows) * args.videos, desc=name, unit="video", disable=args.json) as bar:
                told = answer(question, args.videos, videos.measure(rows, bar.update))
            minutes = (time.monotonic() - begun) / 60
            found[name] = {**told.to_dict(), "weights": videos.fingerprint, "minutes": minutes}
            texts.append(write_result(args.out, name, _text(told), found[name])["text"])
    if args.vbench is not None:
        texts.append(export_videos(args.vbench, args.questions, args.shuffles, videos.made()))
    return {"text": "\n\n".join(texts), "json": found}


def _text(told: Answer) -> str:
    return "\n\n".join(filter(None, [told.question.asks, told.table(), told.question.note]))


def tables(args: argparse.Namespace) -> Result:
    """Write `NAME.md` and `NAME.json` of one of the paper's tables, the videos, and a grid of the first seed's videos.

    The rows are those of the question of that name, but all use one timeline, and are measured like `compare`.
    """
    if args.name == "budget":
        sizes = budgets()
        text = f"{BUDGET} (frame-slots, 30x12 heads)\n\n{budget_table(sizes)}"
        return write_result(args.out, "budget", text, {"caption": BUDGET, "rows": [row.to_dict() for row in sizes]})
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
