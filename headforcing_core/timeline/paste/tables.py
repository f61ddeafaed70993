"""Tables: labels of Audacity, Whisper's TSV, and rows of CSV or Markdown below a row of names."""

from __future__ import annotations

import csv
import re

from ..characters import clean, fold, plain
from ..prompt import Prompt, TimelineError
from ..times import FLAGS, TIME, TO
from .headings import seconds_in

EXAMPLES = {
    "0.000000\t5.000000\ta fox\n5.000000\t10.000000\ta wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "start\tend\ttext\n0\t5000\ta fox\n5000\t10000\ta wolf": [(0.0, "a fox"), (5.0, "a wolf")],
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
    "start,end,prompt\n0,5,a fox\n5,10,a wolf": 2,
    "| Time | Prompt |\n|---|---|\n| soon | a fox |": 3,
}
_AUDACITY = re.compile(r"(\d{1,6}[.,]\d{3,9})\t(\d{1,6}[.,]\d{3,9})\t(.*)", re.ASCII)
_WHISPER = "start\tend\ttext"
_RULE = re.compile(r"[|\s:-]+")
_STARTS = "start time begin from timecode timestamp".split()
_ENDS = "end until to".split()
_WORDS = "prompt text description scene caption words visual".split()
_RANGE = re.compile(rf"(?P<start>{TIME})(?:{TO}(?P<end>{TIME}))?", FLAGS)


def read_table(text: str) -> list[Prompt] | None:
    """The prompts of a table; None for another text, which has its tabs still."""
    rows = [(number, line.strip("\r ")) for number, line in enumerate(text.split("\n"), 1)]
    rows = [(number, line.removeprefix("\ufeff")) for number, line in rows if line.strip()]
    if len(rows) < 2:
        return None
    first = rows[0][1]
    if all(_AUDACITY.fullmatch(line) for _, line in rows):
        return [_labelled(_AUDACITY, number, line, 1.0) for number, line in rows]
    if first.lower() == _WHISPER:
        form = re.compile(r"(\d{1,9})\t(\d{1,9})\t(.*)", re.ASCII)
        return [_labelled(form, number, line, 1000.0) for number, line in rows[1:]]
    if first.startswith("|"):
        if not _RULE.fullmatch(rows[1][1]):
            return None
        cells = [(number, line.strip("| ").split("|")) for number, line in rows]
        return _named(cells[:1] + cells[2:])
    mark = next((mark for mark in "\t;," if mark in first), None)
    if mark is None or "\n" in first:
        return None
    try:
        found = list(csv.reader([line for _, line in rows], delimiter=mark))
    except csv.Error:
        return None
    if len(found) != len(rows):
        return None
    numbers = [number for number, _ in rows]
    return _named(list(zip(numbers, found, strict=True)))


def _labelled(form: re.Pattern[str], number: int, line: str, rate: float) -> Prompt:
    found = form.fullmatch(line)
    if found is None:
        raise _no_row(line, number)
    start = float(found[1].replace(",", ".")) / rate
    end = float(found[2].replace(",", ".")) / rate
    return Prompt(fold(found[3]), number, start, end or None, token=f"{start:g}-{end:g} s")


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
            raise _no_row(",".join(cells), number)
        times = _RANGE.fullmatch(_cell(cells[starts[0]]))
        end = _RANGE.fullmatch(_cell(cells[ends[0]])) if ends else None
        if times is None or (ends and (end is None or times["end"])):
            raise _no_row(",".join(cells), number)
        until = times["end"] or (end["start"] if end else "")
        others = {*starts[:1], *ends[:1], *words[:1]}
        more = [cell for column, cell in enumerate(cells) if column not in others]
        text = ", ".join(filter(None, map(fold, [cells[words[0]], *more])))
        start = seconds_in(times["start"], number)
        prompts.append(Prompt(text, number, start, seconds_in(until, number), token=times["start"]))
    return prompts


def _cell(cell: str) -> str:
    return plain(clean(cell)).strip(" *_`[]()")


def _no_row(line: str, number: int) -> TimelineError:
    return TimelineError(
        f"{fold(line)[:40]!r} is no row of the table; write times as 0:05 or 5 s, and a cell for "
        "each name",
        number,
    )
