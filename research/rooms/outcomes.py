"""Verdicts of the pre-registration from its tables, and the secondary numbers beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..answers import Answer
from ..statistics import Numbers, Values, differences, mean_interval, mean_of, values_of
from .tables import ABLATED, ABSOLUTE, BY_FUNCTION, EVEN, FIFO, NO_MEMORY, OURS, RANDOM, SHUFFLED, UNIFORM
from .verdicts import (
    Verdict,
    both,
    corrected,
    costs_of,
    difference,
    names_of_heads,
    roles_matter,
    told,
)

Answers = Mapping[str, Answer]


def verdicts_of(answers: Answers) -> list[Verdict]:
    """H1 to H5 from the tables that were measured, with Holm's correction over all five."""
    layouts = [_gain(answers, name, NO_MEMORY, "layout") for name in ("h1_45", "h1_90")]
    ours, even = (both(_videos(answers, "h2_h5", row)) for row in (OURS, EVEN))
    shuffles = [differences(ours, both(videos)) for videos in _shuffles(answers)]
    ablated = {role: _videos(answers, "h3", row) for role, row in ABLATED.items()}
    whole = _videos(answers, "h3", OURS)
    costs = costs_of(whole, ablated) if whole and all(ablated.values()) else {}
    recalled = mean_of(layouts) if all(layouts) else []
    return corrected(
        [
            difference("H1", "episodic memory brings rooms back", recalled, 0.10, 0.10),
            roles_matter(shuffles, differences(ours, even) if ours and even else []),
            names_of_heads(costs),
            difference("H4", "novelty keeps more rooms", _gain(answers, "h4", UNIFORM, "layout"), 0.05, 0.05),
            difference("H5", "re-encoded positions keep rooms", _gain(answers, "h2_h5", ABSOLUTE, "layout"), 0.05, 0.0),
        ]
    )


def secondary(answers: Answers, nearest: Sequence[float]) -> list[str]:
    """One line for each hypothesis, none of which is sure; `nearest` are the effects of memory of the last frames."""
    found: list[tuple[str, Values]] = [
        ("H0, effect of memory at gaps of 1 to 3 frames", list(nearest)),
        ("H1, layout at a gap of 45 frames alone", _gain(answers, "h1_45", NO_MEMORY, "layout")),
        ("H1, layout at a gap of 90 frames alone", _gain(answers, "h1_90", NO_MEMORY, "layout")),
        ("H1, layout at a gap of 180 frames", _gain(answers, "h1_180", NO_MEMORY, "layout")),
    ]
    function = both(_videos(answers, "h2_h5", BY_FUNCTION))
    shuffles = [differences(function, both(videos)) for videos in _shuffles(answers)] if function else []
    if shuffles:
        found.append(("H2, roles by function minus the mean shuffle", mean_of(shuffles)))
        even = both(_videos(answers, "h2_h5", EVEN))
        found += [("H2, roles by function minus uniform memory", differences(function, even))] if even else []
    for role, row in ABLATED.items():
        found.append((f"H3, loss with {role} heads ablated minus without", _loss(answers, row)))
    for row in (FIFO, RANDOM):
        found.append((f"H4, layout, novelty admission minus {row}", _gain(answers, "h4", row, "layout")))
    found.append(("H5, marking, re-encoded minus absolute", _gain(answers, "h2_h5", ABSOLUTE, "identity")))
    lines = [f"- {name}: {told(interval)}" for name, values in found if (interval := mean_interval(values)) is not None]
    if shuffles:
        means = [interval.mean for values in shuffles if (interval := mean_interval(values)) is not None]
        lines.append(f"- H2, roles by function: better than {sum(m > 0 for m in means)} of {len(means)} shuffles")
    return lines


def _videos(answers: Answers, table: str, label: str) -> tuple[Numbers, ...]:
    """The videos of a row; empty for one that was not measured."""
    if table not in answers:
        return ()
    told_of = answers[table]
    return told_of.numbers[[row.label for row in told_of.question.rows].index(label)]


def _gain(answers: Answers, table: str, other: str, column: str) -> Values:
    """Per video, Head Forcing minus another row; empty where one of them was not measured."""
    ours, others = _videos(answers, table, OURS), _videos(answers, table, other)
    if not ours or not others:
        return []
    return differences(values_of(ours, column), values_of(others, column))


def _loss(answers: Answers, row: str) -> Values:
    gain = _gain(answers, "h3", row, "loss_0.9375")
    return [None if value is None else -value for value in gain]


def _shuffles(answers: Answers) -> list[tuple[Numbers, ...]]:
    if "h2_h5" not in answers or not _videos(answers, "h2_h5", OURS):
        return []
    labels = [row.label for row in answers["h2_h5"].question.rows]
    return list(answers["h2_h5"].shuffles.get(labels.index(SHUFFLED), ()))
