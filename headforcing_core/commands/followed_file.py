"""A text file that is read again when it has changed, as `--follow` needs it."""

from __future__ import annotations

import time
from pathlib import Path

from .values import read_text

RESTED_SECONDS = 0.3  # an editor may write a file in several pieces


class FollowedFile:
    """A text file that is read again when it has changed.

    Attributes:
        text: what it held when it was read first, or what was put here since.
    """

    def __init__(self, path: Path):
        self.path = path
        self._seen = self._state()
        self.text = read_text(f"@{path}")

    def changed(self) -> str | None:
        """The new text, once for each change; None if it is the same or was written just now.

        Raises HeadForcingError as `read_text`, for a pipe, a missing or a large file too, once for each change.
        """
        state = self._state()
        if state == self._seen or (state is not None and 0 <= time.time() - state[0] / 1e9 < RESTED_SECONDS):
            return None
        self._seen = state
        text = read_text(f"@{self.path}")
        return None if text == self.text else text

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
