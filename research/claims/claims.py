"""The paper's claims against measured videos: one verdict for each of its figures, by a rule that is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.render.comparison import Entry
from ...headforcing_core.render.describe import markdown_table
from ..paper_tables import PAPER_TABLES
from ..questions import COLUMNS as METRIC_COLUMNS
from ..questions import Shuffles
from ..statistics import (
    ENOUGH,
    ENOUGH_SHUFFLES,
    LEVEL,
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
from ..videos import Scores
from .paper_numbers import BESIDE, COLUMNS, ONE_PROMPT, REPORTED, SIX_PROMPTS, PaperColumn, Reported

OURS = "D"
QUICK_ROWS = ("A", "random", OURS)
AGREES, DISAGREES, UNDECIDED, NOT_MEASURED = "agrees", "disagrees", "undecided", "not measured"
RULE = (
    "Every line is Head Forcing's paired difference to a row, on the same prompts and noise. **Agrees**: Head "
    "Forcing is surely better, and the difference is not surely less than half of the paper's. **Disagrees**: it "
    "is surely worse, or the difference is surely less than half of the paper's (where both are on one scale). "
    "**Undecided**: neither. Surely means that the 95 % t interval and a sign-flip test (all signs up to 16 "
    f"videos, else 20,000 draws) both say so, the test at p <= {LEVEL:.2f} after Holm's correction over all tests "
    f"of this page, with at least {ENOUGH} videos. "
    f"With several shuffles all of them, or from {ENOUGH_SHUFFLES} on all but one, must lie on the side of the "
    "verdict, too."
)
LIMITS = (
    "What this page cannot say: whether a difference would be seen by people; anything about other weights, "
    "prompts, lengths or sizes; and, where a column is undecided, that there is no difference. Metrics are those "
    "of docs/metrics.md, not VBench's programs; consistencies, the CLIP score and a dynamic degree of whole videos are "
    "therefore compared with the paper by their sign only. A still video flickers least: read that column beside the "
    "dynamic degree. In the paper all rows of Table 5 have the same cache budget; here merged heads get the cache of a "
    "memory head."
)


def claim_rows(shuffles: int) -> dict[str, Entry | Shuffles]:
    """The rows of the paper's Tables 4 and 5 by name; a row that both have, Head Forcing, is there once."""
    components = dict(zip("ABCD", PAPER_TABLES["components"].rows, strict=True))
    names = ("random", "uniform", "local+memory", "anchor+memory")
    roles = dict(zip(names, PAPER_TABLES["roles"].rows[:-1], strict=True))
    return {**components, **roles, "random": Shuffles(roles["random"], shuffles)}


def named_rows(text: str, shuffles: int) -> dict[str, Entry | Shuffles]:
    """The rows that a text names, separated by commas, in the order of `claim_rows`; Head Forcing always.

    Raises HeadForcingError for an unknown name, and if no row remains to compare with.
    """
    rows = claim_rows(shuffles)
    known = {name.lower(): name for name in rows}
    given = [part.strip() for part in text.split(",") if part.strip()]
    for part in given:
        if part.lower() not in known:
            raise HeadForcingError(f"--rows are names such as A,D,random, of {', '.join(rows)}; got {part[:40]!r}")
    wanted = {known[part.lower()] for part in given} | {OURS}
    if len(wanted) < 2:
        raise HeadForcingError(f"--rows must name a row besides {OURS}, which all others are compared with")
    return {name: row for name, row in rows.items() if name in wanted}


@dataclass(frozen=True)
class Measured:
    """The numbers of a row's videos by story, in the order of their numbers.

    Attributes:
        shuffles: of a row of several shuffles each of them; `videos` are then the means over them.
    """

    videos: Mapping[str, Sequence[Numbers]]
    shuffles: tuple[Measured, ...] = ()

    @classmethod
    def of_shuffles(cls, shuffles: Sequence[Measured]) -> Measured:
        """The row of these shuffles."""
        if len(shuffles) == 1:
            return shuffles[0]
        means = {}
        for story in shuffles[0].videos:
            same_video = zip(*(each.videos[story] for each in shuffles), strict=True)
            means[story] = [mean_numbers(made, decides=True) for made in same_video]
        return cls(means, tuple(shuffles))

    def below(self, ours: Measured, story: str, key: str, by: float = 0.0) -> tuple[int, int] | None:
        """Number of shuffles whose mean is below another row's by more than `by`, and of all; None without."""
        if not self.shuffles:
            return None
        return count_below([each.values(story, key) for each in self.shuffles], ours.values(story, key), by)

    def values(self, story: str, key: str) -> list[float | None]:
        return values_of(self.videos.get(story, ()), key)


def measured_rows(scores: Scores) -> dict[str, Measured]:
    """The numbers of all videos by row."""
    rows: dict[str, dict[str, dict[str, list[Numbers]]]] = {}
    for each in scores.videos:
        stories = rows.setdefault(each.row, {}).setdefault(each.video.entry.key, {})
        stories.setdefault(each.story, []).append(scores.known[each.name])
    return {row: Measured.of_shuffles(list(map(Measured, made.values()))) for row, made in rows.items()}


