"""Whisper's TSV: start and end in milliseconds and words, with tabs between, below their names."""

from __future__ import annotations

import re

from ...prompt import Prompt
from ..rows import read_row, rows_of
from ..text import Text

EXAMPLES = {
    "start\tend\ttext\n0\t5000\ta fox\n5000\t10000\ta wolf": [(0.0, "a fox"), (5.0, "a wolf")],
}
REFUSED = {"start\tend\ttext\n0\t5000\ta fox\n5\t10\n": 3}
_NAMES = "start\tend\ttext"
_ROW = re.compile(r"(\d{1,9})\t(\d{1,9})\t(.*)", re.ASCII)


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each row; None for a text without the names or without rows."""
    rows = rows_of(text.pasted)
    if len(rows) < 2 or rows[0][1].lower() != _NAMES:
        return None
    return [read_row(_ROW, number, line, rate=1000.0) for number, line in rows[1:]]
