"""Rows of tables."""

from __future__ import annotations

import re

from ..characters import fold
from ..prompt import Prompt, TimelineError


def rows_of(text: str) -> list[tuple[int, str]]:
    """The lines that are not empty, with their numbers from 1."""
    rows = [(number, line.strip("\r ")) for number, line in enumerate(text.split("\n"), 1)]
    return [(number, line.removeprefix("\ufeff")) for number, line in rows if line.strip()]


def no_row(line: str, number: int) -> TimelineError:
    """The error of a line that has not what the other rows have."""
    return TimelineError(
        f"{fold(line)[:40]!r} is no row of the table; write times as 0:05 or 5 s, and a cell for "
        "each name",
        number,
    )


def read_row(form: re.Pattern[str], number: int, line: str, rate: float) -> Prompt:
    """The prompt of a row, which `form` cuts into start, end and words; `rate` of them are a
    second.
    """
    found = form.fullmatch(line)
    if found is None:
        raise no_row(line, number)
    start = float(found[1].replace(",", ".")) / rate
    end = float(found[2].replace(",", ".")) / rate
    return Prompt(fold(found[3]), number, start, end or None, token=f"{start:g}-{end:g} s")
