"""MicroDVD: "{0}{125}a fox", times in frames; the first line has their rate."""

from __future__ import annotations

import re

from ...prompt import Prompt, TimelineError
from ..counted import read_counted
from ..rows import rows_of
from ..text import Text

EXAMPLES = {
    "{1}{1}25\n{0}{125}{y:i}a fox\n{125}{250}a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
}
REFUSED = {
    "{0}{120}a fox\n{120}{240}a wolf": 1,
    "{1}{1}25\n{0}{125}a fox\nin the snow": 3,
}
_ROW = re.compile(r"\{(\d{1,9})\}\{(\d{0,9})\} ?(.*)", re.ASCII)
_RATE = re.compile(r"\d{1,3}(?:[.,]\d{1,6})?", re.ASCII)


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each line below that of the rate; None for a text that begins otherwise."""
    rows = rows_of(text.clean)
    first = _ROW.match(rows[0][1]) if rows else None
    if first is None:
        return None
    if not _RATE.fullmatch(first[3]) or float(first[3].replace(",", ".")) == 0:
        raise TimelineError(
            f"{rows[0][1][:40]!r} counts frames of an unknown rate; put {{1}}{{1}}25, with the "
            "frames of a second, above the first line",
            rows[0][0],
        )
    return read_counted(_ROW, rows[1:], rate=float(first[3].replace(",", ".")))
