"""The numbers of a drift report, from what `DriftMeter` kept of a video or of its beginning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .meter import LEVELS, REFERENCE_SECONDS, DriftMeter, flicker
from .thumbnails import Repetition, repetition, self_similarity

Array = NDArray[np.float64]
Seconds = Mapping[str, Array]
Numbers = dict[str, float | None]

COMPARED_SECONDS = 10  # the end of a video over its beginning; halves of a shorter one
_SETTLING_SECONDS = 2  # after a switch, which a slope leaves out
LEVEL_NAMES = {
    "y": "brightness",
    "cb": "blue (Cb)",
    "cr": "red (Cr)",
    "y_std": "spread of brightness",
    "cb_std": "spread of Cb",
    "cr_std": "spread of Cr",
    "saturation": "saturation",
}


@dataclass(frozen=True)
class Row:
    """How one number is called and written."""

    key: str
    name: str
    form: Callable[[float], str] = "{:.3g}".format


def _signed(value: float) -> str:
    return f"{value:+.2f}"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _signed_percent(value: float) -> str:
    return f"{value:+.1%}"


def _level_rows() -> list[Row]:
    rows = []
    for level, name in LEVEL_NAMES.items():
        form = _signed_percent if level == "saturation" else _signed
        rows.append(Row(f"{level}_slope_per_minute", f"{name}, a minute", form))
        rows.append(Row(f"{level}_max_deviation", f"{name}, furthest from the first 2 s", form))
    return rows


GROUPS: dict[str, list[Row]] = {
    "Flicker (VBench's formula over all pictures, still or not; 1 is still)": [
        Row("flicker", "flicker", "{:.4f}".format),
        Row("mean_change", "mean change between pictures, of 255", "{:.2f}".format),
    ],
    "Change across an edge over change inside blocks (1 is seamless)": [
        Row("edge_ratio", "block edges", "{:.2f}".format),
        Row("switch_ratio", "prompt switches", "{:.2f}".format),
        Row("frame_ratio", "edges of latent frames, over change inside those", "{:.2f}".format),
        Row("period_ratio", "every 21 latent frames (5 s)", "{:.2f}".format),
    ],
    "Colour, of 255; saturation in %": [
        *_level_rows(),
        Row("histogram_distance_max", "brightness histogram, furthest from the first 2 s", "{:.1f}".format),
    ],
    "The end over the beginning (10 s, or halves; 1 is the same)": [
        Row("sharpness_ratio", "sharpness (variance of the Laplacian)", "{:.2f}".format),
        Row("contrast_ratio", "RMS contrast", "{:.2f}".format),
        Row("detail_ratio", "fine detail (share below 4 pixels)", "{:.2f}".format),
    ],
    "Motion": [
        Row("motion", "change left without a camera shift, of 255", "{:.2f}".format),
        Row("frozen_share", "frozen pictures", _percent),
        Row("longest_freeze_seconds", "longest freeze, seconds", "{:.2f}".format),
    ],
    "Repetition beyond 2 s (1 is a loop, 0 never comes back)": [
        Row("repetition", "similarity when it comes back", "{:.2f}".format),
        Row("repetition_lag_seconds", "after seconds", "{:.2f}".format),
    ],
}


def numbers_of(meter: DriftMeter, switches: Sequence[float] = (), seconds: int | None = None) -> Numbers:
    """Every number of `GROUPS` for the whole video or its first `seconds`; None where there is nothing to measure.

    Args:
        switches: when new prompts begin, in seconds.
    """
    table = {name: column[:seconds] for name, column in meter.seconds().items()}
    found = summarise(table, meter.fps, switches)
    thumbnails = meter.thumbnails.stack(None if seconds is None else round(seconds * meter.fps))
    returns = repetition(self_similarity(thumbnails), meter.thumbnails.spacing / meter.fps)
    return found | _repetition_numbers(returns)


def _repetition_numbers(found: Repetition) -> Numbers:
    return {"repetition": found.similarity, "repetition_lag_seconds": found.lag_seconds}


def summarise(table: Seconds, fps: float, switches: Sequence[float] = ()) -> Numbers:
    """The numbers that follow from the sums of some seconds, the first of which is the video's first."""
    change = _mean(table, "change", "changes")
    inside = _mean(table, "inside", "inside_changes")
    within = {name: table[name] - table[name.replace("inside", "frame")] for name in ("inside", "inside_changes")}
    found: Numbers = {
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
        found[f"{level}_slope_per_minute"] = slope_per_minute(values, weights, switches)
        found[f"{level}_max_deviation"] = max_deviation(values, weights)
    for key, field in (("sharpness", "sharpness"), ("contrast", "y_std"), ("detail", "detail")):
        found[f"{key}_ratio"] = end_over_beginning(table, field)
    return found


_EDGES = ("edge", "switch", "period")


def slope_per_minute(values: Array, weights: Array, switches: Sequence[float] = ()) -> float | None:
    """Least-squares slope of one value a second, with a level of its own for each prompt; None from under 2 seconds.

    What a new prompt changes is therefore no drift; the two seconds in which it does so are left out.
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
    """The largest difference, with its sign, of a later second to the mean of the first two."""
    if len(values) <= REFERENCE_SECONDS:
        return None
    differences = values - np.average(values[:REFERENCE_SECONDS], weights=weights[:REFERENCE_SECONDS])
    return float(differences[np.abs(differences).argmax()])


def end_over_beginning(table: Seconds, field: str) -> float | None:
    """The mean of the last 10 seconds over that of the first 10, of halves of a shorter video; None below 2 seconds."""
    count = min(COMPARED_SECONDS, len(table["pictures"]) // 2)
    if count < 1:
        return None
    first, last = (
        float(table[field][part].sum() / table["pictures"][part].sum()) for part in (slice(count), slice(-count, None))
    )
    return _over(last, first)


def ratio(value: float | None, reference: float | None) -> float | None:
    """How many times the reference a number is, signs left out; None where that means nothing."""
    found = _over(value, reference)
    return None if found is None else abs(found)


def _mean(table: Seconds, total: str, count: str) -> float | None:
    number = float(table[count].sum())
    return float(table[total].sum()) / number if number else None


def _over(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else value / reference


def number_lines(whole: Numbers, first: Numbers, first_seconds: float) -> list[str]:
    """The numbers as lines of a table: the whole video, its beginning, and how many times that."""
    lines = [f"{'':<52}{'whole':>10}{f'first {first_seconds:.3g} s':>12}{'ratio':>8}"]
    for title, rows in GROUPS.items():
        lines.append(title)
        for row in rows:
            a, b = whole[row.key], first[row.key]
            times = ratio(a, b)
            cells = ("-" if a is None else row.form(a), "-" if b is None else row.form(b))
            shown = "-" if times is None or times >= 1000 else f"{times:.2f}"
            lines.append(f"  {row.name:<50}{cells[0]:>10}{cells[1]:>12}{shown:>8}")
    return lines


def series_of(table: Seconds) -> dict[str, list[Any]]:
    """What a picture shows: values for each second, brightness and spreads of 255, saturation 0 to 1."""
    per_frame = {name: (table[name] / table["pictures"]).tolist() for name in (*LEVELS, "sharpness", "detail")}
    changes = np.maximum(table["changes"], 1)
    return {
        **per_frame,
        "change": (table["change"] / changes).tolist(),
        "motion": (table["residual"] / changes).tolist(),
        "frozen_share": (table["frozen"] / changes).tolist(),
        "histogram_distance": table["histogram_distance"].tolist(),
    }
