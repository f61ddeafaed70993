"""Plot of a run report: similarity to the first frame, standard deviations of the latent channels,
novelty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from PIL import Image

from .. import page
from ..page import Panel, Theme
from .latents import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HEIGHT = 170


def run_picture(
    report: RunReport, theme: str = "light", novelty_threshold: float | None = None
) -> Image.Image:
    """Plot a run report as an RGB image, 900 pixels wide, with the threshold as a line if it is
    given.
    """
    blocks = range(report.blocks)
    # memory was empty before the others
    candidates = [event for event in report.events if event.delta > -1]

    def cosine(ax: Axes, look: Theme) -> None:
        ax.plot(blocks, report.cosine.tolist(), color=look.roles["memory"], lw=2)
        ax.set(xlabel="block", ylabel="cosine")
        ax.grid()

    def channels(ax: Axes, look: Theme) -> None:
        ax.plot(blocks, report.std_ratio.numpy(), color=look.roles["anchor"], lw=0.9, alpha=0.55)
        ax.axhline(1.0, color=look.dim, lw=1, ls="--")
        ax.set(xlabel="block", ylabel="ratio")
        ax.grid()

    def novelty(ax: Axes, look: Theme) -> None:
        for wanted, role, marker, text in (
            (True, "memory", "o", "admitted"),
            (False, "anchor", "x", "rejected"),
        ):
            shown = [event for event in candidates if event.admitted == wanted]
            x = [event.after_block for event in shown]
            y = [event.delta for event in shown]
            ax.scatter(x, y, color=look.roles[role], marker=marker, s=42, label=text)
        if novelty_threshold is not None:
            ax.axhline(novelty_threshold, color=look.dim, lw=1, ls="--")
        ax.set(xlim=(0, max(1, report.blocks - 1)), xlabel="block", ylabel="similarity")
        ax.grid()
        page.draw_legend(ax, look)

    first = (
        "Cosine similarity of each block's latents to the first latent frame. A new scene lowers "
        "it; a slow decrease within a scene is drift."
    )
    ratios = (
        "Standard deviation of every channel relative to the first block; above 1 suggests "
        "oversaturation."
    )
    panels = [
        Panel("Similarity to the first frame", first, _HEIGHT, cosine, legend_height=0),
        Panel(
            "Latent channels against the first block", ratios, _HEIGHT, channels, legend_height=0
        ),
    ]
    if candidates:
        about = (
            "Each candidate's highest similarity to an entry of episodic memory; it is admitted "
            "below the line."
        )
        panels.append(Panel("Novelty", about, _HEIGHT, novelty))
    return page.draw_page(panels, theme)
