"""The verdicts of `evidence/PREREGISTRATION.md`, computed from measured tables by the rule written
there.

A hypothesis is supported or refuted where the 95 % interval of paired differences lies beyond the
bound written down; everything between is undecided. A verdict is sure if, besides, the sign-flip
test of the differences minus that bound stays at most 5 % after Holm's correction over the five
hypotheses. For H2 it is the larger p-value of two differences, from uniform memory and from the
mean shuffle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from ...headforcing_core.plan.describe import markdown_table
from .. import statistics
from ..statistics import (
    ENOUGH,
    LEVEL,
    Interval,
    Numbers,
    Values,
    differences,
    mean_interval,
    mean_of,
    values_of,
)
from .answers import Answer
from .tables import (
    ABLATED,
    ABSOLUTE,
    BY_FUNCTION,
    EVEN,
    FIFO,
    NO_MEMORY,
    OURS,
    RANDOM,
    SHUFFLED,
    UNIFORM,
)

Answers = Mapping[str, Answer]
SUPPORTS = "supports"
REFUTES = "refutes"
UNDECIDED = "undecided"
UNMEASURED = "not measured"
PAST = {SUPPORTS: "supported", REFUTES: "refuted"}  # said of a claim in a table
GATE_STUDENT = 0.4
GATE_BASE = 0.6
# H2: an interval of profile minus mean shuffle inside plus and minus this says that roles do not
# matter
EQUAL = 0.03
FACTS = {"local": "place_error", "anchor": "identity", "memory": "layout"}
"""H3: the hidden fact that each role's ablation has to cost most."""


@dataclass(frozen=True)
class Verdict:
    """Verdict of a hypothesis' primary endpoint, with the numbers that it follows from, in words
    and for JSON.

    `p` is of the sign-flip test that belongs to the outcome, 1 without a measurement; `holm` is
    corrected over all hypotheses.
    """

    name: str
    claim: str
    outcome: str
    found: str
    p: float = 1.0
    holm: float = 1.0
    numbers: Mapping[str, Any] | None = None

    @property
    def sure(self) -> bool:
        return self.outcome in (SUPPORTS, REFUTES) and self.holm <= LEVEL

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sure": self.sure}


def gate(student: float, base: float) -> Verdict:
    """H0: what the student and the base remember, against what was asked of them."""
    passes = student >= GATE_STUDENT and base >= GATE_BASE
    found = (
        f"student {student:.3f} of at least {GATE_STUDENT}, base {base:.3f} of at least {GATE_BASE}"
    )
    numbers = {"student": student, "base": base}
    return Verdict(
        "H0",
        "the model remembers",
        SUPPORTS if passes else REFUTES,
        found,
        numbers=numbers,
    )


def difference(
    name: str,
    claim: str,
    values: Values,
    above: float,
    below: float,
    enough: float = ENOUGH,
) -> Verdict:
    """H1, H4, H5, from paired differences of which `enough` decide: supported with an interval
    above one bound, refuted with one below the other."""
    interval = mean_interval(values)
    if interval is None:
        return Verdict(name, claim, UNMEASURED, "no values")
    outcome = UNDECIDED
    if interval.count >= enough:
        outcome = (
            SUPPORTS if interval.low > above else REFUTES if interval.high < below else UNDECIDED
        )
    p = p_against(values, below if outcome == REFUTES else above)
    return Verdict(
        name,
        claim,
        outcome=outcome,
        found=difference_text(interval),
        p=p,
        numbers=asdict(interval),
    )


