"""The metrics of a drift report, computed from the rows of `DriftMeter` for a whole video or for its beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics.base import Metric, Numbers
from .meter import LEVELS, REFERENCE_SECONDS, DriftMeter, flicker
from .thumbnails import Repetition, repetition, self_similarity

Array = NDArray[np.float64]
Seconds = Mapping[str, Array]

COMPARED_SECONDS = 10  # length of the compared end and beginning; halves of shorter videos
_SETTLING_SECONDS = 2  # excluded from slopes after a prompt switch
LEVEL_NAMES = {
    "y": "brightness",
    "cb": "blue (Cb)",
    "cr": "red (Cr)",
    "y_std": "std of brightness",
    "cb_std": "std of Cb",
    "cr_std": "std of Cr",
    "saturation": "saturation",
}


def _signed(value: float) -> str:
    return f"{value:+.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _signed_percent(value: float) -> str:
    return f"{value:+.1%}"


def _level_rows() -> list[Metric]:
    rows = []
    for level, name in LEVEL_NAMES.items():
        form = _signed_percent if level == "saturation" else _signed
        rows.append(Metric(f"{level}_slope_per_minute", f"{name}, per minute", form))
        rows.append(Metric(f"{level}_max_deviation", f"{name}, max. deviation from first 2 s", form))
    return rows


GROUPS: dict[str, list[Metric]] = {
    "Flicker (VBench's formula over all frames, not only static scenes; 1 is still)": [
        Metric("flicker", "flicker", "{:.4f}".format),
        Metric("mean_change", "mean change between adjacent frames, 0-255", "{:.2f}".format),
    ],
    "Change at a boundary divided by change inside blocks (1 is seamless)": [
        Metric("edge_ratio", "block boundaries", "{:.2f}".format),
        Metric("switch_ratio", "prompt switches", "{:.2f}".format),
        Metric("frame_ratio", "latent frame boundaries, over change inside them", "{:.2f}".format),
        Metric("period_ratio", "every 21 latent frames (5 s)", "{:.2f}".format),
    ],
    "Colour, 0-255; saturation in %": [
        *_level_rows(),
        Metric("histogram_distance_max", "brightness histogram, largest change from start", "{:.1f}".format),
    ],
    "End divided by beginning (10 s each, or halves; 1 is unchanged)": [
        Metric("sharpness_ratio", "sharpness (variance of the Laplacian)", "{:.2f}".format),
        Metric("contrast_ratio", "RMS contrast", "{:.2f}".format),
        Metric("detail_ratio", "fine detail (variance share below 4 pixels)", "{:.2f}".format),
    ],
    "Motion": [
        Metric("motion", "change after camera shift compensation, 0-255", "{:.2f}".format),
        Metric("frozen_share", "frozen frames", _percent),
        Metric("longest_freeze_seconds", "longest freeze, seconds", "{:.2f}".format),
    ],
    "Repetition after more than 2 s (1 is a loop, 0 is none)": [
        Metric("repetition", "similarity at the repetition", "{:.2f}".format),
        Metric("repetition_lag_seconds", "lag, seconds", "{:.2f}".format),
    ],
}


def numbers_of(meter: DriftMeter, switches: Sequence[float] = (), seconds: int | None = None) -> Numbers:
    """All metrics of `GROUPS` for the whole video or its first `seconds`; None where they cannot be measured.

    Args:
        switches: start times of new prompts, in seconds.
    """
    table = {name: column[:seconds] for name, column in meter.seconds().items()}
    thumbnails = meter.thumbnails.stack(None if seconds is None else round(seconds * meter.fps))
    repeated = repetition(self_similarity(thumbnails), meter.thumbnails.spacing / meter.fps)
    return summarise(table, meter.fps, switches) | _repetition_numbers(repeated)


def _repetition_numbers(repeated: Repetition) -> Numbers:
    return {"repetition": repeated.similarity, "repetition_lag_seconds": repeated.lag_seconds}


def summarise(table: Seconds, fps: float, switches: Sequence[float] = ()) -> Numbers:
    """The metrics that follow from the rows of the video's first seconds (all but repetition)."""
    change = _mean(table, "change", "changes")
    inside = _mean(table, "inside", "inside_changes")
    within = {name: table[name] - table[name.replace("inside", "frame")] for name in ("inside", "inside_changes")}
    numbers: Numbers = {
        "flicker": None if change is None else flicker(change),
        "mean_change": change,
        **{f"{kind}_ratio": _over(_mean(table, kind, f"{kind}_changes"), inside) for kind in _EDGES},
        "frame_ratio": _over(_mean(table, "frame", "frame_changes"), _mean(within, "inside", "inside_changes")),
        "motion": _mean(table, "residual", "changes"),
        "frozen_share": _mean(table, "frozen", "changes"),
        "longest_freeze_seconds": float(table["freeze_run"].max(initial=0)) / fps,
        "histogram_distance_max": float(table["histogram_distance"].max(initial=0)),
    }
    weights = table["pictures"]
    for level in LEVELS:
        values = table[level] / weights
        numbers[f"{level}_slope_per_minute"] = slope_per_minute(values, weights, switches)
        numbers[f"{level}_max_deviation"] = max_deviation(values, weights)
    for key, field in (("sharpness", "sharpness"), ("contrast", "y_std"), ("detail", "detail")):
        numbers[f"{key}_ratio"] = end_over_beginning(table, field)
    return numbers


