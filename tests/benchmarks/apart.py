"""Measure in another process, so that a kernel which reads where it must not ends nothing but its own measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

SCRIPT = Path(__file__).resolve().parent / "run.py"
MOST_SECONDS = 150.0  # of one measurement
_LAST = 4000  # characters of what a process said that are kept when it fails


class Apart:
    """Measurements of the benchmark command, each in a process of its own, in limited time.

    Args:
        arguments: of the command; `--worker NAME` has it make a measurement and leave it in a file.
        seconds: of all together.
    """

    def __init__(self, arguments: Sequence[str], seconds: float):
        self.arguments, self.seconds = arguments, seconds
        self._end = time.monotonic() + seconds

    def measure(self, name: str) -> Any:
        """The measurement of that name; why there is none where its process failed or the time was over."""
        limit = min(MOST_SECONDS, self._end - time.monotonic())
        if limit <= 0:
            return not_available(f"not measured: the {self.seconds:.0f} s for all were over")
        with TemporaryDirectory() as folder:
            file = Path(folder, "measured")
            reason, said = run_apart([*self.arguments, "--worker", name, "--left", str(file)], limit, file)
            return not_available(reason, said) if reason else torch.load(file, weights_only=True)


def run_apart(arguments: Sequence[str], seconds: float, file: Path) -> tuple[str, str]:
    """Run the benchmark command, which is to write a file.

    Returns why it failed, empty if it did not, and the end of what it said then.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            [sys.executable, SCRIPT, *arguments],
            env=environment, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return f"stopped after {seconds:.0f} s", said[-_LAST:]
    if done.returncode:
        last = (done.stdout.strip().splitlines() or [""])[-1]
        return f"its process ended with {done.returncode}: {last[:160]}", done.stdout[-_LAST:]
    return ("", "") if file.is_file() else ("its process left nothing", done.stdout[-_LAST:])


def not_available(reason: str, said: str = "") -> dict[str, str]:
    """What stands in place of a measurement."""
    return {"not_available": reason} | ({"traceback": said} if said else {})


def refusal(error: Exception) -> dict[str, str]:
    """The same for an exception that is being handled."""
    line = (str(error).strip().splitlines() or [""])[0][:160]
    return not_available(f"{type(error).__name__}: {line}", traceback.format_exc())


def tell(line: str) -> None:
    """Print a line at once, for those who watch a long run."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