def roles_matter(shuffles: Sequence[Values], even: Values) -> Verdict:
    """H2, from paired differences: profile minus each shuffle, and profile minus uniform memory.

    Its p-value is the larger one of two, of the mean shuffle and of uniform memory.
    """
    name = "H2"
    claim = "the roles of the profile matter"
    mean_shuffle = mean_of(shuffles)
    against_even = mean_interval(even)
    mean = mean_interval(mean_shuffle)
    if against_even is None or mean is None:
        return Verdict(name, claim, UNMEASURED, "no values")
    means = [found.mean for values in shuffles if (found := mean_interval(values)) is not None]
    better = sum(value > 0 for value in means)
    count = len(means)
    # a lead over uniform memory alone would not test the roles
    outcome = UNDECIDED
    p = max(p_against(even, 0.0), p_against(mean_shuffle, 0.0))
    if count >= 20 and min(against_even.count, mean.count) >= ENOUGH:
        if better >= count - 1 and against_even.low > 0 and mean.low > 0:
            outcome = SUPPORTS
        elif count <= 4 * better <= 3 * count and -EQUAL <= mean.low and mean.high <= EQUAL:
            outcome = REFUTES
            p = max(p_against(mean_shuffle, bound) for bound in (-EQUAL, EQUAL))
    words = (
        f"better than {better} of {count} shuffles; "
        f"minus uniform memory {difference_text(against_even)}; "
        f"minus the mean shuffle {difference_text(mean)}"
    )
    numbers: dict[str, Any] = {"better": better, "shuffles": count}
    numbers |= {
        "minus_even": asdict(against_even),
        "minus_mean_shuffle": asdict(mean),
    }
    return Verdict(name, claim, outcome=outcome, found=words, p=p, numbers=numbers)


def names_of_heads(costs: Mapping[str, Mapping[str, Values]]) -> Verdict:
    """H3, from `costs[role][fact]`: what ablating a role's heads costs in a fact, per video, in
    standard deviations.
    """
    name = "H3"
    claim = "heads are what they are called"
    means: dict[str, dict[str, float]] = {}
    stored: dict[str, dict[str, Any]] = {}
    for role, facts in costs.items():
        intervals = {fact: mean_interval(values) for fact, values in facts.items()}
        means[role] = {fact: each.mean for fact, each in intervals.items() if each}
        stored[role] = {fact: each and asdict(each) for fact, each in intervals.items()}
    if set(costs) != set(FACTS) or any(len(facts) < len(FACTS) for facts in means.values()):
        return Verdict(name, claim, UNMEASURED, "no values")
    leads = {}
    largest = 0
    p = 0.0
    for role, own in FACTS.items():
        rival = max(
            (fact for fact in means[role] if fact != own),
            key=means[role].__getitem__,
        )
        lead = differences(costs[role][own], costs[role][rival])
        leads[role] = mean_interval(lead)
        largest += means[role][own] > means[role][rival]
        p = max(p, p_against(lead, 0.0))
    known = {role: lead for role, lead in leads.items() if lead is not None}
    outcome = UNDECIDED
    if len(known) == len(FACTS) and min(lead.count for lead in known.values()) >= ENOUGH:
        if largest == len(FACTS) and all(lead.low > 0 for lead in known.values()):
            outcome = SUPPORTS
        elif largest == 0:
            outcome = REFUTES
    ahead = "; ".join(f"{role} {difference_text(lead)}" for role, lead in known.items())
    numbers = {
        "largest": largest,
        "leads": {role: lead and asdict(lead) for role, lead in leads.items()},
        "costs": stored,
    }
    words = (
        f"own fact costs most in {largest} of {len(FACTS)} roles; lead over the next fact: {ahead}"
    )
    return Verdict(name, claim, outcome=outcome, found=words, p=p, numbers=numbers)


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """A Markdown table of verdicts, H0 with them or not."""
    lines = []
    for verdict in verdicts:
        tested = verdict.name != "H0" and verdict.outcome != UNMEASURED
        outcome = PAST.get(verdict.outcome, verdict.outcome)
        if tested and verdict.sure:
            outcome += " (sure)"
        lines.append(
            [
                verdict.name,
                verdict.claim,
                outcome,
                verdict.found,
                f"{verdict.holm:.4f}" if tested else "–",
            ]
        )
    return markdown_table(["", "claim", "verdict", "found (95 % intervals)", "p, corrected"], lines)


