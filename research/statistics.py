"""Means over videos with 95 % confidence intervals, and the exact test that has to agree with them.

Intervals are studentised (Student's t): with ten values the percentile bootstrap excludes the truth
in about 10 % of samples. A difference is tested by flipping signs, which assumes nothing but that
it is as likely to be the other way round where rows do not differ. Against a bound other than 0
this assumes that differences are symmetric about it, which does not follow from equal rows, so
there the t interval has to agree. README.md says what a missing number means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

Values = Sequence[float | None]
"""One number a video; None where it is missing."""
Numbers = dict[str, float | None]
"""The metrics of one video."""

T = TypeVar("T", bound=Any)

ENOUGH = 32  # videos; with fewer nothing is called sure
ENOUGH_SHUFFLES = 5  # from which on one of them may lie on the other side
COVERAGE = 0.95
LEVEL = 1 - COVERAGE
EXACT_VALUES = 16  # up to so many differences all 2^n signs are tried
DRAWS = 20_000  # of signs, for more differences
_ROUNDING = 1e-9  # sums that differ by less are equal; the numbers are stored with five digits


@dataclass(frozen=True)
class Interval:
    """A mean of `count` values and the bounds of its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    count: int

    def excludes(self, value: float) -> bool:
        """Whether a value is out of the interval; never for a single measurement, which has
        none.
        """
        return self.count > 1 and not self.low <= value <= self.high

    def text(self, form: Callable[[float], str] = "{:.3f}".format, count: str = "") -> str:
        """`mean (low to high)`, with `count` such as `; {}` behind the bounds."""
        return (
            f"{form(self.mean)} ({form(self.low)} to {form(self.high)}{count.format(self.count)})"
        )


def mean_interval(values: Values) -> Interval | None:
    """The mean of the values that are not None, with its t interval; None without values."""
    known = _known(values)
    if not len(known):
        return None
    mean = float(known.mean())
    reach = 0.0
    if len(known) > 1:
        reach = t_quantile(len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))
    return Interval(mean, mean - reach, mean + reach, len(known))


def differences(values: Values, others: Values) -> list[float | None]:
    """The paired differences, whose variance is smaller than that of the values."""
    return [None if a is None or b is None else a - b for a, b in zip(values, others, strict=True)]


def sign_flip_p(values: Values) -> float | None:
    """The two-sided p-value of a mean of 0, from the means that other signs of the values would
    give; None without.

    All signs for up to `EXACT_VALUES` values other than 0, else `DRAWS` of them, drawn the same in
    every call.
    """
    known = _known(values)
    if not len(known):
        return None
    known = known[np.abs(known) > _ROUNDING]  # whose sign changes nothing
    observed = abs(known.sum()) - _ROUNDING
    reached = np.abs(_signs(len(known)) @ known) >= observed
    if len(known) <= EXACT_VALUES:
        return float(np.mean(reached))
    return float((1 + np.sum(reached)) / (1 + DRAWS))  # the observed signs count, too


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: those at most `LEVEL` hold together with that error rate, however
    they depend.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


@dataclass(frozen=True)
class Paired:
    """A paired difference: its interval, and the p-value of a mean of 0, before and after Holm's
    correction.

    Attributes:
        below: of a row of shuffles how many are below Head Forcing, and how many there are; else
            None.
        agrees: whether all shuffles, or from `ENOUGH_SHUFFLES` on all but one, lie on the side of
            the mean.
    """

    interval: Interval
    p: float
    holm: float | None = None
    below: tuple[int, int] | None = None
    agrees: bool = True

    @classmethod
    def of(
        cls, values: Values, below: tuple[int, int] | None = None, towards: int = 1
    ) -> Paired | None:
        """The test of differences; `towards` is 1 for Head Forcing less a row, -1 for a row less
        Head Forcing.
        """
        interval = mean_interval(values)
        p = sign_flip_p(values)
        if interval is None or p is None:
            return None
        agrees = True
        if below is not None:
            count, shuffles = below
            strays = 1 if shuffles >= ENOUGH_SHUFFLES else 0
            agrees = count >= shuffles - strays if interval.mean * towards > 0 else count <= strays
        return cls(interval, p, None, below, agrees)

    @property
    def clear(self) -> bool:
        """Whether interval and test of this difference alone exclude 0, and the shuffles say the
        same.
        """
        return self.interval.excludes(0) and self.p <= LEVEL and self.agrees

    @property
    def certain(self) -> bool:
        """Whether interval and corrected test exclude 0 with enough videos, whatever each of the
        shuffles says.
        """
        found = self.interval
        return (
            found.excludes(0)
            and found.count >= ENOUGH
            and self.holm is not None
            and self.holm <= LEVEL
        )

    @property
    def sure(self) -> bool:
        """Whether it is certain, and the shuffles say the same."""
        return self.certain and self.agrees


