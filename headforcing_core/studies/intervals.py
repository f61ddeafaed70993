"""Means over videos with 95 % confidence intervals, and the exact test that has to agree with them.

Intervals are studentised (Student's t): with ten values the percentile bootstrap excludes the truth in about 10 % of
samples. A difference is tested by flipping signs, which assumes nothing but that it is as likely to be the other way
round where rows do not differ. Against a bound other than 0 this assumes that differences are symmetric about it, which
does not follow from equal rows, so there the t interval has to agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

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
        """Whether a value is out of the interval; never for a single measurement, which has none."""
        return self.count > 1 and not self.low <= value <= self.high


def mean_interval(values: Sequence[float | None]) -> Interval | None:
    """The mean of the values that are not None, with its t interval; None without values."""
    known = _known(values)
    if not len(known):
        return None
    mean, reach = float(known.mean()), 0.0
    if len(known) > 1:
        reach = t_quantile(len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))
    return Interval(mean, mean - reach, mean + reach, len(known))


def difference_interval(values: Sequence[float | None], others: Sequence[float | None]) -> Interval | None:
    """The mean of the paired differences `values[i] - others[i]`, whose variance is smaller than that of the means."""
    return mean_interval(differences(values, others))


def differences(values: Sequence[float | None], others: Sequence[float | None]) -> list[float | None]:
    """The paired differences; None where one of the two is not known."""
    return [None if a is None or b is None else a - b for a, b in zip(values, others, strict=True)]


def sign_flip_p(values: Sequence[float | None]) -> float | None:
    """The two-sided p-value of a mean of 0, from the means that other signs of the values would give.

    All signs for up to `EXACT_VALUES` values other than 0, else `DRAWS` of them, drawn the same in every call. None
    without values.
    """
    known = _known(values)
    if not len(known):
        return None
    known = known[np.abs(known) > _ROUNDING]  # whose sign changes nothing
    observed = abs(known.sum()) - _ROUNDING
    if len(known) <= EXACT_VALUES:
        bits = np.arange(2 ** len(known))[:, None] >> np.arange(len(known)) & 1
        return float(np.mean(np.abs((1 - 2 * bits) @ known) >= observed))
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(DRAWS, len(known)))
    return float((1 + np.sum(np.abs(signs @ known) >= observed)) / (1 + DRAWS))  # the observed signs count, too


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: those at most `LEVEL` hold together with that error rate, however they depend."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


@cache
def t_quantile(freedom: int) -> float:
    """The number that Student's t with so many degrees of freedom exceeds in either direction in 5 % of cases."""
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2

    simpson = np.where(np.arange(2001) % 2, 4.0, 2.0)
    simpson[[0, -1]] = 1.0

    def inside(limit: float) -> float:
        """The probability of values up to `limit`, by Simpson's rule."""
        x = np.linspace(0.0, limit, 2001)
        density = np.exp(log_scale - (freedom + 1) / 2 * np.log1p(x**2 / freedom))
        return 2 * limit / 2000 / 3 * float(simpson @ density)

    low, high = 0.0, 13.0  # 12.7 for one degree of freedom
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < COVERAGE else (low, middle)
    return low


def _known(values: Sequence[float | None]) -> np.ndarray:
    return np.array([value for value in values if value is not None and np.isfinite(value)], float)
