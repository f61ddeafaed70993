"""Subtitles with a line for each: MPL2 and MicroDVD, and SubStation Alpha's files."""

from __future__ import annotations

import re

from ..characters import fold
from ..clock import cut_to_millisecond
from ..prompt import Prompt, TimelineError
from .headings import seconds_in

EXAMPLES = {
    "[0][50] a fox\n[50][100] a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "[0][50]a fox": [(0.0, "a fox")],
    "[0][50]/a fox|in the snow\n[50][]a wolf": [(0.0, "a fox in the snow"), (5.0, "a wolf")],
    "{1}{1}25\n{0}{125}{y:i}a fox\n{125}{250}a wolf": [(0.0, "a fox"), (5.0, "a wolf")],
    "[Script Info]\nTitle: x\n\n[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, "
    "MarginR, MarginV, Effect, Text\n"
    "Dialogue: 0,0:00:00.00,0:00:05.00,Default,,0,0,0,,{\\i1}a fox,\\Nred\n"
    "Dialogue: 0,0:00:05.00,0:00:10.00,Default,,0,0,0,,a wolf": [
        (0.0, "a fox, red"),
        (5.0, "a wolf"),
    ],
}
REFUSED = {
    "[0][50] a fox\na wolf": 2,
    "{0}{120}a fox\n{120}{240}a wolf": 1,
    "{1}{1}25\n{0}{125}a fox\nin the snow": 3,
    "[Script Info]\nDialogue: 0,0:00:05,a fox": 2,
}
_MPL2 = re.compile(r"\[(\d{1,7})\]\[(\d{0,7})\] ?(.*)", re.ASCII)
_MICRODVD = re.compile(r"\{(\d{1,9})\}\{(\d{0,9})\} ?(.*)", re.ASCII)
_RATE = re.compile(r"\d{1,3}(?:[.,]\d{1,6})?", re.ASCII)
_CLOCK = re.compile(r"\d{1,2}:\d\d:\d\d(?:\.\d{1,3})?", re.ASCII)
_CODES = re.compile(r"\{[^{}]*\}|\\[Nnh]|[|]/?|^/")
_EVENT_FIELDS = 9  # in front of the text of a line of dialogue


def read_subtitle_lines(text: str) -> list[Prompt] | None:
    """The prompts of such a file; None for another text."""
    rows = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    rows = [row for row in rows if row[1]]
    if not rows:
        return None
    if rows[0][1].lower() == "[script info]" or rows[0][1].startswith("Dialogue:"):
        return [_event(number, line) for number, line in rows if line.startswith("Dialogue:")]
    if _MPL2.match(rows[0][1]):
        return [_timed(_MPL2, number, line, rate=10.0) for number, line in rows]
    first = _MICRODVD.match(rows[0][1])
    if first is None:
        return None
    if not _RATE.fullmatch(first[3]) or float(first[3].replace(",", ".")) == 0:
        raise TimelineError(
            f"{rows[0][1][:40]!r} counts frames of an unknown rate; put {{1}}{{1}}25, with the "
            "frames of a second, above the first line",
            rows[0][0],
        )
    rate = float(first[3].replace(",", "."))
    return [_timed(_MICRODVD, number, line, rate) for number, line in rows[1:]]


def _timed(form: re.Pattern[str], number: int, line: str, rate: float) -> Prompt:
    found = form.match(line)
    if found is None:
        raise TimelineError(
            f"{line[:40]!r} belongs to no subtitle; put it behind two times as those above, or "
            "remove it",
            number,
        )
    start = cut_to_millisecond(int(found[1]) / rate)
    end = cut_to_millisecond(int(found[2]) / rate) if found[2] else None
    return Prompt(_words(found[3]), number, start, end, token=f"{found[1]}-{found[2]}")


def _event(number: int, line: str) -> Prompt:
    fields = line.partition(":")[2].split(",", _EVENT_FIELDS)
    times = [field.strip() for field in fields[1:3]]
    if len(fields) <= _EVENT_FIELDS or not all(map(_CLOCK.fullmatch, times)):
        raise TimelineError(
            f"{line[:40]!r} is no line of SubStation Alpha's, Dialogue: 0,0:00:00.00,0:00:05.00,"
            "Default,,0,0,0,,a cat walks",
            number,
        )
    start = seconds_in(times[0], number)
    end = seconds_in(times[1], number)
    return Prompt(_words(fields[_EVENT_FIELDS]), number, start, end, token="-".join(times))


def _words(text: str) -> str:
    return fold(_CODES.sub(" ", text)).replace(" ,", ",")
