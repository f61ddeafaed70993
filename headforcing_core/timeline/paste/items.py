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
    "i ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi xvii xviii xix xx".split(),
    "一 二 三 四 五 六 七 八 九 十 十一 十二 十三 十四 十五 十六 十七 十八 十九 二十".split(),
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

    Raises TimelineError for items that hold a time or a length, for an item of another list, and
    for lines outside of the list.
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
    if len(prompts) < 2:
        return None
    for prompt in prompts:
        if _FRAME.match(prompt.text) or has_time(prompt.text, timed=False):
            raise TimelineError(
                f"{prompt.text[:40]!r} holds a time or a length; write times in front, as in 0:00 "
                "a cat walks, or remove it",
                prompt.line,
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


def check_counts(first: str, number: int, line: Line) -> None:
    """Refuse a line that could be item `number` of a list that begins with `first`, if the counts
    that are known end before it.
    """
    most = max(len(row) for row in _ROWS if row[0] == first)
    if number >= most:
        raise TimelineError(
            f"{line.text[:40]!r} could be item {number + 1} of the list, in which {most} can be "
            "counted so; number the items as in 1. a cat walks",
            line.number,
        )


def is_timed(line: Line) -> bool:
    """Whether a line begins with a time or a scene, and not as in "80s neon"."""
    return line.heading is not None and not line.heading.spoken


def cut_at(line: Line, starts: Sequence[int]) -> list[Line]:
    """The pieces of a line that begin at these places, the first of which is 0."""
    ends = [*starts[1:], len(line.text)]
    pieces = [line.text[start:end] for start, end in zip(starts, ends, strict=True)]
    return [read_line(line.number, piece.rstrip(" ,;")) for piece in pieces]
