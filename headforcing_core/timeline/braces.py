"""Braces in prompts: ComfyUI's text box chooses words with `{red|blue}`; `\\{red|blue\\}` are
braces themselves.
"""

from __future__ import annotations

import re
from itertools import pairwise

_ESCAPED = re.compile(r"\\([{}])")


def split_outside(text: str, most: int) -> list[str]:
    """A text cut at its bars, full-width ones too, at most so often and not inside braces."""
    inside = _inside(text)
    bars = [bar.start() for bar in re.finditer("[|｜]", text) if bar.start() not in inside]
    cuts = [-1, *bars[:most], len(text)]
    return [text[begin + 1 : end] for begin, end in pairwise(cuts)]


def find_choice(text: str) -> str | None:
    """The first braces in a text that choose between words; None where there are none."""
    hidden = _ESCAPED.sub("  ", text)
    for begin, end in sorted(_pairs(hidden)):
        if "|" in hidden[begin:end]:
            return text[begin : end + 1]
    return None


def unescape(text: str) -> str:
    """The text that a model reads: `\\{` and `\\}` are braces."""
    return _ESCAPED.sub(r"\1", text)


def _pairs(text: str) -> list[tuple[int, int]]:
    """The places of every pair of braces that is in no other pair."""
    opened = []
    pairs: list[tuple[int, int]] = []
    for found in re.finditer(r"[{}]", text):
        if found[0] == "{":
            opened.append(found.start())
        elif opened:
            begin = opened.pop()
            while pairs and pairs[-1][0] > begin:
                pairs.pop()
            pairs.append((begin, found.start()))
    return pairs


def _inside(text: str) -> set[int]:
    """The places in a text that are in braces."""
    places: set[int] = set()
    for begin, end in _pairs(text):
        places.update(range(begin, end))
    return places
