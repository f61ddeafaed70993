"""The process that started the ranks: they end when it does, however it ends. Imports no torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path

from ..files import lock, unlock
from .rank_outcome import FOLDER

_LOCK = "starter.lock"  # held while the process runs: every operating system frees it when the process is killed


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """Show ranks that read this folder that this process runs."""
    held = lock(folder / _LOCK)
    try:
        yield
    finally:
        if held is not None:
            unlock(held)


def end_with_starter() -> None:
    """End this rank within a second of the process that has started it, whatever the rank does then."""
    folder = Path(os.environ[FOLDER])

    def wait() -> None:
        try:
            lock(folder / _LOCK, inf)
        finally:
            os._exit(1)

    threading.Thread(target=wait, name="head forcing starter", daemon=True).start()
