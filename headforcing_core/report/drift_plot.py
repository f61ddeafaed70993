"""Plot of a drift report: curves over time, each with its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from .. import page
from ..page import Panel, Theme
from .drift import DriftReport
from .metrics import METRICS
from .thumbnails import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# key in the series, title, key of the metric that is told
CURVES = (
    ("y", "Brightness, 0-255", "y_slope_per_minute"),
    ("y_std", "Contrast (standard deviation of brightness)", "contrast_ratio"),
    ("saturation", "Saturation, 0-1", "saturation_slope_per_minute"),
    ("sharpness", "Sharpness (variance of the Laplacian)", "sharpness_ratio"),
    ("change", "Change between frames, 0-255", "flicker"),
)
_HEIGHT = 92  # of a curve, in pixels


def drift_picture(report: DriftReport, theme: str = "dark") -> Image.Image:
    """Plot a drift report as an RGB image, 900 pixels wide; `theme` is "dark" or "light"."""
    first = f"the first {report.first_seconds:.3g} s"
    about = f" {report.heading()}. Shaded: {first}. Dotted: new prompts."
    metrics = {metric.key: metric for metric in METRICS}
    panels = []
    for key, title, told in CURVES:
        metric = metrics[told]
        numbers = (
            f"{metric.name}: {metric.text(report.whole)}; {first}: {metric.text(report.first)}."
        )
        panels.append(_curve_panel(report, title, numbers + about, np.array(report.series[key])))
        about = ""  # it is said once
    return page.draw_page(panels, theme)


def _curve_panel(report: DriftReport, title: str, subtitle: str, values: Array) -> Panel:
    """A curve of `values`, one a second, with the prompts' starts."""

    def draw(ax: Axes, look: Theme) -> None:
        ax.axvspan(0, report.first_seconds, color=look.grid, alpha=0.55, linewidth=0)
        for start, _ in report.prompts[1:]:
            ax.axvline(start, color=look.ink, linestyle=":", linewidth=1.3)
        seconds = np.minimum(np.arange(len(values)) + 0.5, report.seconds)
        ax.plot(seconds, values, color=look.roles["memory"], linewidth=2, marker=".")
        low = float(values.min())
        high = float(values.max())
        room = max(0.12 * (high - low), 0.08 * high, 0.02)
        # none of these values can be negative
        ax.set(xlim=(0, report.seconds), ylim=(max(low - room, 0), high + room), xlabel="seconds")
        ax.locator_params("y", nbins=3)
        ax.grid(axis="y")

    return Panel(title, subtitle, _HEIGHT, draw, legend_height=0)
