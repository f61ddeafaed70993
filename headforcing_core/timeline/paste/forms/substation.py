"""SubStation Alpha's files (.ass, .ssa): a prompt for each line of dialogue."""

from __future__ import annotations

import re

from ...prompt import Prompt, TimelineError
from ..counted import words_of_subtitle
from ..headings import seconds_in
from ..rows import rows_of
from ..text import Text

EXAMPLES = {
    "[Script Info]\nTitle: x\n\n[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, "
    "MarginR, MarginV, Effect, Text\n"
    "Dialogue: 0,0:00:00.00,0:00:05.00,Default,,0,0,0,,{\\i1}a fox,\\Nred\n"
    "Dialogue: 0,0:00:05.00,0:00:10.00,Default,,0,0,0,,a wolf": [
        (0.0, "a fox, red"),
        (5.0, "a wolf"),
    ],
}
REFUSED = {"[Script Info]\nDialogue: 0,0:00:05,a fox": 2}
_CLOCK = re.compile(r"\d{1,2}:\d\d:\d\d(?:\.\d{1,3})?", re.ASCII)
_FIELDS = 9  # in front of the text of a line of dialogue


def read(text: Text) -> list[Prompt] | None:
    """The prompts; None for another text."""
    rows = rows_of(text.clean)
    if not rows or not (rows[0][1].lower() == "[script info]" or _is_dialogue(rows[0][1])):
        return None
    return [_prompt(number, line) for number, line in rows if _is_dialogue(line)]


def _is_dialogue(line: str) -> bool:
    return line.startswith("Dialogue:")


def _prompt(number: int, line: str) -> Prompt:
    fields = line.partition(":")[2].split(",", _FIELDS)
    times = [field.strip() for field in fields[1:3]]
    if len(fields) <= _FIELDS or not all(map(_CLOCK.fullmatch, times)):
        raise TimelineError(
            f"{line[:40]!r} is no line of SubStation Alpha's, Dialogue: 0,0:00:00.00,0:00:05.00,"
            "Default,,0,0,0,,a cat walks",
            number,
        )
    start = seconds_in(times[0], number)
    end = seconds_in(times[1], number)
    words = words_of_subtitle(fields[_FIELDS])
    return Prompt(words, number, start, end, token="-".join(times))
