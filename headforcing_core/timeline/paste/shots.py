"""Shots, clips and parts without times, and scenes of a screenplay, which share the length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..characters import plain
from ..prompt import TimelineError
from .headings import SHOT_ALONE, Heading, Line

EXAMPLES = {
    "Shot 1: a fox\nShot 2: a wolf": [(None, "a fox"), (None, "a wolf")],
    "Prompt 1: a fox\nin the snow\n\nPrompt 2: a wolf": [
        (None, "a fox in the snow"),
        (None, "a wolf"),
    ],
    "**Part 1**: a fox\n\n**Part 2**: a wolf": [(None, "a fox"), (None, "a wolf")],
    "镜头1：狐\n镜头2：狼": [(None, "狐"), (None, "狼")],
    "INT. KITCHEN - DAY\n\nA chef cooks.\n\nEXT. GARDEN - NIGHT\nRain falls.": [
        (None, "INT. KITCHEN - DAY. A chef cooks."),
        (None, "EXT. GARDEN - NIGHT. Rain falls."),
    ],
}
REFUSED = {
    "Shot 1: a fox\nClip 2: a wolf": 2,
    "Shot 1: a fox (5 s)\nShot 2: a wolf": 1,
    "INT. KITCHEN - DAY\nA chef\n0:05 cooks\nEXT. GARDEN - NIGHT\nRain": 3,
}
_SLUG = re.compile(r"(?:\d{1,3}[.)]?\s+)?(?:INT|EXT|EST|I/E)(?:\.|/|\s)[^a-z]*\w")


def as_scenes(lines: Sequence[Line]) -> tuple[str, list[Line]]:
    """The form of lines of shots or of a screenplay, and the lines with a scene in place of each;
    "" and the lines themselves for another text.
    """
    written = [line for line in lines if line.text]
    if not written or any(line.heading is not None and line.heading.name for line in written):
        return "", list(lines)
    if sum(_SLUG.match(line.text) is not None for line in written) > 1:
        if _SLUG.match(written[0].text) is None:
            raise TimelineError(
                f"{written[0].text[:40]!r} stands before the first scene; remove it",
                written[0].number,
            )
        return "a screenplay", [_slug(line) for line in lines]
    shots = [line for line in written if SHOT_ALONE.match(line.unmarked)]
    if len(shots) < 2 or shots[0] is not written[0]:
        return "", list(lines)
    first = _name(shots[0])
    for line in shots:
        if _name(line) != first:
            raise TimelineError(
                f"{line.text[:40]!r} is none of the parts that begin as {shots[0].text[:40]!r}; "
                "name all in the same way",
                line.number,
            )
    return "shots", [_shot(line) if line in shots else line for line in lines]


def _name(line: Line) -> str:
    found = SHOT_ALONE.match(line.unmarked)
    return re.sub(r"[\s\d].*", "", found[0] if found else "").lower()


def _shot(line: Line) -> Line:
    found = SHOT_ALONE.match(line.unmarked)
    begin = len(line.same) - len(line.unmarked)
    words = line.text[begin:][found.end() if found else 0 :]
    return _scene(line, re.sub(r"^[\s*_`]*[:：.|–—-]?[\s*_`]*", "", words))


def _slug(line: Line) -> Line:
    if _SLUG.match(line.text) is None:
        return line
    ends = line.text.endswith((".", "!", "?", ":"))
    return _scene(line, line.text if ends else f"{line.text}.")


def _scene(line: Line, words: str) -> Line:
    heading = Heading(
        "scene", "", "", token=line.text, words=words, same=plain(words), bare=True, spoken=False
    )
    return replace(line, heading=heading)
