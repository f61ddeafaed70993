"""Schedules in parts of the video: "[0%:25%] a fox", "0%: a fox"."""

from __future__ import annotations

import re

from ...clock import cut_to_millisecond
from ...prompt import Prompt, TimelineError
from ...timeline import SECONDS_PER_PROMPT
from ..text import Text

EXAMPLES = {  # of a video of 20 seconds
    "[0%:25%] a fox\n[25%:100%] a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "[0%:100%] a fox": [(0.0, "a fox")],
    "0%: a fox\n50%: a wolf": [(0.0, "a fox"), (10.0, "a wolf")],
    "(0%) a fox\n(50%) a wolf": [(0.0, "a fox"), (10.0, "a wolf")],
    "0-25%: a fox\n25-100%: a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "0% - 75% a fox\n75% - 100% a wolf": [(0.0, "a fox"), (15.0, "a wolf")],
}
REFUSED = {"[0%:25%] a fox\n\nthe end": 3, "[25%:50%] a fox": 1, "0%: a fox\n150%: a wolf": 2}
_NUMBER = r"\d{1,3}(?:\.\d{1,9})?"
_PART = re.compile(
    rf"(?:at\s)?(?:(?P<square>\[)|\()?\s?(?P<start>{_NUMBER})(?:\s?%)?"
    rf"(?:\s?(?:[:–—~-]|to)\s?(?P<end>{_NUMBER}))?\s?%\s?[\])]?(?:\s?[:|-])?\s+(?P<words>.+)",
    re.ASCII | re.IGNORECASE,
)


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each part; None for a text that does not begin with a part in brackets, or with
    the first of several parts.
    """
    found = [(line, _PART.match(line.unmarked)) for line in text.written]
    first = found[0][1] if found else None
    if first is None or not (first["square"] or (len(found) > 1 and float(first["start"]) == 0)):
        return None
    length = text.seconds or SECONDS_PER_PROMPT * len(found)
    prompts: list[Prompt] = []
    for line, part in found:
        if part is None or float(part["start"]) > 100 or float(part["end"] or 0) > 100:
            raise TimelineError(
                f"{line.text[:40]!r} does not begin with a part of the video, as in 50%: a cat "
                "walks",
                line.number,
            )
        if not prompts and float(part["start"]) > 0:
            raise TimelineError(
                f"{line.text[:40]!r} leaves the beginning of the video without a prompt; begin "
                "with [0%:50%] a cat walks",
                line.number,
            )
        words = line.text[len(line.text) - len(part["words"]) :]
        start = cut_to_millisecond(length * float(part["start"]) / 100)
        end = part["end"] and cut_to_millisecond(length * float(part["end"]) / 100)
        token = f"{part['start']}%"
        prompts.append(Prompt(words, line.number, start, end or None, token=token))
    return prompts
