"""The end of a render, handed from a rank to the process that started the ranks. Imports no torch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

FOLDER = "HEADFORCING_OUTCOMES"  # environment: where ranks that `start` has started put their outcomes

Outcome = tuple[int, str]  # exit code and text


def started_here() -> bool:
    """Whether `start` has started this rank, and not a torchrun of somebody else."""
    return FOLDER in os.environ


def decided() -> bool:
    """Whether a rank has reported the render's outcome, after which ranks that are started again have nothing to do."""
    return started_here() and said(Path(os.environ[FOLDER])) is not None


def say(rank: int, outcome: Outcome) -> None:
    """Hand `start` an outcome that another start would not change; print it where torchrun was started by hand."""
    if not started_here():
        code, text = outcome
        (sys.stderr if code else sys.stdout).write(f"rank {rank}: {text}\n" if code else f"{text}\n")
        return
    path = Path(os.environ[FOLDER]) / f"outcome-{rank:05}.json"
    written = path.with_suffix(".part")
    written.write_text(json.dumps(outcome), encoding="utf-8")
    written.replace(path)  # whole or not at all: this process may be ended at any moment


def said(folder: Path) -> Outcome | None:
    """The outcome of the first rank that reported one."""
    for path in sorted(folder.glob("outcome-*.json")):
        code, text = json.loads(path.read_text(encoding="utf-8"))
        return code, text
    return None
