"""The command that answers `evaluate.QUESTIONS` with the embedded model."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .arguments import Result
from .compare_commands import written
from .demo.judge import Judge, mixed, one_prompt, six_prompts, there_and_back
from .errors import HeadForcingError
from .evaluate import QUESTIONS, Numbers, answer
from .files import check_writable
from .methods.base import MethodPolicy
from .policy import CachePolicy
from .timeline import Timeline

MAX_VIDEOS = 10_000
STORIES: dict[str, Callable[[int], list[Timeline]]] = {
    "mixed": lambda count: mixed(count, seconds=81 / 16),
    "one_prompt": lambda count: one_prompt(count, seconds=60.0),
    "six_prompts": lambda count: six_prompts(count, seconds=60.0),
    "there_and_back": lambda count: there_and_back(count, blocks=16),
}


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add `evaluate` to the command line."""
    sub = command("evaluate", evaluate, "Answer questions about the method on the toy world, where the truth is known.")
    sub.add_argument(
        "questions", nargs="+", choices=QUESTIONS, help="; ".join(f"{k}: {q.asks}" for k, q in QUESTIONS.items())
    )
    sub.add_argument("--videos", type=int, default=16, help="of every row, each with its own prompts and noise (16)")
    sub.add_argument("--out", type=Path, default=Path("output/evaluate"), help="folder for QUESTION.md and .json")
    sub.add_argument("--weights", help="other weights of the embedded architecture")
    sub.add_argument("--autoencoder", help="the autoencoder that belongs to them")


def evaluate(args: argparse.Namespace) -> Result:
    """Write `QUESTION.md` and `QUESTION.json` for each question."""
    if not 1 <= args.videos <= MAX_VIDEOS:
        raise HeadForcingError(f"--videos must be from 1 to {MAX_VIDEOS}, got {args.videos}")
    check_writable(args.out / "probe")
    measured = Measured(Judge(args.weights, args.autoencoder), args.videos)
    texts, found = [], {}
    for name in args.questions:
        question, begun = QUESTIONS[name], time.monotonic()
        with tqdm(total=len(question.rows) * args.videos, desc=name, unit="video", disable=args.json) as bar:
            told = answer(question, args.videos, measured.of(question.story, bar.update))
        text = "\n\n".join(filter(None, [question.asks, told.table(), question.note]))
        about = {
            **told.to_dict(),
            "weights": measured.judge.info.fingerprint,
            "minutes": (time.monotonic() - begun) / 60,
        }
        texts.append(written(args.out, name, text, about)["text"])
        found[name] = about
    return {"text": "\n\n".join(texts), "json": found}


class Measured:
    """Measures each video once, also where several questions ask for it."""

    def __init__(self, judge: Judge, videos: int):
        self.judge, self.videos = judge, videos
        self._known: dict[Any, Numbers] = {}

    def of(self, story: str, on_video: Callable[[], Any]) -> Callable[[CachePolicy | MethodPolicy, str, int], Numbers]:
        timelines = STORIES[story](self.videos)

        def measure(policy: CachePolicy | MethodPolicy, roles: str, number: int) -> Numbers:
            key = (story, policy, roles, number)
            if key not in self._known:
                self._known[key] = self.judge.measure(policy, roles, timelines[number], seed=number)
            on_video()
            return self._known[key]

        return measure
