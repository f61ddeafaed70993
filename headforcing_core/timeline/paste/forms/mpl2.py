"""MPL2: "[0][50] a fox", times in tenths of a second."""

from __future__ import annotations

import re

from ...prompt import Prompt
from ..counted import read_counted
from ..rows import rows_of
from ..text import Text

EXAMPLES = {
    "[0][50] a fox\n[50][100] a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "[0][50]/a fox|in the snow\n[50][]a wolf": [(0.0, "a fox in the snow"), (5.0, "a wolf")],
    "[0][50]a fox": [(0.0, "a fox")],
}
REFUSED = {"[0][50] a fox\na wolf": 2}
_ROW = re.compile(r"\[(\d{1,7})\]\[(\d{0,7})\] ?(.*)", re.ASCII)


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each line; None for a text that begins otherwise."""
    rows = rows_of(text.clean)
    if not rows or _ROW.match(rows[0][1]) is None:
        return None
    return read_counted(_ROW, rows, rate=10.0)
