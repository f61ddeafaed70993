"""The metrics of a drift report, one row each, computed from what `DriftMeter` has measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .meter import REFERENCE_SECONDS, DriftMeter, color_drift
from .thumbnails import Array, repetition, self_similarity

Number = float | None
"""None where it cannot be measured."""
Numbers = dict[str, Number]
"""Metrics of a video by their keys."""

COMPARED_SECONDS = 10  # length of the compared end and beginning; halves of shorter videos
_SETTLING_SECONDS = 2  # excluded from slopes after a prompt switch


@dataclass(frozen=True)
class Measurements:
    """Measurements of a video or of its beginning: `sums` are the columns of `meter.FIELDS`, one
    value per second, `repetition` as of `thumbnails.repetition`, `switches` start times of new
    prompts in seconds."""

    sums: Mapping[str, Array]
    fps: float
    repetition: tuple[float, Number]
    switches: Sequence[float] = ()

    def per_frame(self, field: str) -> Array:
        """The mean of a field in each second."""
        return self.sums[field] / self.sums["frames"]

    def mean(self, field: str, count: str = "changes") -> Number:
        """The mean of a field over the changes between adjacent frames, or over those that `count`
        counts.
        """
        return quotient(self.sums[field].sum(), self.sums[count].sum())

    @property
    def flicker(self) -> Number:
        """VBench's temporal flickering formula, which VBench applies to static videos only."""
        change = self.mean("change")
        return None if change is None else (255 - change) / 255

    def seam(self, kind: str) -> Number:
        """Mean change at the transitions of a kind, over that inside blocks."""
        return quotient(self.mean(kind, f"{kind}_changes"), self.mean("inside", "inside_changes"))

    @property
    def frame_seam(self) -> Number:
        """Mean change where a latent frame starts inside a block, over that inside latent
        frames.
        """
        sums = self.sums
        change = (sums["inside"] - sums["frame"]).sum()
        count = (sums["inside_changes"] - sums["frame_changes"]).sum()
        return quotient(self.mean("frame", "frame_changes"), quotient(change, count))

    def slope_per_minute(self, field: str) -> Number:
        """Least-squares slope of a field's mean per frame, in units per minute; None for less than
        2 seconds.

        One common slope with a separate intercept for each prompt, so that the change made by a new
        prompt does not count as drift. The two seconds after a switch are excluded; seconds weigh
        as much as they have frames.
        """
        values = self.per_frame(field)
        weights = self.sums["frames"]
        starts = np.arange(len(values), dtype=np.float64)
        keep = np.ones(len(values), dtype=bool)
        for switch in self.switches:
            keep &= (starts + 1 <= switch) | (starts >= switch + _SETTLING_SECONDS)
        prompt = np.searchsorted(sorted(self.switches), starts, side="right")
        above = below = 0.0
        for part in np.unique(prompt[keep]):
            chosen = keep & (prompt == part)
            w = weights[chosen]
            t = starts[chosen] - np.average(starts[chosen], weights=w)
            v = values[chosen] - np.average(values[chosen], weights=w)
            above += (w * t * v).sum()
            below += (w * t * t).sum()
        return quotient(60 * above, below)

    def max_deviation(self, field: str) -> Number:
        """The difference of largest magnitude, with its sign, between a later second and the mean
        of the first two.
        """
        values = self.per_frame(field)
        weights = self.sums["frames"]
        if len(values) <= REFERENCE_SECONDS:
            return None
        beginning = slice(REFERENCE_SECONDS)
        differences = values - np.average(values[beginning], weights=weights[beginning])
        return float(differences[np.abs(differences).argmax()])

    def end_over_beginning(self, field: str) -> Number:
        """Mean of the last 10 s divided by that of the first 10 (halves of shorter videos); None
        below 2 s.
        """
        values = self.per_frame(field)
        weights = self.sums["frames"]
        count = min(COMPARED_SECONDS, len(weights) // 2)
        if count < 1:
            return None
        end = np.average(values[-count:], weights=weights[-count:])
        start = np.average(values[:count], weights=weights[:count])
        return quotient(end, start)

    def largest(self, field: str) -> float:
        return float(self.sums[field].max(initial=0))


@dataclass(frozen=True)
class DriftMetric:
    """A row of `GROUPS`, the one place that names a metric; `measure` gives None where it cannot be
    measured.

    Some have a `headline` among the large numbers of the plot, some a `heading` in comparisons of
    methods.
    """

    key: str
    name: str
    form: str
    measure: Callable[[Measurements], Number]
    headline: str = ""
    heading: str = ""

    def text(self, numbers: Numbers) -> str:
        """The metric's number, or - if it was not measured."""
        value = numbers[self.key]
        return "-" if value is None else self.form.format(value)


_ONE_DIGIT = "{:.1f}"
_TWO_DIGITS = "{:.2f}"
_FOUR_DIGITS = "{:.4f}"
_SIGNED = "{:+.2f}"
_PERCENT = "{:.1%}"
_SIGNED_PERCENT = "{:+.1%}"


def _level(
    field: str, name: str, form: str = _SIGNED, headline: str = "", heading: str = ""
) -> list[DriftMetric]:
    """Change per minute of a level that `meter.LEVELS` names, and its largest deviation from the
    beginning; `headline` and `heading` are of the change.
    """
    change = DriftMetric(
        f"{field}_slope_per_minute",
        f"{name}, per minute",
        form=form,
        measure=lambda m: m.slope_per_minute(field),
        headline=headline,
        heading=heading,
    )
    deviation = DriftMetric(
        f"{field}_max_deviation",
        f"{name}, max. deviation from first 2 s",
        form=form,
        measure=lambda m: m.max_deviation(field),
    )
    return [change, deviation]


GROUPS: dict[str, list[DriftMetric]] = {
    "Flicker (VBench's formula over all frames, not only static scenes; 1 is still)": [
        DriftMetric(
            "flicker",
            "flicker",
            _FOUR_DIGITS,
            lambda m: m.flicker,
            headline="flicker (1: still)",
            heading="flicker",
        ),
        DriftMetric(
            "mean_change",
            "mean change between adjacent frames, 0-255",
            _TWO_DIGITS,
            lambda m: m.mean("change"),
        ),
    ],
    "Change at a boundary divided by change inside blocks (1 is seamless)": [
        DriftMetric(
            "edge_ratio",
            "block boundaries",
            _TWO_DIGITS,
            lambda m: m.seam("edge"),
            headline="block edges (1: seamless)",
            heading="block edges",
        ),
        DriftMetric("switch_ratio", "prompt switches", _TWO_DIGITS, lambda m: m.seam("switch")),
        DriftMetric(
            "frame_ratio",
            "latent frame boundaries, over change inside them",
            _TWO_DIGITS,
            lambda m: m.frame_seam,
        ),
        DriftMetric(
            "period_ratio", "every 21 latent frames (5 s)", _TWO_DIGITS, lambda m: m.seam("period")
        ),
    ],
    "Colour, 0-255; saturation in %": [
        *_level("y", "brightness", headline="brightness per minute"),
        *_level("cb", "blue (Cb)"),
        *_level("cr", "red (Cr)"),
        *_level("y_std", "std of brightness"),
        *_level("cb_std", "std of Cb"),
        *_level("cr_std", "std of Cr"),
        *_level(
            "saturation",
            "saturation",
            _SIGNED_PERCENT,
            headline="saturation per minute",
            heading="saturation, a minute",
        ),
        DriftMetric(
            "color_drift",
            "colour drift (ID-Forcing's; 100: same hues)",
            _ONE_DIGIT,
            lambda m: color_drift(float(m.sums["hue_distance"][-1])),
            heading="colour drift (100: none)",
        ),
        DriftMetric(
            "histogram_distance_max",
            "brightness histogram, largest change from start",
            _ONE_DIGIT,
            lambda m: m.largest("histogram_distance"),
        ),
    ],
    "End divided by beginning (10 s each, or halves; 1 is unchanged)": [
        DriftMetric(
            "sharpness_ratio",
            "sharpness (variance of the Laplacian)",
            _TWO_DIGITS,
            lambda m: m.end_over_beginning("sharpness"),
            headline="sharpness, end / start",
            heading="sharpness, end/start",
        ),
        DriftMetric(
            "contrast_ratio", "RMS contrast", _TWO_DIGITS, lambda m: m.end_over_beginning("y_std")
        ),
        DriftMetric(
            "detail_ratio",
            "fine detail (variance share below 4 pixels)",
            _TWO_DIGITS,
            lambda m: m.end_over_beginning("detail"),
        ),
    ],
    "Motion": [
        DriftMetric(
            "motion",
            "change after camera shift compensation, 0-255",
            _TWO_DIGITS,
            lambda m: m.mean("residual"),
            headline="motion, 0-255",
            heading="motion",
        ),
        DriftMetric("frozen_share", "frozen frames", _PERCENT, lambda m: m.mean("frozen")),
        DriftMetric(
            "longest_freeze_seconds",
            "longest freeze, seconds",
            _TWO_DIGITS,
            lambda m: m.largest("freeze_run") / m.fps,
            headline="longest freeze, s",
            heading="longest freeze, s",
        ),
    ],
    "Repetition after more than 2 s (1 is a loop, 0 is none)": [
        DriftMetric(
            "repetition",
            "similarity at the repetition",
            _TWO_DIGITS,
            lambda m: m.repetition[0],
            headline="repetition (1: a loop)",
        ),
        DriftMetric(
            "repetition_lag_seconds", "lag, seconds", _TWO_DIGITS, lambda m: m.repetition[1]
        ),
    ],
}
METRICS = [metric for group in GROUPS.values() for metric in group]


def numbers_of(
    meter: DriftMeter, switches: Sequence[float] = (), seconds: int | None = None
) -> Numbers:
    """All metrics of `GROUPS` for the whole video or its first `seconds`; None where they cannot be
    measured.
    """
    sums = {name: column[:seconds] for name, column in meter.seconds().items()}
    thumbnails = meter.thumbnails.stack(None if seconds is None else round(seconds * meter.fps))
    repeated = repetition(self_similarity(thumbnails), meter.thumbnails.spacing / meter.fps)
    measured = Measurements(sums, meter.fps, repeated, switches)
    return {metric.key: metric.measure(measured) for metric in METRICS}


def ratio(value: Number, reference: Number) -> Number:
    """|value / reference|; None if either is None or the reference is 0."""
    result = quotient(value, reference)
    return None if result is None else abs(result)


def quotient(value: Number, reference: Number) -> Number:
    """The value divided by the reference; None if either is None or the reference is 0."""
    return None if value is None or not reference else float(value / reference)
