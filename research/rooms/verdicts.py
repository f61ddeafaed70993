"""The verdicts of `evidence/PREREGISTRATION.md`, computed from measured tables by the rule written there.

A hypothesis is supported or refuted where the 95 % interval of paired differences lies beyond the bound written down;
everything between is undecided. A verdict is sure if, besides, the sign-flip test of the differences minus that bound
stays at most 5 % after Holm's correction over the five hypotheses. For H2 it is the larger p-value of two differences,
from uniform memory and from the mean shuffle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...headforcing_core.render.describe import markdown_table
from ..statistics import (
    ENOUGH,
    LEVEL,
    Interval,
    Numbers,
    Values,
    differences,
    holm,
    mean_interval,
    mean_of,
    sign_flip_p,
    values_of,
)

SUPPORTS, REFUTES, UNDECIDED, UNMEASURED = "supports", "refutes", "undecided", "not measured"
GATE_STUDENT, GATE_BASE = 0.4, 0.6
EQUAL = 0.03  # H2: an interval of profile minus mean shuffle inside plus and minus this says that roles do not matter
FACTS = {"local": "place_error", "anchor": "identity", "memory": "layout"}
"""H3: the hidden fact that each role's ablation has to cost most."""


@dataclass(frozen=True)
class Verdict:
    """Verdict of a hypothesis' primary endpoint.

    Attributes:
        outcome: `supports`, `refutes`, `undecided` or `not measured`.
        found: the numbers that it follows from, in words.
        p: of the sign-flip test that belongs to the outcome; 1 without a measurement.
        holm: corrected over all hypotheses.
        numbers: for JSON.
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
    found = f"student {student:.3f} of at least {GATE_STUDENT}, base {base:.3f} of at least {GATE_BASE}"
    numbers = {"student": student, "base": base}
    return Verdict("H0", "the model remembers", SUPPORTS if passes else REFUTES, found, numbers=numbers)


def difference(name: str, claim: str, values: Values, above: float, below: float) -> Verdict:
    """H1, H4, H5: supported with an interval above one bound, refuted with one below the other.

    `values` are the paired differences, one per video.
    """
    interval = mean_interval(values)
    if interval is None:
        return Verdict(name, claim, UNMEASURED, "no values")
    outcome = UNDECIDED
    if interval.count >= ENOUGH:
        outcome = SUPPORTS if interval.low > above else REFUTES if interval.high < below else UNDECIDED
    p = p_against(values, below if outcome == REFUTES else above)
    return Verdict(name, claim, outcome, told(interval), p, numbers=asdict(interval))


def roles_matter(shuffles: Sequence[Values], even: Values) -> Verdict:
    """H2, from paired differences: profile minus each shuffle, and profile minus uniform memory."""
    name, claim = "H2", "the roles of the profile matter"
    mean_shuffle = mean_of(shuffles) if shuffles else []
    against_even, mean = mean_interval(even), mean_interval(mean_shuffle)
    if against_even is None or mean is None:
        return Verdict(name, claim, UNMEASURED, "no values")
    means = [found.mean for values in shuffles if (found := mean_interval(values)) is not None]
    better, count = sum(value > 0 for value in means), len(means)
    # a lead over uniform memory alone would not test the roles
    outcome, p = UNDECIDED, max(p_against(even, 0.0), p_against(mean_shuffle, 0.0))
    if count >= 20 and min(against_even.count, mean.count) >= ENOUGH:
        if better >= count - 1 and against_even.low > 0 and mean.low > 0:
            outcome = SUPPORTS
        elif count <= 4 * better <= 3 * count and -EQUAL <= mean.low and mean.high <= EQUAL:
            outcome = REFUTES
            p = max(p_against(mean_shuffle, bound) for bound in (-EQUAL, EQUAL))
    words = (
        f"better than {better} of {count} shuffles; minus uniform memory {told(against_even)}; "
        f"minus the mean shuffle {told(mean)}"
    )
    numbers = {
        "better": better,
        "shuffles": count,
        "minus_even": asdict(against_even),
        "minus_mean_shuffle": asdict(mean),
    }
    return Verdict(name, claim, outcome, words, p, numbers=numbers)


def names_of_heads(costs: Mapping[str, Mapping[str, Values]]) -> Verdict:
    """H3, from `costs[role][fact]`: what ablating a role's heads costs in a fact, per video, in standard deviations."""
    name, claim = "H3", "heads are what they are called"
    means = {role: {fact: mean_interval(values) for fact, values in facts.items()} for role, facts in costs.items()}
    if set(costs) != set(FACTS) or any(found is None for facts in means.values() for found in facts.values()):
        return Verdict(name, claim, UNMEASURED, "no values")
    leads, largest, p = {}, 0, 0.0
    for role, own in FACTS.items():
        mean = {fact: found.mean for fact, found in means[role].items() if found is not None}
        rival = max((fact for fact in mean if fact != own), key=mean.__getitem__)
        lead = differences(costs[role][own], costs[role][rival])
        leads[role] = mean_interval(lead)
        largest += mean[own] > mean[rival]
        p = max(p, p_against(lead, 0.0))
    known = [lead for lead in leads.values() if lead is not None]
    outcome = UNDECIDED
    if min((lead.count for lead in known), default=0) >= ENOUGH and len(known) == len(FACTS):
        if largest == len(FACTS) and all(lead.low > 0 for lead in known):
            outcome = SUPPORTS
        elif largest == 0:
            outcome = REFUTES
    ahead = "; ".join(f"{role} {told(lead)}" for role, lead in leads.items() if lead is not None)
    found = f"own fact costs most in {largest} of {len(FACTS)} roles; lead over the next fact: {ahead}"
    numbers = {
        "largest": largest,
        "leads": {role: None if lead is None else asdict(lead) for role, lead in leads.items()},
        "costs": {
            role: {fact: None if cost is None else asdict(cost) for fact, cost in facts.items()}
            for role, facts in means.items()
        },
    }
    return Verdict(name, claim, outcome, found, p, numbers=numbers)


