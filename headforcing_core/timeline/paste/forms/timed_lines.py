"""Lines with a time in front, as people, chat programs and other tools write them; several on one
line if the times are in brackets.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

from ...characters import plain
from ...prompt import Prompt
from ..headings import TIME_IN_BRACKETS, Heading, Line, read_line
from ..sections import is_prose, read_sections, without_heading
from ..text import Text

EXAMPLES = {
    "- **0:00** a fox\n- **0:05** a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "0-5s: a fox\n5-10s: a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "0：00　狐\n0：05　狼": [(0.0, "狐"), (5.0, "狼")],
    "0 min: a fox\n1 min 30 s: a wolf": [(0.0, "a fox"), (90.0, "a wolf")],
    "[0-5s] a fox, [5-10s] a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "Shot 1 (0:00-0:05): a fox\nShot 2 (0:05-0:10): a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
}
REFUSED = {
    "0:00 a fox\n30s a wolf": 2,
    "0:00 a fox (0:05) a wolf": 1,
    "(0:00) a fox\n// a note\n(0:05) a wolf": 2,
    "7:30 a train leaves\n8:00 it arrives": 1,
    "0:00 - a fox\n0:65 - a wolf": 2,
}


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each time; None for a text that does not begin with one."""
    first = text.first
    if first is None or first.name == "scene" or is_prose(first, text.written):
        return None
    # a time as in "5 seconds later" counts where the first one is in plain seconds
    in_seconds = first.bare and not first.name and ":" not in first.start
    lines = []
    for line in text.written:
        counts = line.heading is not None and _counts(line.heading, in_seconds)
        lines.append(line if counts else without_heading(line))
    return read_sections(list(chain.from_iterable(map(_cut, lines))))


def _counts(heading: Heading, in_seconds: bool) -> bool:
    """Whether a heading begins a prompt: not a scene without a time, and not "5 seconds later"
    among other times.
    """
    if heading.name == "scene":
        return heading.start != ""
    return in_seconds or not heading.spoken


def _cut(line: Line) -> list[Line]:
    """A line cut before every time in brackets in its words."""
    heading = line.heading
    words = line.text
    same = line.same
    if heading is not None:
        words = heading.words
        same = heading.same
    starts = [found.start() for found in TIME_IN_BRACKETS.finditer(same)]
    if not starts:
        return [line]
    first, *others = [words[begin:end].rstrip(",; ") for begin, end in pairwise([0, *starts])]
    pieces = [read_line(line.number, piece) for piece in [*others, words[starts[-1] :]]]
    if heading is None:
        return [without_heading(read_line(line.number, first)), *pieces]
    return [replace(line, heading=replace(heading, words=first, same=plain(first))), *pieces]
