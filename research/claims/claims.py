"""The paper's claims against measured videos: one verdict for each of its figures, by a rule that
is written down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.methods.registry import method_names
from .. import statistics
from ..paper.ablations import EqualMemory
from ..rows import MethodRow, Shuffles
from ..statistics import ENOUGH, ENOUGH_SHUFFLES, LEVEL, Measured, Numbers, Paired, Values
from ..videos import Scores
from .paper_numbers import COLUMNS, PRIMARY, REPORTED, RETURN, RETURNS, PaperColumn, Reported

Stories = Mapping[str, Measured]
"""The videos of a row by story."""
OURS = "D"
PAPERS_ROWS = {
    "A": MethodRow("(A) Baseline", "self_forcing_window_21"),
    "B": MethodRow("(B) + HW", "no_episodic_memory", rope="absolute"),
    "C": MethodRow("(C) + HM", "no_rope_reencoding"),
    OURS: MethodRow("(D) Ours", "head_forcing"),
    "random": MethodRow("Random Allocation", "head_forcing", roles="shuffled"),
    "uniform": MethodRow("Uniform Memory", "uniform_memory"),
    "local+memory": MethodRow("Local + Memory", "head_forcing", roles="anchor_to_memory"),
    "anchor+memory": MethodRow("Anchor + Memory", "head_forcing", roles="local_to_memory"),
}
"""The rows of the paper's Tables 4 and 5, where Head Forcing is there once."""
EQUAL_ROWS = {
    "uniform=": MethodRow("Uniform Memory, same budget", "equal_uniform", given=EqualMemory()),
    "local+memory=": MethodRow(
        "Local + Memory, same budget", "equal_local", given=EqualMemory(kept="local")
    ),
    "anchor+memory=": MethodRow(
        "Anchor + Memory, same budget", "equal_anchor", given=EqualMemory(kept="anchor")
    ),
}
"""Rows of Table 5 with as many frame-slots as Head Forcing, which the paper says of all of them."""
ADDED_ROWS = {
    "scenes": MethodRow("head_forcing_scenes (of this pack)", "head_forcing_scenes"),
    "echo": MethodRow("Echo-Forcing, with a recall", "echo_forcing"),
}
"""Rows that no ablation of the paper has, made on stories that return only."""
NOT_MEASURED = "not measured"
AGREES = "agrees"
DISAGREES = "disagrees"
BETTER = "better"
WORSE = "worse"
UNDECIDED = "undecided"
VERDICTS = (AGREES, DISAGREES, BETTER, WORSE, UNDECIDED)
RULE = (
    "Every line is Head Forcing's paired difference to a row, on the same prompts and noise. "
    "**Agrees**: Head Forcing is surely better, and the difference is not surely less than half "
    "of the paper's. **Disagrees**: it is surely worse, or the difference is surely less than "
    "half of the paper's (where both are on one scale). **Better**, **worse**: the same where the "
    "paper has no figure. **Undecided**: neither. Surely means that the 95 % t interval and a "
    "sign-flip test (all signs up to 16 videos, else 20,000 draws) both say so at p <= "
    f"{LEVEL:.2f}, with at least {ENOUGH} videos. In a primary endpoint p is taken after Holm's "
    "correction over all tests of the primary endpoints that are measured. Every other line "
    "stands alone, so that among such lines without a difference up to one in twenty has a "
    f"verdict. With several shuffles all of them, or from {ENOUGH_SHUFFLES} on all but one, must "
    "lie on the side of the verdict, too."
)
PLAIN_VBENCH = (
    "measured by plain VBench on whole videos; the paper's is VBench-Long's, in clips of 2 s"
)
RETURN_RULE = (
    "A story that returns shows an opening, then A, B and A again, for a quarter of the video "
    "each. The return's similarity is the mean cosine of DINO's features of 16 video frames of the "
    "second visit to A and of 16 of the first; chance is the same with the first visits of the "
    "row's other videos. One prompt alone makes two visits alike: *same prompt* is the similarity "
    "to the visit in which another video of the row, with other noise, has the prompt of A. The "
    "window of 21 (A) is the floor: from 24 s on it has lost the first visit when A returns. The "
    "return *happened* where CLIP finds the scene between more like its own prompt and the second "
    "visit more like that of A. *Departure and return frame*, as RememBench pairs them: DINO's "
    "cosine of the last frame of the first visit and the middle one of the second. RememBench has "
    "CLIP and LPIPS of frames that people mark, so that the numbers are not its own."
)
LIMITS = (
    "What this page cannot say: whether people see a difference; anything about other weights, "
    "prompts, lengths or sizes; and, where a column is undecided, that there is no difference. "
    "Metrics are those of research/metrics/METRICS.md where no program of VBench has measured; "
    "consistencies that are not VBench-Long's, the CLIP score and a dynamic degree of whole videos "
    "are compared by their sign only. A still "
    "video flickers least. In the paper all rows of Table 5 have the same cache budget; here "
    "merged heads get the cache of a memory head, but for the rows of the same budget."
)


