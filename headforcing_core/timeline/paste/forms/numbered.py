"""Lists without times, of bullets or numbers: prompts that share the length equally.

A list is a text whose first line begins with a bullet or 1, in which every paragraph begins with
the same bullet or the next number, and none with a time or a scene.
"""

from __future__ import annotations

import re

from ...characters import fold
from ...grammar import has_time
from ...prompt import Prompt, TimelineError
from ..text import Text
from .programs import is_of_program

EXAMPLES = {
    "- a fox\n- a wolf": [(None, "a fox"), (None, "a wolf")],
    "* a fox\n  in the snow\n\n* [cut] a wolf": [
        (None, "a fox in the snow"),
        (None, "[cut] a wolf"),
    ],
    "1. a fox\n2. a wolf\n3. a cub": [(None, "a fox"), (None, "a wolf"), (None, "a cub")],
    "**1)** a fox\n\n**2)** a wolf": [(None, "a fox"), (None, "a wolf")],
    "– a fox\n– a wolf": [(None, "a fox"), (None, "a wolf")],
    "a) a fox\nb) a wolf": [(None, "a fox"), (None, "a wolf")],
    "① a fox\n② a wolf": [(None, "a fox"), (None, "a wolf")],
    "一、狐\n二、狼": [(None, "狐"), (None, "狼")],
    "1、a fox\n2、a wolf": [(None, "a fox"), (None, "a wolf")],
}
REFUSED = {"- a fox\n- a wolf\n\nEnjoy!": 4}
_ITEM = re.compile(
    r"(?:(?P<bullet>[-*+•‣▪●·–—>])\s|(?P<circle>[①-⑳])\s?"
    r"|(?P<bold>\*\*)?\(?(?P<count>\d{1,3}|[a-z]|[ivx]{1,4}|[一二三四五六七八九十])(?:[.)]|、\s?)"
    r"(?(bold)\*\*)(?:\s|(?<=、)))\s*(?P<words>.+)",
    re.ASCII | re.IGNORECASE,
)
_COUNTS = (  # that a list can go on in
    [str(number) for number in range(1, 1000)],
    list("abcdefghijklmnopqrstuvwxyz"),
    "i ii iii iv v vi vii viii ix x xi xii xiii xiv xv".split(),
    list("一二三四五六七八九十"),
    list("①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"),
)
_FRAME = re.compile(r"[\"'“]?\d{1,9}[\"'”]?\s?:", re.ASCII)


def read(text: Text) -> list[Prompt] | None:
    """The items of a list of two or more; None for another text."""
    prompts: list[Prompt] = []
    marks: list[str] = []  # of the items, where they are counted
    bullet = ""
    is_open = False  # whether the line above is of an item
    outside = None
    for line in text.lines:
        item = _ITEM.match(line.text)
        if (line.heading is not None and not line.heading.spoken) or is_of_program(line):
            return None
        if not line.text:
            is_open = False
            continue
        if item is not None:
            mark = item["bullet"] or item["circle"] or item["count"].lower()
            if not prompts:
                counts = [each for each in _COUNTS if each[0] == mark]
                marks = counts[0] if counts else []
            if (marks and mark not in marks[len(prompts) : len(prompts) + 1]) or (
                not marks and item["bullet"] != (bullet := bullet or mark)
            ):
                return None
            prompts.append(Prompt(item["words"], line.number))
            is_open = True
        elif not prompts:
            return None
        elif is_open:
            prompts[-1] = Prompt(f"{prompts[-1].text} {line.text}", prompts[-1].line)
        else:
            outside = outside or line
    if len(prompts) < 2 or any(has_time(prompt.text, timed=False) for prompt in prompts):
        return None
    frames = [prompt for prompt in prompts if _FRAME.match(prompt.text)]
    if frames:
        raise TimelineError(
            f"{frames[0].text[:40]!r} does not begin with a time that can be read; write 0:00 a "
            "cat walks",
            frames[0].line,
        )
    if outside is not None:
        raise TimelineError(
            f"{outside.text[:40]!r} stands outside of the list; remove it, or begin it as an item",
            outside.number,
        )
    return [Prompt(fold(prompt.text), prompt.line) for prompt in prompts]