_EDGES = ("edge", "switch", "period")


def slope_per_minute(values: Array, weights: Array, switches: Sequence[float] = ()) -> float | None:
    """Least-squares slope of a value per second, in units per minute; None for less than 2 seconds.

    One common slope with a separate intercept for each prompt, so that the change made by a new prompt does not count
    as drift. The two seconds after a switch are excluded. `weights` are frames per second of video, `switches` seconds.
    """
    starts = np.arange(len(values), dtype=np.float64)
    keep = np.ones(len(values), dtype=bool)
    for switch in switches:
        keep &= (starts + 1 <= switch) | (starts >= switch + _SETTLING_SECONDS)
    prompt = np.searchsorted(np.asarray(sorted(switches), dtype=np.float64), starts, side="right")
    above, below = 0.0, 0.0
    for part in np.unique(prompt[keep]):
        chosen = keep & (prompt == part)
        w, t, v = weights[chosen], starts[chosen], values[chosen]
        t = t - np.average(t, weights=w)
        above += float((w * t * (v - np.average(v, weights=w))).sum())
        below += float((w * t * t).sum())
    return 60 * above / below if below else None


def max_deviation(values: Array, weights: Array) -> float | None:
    """The difference of largest magnitude, with its sign, between a later second and the mean of the first two."""
    if len(values) <= REFERENCE_SECONDS:
        return None
    differences = values - np.average(values[:REFERENCE_SECONDS], weights=weights[:REFERENCE_SECONDS])
    return float(differences[np.abs(differences).argmax()])


def end_over_beginning(table: Seconds, field: str) -> float | None:
    """Mean of the last 10 seconds divided by that of the first 10 (halves of shorter videos); None below 2 seconds."""
    count = min(COMPARED_SECONDS, len(table["pictures"]) // 2)
    if count < 1:
        return None
    first, last = (
        float(table[field][part].sum() / table["pictures"][part].sum()) for part in (slice(count), slice(-count, None))
    )
    return _over(last, first)


def ratio(value: float | None, reference: float | None) -> float | None:
    """|value / reference|; None if either is None or the reference is 0."""
    quotient = _over(value, reference)
    return None if quotient is None else abs(quotient)


def _mean(table: Seconds, total: str, count: str) -> float | None:
    number = float(table[count].sum())
    return float(table[total].sum()) / number if number else None


def _over(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else value / reference


def number_lines(
    whole: Numbers, first: Numbers, first_seconds: float, groups: Mapping[str, list[Metric]] = GROUPS
) -> list[str]:
    """The metrics as lines of a table: whole video, beginning, and their ratio."""
    lines = [f"{'':<52}{'whole':>10}{f'first {first_seconds:.3g} s':>12}{'ratio':>8}"]
    for title, rows in groups.items():
        lines.append(title)
        for metric in rows:
            a, b = whole[metric.key], first.get(metric.key)
            times = ratio(a, b)
            cells = ("-" if a is None else metric.form(a), "-" if b is None else metric.form(b))
            shown = "-" if times is None or times >= 1000 else f"{times:.2f}"
            lines.append(f"  {metric.name:<50}{cells[0]:>10}{cells[1]:>12}{shown:>8}")
    return lines


def series_of(table: Seconds) -> dict[str, list[Any]]:
    """Curves for plots, one value per second: levels and standard deviations 0-255, saturation 0-1."""
    per_frame = {name: (table[name] / table["pictures"]).tolist() for name in (*LEVELS, "sharpness", "detail")}
    changes = np.maximum(table["changes"], 1)
    return {
        **per_frame,
        "change": (table["change"] / changes).tolist(),
        "motion": (table["residual"] / changes).tolist(),
        "frozen_share": (table["frozen"] / changes).tolist(),
        "histogram_distance": table["histogram_distance"].tolist(),
    }
