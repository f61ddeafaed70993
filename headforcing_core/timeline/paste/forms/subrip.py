"""SubRip: a prompt for each cue, a number, "00:00:00,000 --> 00:00:05,000" and lines of words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...prompt import Prompt
from ..cues import (
    CUE,
    NUMBER,
    belongs_to_none,
    is_number_of_cue,
    new_cue,
    refuse_like_cue,
    with_words,
)
from ..headings import read_line
from ..text import Text

EXAMPLES = {
    "1\n00:00:00,000 --> 00:00:05,000\n<i>a fox</i>\n\nin the snow\n\n2\n00:00:05,000 --> "
    "00:00:10,000\n{\\an8}a wolf": [(0.0, "a fox in the snow"), (5.0, "a wolf")],
    "00:00:00,000 --> 00:00:05,000\na fox": [(0.0, "a fox")],
}
REFUSED = {
    "1\n00:00:00,000 --> 00:00:05,000\na fox\n\n2\n00:00:05,000 -> 00:00:10,000\na wolf": 5,
    "1\n00:00:00,000 --> 00:00:05,000\na fox\n\nScene 2: a wolf": 5,
}


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each cue; None for a text that begins with none. Words below an empty line
    belong to the cue above, as FFmpeg reads them.

    Raises TimelineError for a line that belongs to no cue.
    """
    lines = text.clean.split("\n")
    if not _begins([line for line in lines if line.strip()]):
        return None
    cues: list[Prompt] = []
    after_empty = False
    for index, line in enumerate(lines):
        time = CUE.fullmatch(line)
        if time is not None:
            cues.append(new_cue(time, index))
            after_empty = False
        elif not line.strip():
            after_empty = True
        elif not is_number_of_cue(lines, index):
            refuse_like_cue(line, index)
            if after_empty and _begins_otherwise(line):
                raise belongs_to_none(line, index)
            cues[-1] = with_words(cues[-1], line)
    return cues


def _begins(written: Sequence[str]) -> bool:
    """Whether the first lines are the number and the time of a cue, or a time with a fraction."""
    if len(written) > 1 and NUMBER.fullmatch(written[0]):
        return CUE.fullmatch(written[1]) is not None
    time = CUE.fullmatch(written[0]) if written else None
    return time is not None and re.search("[.,]", time[1]) is not None


def _begins_otherwise(line: str) -> bool:
    """Whether a line below an empty one begins as a prompt of its own, or is a number alone."""
    heading = read_line(1, line).heading
    return NUMBER.fullmatch(line) is not None or (heading is not None and not heading.spoken)
