"""Panels of the figures: curves, strips of video frames, maps of attention, points."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...headforcing_core import page
from ..statistics import Values, mean_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
GAP = 4  # pixels between two video frames
LABEL = 10  # characters of a row's label in one line


@dataclass(frozen=True)
class Curves:
    """Several lines over one axis; `lines` have for each place the values of its videos.

    Attributes:
        marked: the place of the default, which has a line.
    """

    x: str
    places: Sequence[float]
    lines: Mapping[str, Sequence[Values]]
    marked: float | None = None
    y: tuple[float, float] = (0.0, 1.0)


def curves_panel(title: str, subtitle: str, curves: Curves) -> page.Panel:
    """Means over videos as lines, each with its values as small marks."""

    def draw(ax: Axes, look: page.Theme) -> None:
        if curves.marked is not None:
            ax.axvline(curves.marked, color=look.dim, linestyle=":", linewidth=1.5)
        colours = [*look.roles.values(), look.ink, look.dim]
        for number, (label, values) in enumerate(curves.lines.items()):
            colour = colours[number % len(colours)]
            marker = MARKERS[number % len(MARKERS)]
            known = [
                (place, found.mean)
                for place, each in zip(curves.places, values, strict=True)
                if (found := mean_interval(each)) is not None
            ]
            ax.plot(
                [place for place, _ in known],
                [mean for _, mean in known],
                color=colour,
                marker=marker,
                linewidth=2,
                label=label,
            )
            for place, each in zip(curves.places, values, strict=True):
                dots = [value for value in each if value is not None]
                ax.plot([place] * len(dots), dots, ".", color=colour, alpha=0.35)
        ax.set(xlabel=curves.x, ylim=curves.y)
        ax.grid()
        page.draw_legend(ax, look)

    return page.Panel(title, subtitle, 260, draw)


def strips_panel(
    title: str, subtitle: str, rows: Mapping[str, Tensor], seconds: Sequence[float]
) -> page.Panel:
    """Rows of video frames `[n, h, w, 3]` in 0..1, with the label of each and seconds below."""
    pictures = [np.asarray(frames, dtype=float) for frames in rows.values()]
    count, height, width, _ = pictures[0].shape
    step_x = width + GAP
    step_y = height + GAP
    canvas = np.ones((len(rows) * step_y - GAP, count * step_x - GAP, 3))
    for row, frames in enumerate(pictures):
        for column, picture in enumerate(frames):
            top = row * step_y
            left = column * step_x
            canvas[top : top + height, left : left + width] = picture

    def draw(ax: Axes, look: page.Theme) -> None:
        ax.imshow(canvas, aspect="auto", interpolation="nearest")
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        middles = [row * step_y + height / 2 for row in range(len(rows))]
        labels = [textwrap.fill(label, LABEL) for label in rows]
        ax.set_yticks(middles, labels)
        places = [column * step_x + width / 2 for column in range(count)]
        ax.set_xticks(places, [f"{second:g} s" for second in seconds])

    inner = page.WIDTH - page.LEFT - page.RIGHT
    return page.Panel(
        title, subtitle, round(inner * canvas.shape[0] / canvas.shape[1]), draw, legend_height=8
    )


@dataclass(frozen=True)
class Map:
    """The attention of one head, `[queries, keys]`, and what its axes are in latent frames."""

    role: str
    head: str
    weights: Array
    query_frames: int
    key_frames: int

    @property
    def label(self) -> str:
        return f"{self.role}: {self.head}"


def maps_panel(title: str, subtitle: str, rows: Mapping[str, Sequence[Map]]) -> page.Panel:
    """A row of maps for each role; a darker place has more attention, each query's scaled by the
    largest of the map.
    """
    most = max(len(maps) for maps in rows.values())

    def draw(ax: Axes, look: page.Theme) -> None:
        ax.set_axis_off()
        for row, maps in enumerate(rows.values()):
            for column, each in enumerate(maps):
                box = (
                    column / most,
                    1 - (row + 0.86) / len(rows),
                    1 / most - 0.02,
                    0.7 / len(rows),
                )
                inner = page.styled(ax.inset_axes(box), look)
                _draw_map(inner, look, each)

    return page.Panel(title, subtitle, 180 * len(rows), draw, legend_height=8)


def _draw_map(ax: Axes, look: page.Theme, each: Map) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    colour = look.roles[each.role]
    scale = LinearSegmentedColormap.from_list("attention", [look.background, colour, look.ink])
    queries, keys = each.weights.shape
    # the root shows weak attention, too
    ax.imshow(np.sqrt(each.weights / each.weights.max()), aspect="auto", cmap=scale)
    frame = keys / each.key_frames
    ax.set_xticks([])
    ax.set_yticks([])
    ax.axvline(frame - 0.5, color=look.grid, linewidth=0.8)
    ax.axvline(keys - each.query_frames * frame - 0.5, color=look.grid, linewidth=0.8)
    ax.set_title(each.label, color=look.ink, size=page.SMALL - 2, loc="left")


@dataclass(frozen=True)
class Points:
    """Points in a plane, by label."""

    x: str
    y: str
    groups: Mapping[str, Sequence[tuple[float, float]]]
    limits: tuple[float, float, float, float] = field(default=(0.0, 1.0, 0.0, 1.0))
    diagonal: bool = False


def points_panel(title: str, subtitle: str, points: Points) -> page.Panel:
    """One mark for each point; with `diagonal` a line of equal values."""

    def draw(ax: Axes, look: page.Theme) -> None:
        left, right, bottom, top = points.limits
        if points.diagonal:
            ax.plot([left, right], [left, right], ":", color=look.dim, linewidth=1.5)
        colours = [*look.roles.values(), look.ink]
        for number, (label, group) in enumerate(points.groups.items()):
            ax.scatter(
                [x for x, _ in group],
                [y for _, y in group],
                s=22,
                marker=MARKERS[number],
                color=colours[number % len(colours)],
                alpha=0.6,
                label=label,
            )
        ax.set(xlabel=points.x, ylabel=points.y, xlim=(left, right), ylim=(bottom, top))
        ax.grid()
        page.draw_legend(ax, look)

    return page.Panel(title, subtitle, 300, draw)
