"""Page layout of all plots: 900 pixels wide, legible at half that size, drawn by matplotlib without
pyplot.

Colours are safe for colour-blind readers (Okabe and Ito) and accompanied by letters, marker shapes
or line styles.
"""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from .files import Fields, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 900
DPI = 100
# pixels; the left edge is the same in every panel, so that layers are aligned
LEFT = 96
RIGHT = 28
MARGIN = 24
LEGEND = 42  # pixels
_TITLE = 40
_LINE = 25
_BELOW = 78
# points, at 100 per inch
SMALL = 12.5
TEXT = 14
LARGE = 18
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
        "#17191d",
        "#f0f0f4",
        dim="#b4b8c2",
        grid="#3c404a",
        on_colour="#101114",
        roles={"local": "#00b386", "anchor": "#e69f00", "memory": "#56b4e9"},
    ),
    "light": Theme(
        "#ffffff",
        "#16181c",
        dim="#555a64",
        grid="#d4d7dd",
        on_colour="#ffffff",
        roles={"local": "#008a64", "anchor": "#d55e00", "memory": "#0072b2"},
    ),
}


@dataclass(frozen=True)
class Panel:
    """One diagram below its title and subtitle; `draw` draws it on axes `height` pixels high."""

    title: str
    subtitle: str
    height: int
    draw: Callable[[Axes, Theme], None]
    legend_height: int = LEGEND


def draw_page(panels: Sequence[Panel], theme: str) -> Image.Image:
    """Draw panels below each other as an RGB image; deterministic, because the layout is fixed in
    pixels.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    look = THEMES[theme]
    subtitles = [textwrap.wrap(panel.subtitle, 96) for panel in panels]
    height = MARGIN
    for panel, lines in zip(panels, subtitles, strict=True):
        height += _TITLE + _LINE * len(lines) + panel.legend_height + panel.height + _BELOW
    with _DRAWING:
        figure = Figure((WIDTH / DPI, height / DPI), dpi=DPI, facecolor=look.background)
        canvas = FigureCanvasAgg(figure)
        left = MARGIN / WIDTH
        common: Fields = {"va": "top", "parse_math": False}
        top = MARGIN
        for panel, lines in zip(panels, subtitles, strict=True):
            title = figure.text(left, 1 - top / height, panel.title, **common)
            title.set(color=look.ink, size=LARGE, weight="bold")
            top += _TITLE
            for line in lines:
                written = figure.text(left, 1 - top / height, line, **common)
                written.set(color=look.dim, size=SMALL)
                top += _LINE
            top += panel.legend_height + panel.height
            box = (
                LEFT / WIDTH,
                1 - top / height,
                (WIDTH - LEFT - RIGHT) / WIDTH,
                panel.height / height,
            )
            panel.draw(styled(figure.add_axes(box), look), look)
            top += _BELOW
        canvas.draw()
        return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def save_plot(path: Path, picture: Image.Image) -> None:
    """Write a plot."""
    with replacing(path) as temporary:
        picture.save(temporary)


def styled(ax: Axes, look: Theme) -> Axes:
    """Give axes the theme's colours, and text that is legible at half size; what is drawn later
    keeps them.
    """
    ax.set_facecolor(look.background)
    ax.tick_params(
        labelsize=SMALL,
        colors=look.dim,
        labelcolor=look.ink,
        grid_color=look.grid,
        grid_linewidth=0.8,
    )
    ax.spines[:].set_color(look.dim)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set(color=look.ink, size=TEXT)
    return ax


def draw_legend(ax: Axes, look: Theme, handles: Sequence[Any] | None = None) -> None:
    """Draw a legend above the axes, of the labelled artists, or of these."""
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=5,
        frameon=False,
        fontsize=TEXT,
        labelcolor=look.ink,
        borderaxespad=0.3,
        borderpad=0.1,
        handlelength=0.9,
        handletextpad=0.5,
        columnspacing=1.8,
    )


def cut_name(name: str, limit: int = 40) -> str:
    """A name on one line, cut to this many characters."""
    name = " ".join(name.split())
    return name if len(name) <= limit else name[: limit - 3].rstrip() + "..."
