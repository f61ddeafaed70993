"""The page of `check-claim`: the primary endpoints, a table for each row, and what was not measured
apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ...headforcing_core.plan.describe import markdown_table
from ..statistics import Interval, Measured, mean_interval
from .claims import LIMITS, NOT_MEASURED, RETURN_RULE, RULE, UNDECIDED, VERDICTS, Line, Stories
from .paper_numbers import RETURN, SIX_PROMPTS

_RETURNED = {
    "return_similarity": "return to the first visit",
    "return_chance": "by chance",
    "return_prompt": "same prompt",
    "return_above": "above chance (95 % t interval)",
    "return_above_prompt": "above the same prompt",
    "return_happened": "return happened",
    "return_above_happened": "above chance where it happened",
    "return_pair": "departure and return frame",
    "return_pair_left": "frame just left and return frame",
    "dynamic_degree_within": "dynamic degree, in clips of 2 s",
    "mean_change": "change between frames, 0-255",
}
"""Columns of stories that return by their numbers; memory can freeze a video, so the last two are
of motion.
"""
_HEADS = [
    "column of the paper",
    "in the paper",
    "here (95 % t interval)",
    "p",
    "p after Holm",
    "verdict",
]


def page(lines: Sequence[Line], rows: Mapping[str, Stories], labels: Mapping[str, str]) -> str:
    """The verdicts in Markdown: a summary, the primary endpoints, the others by row, and the
    rule.
    """
    measured = [line for line in lines if line.verdict != NOT_MEASURED]
    missing = [line for line in lines if line.verdict == NOT_MEASURED]
    count = Counter(line.verdict for line in measured)
    counts = [f"{verdict} {count[verdict]}" for verdict in VERDICTS]
    summary = (
        f"Measured lines: {len(measured)}, of these {', '.join(counts)}. Not measured: "
        f"{len(missing)}."
    )
    told = [summary, "", RULE, ""]
    if primary := [line for line in lines if line.primary]:
        cells = [[labels[line.reported.row], *_cells(line)] for line in primary]
        told += [
            "## Primary endpoints",
            "",
            markdown_table(["Head Forcing less", *_HEADS, "remark"], cells),
            "",
        ]
    for row in dict.fromkeys(line.reported.row for line in measured):
        if others := [
            _cells(line) for line in measured if line.reported.row == row and not line.primary
        ]:
            told += [
                f"## Head Forcing less {labels[row]}",
                "",
                markdown_table([*_HEADS, "remark"], others),
                "",
            ]
    told += _returns(rows, labels)
    if missing:
        told += ["## Not measured", "", _missing(missing, labels), ""]
    return "\n".join([*told, LIMITS])


def _cells(line: Line) -> list[str]:
    reported = line.reported
    test = line.better
    paper = "–" if reported.difference is None else f"{reported.difference:+.2f} ({reported.table})"
    found = ["–", "–", "–"]
    if test is not None:
        found = [
            _difference_text(test.interval),
            _p(test.p),
            _p(test.holm or 0.0) if line.primary else "alone",
        ]
    verdict = line.verdict if line.verdict in (UNDECIDED, NOT_MEASURED) else f"**{line.verdict}**"
    return [_heading(line), paper, *found, verdict, line.remark.replace("|", "/")]


def _heading(line: Line) -> str:
    return line.column.heading + (", six prompts" if line.column.story == SIX_PROMPTS else "")


def _missing(lines: Sequence[Line], labels: Mapping[str, str]) -> str:
    """One row for each column and reason, with the rows that it concerns."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        found.setdefault((_heading(line), line.why), []).append(labels[line.reported.row])
    cells = [
        [heading, ", ".join(rows), why.replace("|", "/")] for (heading, why), rows in found.items()
    ]
    return markdown_table(["column", "rows", "why"], cells)


def _returns(rows: Mapping[str, Stories], labels: Mapping[str, str]) -> list[str]:
    """The rows that were asked for memory: how alike the return is to the first visit, and to what
    shows no memory.
    """
    cells = []
    for name, stories in rows.items():
        row = stories.get(RETURN, Measured())
        means = [mean_interval(row.values(key)) for key in _RETURNED]
        if means[0] is not None:
            cells.append([labels[name], *("–" if mean is None else mean.text() for mean in means)])
    if not cells:
        return []
    return [
        "## Scenes that return",
        "",
        RETURN_RULE,
        "",
        markdown_table(["row", *_RETURNED.values()], cells),
        "",
    ]


def _difference_text(found: Interval) -> str:
    form = "{:+.2f}".format
    if found.count > 1:
        return found.text(form)
    return f"{form(found.mean)} (one video)"


def _p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"