def named_rows(text: str, shuffles: int) -> dict[str, MethodRow | Shuffles]:
    """The rows that a text names, separated by commas: the paper's and `ADDED_ROWS` in this order,
    then any methods.

    Head Forcing is always there. Raises HeadForcingError for an unknown name, and if no row remains
    to compare with.
    """
    known: dict[str, MethodRow | Shuffles] = {**PAPERS_ROWS, **EQUAL_ROWS, **ADDED_ROWS}
    known["random"] = Shuffles(PAPERS_ROWS["random"], shuffles)
    known |= {name: MethodRow(name, name) for name in method_names()}
    by_word = {name.lower(): name for name in known}
    given = [part.strip().lower() for part in text.split(",") if part.strip()]
    for part in given:
        if part not in by_word:
            rows = ", ".join([*PAPERS_ROWS, *EQUAL_ROWS, *ADDED_ROWS])
            raise HeadForcingError(
                f"--rows are names such as A,D,random, of {rows}, or of methods; got {part[:40]!r}"
            )
    wanted = {by_word[part] for part in given} | {OURS}
    if len(wanted) < 2:
        raise HeadForcingError(
            f"--rows must name a row besides {OURS}, which all others are compared with"
        )
    return {name: row for name, row in known.items() if name in wanted}


def measured_rows(scores: Scores) -> Mapping[str, Stories]:
    """The numbers of all videos by row."""
    made: dict[tuple[str, str], dict[str, list[Numbers]]] = {}
    for each in scores.videos:
        shuffles = made.setdefault((each.row, each.story), {})
        shuffles.setdefault(each.video.entry.key, []).append(scores.known[each.name])
    rows: dict[str, dict[str, Measured]] = {}
    for (row, story), shuffles in made.items():
        videos = list(shuffles.values())
        found = (
            Measured(videos[0]) if len(videos) == 1 else Measured.of_shuffles(videos, decides=True)
        )
        rows.setdefault(row, {})[story] = found
    return rows


