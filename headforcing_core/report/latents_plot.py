"""Plot of a run report: similarity to the first frame, standard deviations of the latent channels, novelty.

Same page layout as the plots of head profiles; needs matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

from . import page
from .latents import RunReport
from .page import Panel, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 170


def run_picture(report: RunReport, theme: str = "light", novelty_threshold: float | None = None) -> Image.Image:
    """Plot a run report as an RGB image, 900 pixels wide, with the threshold as a line if it is given."""

    def cosine(ax: Axes, look: Theme) -> None:
        ax.plot(range(report.blocks), report.cosine.tolist(), color=look.roles["memory"], lw=2)
        page.add_grid(ax, look)
        page.label_axes(ax, look, "block", "cosine")

    def channels(ax: Axes, look: Theme) -> None:
        ax.plot(range(report.blocks), report.std_ratio.numpy(), color=look.roles["anchor"], lw=0.9, alpha=0.55)
        ax.axhline(1.0, color=look.dim, lw=1, ls="--")
        page.add_grid(ax, look)
        page.label_axes(ax, look, "block", "ratio")

    first = "Cosine similarity of each block's latents to the first latent frame. A new scene lowers it; a slow "
    first += "decrease within a scene is drift."
    ratios = "Standard deviation of every channel relative to the first block; above 1 suggests oversaturation."
    panels = [
        Panel("Similarity to the first frame", first, _HEIGHT, cosine, legend_height=0),
        Panel("Latent channels against the first block", ratios, _HEIGHT, channels, legend_height=0),
    ]
    if any(event.delta > -1 for event in report.events):
        panels.append(_novelty_panel(report, novelty_threshold))
    return page.draw_page(panels, theme)


def _novelty_panel(report: RunReport, threshold: float | None) -> Panel:
    candidates = [event for event in report.events if event.delta > -1]  # memory was empty before the others
    about = "Each candidate's highest similarity to an entry of episodic memory; it is admitted below the line."

    def draw(ax: Axes, look: Theme) -> None:
        from matplotlib.lines import Line2D

        handles = []
        for wanted, role, marker, text in ((True, "memory", "o", "admitted"), (False, "anchor", "x", "rejected")):
            shown = [event for event in candidates if event.admitted == wanted]
            if shown:
                blocks, values = [event.after_block for event in shown], [event.delta for event in shown]
                ax.scatter(blocks, values, color=look.roles[role], marker=marker, s=42)
            handles.append(Line2D([], [], ls="", marker=marker, ms=9, color=look.roles[role], label=text))
        if threshold is not None:
            ax.axhline(threshold, color=look.dim, lw=1, ls="--")
        ax.set_xlim(0, max(1, report.blocks - 1))
        page.add_grid(ax, look)
        page.label_axes(ax, look, "block", "similarity")
        page.draw_legend(ax, look, handles)

    return Panel("Novelty", about, _HEIGHT, draw)
