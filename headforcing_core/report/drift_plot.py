"""Plot of a drift report: main metrics, curves over time, responses to new prompts, self-similarity."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from .. import page
from ..page import Panel, Theme
from ..timeline.clock import BlockClock
from .drift import NOTE, DriftReport
from .metrics import METRICS, ratio
from .thumbnails import similarity_by_lag

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
_CURVE = 92
_GAP = 46  # heights, in pixels
_NUMBERS = 130
_MATRIX = 440
_DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))


def drift_picture(report: DriftReport, theme: str = "dark") -> Image.Image:
    """Plot a drift report as an RGB image, 900 pixels wide; `theme` is "dark" or "light"."""
    panels = [_headline_panel(report), _curves_panel(report)]
    if any(response.by_block for response in report.switches):
        panels.append(_switch_panel(report))
    return page.draw_page([*panels, _similarity_panel(report)], theme)


def _headline_panel(report: DriftReport) -> Panel:
    """The main metrics as large numbers, four in a row."""

    def draw(ax: Axes, look: Theme) -> None:
        ax.set_axis_off()
        ax.set(xlim=(page.LEFT, page.WIDTH - page.RIGHT), ylim=(_NUMBERS, 0))  # pixels
        shown = [metric for metric in METRICS if metric.headline]
        for (row, column), metric in zip(np.ndindex(2, 4), shown, strict=True):
            value = report.whole[metric.key]
            first = report.first[metric.key]
            number, before = ("-" if number is None else metric.form(number) for number in (value, first))
            times = ratio(value, first)
            more = "" if times is None or times >= 100 or number[0] in "+-" else f" (x {times:.2f})"
            small: dict[str, Any] = {"size": 11.5, "color": look.dim, "va": "top", "parse_math": False}
            x = page.MARGIN + 219 * column
            y = 104 * row
            ax.text(x, y, metric.headline, **small)
            ax.text(x, y + 20, number, size=22, color=look.ink, weight="bold", va="top")
            ax.text(x, y + 58, f"first {report.first_seconds:.3g} s: {before}{more}", **small)

    title = f"Drift of {page.cut_name(report.name)}"
    subtitle = f"{report.heading()}. {NOTE}"
    return Panel(title, subtitle, _NUMBERS, draw, legend_height=12)


def _curves_panel(report: DriftReport) -> Panel:
    """Curves over time below each other, with the prompts' starts."""
    height = len(CURVES) * (_CURVE + _GAP) - _GAP
    subtitle = f"One value per second. Shaded: the first {report.first_seconds:.3g} s, for comparison."
    if len(report.prompts) > 1:
        starts = "; ".join(f"{i}: {page.cut_name(text, 34)}" for i, (_, text) in enumerate(report.prompts[:6], 1))
        subtitle += f" Dotted: new prompts. {starts}{'; ...' if len(report.prompts) > 6 else ''}"

    def draw(ax: Axes, look: Theme) -> None:
        ax.set_axis_off()
        for place, (key, title, factor) in enumerate(CURVES):
            bottom = 1 - (_CURVE + place * (_CURVE + _GAP)) / height
            curve = page.styled(ax.inset_axes((0, max(bottom, 0), 1, _CURVE / height)), look)
            role = ("memory", "anchor", "local")[place % 3]
            _draw_curve(curve, look, report, np.array(report.series[key]) * factor, look.roles[role])
            curve.set_title(title, loc="left", fontsize=page.SMALL, color=look.ink, pad=5)
            curve.tick_params(labelbottom=place == len(CURVES) - 1)
            if place == 0 and 1 < len(report.prompts) <= 40:  # more numbers would overlap
                for number, (start, _) in enumerate(report.prompts, 1):
                    curve.annotate(str(number), (start, 1), (0, 22), ("data", "axes fraction"), "offset points",
                                   ha="center", size=page.SMALL, weight="bold", color=look.ink)  # fmt: skip
        curve.set_xlabel("seconds")

    return Panel("Change over time", subtitle, height, draw, legend_height=58 if len(report.prompts) > 1 else 32)


