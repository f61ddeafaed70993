"""Plots of head profiles: attention shares, roles, and stability of the roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from .. import page
from ..page import Panel, Theme
from .agreement import compare_profiles
from .profile import ROLES, HeadProfile
from .shares import PUBLISHED_STABILITY, HeadShares, ProfileSetup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTERS = {"local": "L", "anchor": "A", "memory": "M"}
MARKERS = {"local": "o", "anchor": "^", "memory": "s"}
_CONDITION_NAMES = {"blocks": "blocks of a video", "steps": "denoising steps", "prompts": "prompts"}
_PUBLISHED_MODEL = (30, 12)  # layers and heads of the model whose stability ratios the paper reports


def comparison_map(a: HeadProfile, b: HeadProfile, theme: str = "dark") -> Image.Image:
    """Agreement of two profiles: heads with equal roles are faded, others split into the roles in `a` and in `b`.

    Raises HeadForcingError if the profiles have different dimensions.
    """
    found = compare_profiles(a, b)
    subtitle = (
        f"{found.same} of {found.heads} heads have the same role in both (faded). Others are split: on the left the "
        f"role in '{page.cut_name(a.name)}', on the right that in '{page.cut_name(b.name)}'."
    )
    return page.draw_page([_map_panel(a, b, f"Agreement: {found.agreement:.0%} of the heads", subtitle)], theme)


def profile_picture(profile: HeadProfile, shares: HeadShares | None = None, theme: str = "dark") -> Image.Image:
    """All plots of a profile below each other: attention shares and stability where they are measured, roles."""
    panels = [] if profile.shares is None else [_shares_panel(profile)]
    panels.append(_roles_panel(profile))
    if shares is not None and (measured := shares.stability()):
        panels.append(stability_panel(shares.setup, measured))
    return page.draw_page(panels, theme)


def _shares_panel(profile: HeadProfile) -> Panel:
    shares = np.asarray(profile.shares).reshape(-1, 3)
    roles = np.ravel(profile.roles)
    counts = profile.counts()

    def draw(ax: Axes, look: Theme) -> None:
        from matplotlib.ticker import PercentFormatter

        size = 90 if len(roles) <= 60 else 46 if len(roles) <= 600 else 20
        for role in ROLES:
            chosen = roles == role
            label = f"{role}: {counts[role]} ({counts[role] / len(roles):.0%})"
            ax.scatter(shares[chosen, 0], shares[chosen, 2], s=size, marker=MARKERS[role], color=look.roles[role],
                       linewidth=0.6, zorder=3, edgecolor=look.background, label=label)  # fmt: skip
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(PercentFormatter(1))
        ax.locator_params(nbins=4)
        ax.set(xlabel="attention to the first frame (the sink)", ylabel="attention to the current block")
        ax.grid()
        page.draw_legend(ax, look)

    subtitle = f"{page.cut_name(profile.name)}. What is left of a head's attention goes to the frames between."
    return Panel("Attention shares, one mark per head", subtitle, 400, draw)


def _roles_panel(profile: HeadProfile) -> Panel:
    layers = profile.num_layers
    heads = profile.num_heads
    disputed = len(profile.disputed)
    subtitle = f"{page.cut_name(profile.name)}: {layers} layers, {heads} heads in each."
    if disputed:
        share = disputed / (layers * heads)
        subtitle += f" Hatched: the {disputed} heads ({share:.0%}) about which the sources of the profile disagree."
    return _map_panel(profile, None, "The role of every head", subtitle)


def _map_panel(a: HeadProfile, b: HeadProfile | None, title: str, subtitle: str) -> Panel:
    """A cell for every head: of one profile, or split in halves where two profiles differ and faded elsewhere."""
    layers = a.num_layers
    heads = a.num_heads
    alone = b is None
    size = min(max((page.WIDTH - page.LEFT - page.RIGHT) / layers, 18), 60)  # pixels of a cell

    def draw(ax: Axes, look: Theme) -> None:
        from matplotlib.colors import to_rgb
        from matplotlib.patches import Patch, Rectangle
        from matplotlib.ticker import FixedLocator, MaxNLocator

        paper = np.asarray(to_rgb(look.background))
        colours = {role: to_rgb(look.roles[role]) for role in ROLES}
        halves = np.stack([np.asarray(profile.roles).T for profile in (a, b or a)], axis=-1)  # [head, layer, half]
        same = halves[..., 0] == halves[..., 1]
        cells = np.array([colours[role] for role in halves.ravel()]).reshape(*halves.shape, 3)
        if not alone:
            cells[same] = 0.22 * cells[same] + 0.78 * paper
        extent = (-0.5, layers - 0.5, heads - 0.5, -0.5)
        ax.imshow(cells.reshape(heads, 2 * layers, 3), aspect="auto", interpolation="nearest", extent=extent)
        for layer, head in a.disputed if alone else ():
            ax.add_patch(Rectangle((layer - 0.5, head - 0.5), 1, 1, fill=False, hatch="////", ec=look.background, lw=0))
        for head, layer in np.ndindex(heads, layers) if size > 24 else ():
            letters = "".join(LETTERS[role] for role in halves[head, layer][: 1 if same[head, layer] else 2])
            ink = look.on_colour if alone or len(letters) > 1 else look.dim
            ax.text(layer, head, letters, size=min(0.8 * size / (1 + len(letters)), page.TEXT), color=ink,
                    ha="center", va="center_baseline", weight="bold")  # fmt: skip
        for axis, count in ((ax.xaxis, layers), (ax.yaxis, heads)):
            axis.set_major_locator(MaxNLocator(15, integer=True))
            axis.set_minor_locator(FixedLocator([place - 0.5 for place in range(count + 1)]))
        ax.grid(which="minor", color=look.background, linewidth=2 if size >= 24 else 1)
        ax.tick_params(which="both", length=0)
        ax.spines[:].set_visible(False)
        ax.set(xlabel="layer (0 comes first)", ylabel="head")
        number = {role: f": {count} ({count / same.size:.0%})" if alone else "" for role, count in a.counts().items()}
        labels = {role: f"{LETTERS[role]}  {role}{number[role]}" for role in ROLES}
        page.draw_legend(ax, look, [Patch(color=look.roles[role], label=labels[role]) for role in ROLES])

    return Panel(title, subtitle, round(size * heads), draw)


def stability_panel(setup: ProfileSetup, measured: Mapping[str, Mapping[str, float]]) -> Panel:
    """Core stability ratios per role and condition as bars, the paper's values as diamonds.

    `measured` as of `HeadShares.stability`.
    """
    other = (setup.num_layers, setup.num_heads) != _PUBLISHED_MODEL
    subtitle = (
        "Fraction of a role's heads that have the role in every run, if only blocks, only steps or only prompts "
        f"vary. Diamonds: the paper's values for Self Forcing{', which is another model' if other else ''}."
    )

    def draw(ax: Axes, look: Theme) -> None:
        names = [*ROLES, "mean"]
        ticks = []
        for group, (condition, published) in enumerate(PUBLISHED_STABILITY.items()):
            places = 5 * group + np.arange(len(names))
            ticks += places.tolist()
            ax.plot(places, [published[name] for name in names], ls="", marker="D", ms=9, mfc="none", mec=look.ink,
                    mew=1.8, zorder=4, clip_on=False, label="" if group else "published")  # fmt: skip
            if ratios := measured.get(condition):
                colours = [look.roles.get(name, look.dim) for name in names]
                bars = ax.bar(places, [ratios[name] for name in names], 0.86, color=colours)
                ax.bar_label(bars, fmt="%.2f", label_type="center", size=page.SMALL, color=look.on_colour)
            about = f"over {_CONDITION_NAMES[condition]}{'' if ratios else ': not measured'}"
            ax.text(5 * group + 1.5, -0.18, about, ha="center", size=page.TEXT, color=look.ink)
        ax.set_xticks(ticks, [LETTERS.get(name, name) for name in names] * len(PUBLISHED_STABILITY))
        ax.set(xlim=(-0.8, 13.8), ylim=(0, 1))
        ax.tick_params(axis="x", length=0)
        ax.grid(axis="y")
        page.draw_legend(ax, look)

    return Panel("Stability of the roles", subtitle, 260, draw)