@dataclass(frozen=True)
class Line:
    """One figure of the paper beside the measured one, both in the paper's units.

    Attributes:
        key: the metric that was measured; None without.
        better: Head Forcing less the row.
        half: the same less half of the paper's difference; None where the scales differ.
        below, half_below: as `Measured.below`, by more than nothing and by more than half of the paper's difference.
        why: why there are no numbers.
    """

    reported: Reported
    key: str | None = None
    better: Paired | None = None
    half: Paired | None = None
    below: tuple[int, int] | None = None
    half_below: tuple[int, int] | None = None
    why: str = ""

    @property
    def column(self) -> PaperColumn:
        return COLUMNS[self.reported.column]

    @property
    def verdict(self) -> str:
        """The verdict by `RULE`."""
        if self.better is None:
            return NOT_MEASURED
        if self._worse or (self._less and on_side(self.half_below, -1)):
            return DISAGREES
        better = self.better.surely(1) and on_side(self.below, 1)
        return AGREES if better and not self._less else UNDECIDED

    @property
    def _worse(self) -> bool:
        return self.better is not None and self.better.surely(-1) and on_side(self.below, -1)

    @property
    def _less(self) -> bool:
        """Whether the difference is surely less than half of the paper's, whatever the shuffles say."""
        return self.half is not None and self.half.surely(-1)

    @property
    def remark(self) -> str:
        """Reasons why it is undecided or has no numbers, and what is odd about the paper's figure."""
        told = [self.why, self.reported.note]
        if self.better is not None and self.better.interval.count < ENOUGH:
            told.insert(0, f"{self.better.interval.count} videos are fewer than {ENOUGH}")
        if self.below is not None:
            told.insert(0, f"better than {self.below[0]} of {self.below[1]} shuffles")
        if self.verdict == DISAGREES and not self._worse:
            told.insert(0, "less than half of the paper's difference")
        return "; ".join(filter(None, told))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        tests = {"difference": self.better, "difference_less_half_of_the_papers": self.half}
        about = {**asdict(self.reported), "paper_difference": round(self.reported.difference, 2)}
        return {
            **about,
            "metric": self.key,
            **{name: test and test.to_dict() for name, test in tests.items()},
            "below": self.below,
            "half_below": self.half_below,
            "verdict": self.verdict,
            "remark": self.remark,
        }


def lines_of(rows: Mapping[str, Measured], reasons: Mapping[str, str]) -> list[Line]:
    """A line for each figure of the paper about the rows, with the tests corrected over all of them.

    Args:
        rows: by name; Head Forcing is `OURS`.
        reasons: why a column has no numbers, by its key.
    """
    lines = [
        _line(reported, rows[reported.row], rows[OURS], reasons.get(reported.column, ""))
        for reported in REPORTED
        if reported.row in rows
    ]
    tests = [test for line in lines for test in (line.better, line.half) if test is not None]
    adjusted = iter(corrected(tests))
    return [replace(line, better=line.better and next(adjusted), half=line.half and next(adjusted)) for line in lines]


def _line(reported: Reported, row: Measured, ours: Measured, why: str) -> Line:
    paper = COLUMNS[reported.column]
    scale = 100.0 if paper.percent else 1.0
    for key in paper.keys:
        values = differences(ours.values(paper.story, key), row.values(paper.story, key))
        scaled = [None if value is None else scale * value for value in values]
        if (better := Paired.of(scaled)) is not None:
            half = [None if value is None else value - reported.difference / 2 for value in scaled]
            below = row.below(ours, paper.story, key)
            if key in paper.by_sign:
                return Line(reported, key, better, None, below)
            half_below = row.below(ours, paper.story, key, reported.difference / 2 / scale)
            return Line(reported, key, better, Paired.of(half), below, half_below)
    return Line(reported, why=why or paper.otherwise or "no video has this number")


def page(lines: Sequence[Line], rows: Mapping[str, Measured], labels: Mapping[str, str]) -> str:
    """The verdicts in Markdown: a summary, a table for each row with one line per column, and the rule."""
    counts = {verdict: sum(line.verdict == verdict for line in lines) for verdict in _VERDICTS}
    told = ["; ".join(f"{verdict}: {count}" for verdict, count in counts.items()) + ".", "", RULE, ""]
    for row in dict.fromkeys(line.reported.row for line in lines):
        mine = [line for line in lines if line.reported.row == row]
        told += [f"## Head Forcing less {labels[row]}", "", _table(mine), "", _beside(rows[row], rows[OURS]), ""]
    return "\n".join([*told, LIMITS])


_VERDICTS = (AGREES, DISAGREES, UNDECIDED, NOT_MEASURED)


def _table(lines: Sequence[Line]) -> str:
    heads = ["column of the paper", "in the paper", "here (95 % t interval)", "p", "p after Holm", "verdict", "remark"]
    return markdown_table(heads, [_cells(line) for line in lines])


def _cells(line: Line) -> list[str]:
    reported, test = line.reported, line.better
    paper = f"{reported.difference:+.2f} ({reported.table})"
    heading = line.column.heading + (", six prompts" if line.column.story == SIX_PROMPTS else "")
    found = ["–", "–", "–"]
    if test is not None:
        found = [_told(test.interval), _p(test.p), _p(test.holm or 0.0)]
    verdict = line.verdict if line.verdict in (UNDECIDED, NOT_MEASURED) else f"**{line.verdict}**"
    return [heading, paper, *found, verdict, line.remark.replace("|", "/")]


def _beside(row: Measured, ours: Measured) -> str:
    """One sentence on metrics that the paper has no figure for."""
    told = []
    for key in BESIDE:
        found = mean_interval(differences(ours.values(ONE_PROMPT, key), row.values(ONE_PROMPT, key)))
        if found is not None:
            told.append(f"{METRIC_COLUMNS[key].heading} {_told(found, 4)}")
    return f"Without a figure in the paper, and without a verdict: {'; '.join(told)}." if told else ""


def _told(found: Interval, digits: int = 2) -> str:
    if found.count < 2:
        return f"{found.mean:+.{digits}f} (one video)"
    return f"{found.mean:+.{digits}f} ({found.low:+.{digits}f} to {found.high:+.{digits}f})"


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
