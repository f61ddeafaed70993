"""Scenes with a name and a number, with or without times: "Scene 1 (0:00-0:05): a fox"."""

from __future__ import annotations

from ...prompt import Prompt
from ..sections import is_prose, read_scenes
from ..text import Text

EXAMPLES = {
    "## Scene 1\na fox\nin the snow\n\n## Scene 2\na wolf": [
        (None, "a fox in the snow"),
        (None, "a wolf"),
    ],
    "**Scene 1: The Forest (0:00–0:05)**\na fox\n**Scene 2: The Lake (0:05–0:10)**\na wolf": [
        (0.0, "The Forest a fox"),
        (5.0, "The Lake a wolf"),
    ],
    "Szene 1: a fox\nSzene 2: a wolf": [(None, "a fox"), (None, "a wolf")],
    "场景1：狐\n第二幕：狼": [(None, "狐"), (None, "狼")],
}
REFUSED = {
    "Scene 1: a fox\nScene 2 (5s): a wolf": 2,
    "Scene 1: a fox (5 s)\nin the snow": 1,
    "Scene 1 [5s]: a fox\nScene 2 [8s]: a wolf": 1,
    "Scene 1: a fox\nDuration: 5 s": 2,
    "Szene 1 (0:00-0:05): a fox\nSzene 2: a wolf": 2,
}


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each scene; None for a text that does not begin with one."""
    first = text.first
    if first is None or first.name != "scene" or is_prose(first, text.written):
        return None
    return read_scenes(text.written)
