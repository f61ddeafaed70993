"""Schedules in parts of the video: "[0%:25%] a fox", "0%: a fox"."""

from __future__ import annotations

import re

from ...clock import cut_to_millisecond
from ...prompt import Prompt, TimelineError
from ...timeline import SECONDS_PER_PROMPT
from ..text import Text

EXAMPLES = {  # of a video of 20 seconds
    "[0%:25%] a fox\n[25%:100%] a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "0%: a fox\n50%: a wolf": [(0.0, "a fox"), (10.0, "a wolf")],
    "0% - 75% a fox\n75% - 100% a wolf": [(0.0, "a fox"), (15.0, "a wolf")],
}
REFUSED = {"[0%:25%] a fox\n\nthe end": 3, "0%: a fox\n150%: a wolf": 2}
_PART = re.compile(
    r"\[?\s?(\d{1,3}(?:\.\d{1,9})?)\s?%(?:\s?(?:[:–—~-]|to)\s?(\d{1,3}(?:\.\d{1,9})?)\s?%)?\s?\]?"
    r"(?:\s?[:|-])?\s+(.+)",
    re.ASCII | re.IGNORECASE,
)


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each part; None for a text that does not begin with a part from 0 %."""
    found = [(line, _PART.match(line.unmarked)) for line in text.written]
    if len(found) < 2 or found[0][1] is None or float(found[0][1][1]) != 0:
        return None
    length = text.seconds or SECONDS_PER_PROMPT * len(found)
    prompts = []
    for line, part in found:
        if part is None or float(part[1]) > 100 or float(part[2] or 0) > 100:
            raise TimelineError(
                f"{line.text[:40]!r} does not begin with a part of the video, as in 50%: a cat "
                "walks",
                line.number,
            )
        words = line.text[len(line.text) - len(part[3]) :]
        start = cut_to_millisecond(length * float(part[1]) / 100)
        end = part[2] and cut_to_millisecond(length * float(part[2]) / 100)
        prompts.append(Prompt(words, line.number, start, end or None, token=f"{part[1]}%"))
    return prompts