def corrected(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts with Holm's correction over all of them; one that was not measured counts with p = 1."""
    adjusted = holm([verdict.p for verdict in verdicts])
    return [replace(verdict, holm=p) for verdict, p in zip(verdicts, adjusted, strict=True)]


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """A Markdown table of verdicts, H0 with them or not."""
    lines = []
    for verdict in verdicts:
        tested = verdict.name != "H0" and verdict.outcome != UNMEASURED
        outcome = verdict.outcome + (", sure" if verdict.sure and tested else "")
        lines.append([verdict.name, verdict.claim, outcome, verdict.found, f"{verdict.holm:.4f}" if tested else "–"])
    return markdown_table(["", "claim", "verdict", "found (95 % intervals)", "p, corrected"], lines)


def costs_table(verdicts: Sequence[Verdict]) -> list[str]:
    """Lines with H3's tables: what the ablation of each role costs in each hidden fact; none without them."""
    numbers = next((verdict.numbers for verdict in verdicts if verdict.name == "H3"), None)
    if numbers is None:
        return []
    lines = [
        [f"{role} heads", *(told(Interval(**numbers["costs"][role][fact])) for fact in FACTS.values())]
        for role in FACTS
    ]
    head = ["H3: ablated", *(fact.replace("_", " ") for fact in FACTS.values())]
    return ["", "Costs in standard deviations; positive is worse.", "", markdown_table(head, lines)]


# --------------------------------------------------------------------------------------------------- values per video


def costs_of(ours: Sequence[Numbers], ablated: Mapping[str, Sequence[Numbers]]) -> dict[str, dict[str, Values]]:
    """`costs[role][fact]` per video: how much worse a fact is with a role's heads ablated, in standard deviations.

    A fact's standard deviation is that over the videos of Head Forcing and of the three ablations together. Errors are
    worse where they are larger, the other facts where they are smaller.
    """
    costs: dict[str, dict[str, Values]] = {role: {} for role in ablated}
    for fact in FACTS.values():
        sign = 1 if fact == "place_error" else -1
        whole = values_of(ours, fact)
        every = [value for row in (ours, *ablated.values()) for video in row if (value := video.get(fact)) is not None]
        deviation = _deviation(every)
        for role, videos in ablated.items():
            worse = differences(values_of(videos, fact), whole)
            costs[role][fact] = [None if value is None else sign * value / deviation for value in worse]
    return costs


def both(videos: Sequence[Numbers]) -> Values:
    """The mean of layout and identity of every video; None where one of them is not known."""
    return mean_of([values_of(videos, key) for key in ("layout", "identity")])


def told(interval: Interval) -> str:
    return f"{interval.mean:+.3f} ({interval.low:+.3f} to {interval.high:+.3f}, {interval.count} videos)"


def p_against(values: Values, bound: float) -> float:
    """The p-value of the sign-flip test that the mean of values is this bound; 1 without values.

    Against another bound than 0 the test assumes that the values are symmetric about it, which nothing ensures, so a
    verdict needs the t interval to agree.
    """
    p = sign_flip_p([None if value is None else value - bound for value in values])
    return 1.0 if p is None else p


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation; infinite for values that are all equal, whose differences count nothing."""
    mean = sum(values) / len(values) if values else 0.0
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1) if len(values) > 1 else 0.0
    return math.sqrt(variance) if variance > 1e-12 else math.inf