def costs_table(verdicts: Sequence[Verdict]) -> list[str]:
    """Lines with H3's tables: what the ablation of each role costs in each hidden fact; none
    without them.
    """
    numbers = next((verdict.numbers for verdict in verdicts if verdict.name == "H3"), None)
    if numbers is None:
        return []
    facts = FACTS.values()
    costs = numbers["costs"]
    lines = []
    for role in FACTS:
        intervals = [Interval(**costs[role][fact]) for fact in facts]
        lines.append([f"{role} heads", *map(difference_text, intervals)])
    head = ["H3: ablated", *(fact.replace("_", " ") for fact in facts)]
    return [
        "",
        "Costs in standard deviations; positive is worse.",
        "",
        markdown_table(head, lines),
    ]


def means_table(
    videos: Mapping[str, Sequence[Numbers]],
    columns: Sequence[str],
    floors: Mapping[str, str],
    gain: str,
) -> str:
    """A Markdown table of means with 95 % intervals, and of what each row's layout has above that
    of its floor, under the heading `gain`; `floors` are by row the row that it is compared with,
    which may be itself."""
    lines = []
    for row, made in videos.items():
        means = {column: mean_interval(values_of(made, column)) for column in columns}
        cells = [
            f"{it.mean:.2f}" if it and column == "frames_a_head" else interval_text(it)
            for column, it in means.items()
        ]
        above = mean_interval(
            differences(values_of(made, "layout"), values_of(videos[floors[row]], "layout"))
        )
        lines.append([row, *cells, interval_text(None if floors[row] == row else above)])
    return markdown_table(["", *(column.replace("_", " ") for column in columns), gain], lines)


def difference_text(interval: Interval) -> str:
    return interval.text("{:+.3f}".format, ", {} videos")


def interval_text(interval: Interval | None) -> str:
    return "–" if interval is None else interval.text(count="; {}")


def costs_of(
    ours: Sequence[Numbers], ablated: Mapping[str, Sequence[Numbers]]
) -> dict[str, dict[str, Values]]:
    """`costs[role][fact]` per video: how much worse a fact is with a role's heads ablated, in
    standard deviations over the videos of Head Forcing and of the three ablations together. Only
    errors are worse where they are larger."""
    costs: dict[str, dict[str, Values]] = {role: {} for role in ablated}
    videos_of_all = list(chain(ours, *ablated.values()))
    for fact in FACTS.values():
        sign = 1 if fact == "place_error" else -1
        whole = values_of(ours, fact)
        every = [value for value in values_of(videos_of_all, fact) if value is not None]
        variance = float(np.var(every, ddof=1)) if len(every) > 1 else 0.0
        # equal values: differences count nothing
        deviation = math.sqrt(variance) if variance > 1e-12 else math.inf
        for role, videos in ablated.items():
            worse = differences(values_of(videos, fact), whole)
            costs[role][fact] = [
                None if value is None else sign * value / deviation for value in worse
            ]
    return costs


def both(videos: Sequence[Numbers]) -> Values:
    """The mean of layout and identity of every video; None where one of them is not known."""
    return mean_of([values_of(videos, key) for key in ("layout", "identity")])


def p_against(values: Values, bound: float) -> float:
    """The p-value of the sign-flip test that the mean of values is this bound; 1 without values."""
    p = statistics.sign_flip_p([None if value is None else value - bound for value in values])
    return 1.0 if p is None else p


