"""The picture of a run report: likeness to the first frame, spread and mean of the latent channels, novelty.

Same page and looks as the pictures of head profiles; needs matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

from ..drift.latents import RunReport, novelty_trace
from .page import Panel, Theme, draw_legend, draw_page, label_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 170


def run_picture(report: RunReport, theme: str = "light", novelty_threshold: float | None = None) -> Image.Image:
    """Draw a report, 900 pixels wide.

    Args:
        novelty_threshold: drawn beside the candidates' similarities, where it is known.
    """
    panels = [
        Panel(
            "Likeness to the first frame",
            "Cosine of each block's latents to the first frame of the video. A new scene lowers it; a slow fall within "
            "one scene is drift.",
            _HEIGHT,
            lambda ax, look: _curve(ax, look, report.cosine.tolist(), "cosine"),
            legend_height=0,
        ),
        Panel(
            "Latent channels against the first block",
            "Spread of every channel over its spread in the first block: 1 is unchanged, growing is burning in.",
            _HEIGHT,
            lambda ax, look: _channels(ax, look, report),
            legend_height=0,
        ),
    ]
    if any(value is not None for value in novelty_trace(report.events)["similarity"]):
        panels.append(
            Panel(
                "Novelty",
                "Each candidate's highest similarity to what memory heads remember. Below the threshold it is kept.",
                _HEIGHT,
                lambda ax, look: _novelty(ax, look, report, novelty_threshold),
            )
        )
    return draw_page(panels, theme)


def _curve(ax: Axes, look: Theme, values: list[float], name: str) -> None:
    ax.plot(range(len(values)), values, color=look.roles["memory"], lw=2)
    ax.grid(color=look.grid, lw=0.6)
    label_axes(ax, look, "block", name)


def _channels(ax: Axes, look: Theme, report: RunReport) -> None:
    for channel in report.std_ratio.T.tolist():
        ax.plot(range(report.blocks), channel, color=look.roles["anchor"], lw=0.9, alpha=0.55)
    ax.axhline(1.0, color=look.dim, lw=1, ls="--")
    ax.grid(color=look.grid, lw=0.6)
    label_axes(ax, look, "block", "spread")


def _novelty(ax: Axes, look: Theme, report: RunReport, threshold: float | None) -> None:
    from matplotlib.lines import Line2D

    trace = novelty_trace(report.events)
    known = [
        (block, value, kept)
        for block, value, kept in zip(trace["after_block"], trace["similarity"], trace["admitted"], strict=True)
        if value is not None
    ]
    kinds = (True, "memory", "o", "kept"), (False, "anchor", "x", "nothing new")
    for wanted, role, marker, _ in kinds:
        shown = [(block, value) for block, value, kept in known if kept == wanted]
        if shown:
            blocks, values = zip(*shown, strict=True)
            ax.scatter(blocks, values, color=look.roles[role], marker=marker, s=42)
    if threshold is not None:
        ax.axhline(threshold, color=look.dim, lw=1, ls="--")
    ax.set_xlim(0, max(1, report.blocks - 1))
    ax.grid(color=look.grid, lw=0.6)
    label_axes(ax, look, "block", "similarity")
    handles = [
        Line2D([], [], ls="", marker=marker, ms=9, color=look.roles[role], label=text)
        for _, role, marker, text in kinds
    ]
    draw_legend(ax, look, handles)
