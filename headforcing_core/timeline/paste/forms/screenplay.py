"""Screenplays: scenes below headings such as "INT. KITCHEN - DAY", which share the length."""

from __future__ import annotations

import re

from ...prompt import Prompt, TimelineError
from ..headings import Line
from ..sections import as_scene, read_scenes
from ..text import Text

EXAMPLES = {
    "INT. KITCHEN - DAY\n\nA chef cooks.\n\nEXT. GARDEN - NIGHT\nRain falls.": [
        (None, "INT. KITCHEN - DAY. A chef cooks."),
        (None, "EXT. GARDEN - NIGHT. Rain falls."),
    ],
}
REFUSED = {
    "INT. KITCHEN - DAY\nA chef\n0:05 cooks\nEXT. GARDEN - NIGHT\nRain": 3,
    "The Dinner\nINT. KITCHEN - DAY\nA chef\nEXT. GARDEN - NIGHT\nRain": 1,
}
_SLUG = re.compile(r"(?:\d{1,3}[.)]?\s+)?(?:INT|EXT|EST|I/E)(?:\.|/|\s)[^a-z]*\w")


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each scene, its heading first; None for a text without two of them."""
    if text.has_names or sum(_is_slug(line) for line in text.written) < 2:
        return None
    first = text.written[0]
    if not _is_slug(first):
        raise TimelineError(
            f"{first.text[:40]!r} stands before the first scene; remove it", first.number
        )
    return read_scenes([_scene(line) if _is_slug(line) else line for line in text.written])


def _is_slug(line: Line) -> bool:
    return _SLUG.match(line.text) is not None


def _scene(line: Line) -> Line:
    ends = line.text.endswith((".", "!", "?", ":"))
    return as_scene(line, line.text if ends else f"{line.text}.")
