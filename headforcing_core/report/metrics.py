"""The metrics of a drift report, one row each, computed from what `DriftMeter` has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .meter import DriftMeter, color_drift
from .thumbnails import Array, repetition, self_similarity

Number = float | None
"""None where it cannot be measured."""
Numbers = dict[str, Number]
"""Metrics of a video by their keys."""

COMPARED_SECONDS = 10  # length of the compared end and beginning; halves of shorter videos
_SETTLING_SECONDS = 2  # excluded from slopes after a prompt switch


@dataclass(frozen=True)
class DriftMetric:
    """A row of `METRICS`; some have a `heading` in comparisons of methods."""

    key: str
    name: str
    form: str
    heading: str = ""

    def text(self, numbers: Numbers) -> str:
        """The metric's number, or - if it was not measured."""
        value = numbers[self.key]
        return "-" if value is None else self.form.format(value)


METRICS = [
    DriftMetric("flicker", "flicker, VBench's formula (1: still)", "{:.4f}", "flicker"),
    DriftMetric("mean_change", "change between frames, 0-255", "{:.2f}", "change"),
    DriftMetric("edge_ratio", "block edges (1: seamless)", "{:.2f}", "block edges"),
    DriftMetric("y_slope_per_minute", "brightness, change a minute, 0-255", "{:+.2f}"),
    DriftMetric(
        "saturation_slope_per_minute",
        "saturation, change a minute",
        "{:+.1%}",
        "saturation, a minute",
    ),
    DriftMetric(
        "color_drift",
        "colour drift, ID-Forcing's (100: same hues)",
        "{:.1f}",
        "colour drift (100: none)",
    ),
    DriftMetric("contrast_ratio", "contrast, end / start (10 s each, or halves)", "{:.2f}"),
    DriftMetric(
        "sharpness_ratio",
        "sharpness, end / start (10 s each, or halves)",
        "{:.2f}",
        "sharpness, end/start",
    ),
    DriftMetric("frozen_share", "frozen frames", "{:.1%}"),
    DriftMetric("longest_freeze_seconds", "longest freeze, seconds", "{:.2f}", "longest freeze, s"),
    DriftMetric("repetition", "repetition after more than 2 s (1: a loop)", "{:.2f}"),
    DriftMetric("repetition_lag_seconds", "repeats after, seconds", "{:.2f}"),
]


def numbers_of(
    meter: DriftMeter, switches: Sequence[float] = (), seconds: int | None = None
) -> Numbers:
    """All `METRICS` for the whole video or its first `seconds`; None where they cannot be measured.

    `switches` are start times of new prompts in seconds. Flicker is VBench's temporal flickering
    formula, which VBench applies to static videos only.
    """
    sums = {name: column[:seconds] for name, column in meter.seconds().items()}
    totals = {name: float(column.sum()) for name, column in sums.items()}
    frames = sums["frames"]
    change = _quotient(totals["change"], totals["changes"])
    edge = _quotient(totals["edge"], totals["edge_changes"])
    inside = _quotient(totals["inside"], totals["inside_changes"])
    thumbnails = meter.thumbnails.stack(None if seconds is None else round(seconds * meter.fps))
    spacing = meter.thumbnails.spacing / meter.fps
    similarity, lag = repetition(self_similarity(thumbnails), spacing)
    return {
        "flicker": None if change is None else (255 - change) / 255,
        "mean_change": change,
        "edge_ratio": _quotient(edge, inside),
        "y_slope_per_minute": _slope_per_minute(sums["y"], frames, switches),
        "saturation_slope_per_minute": _slope_per_minute(sums["saturation"], frames, switches),
        "color_drift": color_drift(float(sums["hue_distance"][-1])),
        "contrast_ratio": _end_over_beginning(sums["y_std"], frames),
        "sharpness_ratio": _end_over_beginning(sums["sharpness"], frames),
        "frozen_share": _quotient(totals["frozen"], totals["changes"]),
        "longest_freeze_seconds": float(sums["freeze_run"].max()) / meter.fps,
        "repetition": similarity,
        "repetition_lag_seconds": lag,
    }


def _slope_per_minute(sums: Array, frames: Array, switches: Sequence[float]) -> Number:
    """Least-squares slope of a field's mean per frame, in units per minute; None for less than
    2 seconds.

    One common slope with a separate intercept for each prompt, so that the change made by a new
    prompt does not count as drift. The two seconds after a switch are excluded; seconds weigh
    as much as they have frames.
    """
    values = sums / frames
    starts = np.arange(len(values), dtype=np.float64)
    keep = np.ones(len(values), dtype=bool)
    for switch in switches:
        keep &= (starts + 1 <= switch) | (starts >= switch + _SETTLING_SECONDS)
    prompt = np.searchsorted(sorted(switches), starts, side="right")
    above = below = 0.0
    for part in np.unique(prompt[keep]):
        chosen = keep & (prompt == part)
        w = frames[chosen]
        t = starts[chosen] - np.average(starts[chosen], weights=w)
        v = values[chosen] - np.average(values[chosen], weights=w)
        above += (w * t * v).sum()
        below += (w * t * t).sum()
    return _quotient(60 * above, below)


def _end_over_beginning(sums: Array, frames: Array) -> Number:
    """Mean of the last 10 s divided by that of the first 10 (halves of shorter videos); None
    below 2 s.
    """
    count = min(COMPARED_SECONDS, len(frames) // 2)
    if count < 1:
        return None
    values = sums / frames
    end = np.average(values[-count:], weights=frames[-count:])
    start = np.average(values[:count], weights=frames[:count])
    return _quotient(end, start)


def _quotient(value: Number, reference: Number) -> Number:
    """The value divided by the reference; None if either is None or the reference is 0."""
    return None if value is None or not reference else float(value / reference)
