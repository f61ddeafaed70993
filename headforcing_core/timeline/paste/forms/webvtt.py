"""WebVTT: a prompt for each cue."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...prompt import Prompt
from ..cues import (
    CUE,
    belongs_to_none,
    is_number_of_cue,
    new_cue,
    refuse_like_cue,
    with_words,
)
from ..text import Text

EXAMPLES = {
    "WEBVTT - a title\nKind: captions\n\nNOTE of its author\n\n00:00.000 --> 00:05.000 align:start"
    "\na <00:01.000><c>fox</c>\n\ncue two\n00:05.000 --> 00:10.000\n<v Bob>a wolf</v>": [
        (0.0, "a fox"),
        (5.0, "a wolf"),
    ],
}
REFUSED = {
    "WEBVTT\n\na hen\n\n00:00.000 --> 00:05.000\na fox": 3,
    "WEBVTT\n\n00:00.000 --> 00:05.000\na fox\n\nin the snow": 6,
}
_HEADER = re.compile(r"[A-Za-z][A-Za-z-]{0,30} ?[:=]")  # "Kind: captions"
_BLOCK = re.compile(r"NOTE(?: |$)|(?:STYLE|REGION) *$")  # of WebVTT, up to an empty line


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each cue; None for another text. An empty line, without even a space, ends a cue
    or another block.

    Raises TimelineError for a line that belongs to no cue.
    """
    if not text.clean.lstrip().startswith("WEBVTT"):
        return None
    lines = text.clean.split("\n")
    cues: list[Prompt] = []
    first = next(index for index, line in enumerate(lines) if line.strip())
    block = "header"
    for index, line in enumerate(lines[first + 1 :], first + 1):
        time = CUE.fullmatch(line)
        if time is not None:
            cues.append(new_cue(time, index))
            block = "cue"
        elif not line:
            block = ""
        elif block == "other" or is_number_of_cue(lines, index):
            continue
        elif block == "cue":
            refuse_like_cue(line, index)
            cues[-1] = with_words(cues[-1], line)
        elif not block and _BLOCK.match(line):
            block = "other"
        elif line.strip() and not _is_outside(lines, index, block):
            refuse_like_cue(line, index)
            raise belongs_to_none(line, index)
    return cues


def _is_outside(lines: Sequence[str], index: int, block: str) -> bool:
    """Whether a line of WebVTT without a cue is the name of the next cue or a field of the
    header.
    """
    below = lines[index + 1] if index + 1 < len(lines) else ""
    named = "-->" not in lines[index] and CUE.fullmatch(below) is not None
    return named or (block == "header" and _HEADER.match(lines[index]) is not None)
