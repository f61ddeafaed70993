"""Measure in another process, so that a kernel which reads where it must not ends nothing but its own measurement."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
_LAST = 4000  # characters of what a process said that are kept when it fails


def run_apart(script: str, arguments: Sequence[str], seconds: float, file: Path) -> tuple[str, str]:
    """Run a script of this folder that writes a file, and remove what an earlier run has left there.

    Returns why it failed, empty if it did not, and the end of what it said then.
    """
    file.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / script), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            command, env=environment, timeout=seconds, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout or ""
        return f"stopped after {seconds:.0f} s", said[-_LAST:]
    if done.returncode:
        last = (done.stdout.strip().splitlines() or [""])[-1]
        return f"its process ended with {done.returncode}: {last[:160]}", done.stdout[-_LAST:]
    return ("", "") if file.is_file() else ("its process left nothing", done.stdout[-_LAST:])


def first_line(error: Exception) -> str:
    """Of what an error says, or its class."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def tell(line: str) -> None:
    """Print a line at once, for those who watch a long run."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Budget:
    """Seconds that a number of measurements may take together."""

    def __init__(self, seconds: float):
        self.seconds, self._end = seconds, time.monotonic() + seconds

    def left(self, most: float = float("inf")) -> float:
        """What is left of them, at most `most`."""
        return min(most, self._end - time.monotonic())
