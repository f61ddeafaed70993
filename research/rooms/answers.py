"""The measured answer to a question: comparisons with the last row, and the table that says no more
than they know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from ...headforcing_core.plan.describe import markdown_table
from ..rows import MethodRow, Rendered, Row, Shuffles, renders_of
from ..statistics import (
    Interval,
    Measured,
    Numbers,
    Paired,
    differences,
    mean_interval,
)

COLUMNS: dict[str, tuple[str, int]] = {
    "frames_a_head": ("frames a head", 0),
    "layout": ("layout", 2),
    "layout_by_chance": ("layout by chance", 2),
    "layout_just_left": ("layout just left", 2),
    "identity": ("marking", 2),
    "identity_by_chance": ("marking by chance", 2),
    "background": ("background", 3),
    "pattern": ("pattern", 3),
    "shape": ("kind of shape", 3),
    "single": ("one shape", 3),
    "outline": ("overlap with the outline", 2),
    "moves": ("word of the motion", 2),
    "camera": ("word of the camera", 2),
    "place_error": ("error of the actor's place one block ahead, pixels", 2),
    "loss_0.9375": ("loss at 0.9375", 4),
}
"""Heading and digits of every number."""
# computed from the plan, the same for all videos: three digits and no interval
PLANNED = "frames_a_head"
LEGEND = (
    "Means of {videos} videos with 95 % t intervals. †: the same prompts and noise differ from the "
    "last row's, and the interval of the difference and the sign-flip test of this cell alone "
    "agree; among rows that do not differ up to one cell in twenty has one."
)


@dataclass(frozen=True)
class Question:
    """One table: its rows, which are compared with the last one, on a story; columns of `COLUMNS`,
    a note below it.

    Attributes:
        first: number of the first video, which is also the seed of its noise.
        ahead: whether the next block after a true past is predicted, too.
    """

    asks: str
    story: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = ()
    note: str = ""
    first: int = 0
    ahead: bool = False

    def numbers(self, videos: int) -> range:
        return range(self.first, self.first + videos)

    @property
    def entries(self) -> list[MethodRow]:
        """All that is rendered, a row of shuffles as one for each."""
        return list(chain.from_iterable(map(renders_of, self.rows)))


@dataclass(frozen=True)
class Answer:
    """The metrics of every row's videos, in the order of `question.rows`; none for a row that was
    not measured.
    """

    question: Question
    rows: tuple[Measured, ...]

    def interval(self, row: int, column: str) -> Interval | None:
        return mean_interval(self.rows[row].values(column))

    def row(self, label: str) -> Measured:
        return self.rows[[row.label for row in self.question.rows].index(label)]

    def compared(self, row: int, column: str) -> Paired | None:
        """The paired difference to the last row; None where one of them has no numbers."""
        return self._compared.get((row, column))

    def table(self) -> str:
        """A Markdown table of means with 95 % intervals, its legend, and how the shuffles lie."""
        columns = []
        for column in self.question.columns:
            if any(self.interval(place, column) for place in range(len(self.rows))):
                columns.append(column)
        lines = []
        for place, row in enumerate(self.question.rows):
            lines.append([row.label, *(self._cell(place, column) for column in columns)])
        table = markdown_table(["", *(COLUMNS[column][0] for column in columns)], lines)
        legend = LEGEND.format(videos=len(self.rows[-1].videos))
        return "\n".join([table, "", legend, *self._ranks(columns)])

    def text(self) -> str:
        """The question, its table and its note."""
        return "\n\n".join(filter(None, [self.question.asks, self.table(), self.question.note]))

    def _ranks(self, columns: Sequence[str]) -> list[str]:
        """One line for each row of shuffles: how many of them are below Head Forcing in every
        column.
        """
        lines = []
        for i, (row, measured) in enumerate(zip(self.question.rows, self.rows, strict=True)):
            found = {c: self.compared(i, c) for c in columns if c != PLANNED}
            told = [
                f"{COLUMNS[c][0]} {test.below[0]}"
                for c, test in found.items()
                if test and test.below
            ]
            if measured.shuffles:
                lines.append(
                    f"{row.label}: each of {len(measured.shuffles)} shuffles on all videos; of "
                    f"them below the last row: {', '.join(told)}."
                )
        return lines

    def _cell(self, row: int, column: str) -> str:
        interval = self.interval(row, column)
        test = self.compared(row, column)
        if interval is None:
            return "–"
        if column == PLANNED:
            return f"{interval.mean:.3g}"
        form = f"{{:.{COLUMNS[column][1]}f}}".format
        shown = interval.text(form)
        mean = form(interval.mean)
        if test is None or not test.clear:
            return shown
        return shown.replace(mean, f"{mean}†", 1)

    @cached_property
    def _compared(self) -> dict[tuple[int, str], Paired | None]:
        last = self.rows[-1]
        found = dict[tuple[int, str], Paired | None]()
        for row, mine in enumerate(self.rows[:-1] if last.videos else ()):
            for column in self.question.columns if mine.videos else ():
                gains = differences(mine.values(column), last.values(column))
                found[row, column] = Paired.of(gains, mine.below(last, column), towards=-1)
        return found

    def to_dict(self) -> dict[str, Any]:
        """JSON: means, intervals, comparisons, and by column the metrics of every video."""
        about = {
            "asks": self.question.asks,
            "story": self.question.story,
            "note": self.question.note,
        }
        return {**about, "rows": [self._row(i) for i in range(len(self.rows))]}

    def _row(self, row: int) -> dict[str, Any]:
        columns = self.question.columns
        measured = self.rows[row]

        def stored(videos: Sequence[Numbers]) -> dict[str, list[float | None]]:
            if not videos:
                return {}
            by_column = {}
            for column in columns:
                by_column[column] = [_rounded(video.get(column)) for video in videos]
            return by_column

        made: dict[str, Any] = {
            "label": self.question.rows[row].label,
            "means": {
                c: None if (mean := self.interval(row, c)) is None else asdict(mean)
                for c in columns
            },
            "difference_to_last": {c: _stored(self.compared(row, c)) for c in columns},
            "videos": stored(measured.videos),
        }
        return made | (
            {"shuffles": list(map(stored, measured.shuffles))} if measured.shuffles else {}
        )


def answer(
    question: Question, measure_row: Callable[[MethodRow | Rendered], Sequence[Numbers]]
) -> Answer:
    """Measure all videos of every row; none stands for a row that was not measured."""
    rows = []
    for row in question.rows:
        if isinstance(row, Shuffles):
            parts = [measure_row(entry) for entry in renders_of(row)]
            rows.append(Measured.of_shuffles(parts if all(parts) else [], decides=False))
        else:
            rows.append(Measured(measure_row(row)))
    return Answer(question, tuple(rows))


def _stored(test: Paired | None) -> dict[str, Any] | None:
    if test is None:
        return None
    found = {
        **asdict(test.interval),
        "p": test.p,
        "clear": test.clear,
        "sure": test.sure,
    }
    return found | ({} if test.below is None else {"below": test.below[0], "of": test.below[1]})


def _rounded(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(value, 5)
