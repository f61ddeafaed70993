"""Lists with bullets. Their items are prompts if each is a sentence; else they could as well be the
properties of one prompt.
"""

from __future__ import annotations

import re

from ...prompt import Prompt, TimelineError
from ..headings import Line
from ..items import cut_at, is_timed, read_items
from ..text import Text
from .programs import is_of_program

EXAMPLES = {
    "- A fox trots.\n- A wolf howls.": [(None, "A fox trots."), (None, "A wolf howls.")],
    "* A fox trots\n  in the snow.\n\n* [cut] A wolf howls!": [
        (None, "A fox trots in the snow."),
        (None, "[cut] A wolf howls!"),
    ],
    "– A fox trots.\n– “A wolf howls.”": [(None, "A fox trots."), (None, "“A wolf howls.”")],
    "•狐在雪中。\n•狼在嚎叫。": [(None, "狐在雪中。"), (None, "狼在嚎叫。")],
    "-A fox trots.\n-A wolf howls.": [(None, "A fox trots."), (None, "A wolf howls.")],
    "- [ ] A fox trots.\n- [x] A wolf howls.": [(None, "A fox trots."), (None, "A wolf howls.")],
    "🎬 A fox trots.\n🎬 A wolf howls.": [(None, "A fox trots."), (None, "A wolf howls.")],
    "• A fox trots. • A wolf howls.": [(None, "A fox trots."), (None, "A wolf howls.")],
}
REFUSED = {
    "- A fox trots.\n- A wolf howls.\n\nEnjoy!": 4,
    "- warm light\n- 35mm\n- a fox": 1,
    "-a fox\n-a wolf": 1,
    "- A fox trots (5 s).\n- A wolf howls (5 s).": 1,
    "* a fox * a wolf": 1,
    "•a fox •a wolf": 1,
    "- A fox trots.\n* A wolf howls.": 2,
}
_ITEM = re.compile(
    r"(?:(?P<mark>[-+>*~]|[^\w\s!-/:-@\[-`{-~\"'“”„‘’«»「『…¿¡])\ufe0f?\s{1,8}(?:\[[ xX]?\]\s)?"
    r"|(?P<close>[-•‣▪●·–—]|\*(?=[^*]*$))(?=[^\W\d_]))\s*"
)
_SENTENCE = re.compile(r"[.!?。！？…][\"'”’»」』)\]*_`]*$")


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each item; None for a text that does not begin with a bullet.

    Raises TimelineError for items that are no sentences.
    """
    first = _ITEM.match(text.written[0].text) if text.written else None
    if first is None:
        return None
    mark = _mark(first)
    lines = text.lines
    if len(text.written) == 1:
        lines = _cut(text.written[0], mark)
    if any(is_timed(line) or is_of_program(line) for line in lines):
        return None
    prompts = read_items(lines, lambda line, _: _words(line, mark))
    for prompt in prompts or ():
        if _SENTENCE.search(prompt.text) is None:
            raise TimelineError(
                f"{prompt.text[:40]!r} can be a prompt or a property of one; number the prompts, "
                "as in 1. a cat walks, or end each with a full stop, or write one prompt without "
                "bullets",
                prompt.line,
            )
    return prompts


def _mark(item: re.Match[str]) -> str:
    return item["mark"] or item["close"]


def _words(line: Line, mark: str) -> str | None:
    item = _ITEM.match(line.text)
    if item is None:
        return None
    if _mark(item) != mark:
        raise TimelineError(
            f"{line.text[:40]!r} begins with another bullet than {mark!r}; begin all prompts in "
            "the same way",
            line.number,
        )
    return line.text[item.end() :]


def _cut(line: Line, mark: str) -> list[Line]:
    """A line that is a whole list, cut before each bullet."""
    inside = re.compile(rf"(?<=\s){re.escape(mark)}(?=\ufe0f?\s|(?<=[•‣▪●·])\w)")
    return cut_at(line, [0, *(found.start() for found in inside.finditer(line.text))])
