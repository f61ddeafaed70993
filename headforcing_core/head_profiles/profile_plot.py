"""Plots of head profiles: attention shares, the role of every head, and stability of the roles."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from .. import page
from ..page import Panel, Theme
from .agreement import compare_profiles
from .profile import CURRENT, ROLES, SINK, Head, HeadProfile, by_head
from .shares import PUBLISHED_STABILITY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTERS = {"local": "L", "anchor": "A", "memory": "M"}
MARKERS = {"local": "o", "anchor": "^", "memory": "s"}


def comparison_map(a: HeadProfile, b: HeadProfile, theme: str = "dark") -> Image.Image:
    """The roles in two profiles below each other; heads with other roles in the other are hatched.

    Raises HeadForcingError if the profiles have different dimensions.
    """
    found = compare_profiles(a, b)
    subtitle = (
        f"{found.same} of {found.heads} heads have the same role in both; hatched: the others."
    )
    panels = [
        _roles_panel(each, page.cut_name(each.name), subtitle, found.different) for each in (a, b)
    ]
    return page.draw_page(panels, theme)


def profile_picture(
    profile: HeadProfile,
    theme: str = "dark",
    stability: Mapping[str, Mapping[str, float]] | None = None,
) -> Image.Image:
    """All plots of a profile below each other: attention shares where they are measured, roles, and
    `stability`, as of `HeadShares.stability`, where it is given.
    """
    panels = []
    if profile.shares is not None:
        panels.append(_shares_panel(profile))
    layers = profile.num_layers
    heads = profile.num_heads
    subtitle = f"{page.cut_name(profile.name)}: {layers} layers, {heads} heads in each."
    if profile.disputed:
        subtitle += (
            f" Hatched: the {len(profile.disputed)} heads about which the sources of the profile "
            "disagree."
        )
    panels.append(_roles_panel(profile, "The role of every head", subtitle, profile.disputed))
    if stability:
        panels.append(_stability_panel(stability))
    return page.draw_page(panels, theme)


def _shares_panel(profile: HeadProfile) -> Panel:
    shares = np.asarray(profile.shares).reshape(-1, 3)
    roles = np.ravel(profile.roles)

    def draw(ax: Axes, look: Theme) -> None:
        for role in ROLES:
            chosen = 100 * shares[roles == role]
            ax.scatter(
                chosen[:, SINK],
                chosen[:, CURRENT],
                s=max(20, 90 - len(roles) // 8),
                marker=MARKERS[role],
                color=look.roles[role],
                edgecolor=look.background,
                linewidth=0.6,
                label=_counted(profile, role),
            )
        ax.locator_params(nbins=4)
        ax.set(
            xlabel="attention to the first frame (the sink), %",
            ylabel="attention to the current block, %",
        )
        ax.grid()
        page.draw_legend(ax, look)

    subtitle = (
        f"{page.cut_name(profile.name)}. What is left of a head's attention goes to the frames "
        "between."
    )
    return Panel("Attention shares, one mark per head", subtitle, 400, draw)


def _roles_panel(
    profile: HeadProfile, title: str, subtitle: str, hatched: Collection[Head]
) -> Panel:
    """A cell for every head."""
    # pixels of a cell
    size = min(max((page.WIDTH - page.LEFT - page.RIGHT) / profile.num_layers, 18), 60)

    def draw(ax: Axes, look: Theme) -> None:
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch, Rectangle
        from matplotlib.ticker import MaxNLocator

        numbers = [[ROLES.index(role) for role in layer] for layer in profile.roles]
        ax.pcolormesh(
            np.arange(profile.num_layers),
            np.arange(profile.num_heads),
            np.transpose(numbers),
            cmap=ListedColormap([look.roles[role] for role in ROLES]),
            vmin=0,
            vmax=len(ROLES) - 1,
            edgecolors=look.background,
            linewidth=size / 18,
        )
        for layer, head in hatched:
            place = (layer - 0.5, head - 0.5)
            ax.add_patch(Rectangle(place, 1, 1, fill=False, hatch="////", ec=look.background, lw=0))
        if size > 24:
            for (layer, head), role in by_head(profile.roles).items():
                ax.text(
                    layer,
                    head,
                    LETTERS[role],
                    size=min(0.4 * size, page.TEXT),
                    color=look.on_colour,
                    ha="center",
                    va="center_baseline",
                    weight="bold",
                )
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(MaxNLocator(15, integer=True))
        ax.invert_yaxis()
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set(xlabel="layer (0 comes first)", ylabel="head")
        handles = []
        for role in ROLES:
            label = f"{LETTERS[role]}  {_counted(profile, role)}"
            handles.append(Patch(color=look.roles[role], label=label))
        page.draw_legend(ax, look, handles)

    return Panel(title, subtitle, round(size * profile.num_heads), draw)


def _stability_panel(stability: Mapping[str, Mapping[str, float]]) -> Panel:
    """Core stability ratios by condition and role as bars, the paper's as diamonds."""
    names = [*ROLES, "mean"]

    def draw(ax: Axes, look: Theme) -> None:
        colours = [look.roles.get(name, look.dim) for name in names]
        ticks = []
        for group, (condition, ratios) in enumerate(stability.items()):
            # in bars, with the space of one after each condition
            places = 5 * group + np.arange(len(names))
            ticks += places.tolist()
            ax.bar(places, [ratios[name] for name in names], 0.86, color=colours)
            published = [PUBLISHED_STABILITY[condition][name] for name in names]
            ax.plot(places, published, "D", ms=9, mfc="none", mec=look.ink, mew=2)
            ax.text(places[0], -0.18, f"over {condition}", size=page.TEXT, color=look.ink)
        ax.set_xticks(ticks, [LETTERS.get(name, name) for name in names] * len(stability))
        ax.set(ylim=(0, 1))
        ax.grid(axis="y")

    subtitle = (
        "Fraction of a role's heads that have the role in every run, if only blocks, only "
        "denoising steps or only prompts vary. Diamonds: the paper's, for Self Forcing 1.3B."
    )
    return Panel("Stability of the roles", subtitle, 260, draw, legend_height=16)


def _counted(profile: HeadProfile, role: str) -> str:
    """A role with the number of its heads and their share of all."""
    count = profile.counts()[role]
    return f"{role}: {count} ({count / (profile.num_layers * profile.num_heads):.0%})"
