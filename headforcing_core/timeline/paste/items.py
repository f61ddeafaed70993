"""Items of lists, which share the length of the video equally."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..characters import fold
from ..grammar import has_time
from ..languages import COUNTED
from ..prompt import Prompt, TimelineError
from .headings import Line, read_line
from .text import RULE

_ROWS: list[Sequence[str]] = [  # of counts, each of which is the next of the one before
    [str(number) for number in range(1, 1000)],
    "abcdefghijklmnopqrstuvwxyz",
    "i ii iii iv v vi vii viii ix x xi xii xiii xiv xv".split(),
    "一二三四五六七八九十",
    "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳",
    "1st 2nd 3rd 4th 5th 6th 7th 8th 9th 10th".split(),
    *COUNTED,
]
_FRAME = re.compile(r"[\"'“]?\d{1,9}[\"'”]?\s?:", re.ASCII)
_BULLETED = re.compile(r"[-*+•>–—]\s")


def read_items(
    lines: Sequence[Line], words_of: Callable[[Line, int], str | None]
) -> list[Prompt] | None:
    """The items of a list of two or more, in which every paragraph begins as one; None for another
    text.

    Args:
        lines: of the text, or the pieces of its only line.
        words_of: gives the words of a line behind the mark of item N, counted from 0, and None for
            a line without that mark.

    Raises TimelineError for an item of another list, and for lines outside of the list.
    """
    prompts: list[Prompt] = []
    is_open = False  # whether the line above is of an item
    outside = None
    other = None  # an item of another list
    for line in lines:
        if not line.text or RULE.fullmatch(line.text):
            is_open = False
            continue
        words = words_of(line, len(prompts))
        if words is not None:
            prompts.append(Prompt(words, line.number))
            is_open = True
        elif not prompts:
            return None
        elif _BULLETED.match(line.text):
            other = other or line
        elif is_open:
            prompts[-1] = Prompt(f"{prompts[-1].text} {line.text}", prompts[-1].line)
        else:
            outside = outside or line
    if len(prompts) < 2 or any(has_time(prompt.text, timed=False) for prompt in prompts):
        return None
    frames = [prompt for prompt in prompts if _FRAME.match(prompt.text)]
    if frames:
        raise TimelineError(
            f"{frames[0].text[:40]!r} does not begin with a time that can be read; write 0:00 a "
            "cat walks",
            frames[0].line,
        )
    if other is not None:
        raise TimelineError(
            f"{other.text[:40]!r} is an item of another list; write its words behind those of the "
            "item above",
            other.number,
        )
    if outside is not None:
        raise TimelineError(
            f"{outside.text[:40]!r} stands outside of the list; remove it, or begin it as an item",
            outside.number,
        )
    return [Prompt(fold(prompt.text), prompt.line) for prompt in prompts]


def places_of(count: str, first: str) -> set[int]:
    """The places, from 0, of a count in lists that begin with `first`; several if languages share
    words, and none for another word.
    """
    return {row.index(count) for row in _ROWS if row[0] == first and count in row}


def is_timed(line: Line) -> bool:
    """Whether a line begins with a time or a scene, and not as in "80s neon"."""
    return line.heading is not None and not line.heading.spoken


def cut_at(line: Line, starts: Sequence[int]) -> list[Line]:
    """The pieces of a line that begin at these places, the first of which is 0."""
    ends = [*starts[1:], len(line.text)]
    pieces = [line.text[start:end] for start, end in zip(starts, ends, strict=True)]
    return [read_line(line.number, piece.rstrip(" ,;")) for piece in pieces]