def _draw_curve(ax: Axes, look: Theme, report: DriftReport, values: np.ndarray, colour: str) -> None:
    seconds = np.minimum(np.arange(len(values)) + 0.5, report.seconds)
    ax.axvspan(0, report.first_seconds, color=look.grid, alpha=0.55, linewidth=0)
    for start, _ in report.prompts[1:]:
        ax.axvline(start, color=look.ink, linestyle=":", linewidth=1.3)
    ax.plot(seconds, values, color=colour, linewidth=2, marker="o" if len(values) < 8 else "", markersize=5)
    low = float(values.min())
    high = float(values.max())
    room = max(0.12 * (high - low), 0.08 * high, 0.02)
    ax.set(xlim=(0, report.seconds), ylim=(max(low - room, 0), high + room))  # none of these values can be negative
    ax.locator_params("y", nbins=3)
    ax.grid(axis="y")


def _switch_panel(report: DriftReport) -> Panel:
    subtitle = (
        "Progress of the change after a prompt switch, per block, measured in thumbnails: 0% is the mean before the "
        "switch, 100% the mean of 5 to 10 s after it (or of the second half before the next switch)."
    )
    shown = [response for response in report.switches if response.by_block][:5]
    block_seconds = BlockClock(report.frames_per_block, report.fps).block_seconds

    def draw(ax: Axes, look: Theme) -> None:
        from matplotlib.ticker import PercentFormatter

        for response, colour, dashes in zip(shown, cycle(look.roles.values()), _DASHES, strict=False):
            reached = "-" if response.seconds_to_80 is None else f"{response.seconds_to_80:.1f} s"
            times = np.append(0, (np.arange(len(response.by_block)) + 0.5) * block_seconds)
            ax.plot(times, [0.0, *response.by_block], color=colour, linestyle=dashes, linewidth=2.5,
                    label=f"{response.video_frame / report.fps:.1f} s: 80% after {reached}")  # fmt: skip
        for level in (0.8, 1.0):
            ax.axhline(level, color=look.dim, linewidth=1.2, linestyle=":" if level < 1 else "-", zorder=1)
        low, high = ax.get_ylim()
        ax.set(xlim=(0, None), ylim=(min(low, -0.05), max(high, 1.1)), xlabel="seconds after the switch")
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        ax.grid()
        page.draw_legend(ax, look, columns=3)

    return Panel("Response to new prompts", subtitle, 220, draw, page.LEGEND + 26 * (len(shown) > 3))


def _similarity_panel(report: DriftReport) -> Panel:
    similarity = report.whole["repetition"]
    lag = report.whole["repetition_lag_seconds"]
    found = "No repetition was found." if lag is None else f"It repeats after {lag:.1f} s, similarity {similarity:.2f}."
    subtitle = (
        "Similarity of thumbnails at all pairs of times: 1 is equal, 0 unrelated, -1 inverted; static parts are "
        f"excluded. Squares are scenes, stripes parallel to the diagonal are loops. {found}"
    )

    def draw(ax: Axes, look: Theme) -> None:
        end = report.seconds
        by_lag = similarity_by_lag(report.similarity)
        matrix = ax.imshow(report.similarity, cmap="cividis", vmin=-1, vmax=1, extent=(0, end, end, 0), aspect="auto",
                           interpolation="nearest")  # fmt: skip
        ax.set(xlabel="seconds", ylabel="seconds")
        bar = page.styled(ax.inset_axes((0, 1.03, 0.5, 0.03)), look)
        ax.figure.colorbar(matrix, cax=bar, orientation="horizontal", ticks=[-1, 0, 1], ticklocation="top")
        lags = np.arange(len(by_lag)) * report.similarity_spacing
        side = page.styled(ax.inset_axes((1.2, 0, 0.55, 1)), look)
        side.plot(by_lag, lags, color=look.roles["memory"], linewidth=2)
        if similarity is not None and lag is not None:
            side.plot(similarity, lag, "o", ms=9, mfc="none", mec=look.roles["anchor"], mew=2.5)
        side.set(xlim=(min(-0.5, float(by_lag.min()) - 0.1), 1.08), ylim=(max(lags[-1], 0.1), 0))
        side.set(xlabel="mean similarity", ylabel="lag, seconds")
        side.grid()

    right = page.WIDTH - page.LEFT - _MATRIX
    return Panel("Scenes and repetition", subtitle, _MATRIX, draw, legend_height=58, right=right)
