"""Prompts below counts on lines of their own: "# One", "a fox", "# Two", "a wolf"."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from ...prompt import Prompt, TimelineError
from ..headings import Line
from ..items import check_counts, places_of
from ..sections import as_scene, read_scenes
from ..text import Text

EXAMPLES = {
    "# One\na fox\n\nin the snow\n# Two\na wolf": [(None, "a fox in the snow"), (None, "a wolf")],
    "**1.**\na fox\n\n**2.**\na wolf": [(None, "a fox"), (None, "a wolf")],
    "1\na fox\n2\na wolf": [(None, "a fox"), (None, "a wolf")],
    "eins\na fox\nzwei\na wolf": [(None, "a fox"), (None, "a wolf")],
}
REFUSED = {
    "# One\na fox\n# Three\na wolf": 3,
    "One\na fox\nTwo\n0:05 a wolf": 4,
}
_COUNT = re.compile(r"(\d{1,3}|[^\W\d_]{1,16})[.):]?[*_]{0,3}")


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each count; None for a text that does not begin with the first of several, each
    above words.

    Raises TimelineError for counts that are not in order.
    """
    if not text.written or text.has_names:
        return None
    first = _count(text.written[0])
    places = [places_of(_count(line), first) for line in text.written]
    counted = [bool(each) for each in places]
    has_words = not counted[-1] and not any(map(all, pairwise(counted)))
    return _read(text.written, places) if sum(counted) > 1 and has_words else None


def _count(line: Line) -> str:
    """The count that is all of a line, in lower case; "" for another line."""
    found = _COUNT.fullmatch(line.unmarked)
    return found[1].lower() if found else ""


def _read(lines: Sequence[Line], places: Sequence[set[int]]) -> list[Prompt]:
    scenes: list[Line] = []
    number = 0
    for line, possible in zip(lines, places, strict=True):
        if not possible:
            if _count(line):
                check_counts(_count(lines[0]), number, line)
            scenes.append(line)
        elif number in possible:
            scenes.append(as_scene(line, ""))
            number += 1
        else:
            raise TimelineError(
                f"{line.text[:40]!r} is not item {number + 1} of the list; number the items in "
                "order",
                line.number,
            )
    return read_scenes(scenes)
