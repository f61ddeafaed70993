"""A text in an unknown form, as every reader is given it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..characters import clean, fold
from ..clock import BlockClock
from .almost import is_surely_heading
from .headings import Heading, Line, read_lines

_FENCE = re.compile(r"^ {0,8}(?:`{3,9}|~{3,9})[\w-]{0,20} {0,8}$", re.ASCII | re.MULTILINE)
_SHARED = re.compile(r"\[\s{0,8}shared\s{0,8}\]", re.ASCII | re.IGNORECASE)
RULE = re.compile(r"(?:[-*_=–—─━|:]\s?){3,}")  # horizontal, also of a table


@dataclass(frozen=True)
class Text:
    """A pasted text, and what a form needs to know to give its prompts their times.

    Attributes:
        pasted: the text itself, with its tabs and code fences.
        clock: of the model, for forms that count frames.
        seconds: length of the video, for forms that count in parts of it; None for 10 a prompt.
    """

    pasted: str
    clock: BlockClock
    seconds: float | None = None

    @cached_property
    def clean(self) -> str:
        """The text without code fences, with plain spaces and line ends."""
        return _FENCE.sub("", clean(self.pasted))

    @property
    def shared(self) -> str:
        """The words behind `[shared]`, on one line; "" for none."""
        return self._split[0]

    @property
    def story(self) -> str:
        """The clean text with empty lines in place of those of the shared words."""
        return self._split[1]

    @cached_property
    def _split(self) -> tuple[str, str]:
        return _split_shared(self.clean)

    @cached_property
    def lines(self) -> list[Line]:
        """The lines of the story, each with its heading."""
        return read_lines(self.story)

    @cached_property
    def written(self) -> list[Line]:
        """The lines that are neither empty nor horizontal rules."""
        return [line for line in self.lines if line.text and not RULE.fullmatch(line.text)]

    @property
    def first(self) -> Heading | None:
        """The heading of the first written line."""
        return self.written[0].heading if self.written else None

    @property
    def has_names(self) -> bool:
        """Whether a line has a heading with the name of a scene or shot."""
        return any(line.heading is not None and line.heading.name for line in self.written)

    @property
    def unruled(self) -> str:
        """The story with empty lines in place of horizontal rules."""
        return "\n".join("" if RULE.fullmatch(line.text) else line.text for line in self.lines)


def _split_shared(text: str) -> tuple[str, str]:
    """The shared words and the story. The words reach to the first heading, without one to the end
    of the first line.
    """
    tag = _SHARED.match(text.lstrip())
    if tag is None:
        return "", text
    lines = read_lines(text)
    first, *below = [line for line in lines if line.text]
    after = _end_of_shared(first, below)
    words = [line.text for line in lines[first.number : after] if not RULE.fullmatch(line.text)]
    story = "\n".join([""] * after + [line.text for line in lines[after:]])
    return fold(" ".join([first.text[tag.end() :], *words])), story


def _end_of_shared(first: Line, below: Sequence[Line]) -> int:
    """The number of the last line of the shared words, of which `first` is the first."""
    for line in below:
        heading = line.heading
        # as in "80s neon"
        is_prose = heading is None or (heading.spoken and heading.start.endswith("0s"))
        if is_surely_heading(line) or not is_prose:
            return line.number - 1
    return first.number
