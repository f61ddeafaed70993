"""Prompts between bars: "a fox | a wolf"."""

from __future__ import annotations

from ...characters import fold
from ...prompt import Prompt
from ...wording import split_outside
from ..text import Text

EXAMPLES = {
    "狐｜狼": [(None, "狐"), (None, "狼")],
    "9:16 vertical | 16:9 wide": [(None, "9:16 vertical"), (None, "16:9 wide")],
}
REFUSED = {"9:16 a fox ||\na wolf": 1, "5 foxes\n{red|blue}": 1, "[fox|wolf] in snow": 1}


def read(text: Text) -> list[Prompt] | None:
    """The prompts; None for a text without bars."""
    words = text.unruled
    if "|" not in words and "｜" not in words:
        return None
    prompts = []
    line = 1
    for piece in split_outside(words):
        prompts.append(Prompt(fold(piece), line))
        line += piece.count("\n")
    return prompts
