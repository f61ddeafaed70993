"""Plot of a run report: similarity to the first frame, standard deviations of the latent channels,
novelty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image
from torch import Tensor

from .. import page
from ..page import Panel, Theme
from ..rollout.loop import MemoryEvent
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
    panels = [
        _curves_panel(
            "Similarity to the first frame",
            "Cosine similarity of each block's latents to the first latent frame. A new scene "
            "lowers it; a slow decrease within a scene is drift.",
            report.cosine,
            "memory",
        ),
        _curves_panel(
            "Latent channels against the first block",
            "Standard deviation of every channel relative to the first block; above 1 suggests "
            "oversaturation.",
            report.std_ratio,
            "anchor",
        ),
    ]
    # memory was empty before the others
    candidates = [event for event in report.events if event.delta > -1]
    if candidates:
        panels.append(_novelty_panel(candidates, report.blocks, novelty_threshold))
    return page.draw_page(panels, theme)


def _curves_panel(title: str, subtitle: str, values: Tensor, role: str) -> Panel:
    """A value of each block, or a curve of each column of `values [blocks, columns]`."""

    def draw(ax: Axes, look: Theme) -> None:
        ax.plot(values.numpy(), color=look.roles[role], linewidth=1.2)
        ax.set(xlabel="block")
        ax.grid()

    return Panel(title, subtitle, _HEIGHT, draw, legend_height=0)


def _novelty_panel(
    candidates: Sequence[MemoryEvent], blocks: int, threshold: float | None
) -> Panel:
    """The similarity of every candidate of episodic memory, and whether it was admitted."""

    def draw(ax: Axes, look: Theme) -> None:
        for wanted, role, marker, text in (
            (True, "memory", "o", "admitted"),
            (False, "anchor", "x", "rejected"),
        ):
            shown = [event for event in candidates if event.admitted == wanted]
            x = [event.after_block for event in shown]
            y = [event.delta for event in shown]
            ax.scatter(x, y, color=look.roles[role], marker=marker, s=42, label=text)
        if threshold is not None:
            ax.axhline(threshold, color=look.dim, lw=1, ls="--")
        ax.set(xlim=(0, max(1, blocks - 1)), xlabel="block")
        ax.grid()
        page.draw_legend(ax, look)

    about = (
        "Each candidate's highest similarity to an entry of episodic memory; it is admitted "
        "below the line."
    )
    return Panel("Novelty", about, _HEIGHT, draw)
