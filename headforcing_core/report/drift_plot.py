"""Plot of a drift report: main metrics, curves over time, self-similarity."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from .. import page
from ..page import Panel, Theme
from .drift import NOTE, DriftReport
from .metrics import METRICS, DriftMetric, ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# key in the series, title, factor to the unit shown
CURVES = (
    ("y", "brightness, 0-255", 1.0),
    ("y_std", "contrast (standard deviation of brightness), 0-255", 1.0),
    ("saturation", "saturation, %", 100.0),
    ("sharpness", "sharpness (variance of the Laplacian)", 1.0),
    ("motion", "motion without camera shift, 0-255", 1.0),
)
_NUMBERS = 130  # heights, in pixels
_CURVE = 92
_GAP = 46  # between curves
_MATRIX = 440


def drift_picture(report: DriftReport, theme: str = "dark") -> Image.Image:
    """Plot a drift report as an RGB image, 900 pixels wide; `theme` is "dark" or "light"."""
    return page.draw_page(
        [_headline_panel(report), _curves_panel(report), _similarity_panel(report)], theme
    )


def _headline_panel(report: DriftReport) -> Panel:
    """The main metrics as large numbers, four in a row."""

    def draw(ax: Axes, look: Theme) -> None:
        ax.set_axis_off()
        ax.set(xlim=(page.LEFT, page.WIDTH - page.RIGHT), ylim=(_NUMBERS, 0))  # pixels
        for place, metric in enumerate(metric for metric in METRICS if metric.headline):
            row, column = divmod(place, 4)
            x = page.MARGIN + 219 * column
            y = 104 * row
            number = metric.text(report.whole)
            ax.text(x, y, metric.headline, size=11.5, color=look.dim, va="top")
            ax.text(x, y + 20, number, size=22, color=look.ink, weight="bold", va="top")
            ax.text(x, y + 58, _beginning(report, metric), size=11.5, color=look.dim, va="top")

    title = f"Drift of {page.cut_name(report.name)}"
    return Panel(title, f"{report.heading()}. {NOTE}", _NUMBERS, draw, legend_height=12)


def _beginning(report: DriftReport, metric: DriftMetric) -> str:
    """A metric's number of the first seconds and, for numbers without a sign, how many times that
    the whole has.
    """
    text = f"first {report.first_seconds:.3g} s: {metric.text(report.first)}"
    times = ratio(report.whole[metric.key], report.first[metric.key])
    if times is None or times >= 100 or metric.text(report.whole)[0] in "+-":
        return text
    return f"{text} (x {times:.2f})"


def _curves_panel(report: DriftReport) -> Panel:
    """Curves over time below each other, with the prompts' starts."""
    height = len(CURVES) * (_CURVE + _GAP) - _GAP
    several = len(report.prompts) > 1
    subtitle = (
        f"One value per second. Shaded: the first {report.first_seconds:.3g} s, for comparison."
    )
    if several:
        shown = enumerate(report.prompts[:6], 1)
        starts = [f"{number}: {page.cut_name(text, 34)}" for number, (_, text) in shown]
        if len(report.prompts) > 6:
            starts.append("...")
        subtitle += f" Dotted: new prompts. {'; '.join(starts)}"

    def draw(ax: Axes, look: Theme) -> None:
        ax.set_axis_off()
        colours = cycle(look.roles[role] for role in ("memory", "anchor", "local"))
        for place, (key, title, factor) in enumerate(CURVES):
            top = place * (_CURVE + _GAP)
            bottom = max(1 - (top + _CURVE) / height, 0)
            curve = page.styled(ax.inset_axes((0, bottom, 1, _CURVE / height)), look)
            _draw_curve(
                curve,
                look,
                report,
                values=np.array(report.series[key]) * factor,
                colour=next(colours),
            )
            curve.set_title(title, loc="left", fontsize=page.SMALL, color=look.ink, pad=5)
            curve.tick_params(labelbottom=place == len(CURVES) - 1)
            if place == 0 and several and len(report.prompts) <= 40:  # more numbers would overlap
                _number_prompts(curve, look, report)
        curve.set_xlabel("seconds")

    return Panel("Change over time", subtitle, height, draw, legend_height=58 if several else 32)


def _number_prompts(ax: Axes, look: Theme, report: DriftReport) -> None:
    """The number of every prompt above its start."""
    for number, (start, _) in enumerate(report.prompts, 1):
        ax.annotate(
            str(number),
            xy=(start, 1),
            xytext=(0, 22),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            size=page.SMALL,
            weight="bold",
            color=look.ink,
        )


def _draw_curve(
    ax: Axes, look: Theme, report: DriftReport, values: np.ndarray, colour: str
) -> None:
    seconds = np.minimum(np.arange(len(values)) + 0.5, report.seconds)
    ax.axvspan(0, report.first_seconds, color=look.grid, alpha=0.55, linewidth=0)
    for start, _ in report.prompts[1:]:
        ax.axvline(start, color=look.ink, linestyle=":", linewidth=1.3)
    ax.plot(
        seconds,
        values,
        color=colour,
        linewidth=2,
        marker="o" if len(values) < 8 else "",
        markersize=5,
    )
    low = float(values.min())
    high = float(values.max())
    room = max(0.12 * (high - low), 0.08 * high, 0.02)
    # none of these values can be negative
    ax.set(xlim=(0, report.seconds), ylim=(max(low - room, 0), high + room))
    ax.locator_params("y", nbins=3)
    ax.grid(axis="y")


def _similarity_panel(report: DriftReport) -> Panel:
    similarity = report.whole["repetition"]
    lag = report.whole["repetition_lag_seconds"]
    found = (
        "No repetition was found."
        if lag is None
        else f"It repeats after {lag:.1f} s, similarity {similarity:.2f}."
    )
    subtitle = (
        "Similarity of thumbnails at all pairs of times: 1 is equal, 0 unrelated, -1 inverted; "
        "static parts are excluded. Squares are scenes, stripes parallel to the diagonal are "
        f"loops. {found}"
    )

    def draw(ax: Axes, look: Theme) -> None:
        matrix = ax.imshow(
            report.similarity,
            cmap="cividis",
            vmin=-1,
            vmax=1,
            extent=(0, report.seconds, report.seconds, 0),
            aspect="auto",
            interpolation="nearest",
        )
        ax.set(xlabel="seconds", ylabel="seconds")
        bar = page.styled(ax.inset_axes((0, 1.03, 0.5, 0.03)), look)
        ax.figure.colorbar(
            matrix, cax=bar, orientation="horizontal", ticks=[-1, 0, 1], ticklocation="top"
        )

    right = page.WIDTH - page.LEFT - _MATRIX
    return Panel("Scenes and repetition", subtitle, _MATRIX, draw, legend_height=58, right=right)
