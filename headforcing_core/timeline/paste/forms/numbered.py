"""Lists with counts: "1. a fox", "(ii) a fox", "two: a fox", on lines or on one line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...prompt import Prompt, TimelineError
from ..headings import Line
from ..items import check_counts, cut_at, is_timed, places_of, read_items
from ..text import Text
from .programs import is_of_program

EXAMPLES = {
    "1. a fox\n2. a wolf\n3. a cub": [(None, "a fox"), (None, "a wolf"), (None, "a cub")],
    "1. a fox\nand cubs\n\n2. [cut] a wolf": [(None, "a fox and cubs"), (None, "[cut] a wolf")],
    "**1)** a fox\n\n**2)** a wolf": [(None, "a fox"), (None, "a wolf")],
    "1.a fox 2.a wolf": [(None, "a fox"), (None, "a wolf")],
    "(1) a fox (2) a wolf": [(None, "a fox"), (None, "a wolf")],
    "1) a fox, 2) a wolf": [(None, "a fox"), (None, "a wolf")],
    "[1] a fox\n[2] a wolf": [(None, "a fox"), (None, "a wolf")],
    "#1 a fox\n#2 a wolf": [(None, "a fox"), (None, "a wolf")],
    "1/2 a fox\n2/2 a wolf": [(None, "a fox"), (None, "a wolf")],
    "a) a fox\nb) a wolf": [(None, "a fox"), (None, "a wolf")],
    "(i) a fox\n(ii) a wolf": [(None, "a fox"), (None, "a wolf")],
    "one. a fox\ntwo. a wolf": [(None, "a fox"), (None, "a wolf")],
    "1st: a fox\n2nd: a wolf": [(None, "a fox"), (None, "a wolf")],
    "Eins: a fox\nZwei: a wolf": [(None, "a fox"), (None, "a wolf")],
    "Primero - a fox\nSegundo - a wolf": [(None, "a fox"), (None, "a wolf")],
    "uno) a fox\ndue) a wolf": [(None, "a fox"), (None, "a wolf")],
    "① a fox ② a wolf": [(None, "a fox"), (None, "a wolf")],
    "一、狐\n二、狼": [(None, "狐"), (None, "狼")],
    "第一：狐\n第二：狼": [(None, "狐"), (None, "狼")],
}
REFUSED = {
    "1. a fox\n2. a wolf\n\nEnjoy!": 4,
    "1. 0: a fox\n2. 5: a wolf": 1,
    "1. a fox\n3. a wolf": 2,
    "one: a fox\n- red\ntwo: a wolf": 2,
    "one: a\ntwo: b\nthree: c\nfour: d\nfive: e\nsix: f\nseven: g\neight: h\nnine: i\nten: j\n"
    "eleven: k": 11,
}
_MARK = re.compile(
    r"(?P<bold>\*\*)?(?P<before>[(\[第]|#{1,6}\s?)?(?P<count>\d{1,3}(?:st|nd|rd|th)?|[^\W\d_]{1,16}|[①-⑳])"
    r"(?P<after>/\d{1,3}(?!\d)[.:)]?|[.:)\]、]|\s[–—-](?=\s))?(?(bold)\*\*)(?:\s+|(?<=[、:①-⑳])|(?<=\d[.)])(?=[^\W\d_]))"
)
# marks behind the counts of a list, by what is before its first count and that; " " is for none
_AFTER = {
    "(": ")",
    "[": "]",
    "第": ":、",
    "#": ".:)-",
    "#1": ".:)- ",
    "①": " .)",
    "1": ".)、/",  # "1: a" and "1 - a" could be times
    "a": ".)",  # "A: a" and "I - a" are names
    "i": ".)",
}
_AFTER_WORD = ".):-、"


@dataclass(frozen=True)
class _Style:
    """The first count of a list, and what stands before and behind its counts."""

    first: str
    before: str
    after: str


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each item; None for a text that does not begin with the first item."""
    found = _MARK.match(text.written[0].same) if text.written else None
    style = _style(found) if found else None
    if style is None:
        return None
    lines = text.lines
    if len(text.written) == 1:
        lines = _cut(text.written[0], style)
    if style.before != "[" and any(is_timed(line) or is_of_program(line) for line in lines):
        return None
    return read_items(lines, lambda line, number: _words(line, number, style))


def _style(first: re.Match[str]) -> _Style | None:
    """The style of the list that begins so; None for words."""
    before, after = _around(first)
    count = first["count"].lower()
    allowed = _AFTER.get(before + count) or _AFTER.get(before, _AFTER_WORD)
    is_first = places_of(count, first=count) and after in allowed
    return _Style(count, before, after) if is_first else None


def _around(found: re.Match[str]) -> tuple[str, str]:
    """The marks before and behind a count; behind it also a space for none."""
    after = (found["after"] or " ").strip() or " "
    return (found["before"] or "")[:1], after.replace("–", "-").replace("—", "-")[0]


def _cut(line: Line, style: _Style) -> list[Line]:
    """A line that is a whole list, cut before each item."""
    starts: list[int] = []
    for word in re.finditer(r"(?:^|(?<=\s))\S", line.same):
        found = _MARK.match(line.same, word.start())
        if found is None or _around(found) != (style.before, style.after):
            continue
        if len(starts) in places_of(found["count"].lower(), style.first):
            starts.append(word.start())
    return cut_at(line, starts)


def _words(line: Line, number: int, style: _Style) -> str | None:
    found = _MARK.match(line.same)
    if found is None or _around(found) != (style.before, style.after):
        return None
    places = places_of(found["count"].lower(), style.first)
    if number in places:
        return line.text[found.end() :]
    if not places:
        check_counts(style.first, number, line)
        return None
    raise TimelineError(
        f"{line.text[:40]!r} is not item {number + 1} of the list; number the items in order",
        line.number,
    )
