"""Lines that all begin with a name that is no name of shots. They are refused, since they can be
scenes or parts of one prompt.
"""

from __future__ import annotations

import re

from ...prompt import TimelineError
from ..headings import Line
from ..text import Text

EXAMPLES: dict[str, list[tuple[float | None, str]]] = {}
REFUSED = {
    "Day 1: a fox\nDay 2: a wolf": 1,
    "Bob: a fox\nin the snow\nBob: a wolf": 1,
}
_NAME = re.compile(r"(?P<name>[^\W\d_]{1,20})(?:\s?\d{1,4}|\s[a-z])?\s?[*_]{0,3}:", re.IGNORECASE)


def read(text: Text) -> None:
    """Refuse a text of which the first and another line begin with the same name and a colon."""
    first, *others = [_name(line) for line in text.written] or [""]
    if first and first in others:
        line = text.written[0]
        raise TimelineError(
            f"{line.text[:40]!r} begins as another line does and can be a scene or a part of one "
            "prompt; write scenes as Scene 1: a cat walks, or the prompt on one line",
            line.number,
        )


def _name(line: Line) -> str:
    """The name in front of a colon, in lower case; "" for none."""
    found = _NAME.match(line.unmarked)
    return found["name"].lower() if found else ""
