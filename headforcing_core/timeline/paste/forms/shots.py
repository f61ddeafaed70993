"""Shots, clips, parts or prompts with numbers and without times, which share the length."""

from __future__ import annotations

import re

from ...prompt import Prompt, TimelineError
from ..headings import SHOT_ALONE, Line
from ..sections import as_scene, read_scenes
from ..text import Text

EXAMPLES = {
    "Shot 1: a fox\nShot 2: a wolf": [(None, "a fox"), (None, "a wolf")],
    "Prompt 1: a fox\nin the snow\n\nPrompt 2: a wolf": [
        (None, "a fox in the snow"),
        (None, "a wolf"),
    ],
    "**Part 1**: a fox\n\n**Part 2**: a wolf": [(None, "a fox"), (None, "a wolf")],
    "镜头1：狐\n镜头2：狼": [(None, "狐"), (None, "狼")],
}
REFUSED = {
    "Shot 1: a fox\nClip 2: a wolf": 2,
    "Shot 1: a fox (5 s)\nShot 2: a wolf": 1,
}


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each shot; None for a text that does not begin with the first of several."""
    if text.has_names:
        return None
    shots = [line for line in text.written if SHOT_ALONE.match(line.unmarked)]
    if len(shots) < 2 or shots[0] is not text.written[0]:
        return None
    first = _name(shots[0])
    for line in shots:
        if _name(line) != first:
            raise TimelineError(
                f"{line.text[:40]!r} is none of the parts that begin as {shots[0].text[:40]!r}; "
                "name all in the same way",
                line.number,
            )
    return read_scenes([_shot(line) if line in shots else line for line in text.written])


def _name(line: Line) -> str:
    found = SHOT_ALONE.match(line.unmarked)
    return re.sub(r"[\s\d].*", "", found[0] if found else "").lower()


def _shot(line: Line) -> Line:
    found = SHOT_ALONE.match(line.unmarked)
    begin = len(line.same) - len(line.unmarked)
    words = line.text[begin:][found.end() if found else 0 :]
    return as_scene(line, re.sub(r"^[\s*_`]*[:：.|–—-]?[\s*_`]*", "", words))
