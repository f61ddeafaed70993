"""Tables: rows of CSV, TSV or Markdown below a row of names."""

from __future__ import annotations

import csv
import re

from ...characters import clean, fold, plain
from ...prompt import Prompt, TimelineError
from ...times import FLAGS, NUMBER, TIME, TO
from ..headings import seconds_in
from ..rows import no_row, rows_of
from ..text import Text
from .programs import EXAMPLE

EXAMPLES = {
    'start,end,prompt\n0:00,0:05,"a fox, red"\n0:05,0:10,a wolf': [
        (0.0, "a fox, red"),
        (5.0, "a wolf"),
    ],
    "Time;Prompt\n0 s;a fox\n5 s;a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "| Time | Prompt |\n|---|---|\n| 0:00-0:05 | a fox |\n| 0:05-0:10 | a wolf |": [
        (0.0, "a fox"),
        (5.0, "a wolf"),
    ],
}
REFUSED = {
    "a fox\t0\na wolf\t5": 1,
    "start,end,prompt\n0,5,a fox\n5,10,a wolf": 2,
    "| Time | Prompt |\n|---|---|\n| soon | a fox |": 3,
}
_RULE = re.compile(r"[|\s:-]+")
_NUMBERED = re.compile(rf"^ {{0,8}}{NUMBER} {{0,8}}\t|\t {{0,8}}{NUMBER} {{0,8}}$", FLAGS)
_STARTS = "start time begin from timecode timestamp".split()
_ENDS = "end until to".split()
_WORDS = "prompt text description scene caption words visual".split()
_RANGE = re.compile(rf"(?P<start>{TIME})(?:{TO}(?P<end>{TIME}))?", FLAGS)


def read(text: Text) -> list[Prompt] | None:
    """A prompt for each row; None for another text. Raises TimelineError also for rows without
    names whose tabs have a number before or behind them.
    """
    rows = rows_of(text.pasted)
    cells = _cells(rows)
    prompts = _named(cells) if cells else None
    if prompts is None and "\t" in text.pasted:
        _refuse_numbers(rows)
    return prompts


def _cells(rows: list[tuple[int, str]]) -> list[tuple[int, list[str]]] | None:
    """The cells of rows; None for lines that are none."""
    if len(rows) < 2:
        return None
    first = rows[0][1]
    if first.startswith("|"):
        if not _RULE.fullmatch(rows[1][1]):
            return None
        cells = [(number, line.strip("| ").split("|")) for number, line in rows]
        return cells[:1] + cells[2:]
    mark = next((mark for mark in "\t;," if mark in first), None)
    if mark is None:
        return None
    try:
        found = list(csv.reader([line for _, line in rows], delimiter=mark))
    except csv.Error:
        return None
    if len(found) != len(rows):
        return None
    numbers = [number for number, _ in rows]
    return list(zip(numbers, found, strict=True))


def _refuse_numbers(rows: list[tuple[int, str]]) -> None:
    found = [(number, line) for number, line in rows if _NUMBERED.search(line)]
    if len(found) > 1:
        number, line = found[0]
        raise TimelineError(
            f"{fold(line)[:40]!r} is a row of a table, whose numbers cannot be read as times; "
            f"write {EXAMPLE}",
            number,
        )


def _named(rows: list[tuple[int, list[str]]]) -> list[Prompt] | None:
    """Rows below one of names, of which one is that of a start and one that of the words."""
    names = [re.sub(r"\W.*", "", cell.strip(" *_").lower()) for cell in rows[0][1]]
    starts = [column for column, name in enumerate(names) if name in _STARTS]
    words = [column for column, name in enumerate(names) if name in _WORDS]
    if not starts or not words or starts[0] == words[0]:
        return None
    ends = [column for column, name in enumerate(names) if name in _ENDS]
    prompts = []
    for number, cells in rows[1:]:
        if len(cells) != len(names):
            raise no_row(",".join(cells), number)
        times = _RANGE.fullmatch(_cell(cells[starts[0]]))
        end = _RANGE.fullmatch(_cell(cells[ends[0]])) if ends else None
        if times is None or (ends and (end is None or times["end"])):
            raise no_row(",".join(cells), number)
        until = times["end"] or (end["start"] if end else "")
        others = {*starts[:1], *ends[:1], *words[:1]}
        more = [cell for column, cell in enumerate(cells) if column not in others]
        text = ", ".join(filter(None, map(fold, [cells[words[0]], *more])))
        start = seconds_in(times["start"], number)
        prompts.append(Prompt(text, number, start, seconds_in(until, number), token=times["start"]))
    return prompts


def _cell(cell: str) -> str:
    return plain(clean(cell)).strip(" *_`[]()")