@dataclass(frozen=True)
class Line:
    """One figure of the paper beside the measured one, both in the paper's units.

    Attributes:
        key: the metric that was measured; `why` there is none.
        better: the test of Head Forcing less the row; `half` is less half of the paper's
            difference, too, or None where the scales differ.
    """

    reported: Reported
    key: str | None = None
    better: Paired | None = None
    half: Paired | None = None
    why: str = ""

    @property
    def primary(self) -> bool:
        return (self.reported.row, self.reported.column) in PRIMARY

    @property
    def tests(self) -> list[Paired]:
        return [test for test in (self.better, self.half) if test is not None]

    @property
    def column(self) -> PaperColumn:
        return COLUMNS[self.reported.column]

    @property
    def verdict(self) -> str:
        """The verdict by `RULE`."""
        if self.better is None:
            return NOT_MEASURED
        told = self.reported.difference is not None
        if any(test.sure and test.interval.mean < 0 for test in self.tests):
            return DISAGREES if told else WORSE
        # whatever some shuffles say
        less = self.half is not None and self.half.certain and self.half.interval.mean < 0
        if self.better.sure and self.better.interval.mean > 0 and not less:
            return AGREES if told else BETTER
        return UNDECIDED

    @property
    def remark(self) -> str:
        """Reasons why it is undecided or has no numbers, and what is odd about the paper's
        figure.
        """
        told = [self.why, self.reported.note]
        if self.key is not None and self.column.program(self.key) == "VBench":
            told.insert(0, PLAIN_VBENCH)
        better = self.better
        if better is not None and better.interval.count < ENOUGH:
            told.insert(0, f"{better.interval.count} videos are fewer than {ENOUGH}")
        if better is not None and better.below is not None:
            told.insert(0, "better than {} of {} shuffles".format(*better.below))
        if (
            better is not None
            and self.verdict == DISAGREES
            and not (better.sure and better.interval.mean < 0)
        ):
            told.insert(0, "less than half of the paper's difference")
        return "; ".join(filter(None, told))

    def to_dict(self) -> dict[str, Any]:
        papers = self.reported.difference
        return {
            **asdict(self.reported),
            "paper_difference": None if papers is None else round(papers, 2),
            "primary": self.primary,
            "metric": self.key,
            "difference": _plain(self.better),
            "difference_less_half_of_the_papers": _plain(self.half),
            "below": self.better and self.better.below,
            "half_below": self.half and self.half.below,
            "verdict": self.verdict,
            "remark": self.remark,
        }


def lines_of(rows: Mapping[str, Stories], reasons: Mapping[str, str]) -> list[Line]:
    """A line for each figure of the paper about the rows, for each row that was made on stories
    that return, and for each column of a method that the paper's tables do not have.

    Tests are corrected over those of `PRIMARY`. `reasons` say by column why it has no numbers.
    """
    asked = [*REPORTED, *(RETURNS if any(RETURN in stories for stories in rows.values()) else ())]
    for reported in REPORTED:
        if f"{reported.row}=" in EQUAL_ROWS:
            asked.append(replace(reported, row=f"{reported.row}="))
    columns = [key for key, column in COLUMNS.items() if column.story != RETURN]
    for row in rows:
        if row not in {**PAPERS_ROWS, **EQUAL_ROWS, **ADDED_ROWS}:
            asked += [Reported(row, column) for column in columns]
    lines = [
        _line(reported, rows[reported.row], rows[OURS], reasons.get(reported.column, ""))
        for reported in asked
        if reported.row in rows
    ]
    family = list(chain(*(line.tests for line in lines if line.primary)))
    adjusted = iter(statistics.corrected(family))
    judged = []
    for line in lines:
        tests = [
            next(adjusted) if line.primary else replace(test, holm=test.p) for test in line.tests
        ]
        better, half = (*tests, None, None)[:2]
        judged.append(replace(line, better=better, half=half))
    return judged


def _line(reported: Reported, row: Stories, ours: Stories, why: str) -> Line:
    paper = COLUMNS[reported.column]
    papers = reported.difference
    theirs, mine, scale = (
        *(each.get(paper.story, Measured()) for each in (row, ours)),
        100.0 if paper.percent else 1.0,
    )
    for key in paper.keys if theirs.videos and mine.videos else ():
        values = _shifted(statistics.differences(mine.values(key), theirs.values(key)), scale)
        if (better := Paired.of(values, theirs.below(mine, key))) is not None:
            if key in paper.by_sign or papers is None:
                return Line(reported, key, better)
            half = Paired.of(
                _shifted(values, less=papers / 2), theirs.below(mine, key, papers / 2 / scale)
            )
            return Line(reported, key, better, half)
    return Line(reported, why=why or paper.otherwise or "no video has this number")


def _shifted(values: Values, scale: float = 1.0, less: float = 0.0) -> list[float | None]:
    return [None if value is None else scale * value - less for value in values]


def _plain(test: Paired | None) -> dict[str, Any] | None:
    if test is None:
        return None
    return {**asdict(test.interval), "p": test.p, "holm": test.holm}