def verdicts_of(answers: Answers) -> list[Verdict]:
    """H1 to H5 from the tables that were measured, with Holm's correction over all five."""
    layouts = [_gain(answers, name, NO_MEMORY, "layout") for name in ("h1_45", "h1_90")]
    ours = both(_videos(answers, "h2_h5", OURS))
    even = both(_videos(answers, "h2_h5", EVEN))
    shuffles = [differences(ours, both(videos)) for videos in _shuffles(answers)]
    ablated = {role: _videos(answers, "h3", row) for role, row in ABLATED.items()}
    whole = _videos(answers, "h3", OURS)
    costs = costs_of(whole, ablated) if whole and all(ablated.values()) else {}
    recalled = mean_of(layouts) if all(layouts) else []
    return statistics.corrected(
        [
            difference(
                "H1",
                "episodic memory brings rooms back",
                values=recalled,
                above=0.10,
                below=0.10,
            ),
            roles_matter(shuffles, differences(ours, even) if ours and even else []),
            names_of_heads(costs),
            difference(
                "H4",
                "novelty keeps more rooms",
                values=_gain(answers, "h4", UNIFORM, "layout"),
                above=0.05,
                below=0.05,
            ),
            difference(
                "H5",
                "re-encoded positions keep rooms",
                values=_gain(answers, "h2_h5", ABSOLUTE, "layout"),
                above=0.05,
                below=0.0,
            ),
        ]
    )


def secondary(answers: Answers, nearest: Sequence[float]) -> list[str]:
    """One line for each hypothesis, none of which is sure; `nearest` are the effects of memory of
    the last frames.
    """
    function = both(_videos(answers, "h2_h5", BY_FUNCTION))
    even = both(_videos(answers, "h2_h5", EVEN))
    shuffles = (
        [differences(function, both(videos)) for videos in _shuffles(answers)] if function else []
    )
    found: dict[str, Values] = {
        "H0, effect of memory at gaps of 1 to 3 frames": list(nearest),
        "H1, layout at a gap of 45 frames alone": _gain(answers, "h1_45", NO_MEMORY, "layout"),
        "H1, layout at a gap of 90 frames alone": _gain(answers, "h1_90", NO_MEMORY, "layout"),
        "H1, layout at a gap of 180 frames": _gain(answers, "h1_180", NO_MEMORY, "layout"),
        "H2, roles by function minus the mean shuffle": mean_of(shuffles),
        "H2, roles by function minus uniform memory": differences(function, even)
        if function and even
        else [],
    }
    for role, row in ABLATED.items():
        loss = [
            None if value is None else -value for value in _gain(answers, "h3", row, "loss_0.9375")
        ]
        found[f"H3, loss with {role} heads ablated minus without"] = loss
    for row in (FIFO, RANDOM):
        found[f"H4, layout, novelty admission minus {row}"] = _gain(answers, "h4", row, "layout")
    found["H5, marking, re-encoded minus absolute"] = _gain(answers, "h2_h5", ABSOLUTE, "identity")
    lines = [
        f"- {name}: {difference_text(it)}"
        for name, values in found.items()
        if (it := mean_interval(values)) is not None
    ]
    if shuffles:
        means = [
            interval.mean for values in shuffles if (interval := mean_interval(values)) is not None
        ]
        lines.append(
            f"- H2, roles by function: better than {sum(m > 0 for m in means)} of {len(means)} "
            "shuffles"
        )
    return lines


def _videos(answers: Answers, table: str, label: str) -> Sequence[Numbers]:
    """The videos of a row; empty for one that was not measured."""
    return answers[table].row(label).videos if table in answers else ()


def _gain(answers: Answers, table: str, other: str, column: str) -> Values:
    """Per video, Head Forcing minus another row; empty where one of them was not measured."""
    ours = _videos(answers, table, OURS)
    others = _videos(answers, table, other)
    if ours and others:
        return differences(values_of(ours, column), values_of(others, column))
    return []


def _shuffles(answers: Answers) -> Sequence[Sequence[Numbers]]:
    if _videos(answers, "h2_h5", OURS):
        return answers["h2_h5"].row(SHUFFLED).shuffles
    return ()
