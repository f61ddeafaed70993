"""Markdown titles. They are refused, since their words can be scenes or parts of one prompt."""

from __future__ import annotations

import re

from ...prompt import TimelineError
from ..text import Text

EXAMPLES: dict[str, list[tuple[float | None, str]]] = {}
REFUSED = {
    "# Subject\na fox\n# Style\nnoir": 1,
    "a story\n**The Forest**\na fox\n**The Lake**\na wolf": 2,
}
_TITLE = re.compile(r"#{1,6}\s.+|\*\*[^*]+\*\*:?|__[^_]+__:?")


def read(text: Text) -> None:
    """Refuse two or more titles, in bold type or behind "#"."""
    titles = [line for line in text.written if _TITLE.fullmatch(line.same)]
    if len(titles) > 1:
        raise TimelineError(
            f"{titles[0].text[:40]!r} is a title, whose words can be a scene or a part of one "
            "prompt; write scenes as Scene 1: a cat walks, or remove the titles",
            titles[0].number,
        )
