"""Texts that arguments give or name: prompts, lists of videos, and files that are read again."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..headforcing_core.errors import HeadForcingError, one_line
from ..headforcing_core.files import check_regular, explained, path_of
from ..headforcing_core.timeline.characters import MARKS_OF_LETTERS, same_letters
from ..headforcing_core.timeline.clock import BlockClock
from ..headforcing_core.timeline.paste.paste import Pasted, paste
from ..headforcing_core.timeline.references import NAME
from ..headforcing_core.timeline.timeline import MAX_TEXT_BYTES

RESTED_SECONDS = 0.3  # of a followed file: an editor may write it in several pieces


def read_text(value: str, pictures: Sequence[str] = ()) -> str:
    """The argument itself, or the contents of @FILE, a regular file of at most 1 MB. The name of a
    file without @ is refused: it would be a prompt.

    Words that begin with the name of one of the `pictures` are a prompt, unless there is a file of
    that name.
    """
    if not value.startswith("@"):
        if os.path.isfile(value):
            raise HeadForcingError(f"{value} is a file; @{value} reads it")
        return value
    path = path_of(value[1:])
    name = re.match(rf"@({NAME})(?![\w{MARKS_OF_LETTERS}./\\:-])", value)
    there = os.path.exists(path)
    if name is not None and same_letters(name[1]) in map(same_letters, pictures) and not there:
        return value
    try:
        return read_file(path, "the prompts file ", MAX_TEXT_BYTES)
    except HeadForcingError as error:
        if " " in value and not there:
            raise HeadForcingError(
                f"{error}; a prompt that begins with @ is written 0:00 {value[:40]}"
            ) from None
        raise


def translated(
    text: str, value: str, clock: BlockClock | None = None, seconds: float | None = None
) -> Pasted:
    """The story of a text, which an argument gave; says in one line on stderr from which form it
    was translated. Raises as `paste`.
    """
    pasted = paste(text, clock, seconds)
    if pasted.is_translated:
        name = value[1:] if text != value else "the text"
        sys.stderr.write(f"note: {one_line(name)} is {pasted.sentence}.\n")
    return pasted


def read_file(path: Path, kind: str = "", most: int = 64 << 20) -> str:
    """The text of a regular file of at most so many bytes; errors begin with its kind and name."""
    check_regular(path)
    with explained(f"{kind}{path} cannot be read"), open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise HeadForcingError(
            f"{kind}{path} is larger than {most >> 20} MB; split it into several"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise HeadForcingError(
            f"{kind}{path} is not UTF-8 text ({error.reason}); save it as UTF-8"
        ) from error


class FollowedFile:
    """A text file that is read again when it has changed; `text` is the one in use, which its
    reader sets.
    """

    def __init__(self, path: Path):
        self.path = path
        self._seen = self._state()
        self.text = read_text(f"@{path}")

    def changed(self) -> str | None:
        """The new text, None if it is the same or was written just now; raises as `read_text`, once
        for each change.
        """
        state = self._state()
        if state == self._seen or (
            state is not None and 0 <= time.time() - state[0] / 1e9 < RESTED_SECONDS
        ):
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
