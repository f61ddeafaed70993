"""The outcome of a render, from its ranks to the process that started them, and how they end with
it; without torch.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from math import inf
from pathlib import Path

from ..files import FOLDER_LOCK, lock

# environment: where ranks put their outcomes, and what `start` claims while it runs
FOLDER = "HEADFORCING_OUTCOMES"

Outcome = tuple[int, str]  # exit code and text


def started_here() -> bool:
    """Whether `start` has started this rank, and not a torchrun of somebody else."""
    return FOLDER in os.environ


def decided() -> bool:
    """Whether a rank has reported the render's outcome, after which ranks that are started again
    have nothing to do.
    """
    return started_here() and said(Path(os.environ[FOLDER])) is not None


def say(rank: int, outcome: Outcome) -> None:
    """Hand `start` an outcome that another start would not change; print it where torchrun was
    started by hand.
    """
    if not started_here():
        code, text = outcome
        (sys.stderr if code else sys.stdout).write(
            f"rank {rank}: {text}\n" if code else f"{text}\n"
        )
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


def end_with_starter() -> None:
    """End this rank within a second of the process that has started it, whatever the rank does
    then.
    """
    folder = Path(os.environ[FOLDER])

    def wait() -> None:
        try:
            # every operating system frees it when the starter is killed
            lock(folder / FOLDER_LOCK, inf)
        finally:
            os._exit(1)

    threading.Thread(target=wait, name="head forcing starter", daemon=True).start()
