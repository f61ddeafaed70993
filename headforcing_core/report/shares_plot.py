"""Panels from measured shares: stability of the roles, and one head's attention over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..head_profiles.profile import ROLES
from ..head_profiles.profile_setup import ProfileSetup
from ..head_profiles.shares import FRAME_STEP, PUBLISHED_STABILITY, HeadShares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
from . import page
from .page import Panel, Theme


def stability_panel(setup: ProfileSetup, measured: Mapping[str, Mapping[str, float]]) -> Panel:
    """Draw core stability ratios per role and condition as bars, the paper's values as diamonds.

    `measured` as of `HeadShares.stability`.
    """
    other = (setup.num_layers, setup.num_heads) != page.PUBLISHED_MODEL
    subtitle = (
        "Fraction of a role's heads that have the role in every run, if only blocks, only steps or only prompts "
        f"vary. Diamonds: the paper's values for Self Forcing{', which is another model' if other else ''}."
    )

    def draw(ax: Axes, theme: Theme) -> None:
        from matplotlib.lines import Line2D

        names, places = [*ROLES, "mean"], []
        for group, (condition, published) in enumerate(PUBLISHED_STABILITY.items()):
            ratios = measured.get(condition)
            for i, name in enumerate(names):
                x = group * 5 + i
                places.append(x)
                ax.plot(x, published[name], "D", ms=9, mfc="none", mec=theme.ink, mew=1.8, zorder=4, clip_on=False)
                if ratios:
                    ax.bar(x, ratios[name], 0.86, color=theme.roles.get(name, theme.dim))
                    inside = ratios[name] > 0.12
                    ink, y = (theme.on_colour, 0.025) if inside else (theme.ink, ratios[name] + 0.02)
                    ax.text(x, y, f"{ratios[name]:.2f}", ha="center", va="bottom", fontsize=page.SMALL, color=ink)
            if not ratios:
                ax.text(group * 5 + 1.5, 0.1, "not measured", ha="center", fontsize=page.SMALL, color=theme.dim)
            text = f"over {page.CONDITION_NAMES[condition]}"
            ax.annotate(text, (group * 5 + 1.5, 0), (0, -38), "data", "offset points", ha="center", va="center",
                        fontsize=page.TEXT, color=theme.ink)  # fmt: skip
        ax.set_xticks(places, [page.LETTERS.get(name, name) for name in names] * len(PUBLISHED_STABILITY))
        ax.set_xlim(-0.8, 13.8)
        ax.set_ylim(0, 1)
        ax.tick_params(axis="x", length=0)
        page.add_grid(ax, theme, "y")
        published_mark = Line2D([], [], ls="", marker="D", ms=9, mfc="none", mec=theme.ink, mew=1.8, label="published")
        page.role_legend(ax, theme, None, None, published_mark)

    return Panel("Stability of the roles", subtitle, 260, draw)


def head_panel(shares: HeadShares, layer: int, head: int) -> Panel:
    """One head's attention to each latent frame of its window, block by block, and its three shares."""
    setup = shares.setup
    window, block = setup.window_frames, setup.frames_per_block
    values = shares.frame_shares(layer, head).double().numpy().copy()
    blocks = np.arange(setup.first_block, setup.blocks)
    begins = np.maximum(window - (blocks + 1) * block, 0)  # the column of the first frame
    sink = values[np.arange(len(blocks)), begins]
    current = values[:, window - block :].sum(axis=1)
    parts = {"first frame": sink, "between": values.sum(axis=1) - sink - current, "current block": current}
    values[np.arange(window) < begins[:, None]] = np.nan
    values[shares.frame_counts.numpy() == 0] = np.nan
    subtitle = (
        f"Attention per latent frame in denoising step {min(FRAME_STEP, len(setup.sigmas) - 1) + 1} of "
        f"{len(setup.sigmas)}, mean over {int(shares.frame_counts.max())} prompts. Every row starts with the video's "
        f"first frame; from {window} frames on, the oldest frames after it are evicted."
    )

    def draw(ax: Axes, theme: Theme) -> None:
        from matplotlib.ticker import MaxNLocator

        most = float(np.nanmax(values, initial=1e-6))
        edges = (np.arange(window + 1), np.append(blocks, setup.blocks) - 0.5)
        mesh = ax.pcolormesh(*edges, np.ma.masked_invalid(values), cmap="cividis", vmin=0, vmax=most)
        ax.set_ylim(setup.blocks - 0.5, setup.first_block - 0.5)
        ax.yaxis.set_major_locator(MaxNLocator(8, integer=True))
        past = [-frames for frames in (15, 10, 5, 2) if frames < window - block - 2]
        columns = [0.5, *(window - block + frames + 0.5 for frames in past), window - block / 2]
        ax.set_xticks(columns, ["first", *map(str, past), "now"])
        ax.axvline(window - block, color=theme.background, linewidth=2)
        ax.axvline(1, color=theme.background, linewidth=2)
        page.label_axes(ax, theme, "frames before the current block (now)", "block")
        bar = page.add_colour_bar(ax, theme, mesh, (0.5, 1.035, 0.5, 0.03))
        page.percent_axis(bar.xaxis, most)
        side = page.styled(ax.inset_axes((1.07, 0, 0.48, 1), sharey=ax, facecolor=theme.background), theme)
        for name, role, style in (
            ("first frame", "anchor", "--"),
            ("between", "memory", ":"),
            ("current block", "local", "-"),
        ):
            side.plot(parts[name], blocks, style, color=theme.roles[role], linewidth=2.5, label=name)
        side.set_xlim(0, 1)
        side.set_xticks([0, 0.5, 1], ["0%", "50%", "100%"])
        side.tick_params(labelleft=False)
        side.grid(color=theme.grid, linewidth=0.8)
        page.label_axes(side, theme, "share of attention")
        page.draw_legend(side, theme, side.get_lines(), columns=1)

    title = f"Attention of head {head} in layer {layer} over time"
    return Panel(title, subtitle, 420, draw, legend_height=104, right=310)
