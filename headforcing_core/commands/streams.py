"""Standard streams that are closed or full, without which a render goes on."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import TextIO

from ..files import reason


class Losable(io.TextIOBase):
    """A stream whose text is lost where it cannot be written."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


@contextmanager
def usable_streams() -> Iterator[None]:
    """In the `with` block nothing fails because stdin, stdout or stderr is closed, or stderr full.

    A closed stream is opened on the null device, because the next file that is opened would get its number, and what
    libraries write to stderr would then be written into that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out, err = sys.stdout or nowhere, sys.stderr or nowhere
        with redirect_stdout(out), redirect_stderr(Losable(err)):
            try:
                yield
            finally:
                for stream in (out, err):
                    try:
                        stream.flush()
                    except (OSError, ValueError):
                        _lose(stream)


def print_result(text: str, code: int) -> int:
    """Print the result of a command; returns its exit code, which is 1 where stdout does not take it.

    Whoever closes a pipe has read what they wanted.
    """
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _lose(sys.stdout)
    except (OSError, ValueError) as error:
        _lose(sys.stdout)
        sys.stderr.write(f"error: the result cannot be printed: {reason(error)}\n")
        return 1
    return code


def _lose(stream: TextIO) -> None:
    """Send what is left in a stream's buffer to the null device: Python would fail on it when it ends."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
