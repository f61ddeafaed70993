"""A prompt as it is read from a timeline, and the error of a timeline."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import HeadForcingError
from .switch import Switch


class TimelineError(HeadForcingError):
    """A timeline that cannot be used: a `sentence`, and the 1-based `line` of the error, None if it
    concerns the whole text.
    """

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message if line is None else f"line {line}: {message}")
        self.sentence = message
        self.line = line


@dataclass(frozen=True)
class Prompt:
    """A parsed prompt.

    Attributes:
        text: on one line, see `fold`.
        line: 1-based line of the prompt in the timeline.
        start, end: in seconds, None where not given.
        token: the time as the user wrote it, for messages.
        switch, seed: from the tag in front of the text, None where it does not name them.
    """

    text: str
    line: int | None = None
    start: float | None = None
    end: float | None = None
    token: str = ""
    switch: Switch | None = None
    seed: int | None = None
