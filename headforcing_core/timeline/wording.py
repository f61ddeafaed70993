"""Words that no prompt can hold: a time in brackets, words that choose or change, comments."""

from __future__ import annotations

import re
from itertools import pairwise

from .characters import plain
from .languages import NEGATIVES
from .prompt import TimelineError
from .times import FLAGS, IN_BRACKETS

_IN_BRACKETS = re.compile(rf"{IN_BRACKETS}[\]:]|\d:\d\d(?::\d\d[:;,]|,)\d", FLAGS)
_COMMENT = re.compile(  # also a negative prompt, which a distilled model has no use for
    rf"(?:^|\s)(?://(?=\s|$)|/\*|--neg\b|(?:{NEGATIVES})\s?[:：]).{{0,40}}", re.IGNORECASE
)
_CHANGES = re.compile(r"\[[^\[\]:]*:[^\[\]:]*:\s?(?:\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s?\]")
_ESCAPED_WORDS = re.compile(r"\\\{(?:[^{}]|\{[^{}|｜]*\})*\}")
_WORDS_IN_BRACKETS = r"\[[^\[\]|｜]*[|｜][^\[\]]*\]"
_BRACES_AND_BARS = re.compile(rf"{_ESCAPED_WORDS.pattern}|\\[{{}}]|{_WORDS_IN_BRACKETS}|[{{}}|｜]")


def check_words(text: str, line: int | None = None) -> None:
    """Refuse what would be sent to the model as words: a time in brackets, words that choose or
    change, comments.
    """
    inside = _IN_BRACKETS.search(text if text.isascii() else plain(text))
    if inside is not None:
        raise TimelineError(
            f"{text[inside.start() : inside.end()]} stands inside a prompt; begin the text with "
            "the first prompt's time, as in [0-5s] a cat walks, [5-10s] it jumps",
            line,
        )
    if ("|" in text or "｜" in text) and _chooses(text):
        raise TimelineError(
            "{red|blue} or [red|blue] chooses a word in other programs, not here: write one; \\{ "
            "and \\} are braces",
            line,
        )
    change = _CHANGES.search(text)
    if change is not None:
        raise TimelineError(
            f"{change[0][:40]!r} changes words during a picture in other programs, not here: write "
            "a prompt with its time for each",
            line,
        )
    comment = _COMMENT.search(text)
    if comment is not None:
        raise TimelineError(
            f"{comment[0].strip()!r} is a comment or a negative prompt, which a prompt cannot "
            "hold; remove it",
            line,
        )


def _chooses(text: str) -> bool:
    """Whether a bar stands inside braces or brackets."""
    pieces = split_outside(_ESCAPED_WORDS.sub("", text))
    return any("|" in piece or "｜" in piece for piece in pieces)


def split_outside(text: str) -> list[str]:
    """A text cut at its bars, full-width ones too, and not inside braces or brackets."""
    cuts = [-1]
    depth = 0
    for mark in _BRACES_AND_BARS.finditer(text):
        if mark[0] == "{":
            depth += 1
        elif mark[0] == "}":
            depth = max(0, depth - 1)
        elif depth == 0 and mark[0] in "|｜":
            cuts.append(mark.start())
    return [text[begin + 1 : end] for begin, end in pairwise([*cuts, len(text)])]
