"""Plot of a run report: similarity to the first frame, standard deviations of the latent channels, novelty.

Same page layout as the plots of head profiles; needs matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

from . import page
from .latents import RunReport, novelty_trace
from .page import Panel, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 170


def run_picture(report: RunReport, theme: str = "light", novelty_threshold: float | None = None) -> Image.Image:
    """Plot a run report as an RGB image, 900 pixels wide.

    Args:
        theme: "dark" or "light".
        novelty_threshold: drawn as a line in the novelty panel; None draws none.
    """
    panels = [
        Panel(
            "Similarity to the first frame",
            "Cosine similarity of each block's latents to the first latent frame. A new scene lowers it; a slow "
            "decrease within a scene is drift.",
            _HEIGHT,
            lambda ax, look: _curve(ax, look, report.cosine.tolist(), "cosine"),
            legend_height=0,
        ),
        Panel(
            "Latent channels against the first block",
            "Standard deviation of every channel relative to the first block; above 1 suggests oversaturation.",
            _HEIGHT,
            lambda ax, look: _channels(ax, look, report),
            legend_height=0,
        ),
    ]
    if any(value is not None for value in novelty_trace(report.events)["similarity"]):
        panels.append(
            Panel(
                "Novelty",
                "Each candidate's highest similarity to an entry of episodic memory; it is admitted below the line.",
                _HEIGHT,
                lambda ax, look: _novelty(ax, look, report, novelty_threshold),
            )
        )
    return page.draw_page(panels, theme)


def _curve(ax: Axes, look: Theme, values: list[float], name: str) -> None:
    ax.plot(range(len(values)), values, color=look.roles["memory"], lw=2)
    page.add_grid(ax, look)
    page.label_axes(ax, look, "block", name)


def _channels(ax: Axes, look: Theme, report: RunReport) -> None:
    for channel in report.std_ratio.T.tolist():
        ax.plot(range(report.blocks), channel, color=look.roles["anchor"], lw=0.9, alpha=0.55)
    ax.axhline(1.0, color=look.dim, lw=1, ls="--")
    page.add_grid(ax, look)
    page.label_axes(ax, look, "block", "ratio")


def _novelty(ax: Axes, look: Theme, report: RunReport, threshold: float | None) -> None:
    from matplotlib.lines import Line2D

    trace = novelty_trace(report.events)
    candidates = [
        (block, value, admitted)
        for block, value, admitted in zip(trace["after_block"], trace["similarity"], trace["admitted"], strict=True)
        if value is not None
    ]
    kinds = (True, "memory", "o", "admitted"), (False, "anchor", "x", "rejected")
    for wanted, role, marker, _ in kinds:
        shown = [(block, value) for block, value, admitted in candidates if admitted == wanted]
        if shown:
            blocks, values = zip(*shown, strict=True)
            ax.scatter(blocks, values, color=look.roles[role], marker=marker, s=42)
    if threshold is not None:
        ax.axhline(threshold, color=look.dim, lw=1, ls="--")
    ax.set_xlim(0, max(1, report.blocks - 1))
    page.add_grid(ax, look)
    page.label_axes(ax, look, "block", "similarity")
    handles = [
        Line2D([], [], ls="", marker=marker, ms=9, color=look.roles[role], label=text)
        for _, role, marker, text in kinds
    ]
    page.draw_legend(ax, look, handles)
