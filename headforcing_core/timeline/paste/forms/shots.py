"""Shots, clips, parts or prompts with names and without times, which share the length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from ...languages import SCENES, SHOTS
from ...prompt import Prompt, TimelineError
from ...times import FLAGS, ORDINAL
from ..headings import ALONE, Line
from ..sections import as_scene, read_scenes
from ..text import Text
from .programs import is_of_program

EXAMPLES = {
    "Shot 1: a fox\nShot 2: a wolf": [(None, "a fox"), (None, "a wolf")],
    "Prompt 1: a fox\nin the snow\n\nPrompt 2: a wolf": [
        (None, "a fox in the snow"),
        (None, "a wolf"),
    ],
    "Prompt: a fox\n\nPrompt: a wolf": [(None, "a fox"), (None, "a wolf")],
    "**Part 1**: a fox\n\n**Part 2**: a wolf": [(None, "a fox"), (None, "a wolf")],
    "### Shot A\na fox\n### Shot B\na wolf": [(None, "a fox"), (None, "a wolf")],
    "[Prompt 1] a fox\n[Prompt 2] a wolf": [(None, "a fox"), (None, "a wolf")],
    "<Scene 1> a fox\n<Scene 2> a wolf": [(None, "a fox"), (None, "a wolf")],
    "Plan 1 : a fox\nPlan 2 : a wolf": [(None, "a fox"), (None, "a wolf")],
    "镜头1：狐\n镜头2：狼": [(None, "狐"), (None, "狼")],
}
REFUSED = {
    "Shot 1: a fox\nClip 2: a wolf": 2,
    "Shot 1: a fox (5 s)\nShot 2: a wolf": 1,
    "Keyframe 0: a fox\nKeyframe 80: a wolf": 2,
    "Prompt: a fox\nPrompt 2: a wolf": 2,
}
_NAMES = f"(?:{SHOTS}|{SCENES})"
_SHOT = re.compile(
    rf"(?:(?P<name>{SHOTS})\s{{0,8}}(?P<count>{ORDINAL}){ALONE}"
    rf"|(?P<lettered>{_NAMES})(?:\s(?P<letter>[a-z]))?\s?[*_`]{{0,3}}(?(letter)(?::|$)|:)"
    rf"|[\[(<]\s?(?P<boxed>{_NAMES})\s{{0,8}}(?P<number>{ORDINAL}|[a-z])\s?[\])>])",
    FLAGS,
)
_BETWEEN = re.compile(r"^[\s*_`]*[:：.|–—-]?[\s*_`]*")  # a name and the words


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each shot; None for a text that does not begin with the first of several.

    Raises TimelineError for several names, and for numbers that are not in order.
    """
    if text.has_names:
        return None
    shots = {line.number: line for line in text.written if _SHOT.match(line.unmarked)}
    others = [line for line in text.written if line.number not in shots]
    if len(shots) < 2 or text.written[0].number not in shots or any(map(is_of_program, others)):
        return None
    _check_names(list(shots.values()))
    return read_scenes([_scene(line) if line.number in shots else line for line in text.written])


def _check_names(shots: Sequence[Line]) -> None:
    """Refuse shots with several names, and numbers each of which is not the next."""
    name, _ = _parts(shots[0])
    for before, line in pairwise(shots):
        count = _parts(before)[1]
        same, following = _parts(line)
        if same != name or bool(count) != bool(following):
            raise TimelineError(
                f"{line.text[:40]!r} is none of the parts that begin as {shots[0].text[:40]!r}; "
                "name all in the same way",
                line.number,
            )
        if count.isdecimal() and following.isdecimal() and int(following) != int(count) + 1:
            raise TimelineError(
                f"{line.text[:40]!r} does not follow {before.text[:40]!r}; number the parts in "
                "order, or write times, as in 0:00 a cat walks",
                line.number,
            )


def _parts(shot: Line) -> tuple[str, str]:
    """The name and the count of a shot, "" for none."""
    found = _SHOT.match(shot.unmarked)
    if found is None:
        return "", ""
    name = found["name"] or found["lettered"] or found["boxed"]
    return name.lower(), found["count"] or found["letter"] or found["number"] or ""


def _scene(line: Line) -> Line:
    found = _SHOT.match(line.unmarked)
    begin = len(line.same) - len(line.unmarked)
    words = line.text[begin:][found.end() if found else 0 :]
    return as_scene(line, _BETWEEN.sub("", words))
