"""Prompts inside the brackets of their times: "[0s: a fox] [5s: a wolf]"."""

from __future__ import annotations

import re
from dataclasses import replace

from ...characters import plain
from ...prompt import Prompt
from ...times import FLAGS, IN_BRACKETS, NUMBER_OR_TIME, TO
from ..text import Text
from . import timed_lines

EXAMPLES = {
    "[0s: a fox] [5s: a wolf]": [(0.0, "a fox"), (5.0, "a wolf")],
    "[0-5s: a fox [close-up]]\n\n[5-10s: a wolf]": [(0.0, "a fox [close-up]"), (5.0, "a wolf")],
    "［０秒：狐］［５秒：狼］": [(0.0, "狐"), (5.0, "狼")],
}
REFUSED = {"[0s: a fox]\n0:65 a wolf": 2}
_PROMPT = re.compile(  # "[1s: waves]"; "[0:00:05]" is a time
    rf"(?!\[\s{{0,8}}{NUMBER_OR_TIME}(?:{TO}{NUMBER_OR_TIME})?\s{{0,8}}\])"
    rf"{IN_BRACKETS}(?P<colon>:)(?:[^\[\]]|\[[^\[\]]{{0,999}}\])*(?P<close>\])",
    FLAGS,
)


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each bracket; None for a text that does not begin with one."""
    same = plain(text.story)
    if _PROMPT.match(same, len(same) - len(same.lstrip())) is None:
        return None
    characters = list(text.story)
    for found in _PROMPT.finditer(same):
        characters[found.start("colon")] = "]"
        characters[found.start("close")] = " "
    return timed_lines.read(replace(text, pasted="".join(characters)))
