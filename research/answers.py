"""The measured answer to a question: comparisons with the last row, and the table that says no more than they know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from ..headforcing_core.render.comparison import Entry
from ..headforcing_core.render.describe import markdown_table
from .questions import COLUMNS, Measure, Question, Rendered, Shuffles, sharing
from .statistics import (
    ENOUGH,
    Interval,
    Numbers,
    Paired,
    corrected,
    count_below,
    differences,
    mean_interval,
    mean_numbers,
    on_side,
    values_of,
)

LEGEND = (
    "Means of {videos} videos with 95 % t intervals. †: the same prompts and noise differ from the last row's, and the "
    "interval of the difference and the sign-flip test of this cell alone agree; among rows that do not differ up to "
    "one cell in twenty has one."
)
BOLD = (
    " **Bold**: sure, that is a primary endpoint ({primary}) in which both agree after "
    "Holm's correction over the {endpoints} primary endpoints of this table, with at least {enough} videos{none}."
)


@dataclass(frozen=True)
class Compared(Paired):
    """The paired difference of a row to the last one.

    Attributes:
        holm: adjusted over the table's primary endpoints; None for other cells.
        ranked: for a row of shuffles, how many of them are below the last row, and how many there are; else None.
    """

    ranked: tuple[int, int] | None = None

    @property
    def clear(self) -> bool:
        """Whether interval and test of this cell alone exclude 0, and the shuffles are `on_side`."""
        return on_side(self.ranked, -1 if self.interval.mean > 0 else 1) and super().clear

    def to_dict(self) -> dict[str, Any]:
        found = {**asdict(self.interval), "p": self.p, "clear": self.clear, "sure": self.sure}
        found |= {} if self.holm is None else {"holm": self.holm}
        return found | ({} if self.ranked is None else {"below": self.ranked[0], "of": self.ranked[1]})


@dataclass(frozen=True)
class Answer:
    """The metrics of every row's videos.

    Attributes:
        numbers: `numbers[row][video]`, rows in the order of `question.rows`; empty for a row that was not measured. Of
            a row of shuffles the means over them.
        shuffles: of such a row `shuffles[row][shuffle][video]`.
    """

    question: Question
    numbers: tuple[tuple[Numbers, ...], ...]
    shuffles: Mapping[int, tuple[tuple[Numbers, ...], ...]] = field(default_factory=dict)

    def interval(self, row: int, column: str) -> Interval | None:
        return mean_interval(self._values(row, column))

    def compared(self, row: int, column: str) -> Compared | None:
        """The paired difference to the last row; None where one of them has no numbers."""
        return self._compared.get((row, column))

    @property
    def endpoints(self) -> list[tuple[int, str]]:
        """The primary endpoints: the differences of all measured methods to the last row, in the primary column."""
        if not self.question.primary:
            return []
        methods = [i for i, row in enumerate(self.question.rows[:-1]) if not isinstance(row, Rendered)]
        return [(i, self.question.primary) for i in methods if self._difference(i, self.question.primary) is not None]

    def table(self) -> str:
        """A Markdown table of means with 95 % intervals, its legend, and how the shuffles lie."""
        columns = [c for c in self.question.columns if any(self.interval(i, c) for i in range(len(self.numbers)))]
        lines = [
            [row.label, *(self._cell(i, column) for column in columns)] for i, row in enumerate(self.question.rows)
        ]
        table = markdown_table(["", *(COLUMNS[column].heading for column in columns)], lines)
        videos, endpoints = len(self.numbers[-1]), len(self.endpoints)
        legend = LEGEND.format(videos=videos)
        if self.question.primary:
            legend += BOLD.format(
                primary=COLUMNS[self.question.primary].heading,
                endpoints=endpoints,
                enough=ENOUGH,
                none=f"; {videos} are too few for that" if videos < ENOUGH else "",
            )
        return "\n".join([table, "", *filter(None, [legend, *self._told_shuffles(columns), sharing(self.question)])])

    def _told_shuffles(self, columns: Sequence[str]) -> list[str]:
        """One line for each row of shuffles: how many of them are below Head Forcing in every column."""
        lines = []
        for row, shuffles in self.shuffles.items():
            ranks = {column: self.compared(row, column) for column in columns if not COLUMNS[column].planned}
            told = [f"{COLUMNS[c].heading} {found.ranked[0]}" for c, found in ranks.items() if found and found.ranked]
            lines.append(
                f"{self.question.rows[row].label}: each of {len(shuffles)} shuffles on all videos; of them below the "
                f"last row: {', '.join(told)}."
            )
        return lines

    def _cell(self, row: int, column: str) -> str:
        interval, form = self.interval(row, column), COLUMNS[column].form
        if interval is None:
            return "–"
        if COLUMNS[column].planned:
            return form(interval.mean)
        found, mean = self.compared(row, column), form(interval.mean)
        if found is not None and found.clear:
            mean = f"**{mean}**" if found.sure else f"{mean}†"
        return f"{mean} ({form(interval.low)} to {form(interval.high)})"

    @cached_property
    def _compared(self) -> dict[tuple[int, str], Compared]:
        found = {}
        for row in range(len(self.numbers) - 1):
            for column in self.question.columns:
                if (difference := self._difference(row, column)) is not None:
                    found[row, column] = difference
        endpoints = self.endpoints
        return found | dict(zip(endpoints, corrected([found[at] for at in endpoints]), strict=True))

    def _difference(self, row: int, column: str) -> Compared | None:
        if not self.numbers[row] or not self.numbers[-1] or column not in self.question.columns:
            return None
        values, others = self._values(row, column), self._values(-1, column)
        found = Compared.of(differences(values, others))
        if found is None or row not in self.shuffles:
            return found
        return replace(found, ranked=count_below([values_of(made, column) for made in self.shuffles[row]], others))

    def _values(self, row: int, column: str) -> list[float | None]:
        return values_of(self.numbers[row], column)

    def to_dict(self) -> dict[str, Any]:
        """JSON: means, intervals, comparisons, and the metrics of every video."""
        question = self.question
        rows = [self._row(i) for i in range(len(question.rows))]
        about = {"asks": question.asks, "story": question.story, "note": question.note, "primary": question.primary}
        return {**about, "rows": rows}

    def _row(self, row: int) -> dict[str, Any]:
        columns = self.question.columns

        def stored(videos: Sequence[Numbers]) -> list[Numbers]:
            return [{column: _rounded(video.get(column)) for column in columns} for video in videos]

        compared = {c: None if (found := self.compared(row, c)) is None else found.to_dict() for c in columns}
        made: dict[str, Any] = {
            "label": self.question.rows[row].label,
            "means": {c: None if (mean := self.interval(row, c)) is None else asdict(mean) for c in columns},
            "difference_to_last": compared,
            "videos": stored(self.numbers[row]),
        }
        if row in self.shuffles:
            made["shuffles"] = [stored(videos) for videos in self.shuffles[row]]
        return made


def packed(found: Mapping[str, Any]) -> dict[str, Any]:
    """A stored answer with a list for each column of a row, which takes less room."""

    def by_column(videos: Sequence[Numbers]) -> dict[str, list[float | None]]:
        return {column: [video[column] for video in videos] for column in videos[0]} if videos else {}

    rows = []
    for row in found["rows"]:
        shuffles = {"shuffles": [by_column(part) for part in row["shuffles"]]} if "shuffles" in row else {}
        rows.append({**row, "videos": by_column(row["videos"]), **shuffles})
    return {**found, "rows": rows}


def answer(question: Question, videos: int, measure: Measure) -> Answer:
    """Measure `videos` videos of every row; video `i` has the same prompts and noise in all rows."""
    return answer_rows(question, lambda row: tuple(measure(row, i) for i in range(videos)))


def answer_rows(question: Question, measure_row: Callable[[Entry | Rendered], tuple[Numbers, ...]]) -> Answer:
    """Measure all videos of every row at once; none stands for a row that was not measured."""
    numbers: list[tuple[Numbers, ...]] = []
    shuffles: dict[int, tuple[tuple[Numbers, ...], ...]] = {}
    for i, row in enumerate(question.rows):
        if not isinstance(row, Shuffles):
            numbers.append(measure_row(row))
            continue
        parts = tuple(map(measure_row, row.entries))
        if parts and all(parts):
            shuffles[i] = parts
        numbers.append(tuple(mean_numbers(same, decides=False) for same in zip(*shuffles.get(i, ()), strict=True)))
    return Answer(question, tuple(numbers), shuffles)


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 5)
