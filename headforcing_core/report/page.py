"""Page layout shared by all plots: size, themes, axes, legends."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from ..errors import HeadForcingError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 900
DPI = 100

LEFT, RIGHT, MARGIN = 96, 28, 24  # pixels; the left edge is the same in every panel, so that layers are aligned
_TITLE, _LINE, LEGEND, _BELOW = 40, 25, 42, 78
SMALL, TEXT, LARGE = 12.5, 14, 18  # points, at 100 per inch
_DRAWING = threading.Lock()  # matplotlib's font and layout caches are not thread-safe


@dataclass(frozen=True)
class Theme:
    """The colours of a plot."""

    background: str
    ink: str
    dim: str
    grid: str
    on_colour: str
    roles: dict[str, str]


THEMES = {
    "dark": Theme(
        "#17191d", "#f0f0f4", "#b4b8c2", "#3c404a", "#101114",
        {"local": "#00b386", "anchor": "#e69f00", "memory": "#56b4e9"},
    ),
    "light": Theme(
        "#ffffff", "#16181c", "#555a64", "#d4d7dd", "#ffffff",
        {"local": "#008a64", "anchor": "#d55e00", "memory": "#0072b2"},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One diagram with title and subtitle; `draw` draws it on axes `height` pixels high."""

    title: str
    subtitle: str
    height: int
    draw: Callable[[Axes, Theme], None]
    legend_height: int = LEGEND
    right: int = RIGHT

    @property
    def lines(self) -> list[str]:
        return textwrap.wrap(self.subtitle, 96)

    @property
    def header(self) -> int:
        return _TITLE + _LINE * len(self.lines) + self.legend_height


def draw_page(panels: Sequence[Panel], theme: str) -> Image.Image:
    """Draw panels below each other as an RGB image; deterministic, because the layout is fixed in pixels.

    Raises HeadForcingError for an unknown theme.
    """
    if theme not in THEMES:
        raise HeadForcingError(f"theme must be {' or '.join(THEMES)}, got {theme!r}")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    look = THEMES[theme]
    height = 2 * MARGIN + sum(panel.header + panel.height + _BELOW for panel in panels) - MARGIN
    with _DRAWING:
        figure = Figure((WIDTH / DPI, height / DPI), dpi=DPI, facecolor=look.background)
        canvas = FigureCanvasAgg(figure)
        top = MARGIN
        for panel in panels:
            texts: list[tuple[int, str, dict[str, Any]]] = [
                (top, panel.title, {"fontsize": LARGE, "color": look.ink, "weight": "bold"})
            ]
            for y, line in enumerate(panel.lines):
                texts.append((top + _TITLE + _LINE * y, line, {"fontsize": SMALL, "color": look.dim}))
            for y, text, style in texts:
                figure.text(MARGIN / WIDTH, 1 - y / height, text, va="top", parse_math=False, **style)
            bottom = top + panel.header + panel.height
            box = (LEFT / WIDTH, 1 - bottom / height, (WIDTH - LEFT - panel.right) / WIDTH, panel.height / height)
            panel.draw(styled(figure.add_axes(box, facecolor=look.background), look), look)
            top = bottom + _BELOW
        canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def styled(ax: Axes, theme: Theme) -> Axes:
    """Apply the theme's colours to the axes, with text that is legible at half size."""
    ax.tick_params(labelsize=SMALL, colors=theme.dim, labelcolor=theme.ink)
    for spine in ax.spines.values():
        spine.set_color(theme.dim)
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def add_grid(ax: Axes, theme: Theme, axis: Literal["both", "y"] = "both") -> None:
    """Draw a grid below what is drawn on the axes."""
    ax.grid(axis=axis, color=theme.grid, linewidth=0.8)
    ax.set_axisbelow(True)


def add_colour_bar(ax: Axes, theme: Theme, values: Any, box: tuple[float, float, float, float]) -> Axes:
    """Draw the colours of an image or a mesh above the axes; returns the bar's axes."""
    bar = ax.figure.colorbar(values, cax=ax.inset_axes(box), orientation="horizontal")
    bar.ax.xaxis.set_ticks_position("top")
    bar.outline.set_visible(False)
    return styled(bar.ax, theme)


def label_axes(ax: Axes, theme: Theme, x: str, y: str = "") -> None:
    ax.set_xlabel(x, fontsize=TEXT, color=theme.ink)
    ax.set_ylabel(y, fontsize=TEXT, color=theme.ink)


def draw_legend(ax: Axes, theme: Theme, handles: Sequence[Any], columns: int = 5) -> None:
    """Draw a legend above the axes, with `columns` columns."""
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False, fontsize=TEXT,
        labelcolor=theme.ink, borderaxespad=0.3, borderpad=0.1, handlelength=1.6 if columns == 1 else 0.9,
        handletextpad=0.5, columnspacing=1.8,
    )  # fmt: skip


def percent_axis(axis: Any, most: float) -> None:
    """Percent ticks for an axis from 0 to `most`, with the necessary digits."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axis.set_major_locator(MaxNLocator(4))
    axis.set_major_formatter(PercentFormatter(1, decimals=0 if most > 0.06 else 1 if most > 0.006 else 2))


def count_ticks(axis: Any, count: int, most: int = 15) -> None:
    """Integer ticks from 0 below `count`, at most `most` of them."""
    step = next(step for step in (1, 2, 3, 4, 5, 10, 20, 50, 100, 200, 500, count) if count / step <= most)
    values = range(0, count, step)
    axis.set_ticks(values, [str(value) for value in values])


def cut_name(name: str, limit: int = 40) -> str:
    name = " ".join(name.split())
    return name if len(name) <= limit else name[: limit - 3].rstrip() + "..."
