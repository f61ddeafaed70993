"""Plot of a drift report: main metrics, curves over time, responses to new prompts, self-similarity.

Same page layout as the plots of head profiles; needs matplotlib.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..timeline.clock import BlockClock
from . import page
from .drift import NOTE, DriftReport
from .metrics import METRICS, ratio
from .page import Panel, Theme
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
_CURVE_HEIGHT, _CURVE_GAP = 92, 46  # pixels
_HEADLINES_HEIGHT = 130
_MATRIX = 440
_TINY = 11.5  # points


def drift_picture(report: DriftReport, theme: str = "dark") -> Image.Image:
    """Plot a drift report as an RGB image, 900 pixels wide; `theme` is "dark" or "light"."""
    panels = [_headline_panel(report), _curves_panel(report)]
    if any(response.by_block for response in report.switches):
        panels.append(_switch_panel(report))
    return page.draw_page([*panels, _similarity_panel(report)], theme)


def _headline_panel(report: DriftReport) -> Panel:
    def draw(ax: Axes, theme: Theme) -> None:
        ax.set_axis_off()
        axes_width = page.WIDTH - page.LEFT - page.RIGHT
        for place, metric in enumerate(metric for metric in METRICS if metric.headline):
            x = (page.MARGIN + place % 4 * (page.WIDTH - page.MARGIN) / 4 - page.LEFT) / axes_width
            value, first = report.whole[metric.key], report.first[metric.key]
            number, before = ("-" if number is None else metric.form(number) for number in (value, first))
            times = ratio(value, first)
            more = "" if times is None or times >= 100 or number[0] in "+-" else f" (x {times:.2f})"
            texts: list[tuple[int, str, dict[str, Any]]] = [
                (0, metric.headline, {"fontsize": _TINY, "color": theme.dim}),
                (20, number, {"fontsize": 22, "color": theme.ink, "weight": "bold"}),
                (58, f"first {report.first_seconds:.3g} s: {before}{more}", {"fontsize": _TINY, "color": theme.dim}),
            ]
            for down, text, style in texts:
                y = 1 - (place // 4 * 104 + down) / _HEADLINES_HEIGHT
                ax.text(x, y, text, va="top", transform=ax.transAxes, parse_math=False, **style)

    title, subtitle = f"Drift of {page.cut_name(report.name)}", f"{report.heading()}. {NOTE}"
    return Panel(title, subtitle, _HEADLINES_HEIGHT, draw, legend_height=12)


def _curves_panel(report: DriftReport) -> Panel:
    height = len(CURVES) * (_CURVE_HEIGHT + _CURVE_GAP) - _CURVE_GAP
    subtitle = f"One value per second. Shaded: the first {report.first_seconds:.3g} s, for comparison."
    if len(report.prompts) > 1:
        starts = "; ".join(f"{i}: {page.cut_name(text, 34)}" for i, (_, text) in enumerate(report.prompts[:6], 1))
        subtitle += f" Dotted: new prompts. {starts}{'; ...' if len(report.prompts) > 6 else ''}"

    def draw(ax: Axes, theme: Theme) -> None:
        ax.set_axis_off()
        colours = cycle((theme.roles["memory"], theme.roles["anchor"], theme.roles["local"]))
        for place, (key, title, factor) in enumerate(CURVES):
            bottom = 1 - (_CURVE_HEIGHT + place * (_CURVE_HEIGHT + _CURVE_GAP)) / height
            box = (0, max(bottom, 0), 1, _CURVE_HEIGHT / height)
            curve = page.styled(ax.inset_axes(box, facecolor=theme.background), theme)
            _draw_curve(curve, theme, report, np.array(report.series[key]) * factor, next(colours))
            curve.set_title(title, loc="left", fontsize=page.SMALL, color=theme.ink, pad=5)
            if place == 0 and 1 < len(report.prompts) <= 40:  # more numbers would overlap
                for number, (start, _) in enumerate(report.prompts, 1):
                    curve.annotate(str(number), (start, 1), (0, 22), ("data", "axes fraction"), "offset points",
                                   ha="center", va="bottom", fontsize=page.SMALL, weight="bold",
                                   color=theme.ink)  # fmt: skip
            if place < len(CURVES) - 1:
                curve.tick_params(labelbottom=False)
        page.label_axes(curve, theme, "seconds")

    return Panel("Change over time", subtitle, height, draw, legend_height=58 if len(report.prompts) > 1 else 32)


def _draw_curve(ax: Axes, theme: Theme, report: DriftReport, values: np.ndarray, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator

    seconds = np.minimum(np.arange(len(values)) + 0.5, report.seconds)
    ax.axvspan(0, report.first_seconds, color=theme.grid, alpha=0.55, linewidth=0)
    for start, _ in report.prompts[1:]:
        ax.axvline(start, color=theme.ink, linestyle=":", linewidth=1.3)
    ax.plot(seconds, values, color=colour, linewidth=2, marker="o" if len(values) < 8 else "", markersize=5)
    low, high = float(values.min()), float(values.max())
    room = max(0.12 * (high - low), 0.08 * high, 0.02)
    ax.set_ylim(max(low - room, 0), high + room)  # none of these values can be negative
    ax.set_xlim(0, report.seconds)
    ax.yaxis.set_major_locator(MaxNLocator(3))
    ax.xaxis.set_major_locator(MaxNLocator(10))
    page.add_grid(ax, theme, "y")


def _switch_panel(report: DriftReport) -> Panel:
    subtitle = (
        "Progress of the change after a prompt switch, per block, measured in thumbnails: 0% is the mean before the "
        "switch, 100% the mean of 5 to 10 s after it (or of the second half before the next switch)."
    )
    shown = [response for response in report.switches if response.by_block][:5]
    block_seconds = BlockClock(report.frames_per_block, report.fps).block_seconds

    def draw(ax: Axes, theme: Theme) -> None:
        looks = zip(cycle(theme.roles.values()), ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1))), strict=False)
        for response, (colour, dashes) in zip(shown, looks, strict=False):
            blocks = np.array([0.0, *response.by_block])
            start = response.video_frame / report.fps
            reached = "-" if response.seconds_to_80 is None else f"{response.seconds_to_80:.1f} s"
            label = f"{start:.1f} s: 80% after {reached}"
            times = np.append(0, (np.arange(len(response.by_block)) + 0.5) * block_seconds)
            ax.plot(times, blocks, color=colour, linestyle=dashes, linewidth=2.5, label=label)
        for level in (0.8, 1.0):
            ax.axhline(level, color=theme.dim, linewidth=1.2, linestyle=":" if level < 1 else "-", zorder=1)
        low, high = ax.get_ylim()
        ax.set_ylim(min(low, -0.05), max(high, 1.1))
        ax.set_xlim(left=0)
        from matplotlib.ticker import PercentFormatter

        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        page.add_grid(ax, theme)
        page.label_axes(ax, theme, "seconds after the switch")
        page.draw_legend(ax, theme, ax.get_lines()[: len(shown)], columns=3)

    return Panel("Response to new prompts", subtitle, 220, draw, page.LEGEND + 26 * (len(shown) > 3))


def _similarity_panel(report: DriftReport) -> Panel:
    similarity, lag = report.whole["repetition"], report.whole["repetition_lag_seconds"]
    repeats = lag is not None and lag > 0 and similarity is not None
    result = (
        f"It repeats after {lag:.1f} s with similarity {similarity:.2f}." if repeats else "No repetition was found."
    )
    subtitle = (
        "Similarity of thumbnails at all pairs of times: 1 is equal, 0 unrelated, -1 inverted; static parts are "
        f"excluded. Squares are scenes, stripes parallel to the diagonal are loops. {result}"
    )

    def draw(ax: Axes, theme: Theme) -> None:
        length = report.seconds
        ax.imshow(report.similarity, cmap="cividis", vmin=-1, vmax=1, extent=(0, length, length, 0), aspect="auto",
                  interpolation="nearest")  # fmt: skip
        page.label_axes(ax, theme, "seconds", "seconds")
        ax.spines[:].set_visible(False)
        page.add_colour_bar(ax, theme, ax.images[0], (0, 1.03, 0.5, 0.03)).set_xticks([-1, 0, 1])
        side = page.styled(ax.inset_axes((1.2, 0, 0.55, 1), facecolor=theme.background), theme)
        by_lag = similarity_by_lag(report.similarity)
        lags = np.arange(len(by_lag)) * report.similarity_spacing
        side.plot(by_lag, lags, color=theme.roles["memory"], linewidth=2)
        if similarity is not None and lag is not None and repeats:
            side.plot(similarity, lag, "o", ms=9, mfc="none", mec=theme.roles["anchor"], mew=2.5)
        side.set_ylim(max(lags[-1], 0.1), 0)
        side.set_xlim(min(-0.5, float(by_lag.min()) - 0.1), 1.08)
        side.grid(color=theme.grid, linewidth=0.8)
        page.label_axes(side, theme, "mean similarity", "lag, seconds")
        side.yaxis.labelpad = 2

    title = "Scenes and repetition"
    return Panel(title, subtitle, _MATRIX, draw, legend_height=58, right=page.WIDTH - page.LEFT - _MATRIX)
