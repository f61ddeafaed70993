"""Means over videos with 95 % confidence intervals, by the percentile bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
COVERAGE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean of `count` values and the bounds of its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    count: int

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high


def mean_interval(values: Sequence[float | None]) -> Interval | None:
    """The mean of the values that are not None, with its bootstrap interval; None without values. Deterministic."""
    known = np.array([value for value in values if value is not None and np.isfinite(value)], float)
    if not len(known):
        return None
    picks = np.random.default_rng(0).integers(len(known), size=(RESAMPLES, len(known)))
    low, high = np.quantile(known[picks].mean(1), ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2))
    return Interval(float(known.mean()), float(low), float(high), len(known))


def difference_interval(values: Sequence[float | None], others: Sequence[float | None]) -> Interval | None:
    """The mean of the paired differences `values[i] - others[i]`, whose variance is smaller than that of the means."""
    return mean_interval([None if a is None or b is None else a - b for a, b in zip(values, others, strict=True)])