def corrected(tests: Sequence[T]) -> list[T]:
    """The tests, or verdicts, with Holm's correction over all of them."""
    adjusted = holm([test.p for test in tests])
    return [replace(test, holm=p) for test, p in zip(tests, adjusted, strict=True)]


def mean(values: Values, decides: bool = True) -> float | None:
    """The mean of several numbers of one video; where it decides None if one of them is missing,
    else if all are.
    """
    known = _known(values).tolist()
    if known and (len(known) == len(values) or not decides):
        return sum(known) / len(known)
    return None


def mean_of(rows: Sequence[Values]) -> Values:
    """Per video the mean of several values, which decides."""
    return [mean(values) for values in zip(*rows, strict=True)]


def values_of(videos: Sequence[Numbers], key: str) -> list[float | None]:
    """One number of every video."""
    return [video.get(key) for video in videos]


@dataclass(frozen=True)
class Measured:
    """The numbers of a row's videos; of a row of several shuffles the means over them, and each of
    the shuffles.
    """

    videos: Sequence[Numbers] = ()
    shuffles: Sequence[Sequence[Numbers]] = ()

    @classmethod
    def of_shuffles(cls, shuffles: Sequence[Sequence[Numbers]], decides: bool) -> Measured:
        """The row of these shuffles."""
        means = []
        for same_video in zip(*shuffles, strict=True):
            keys = same_video[0]
            means.append({key: mean(values_of(same_video, key), decides) for key in keys})
        return cls(means, shuffles)

    def values(self, key: str) -> list[float | None]:
        return values_of(self.videos, key)

    def below(self, ours: Measured, key: str, by: float = 0.0) -> tuple[int, int] | None:
        """Number of shuffles with a mean below that of `ours` by more than `by`, and of all of
        them; None without.
        """
        if not self.shuffles:
            return None
        mine = mean_interval(ours.values(key))
        means = [mean_interval(values_of(videos, key)) for videos in self.shuffles]
        return sum(
            mine is not None and it is not None and it.mean < mine.mean - by for it in means
        ), len(means)


@cache
def t_quantile(freedom: int) -> float:
    """The number that Student's t with so many degrees of freedom exceeds in either direction in 5
    % of cases.
    """
    log_scale = (
        math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    )
    simpson = np.where(np.arange(2001) % 2, 4.0, 2.0)
    simpson[[0, -1]] = 1.0

    def inside(limit: float) -> float:
        """The probability of values up to `limit`, by Simpson's rule."""
        density = np.exp(
            log_scale - (freedom + 1) / 2 * np.log1p(np.linspace(0.0, limit, 2001) ** 2 / freedom)
        )
        return 2 * limit / 2000 / 3 * float(simpson @ density)

    low = 0.0
    high = 13.0  # 12.7 for one degree of freedom
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < COVERAGE else (low, middle)
    return low


@cache
def _signs(count: int) -> np.ndarray:
    """Signs of so many values: all that there are for up to `EXACT_VALUES`, else `DRAWS`, `[n,
    count]`.
    """
    if count <= EXACT_VALUES:
        return 1 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
    return np.random.default_rng(0).choice((-1.0, 1.0), size=(DRAWS, count))


def _known(values: Values) -> np.ndarray:
    return np.array([value for value in values if value is not None and np.isfinite(value)], float)
