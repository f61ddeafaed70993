"""Labels of Audacity: start and end in seconds and words, with tabs between."""

from __future__ import annotations

import re

from ...prompt import Prompt
from ..rows import read_row, rows_of
from ..text import Text

EXAMPLES = {
    "0.000000\t5.000000\ta fox\n5.000000\t10.000000\ta wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "0,000000\t0,000000\ta fox\n5,000000\t10,000000\ta wolf": [(0.0, "a fox"), (5.0, "a wolf")],
}
REFUSED = {"0.000000\t5.000000\ta fox\n5.000000\t10.000000\t": 2}
_ROW = re.compile(r"(\d{1,6}[.,]\d{3,9})\t(\d{1,6}[.,]\d{3,9})\t(.*)", re.ASCII)


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each of two or more labels; None for a text with another line."""
    rows = rows_of(text.pasted)
    if len(rows) < 2 or not all(_ROW.fullmatch(line) for _, line in rows):
        return None
    return [read_row(_ROW, number, line, rate=1.0) for number, line in rows]
