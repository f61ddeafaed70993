"""Plots of head profiles: attention shares, roles, and stability of the roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from .. import page
from ..page import Panel, Theme
from .agreement import compare_profiles
from .profile import CURRENT, ROLES, SINK, HeadProfile, by_head
from .shares import PUBLISHED_STABILITY, HeadShares, ProfileSetup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTERS = {"local": "L", "anchor": "A", "memory": "M"}
MARKERS = {"local": "o", "anchor": "^", "memory": "s"}
_CONDITION_NAMES = {"blocks": "blocks of a video", "steps": "denoising steps", "prompts": "prompts"}
_PUBLISHED_MODEL = (
    30,
    12,
)  # layers and heads of the model whose stability ratios the paper reports


def comparison_map(a: HeadProfile, b: HeadProfile, theme: str = "dark") -> Image.Image:
    """Agreement of two profiles: heads with equal roles are faded, others split into the roles in
    `a` and in `b`.

    Raises HeadForcingError if the profiles have different dimensions.
    """
    found = compare_profiles(a, b)
    subtitle = (
        f"{found.same} of {found.heads} heads have the same role in both (faded). Others are "
        f"split: on the left the role in '{page.cut_name(a.name)}', on the right that in "
        f"'{page.cut_name(b.name)}'."
    )
    return page.draw_page(
        [_map_panel(a, b, f"Agreement: {found.agreement:.0%} of the heads", subtitle)], theme
    )


def profile_picture(
    profile: HeadProfile, shares: HeadShares | None = None, theme: str = "dark"
) -> Image.Image:
    """All plots of a profile below each other: attention shares and stability where they are
    measured, roles.
    """
    panels = []
    if profile.shares is not None:
        panels.append(_shares_panel(profile))
    panels.append(_roles_panel(profile))
    measured = {} if shares is None else shares.stability()
    if shares is not None and measured:
        panels.append(stability_panel(shares.setup, measured))
    return page.draw_page(panels, theme)


def _shares_panel(profile: HeadProfile) -> Panel:
    shares = np.asarray(profile.shares).reshape(-1, 3)
    roles = np.ravel(profile.roles)
    size = max(20, 90 - len(roles) // 8)

    def draw(ax: Axes, look: Theme) -> None:
        from matplotlib.ticker import PercentFormatter

        for role, count in profile.counts().items():
            chosen = shares[roles == role]
            ax.scatter(
                chosen[:, SINK],
                chosen[:, CURRENT],
                s=size,
                marker=MARKERS[role],
                color=look.roles[role],
                linewidth=0.6,
                zorder=3,
                edgecolor=look.background,
                label=f"{role}: {count} ({count / len(roles):.0%})",
            )
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(PercentFormatter(1))
        ax.locator_params(nbins=4)
        ax.set(
            xlabel="attention to the first frame (the sink)",
            ylabel="attention to the current block",
        )
        ax.grid()
        page.draw_legend(ax, look)

    subtitle = (
        f"{page.cut_name(profile.name)}. What is left of a head's attention goes to the frames "
        "between."
    )
    return Panel("Attention shares, one mark per head", subtitle, 400, draw)


def _roles_panel(profile: HeadProfile) -> Panel:
    layers = profile.num_layers
    heads = profile.num_heads
    subtitle = f"{page.cut_name(profile.name)}: {layers} layers, {heads} heads in each."
    disputed = len(profile.disputed)
    if disputed:
        share = disputed / (layers * heads)
        subtitle += (
            f" Hatched: the {disputed} heads ({share:.0%}) about which the sources of the profile "
            "disagree."
        )
    return _map_panel(profile, None, "The role of every head", subtitle)


def _map_panel(a: HeadProfile, b: HeadProfile | None, title: str, subtitle: str) -> Panel:
    """A cell for every head: of one profile, or split in halves where two profiles differ and faded
    elsewhere.
    """
    # pixels of a cell
    size = min(max((page.WIDTH - page.LEFT - page.RIGHT) / a.num_layers, 18), 60)

    def draw(ax: Axes, look: Theme) -> None:
        from matplotlib.patches import Patch, Rectangle

        _draw_cells(ax, look, a, b)
        if b is None:
            for layer, head in a.disputed:
                place = (layer - 0.5, head - 0.5)
                ax.add_patch(
                    Rectangle(place, 1, 1, fill=False, hatch="////", ec=look.background, lw=0)
                )
        if size > 24:
            _draw_letters(ax, look, a, b, size=size)
        _draw_grid(ax, look, a, width=2 if size >= 24 else 1)
        handles = []
        for role, count in a.counts().items():
            label = f"{LETTERS[role]}  {role}"
            if b is None:
                label += f": {count} ({count / (a.num_layers * a.num_heads):.0%})"
            handles.append(Patch(color=look.roles[role], label=label))
        page.draw_legend(ax, look, handles)

    return Panel(title, subtitle, round(size * a.num_heads), draw)


def _draw_cells(ax: Axes, look: Theme, a: HeadProfile, b: HeadProfile | None) -> None:
    """The colours of all heads, two columns for each layer: its role in `a`, and in `b` if that is
    given.
    """
    from matplotlib.colors import to_rgb

    paper = np.asarray(to_rgb(look.background))
    cells = np.zeros((a.num_heads, 2 * a.num_layers, 3))
    roles_b = by_head((b or a).roles)
    for (layer, head), role_a in by_head(a.roles).items():
        role_b = roles_b[layer, head]
        colour_a = np.asarray(to_rgb(look.roles[role_a]))
        colour_b = np.asarray(to_rgb(look.roles[role_b]))
        if b is not None and role_a == role_b:
            colour_a = colour_b = 0.22 * colour_a + 0.78 * paper
        cells[head, 2 * layer] = colour_a
        cells[head, 2 * layer + 1] = colour_b
    extent = (-0.5, a.num_layers - 0.5, a.num_heads - 0.5, -0.5)
    ax.imshow(cells, aspect="auto", interpolation="nearest", extent=extent)


def _draw_letters(
    ax: Axes, look: Theme, a: HeadProfile, b: HeadProfile | None, *, size: float
) -> None:
    """The letter of every head's role, or both where two profiles differ."""
    roles_b = by_head((b or a).roles)
    for (layer, head), role in by_head(a.roles).items():
        letters = LETTERS[role]
        if roles_b[layer, head] != role:
            letters += LETTERS[roles_b[layer, head]]
        is_faded = b is not None and len(letters) == 1
        ax.text(
            layer,
            head,
            letters,
            size=min(0.8 * size / (1 + len(letters)), page.TEXT),
            color=look.dim if is_faded else look.on_colour,
            ha="center",
            va="center_baseline",
            weight="bold",
        )


def _draw_grid(ax: Axes, look: Theme, profile: HeadProfile, width: int) -> None:
    """Lines between the heads, and numbers of layers and heads."""
    from matplotlib.ticker import MaxNLocator

    for axis, count in ((ax.xaxis, profile.num_layers), (ax.yaxis, profile.num_heads)):
        axis.set_major_locator(MaxNLocator(15, integer=True))
        axis.set_ticks((np.arange(count + 1) - 0.5).tolist(), minor=True)
    ax.grid(which="minor", color=look.background, linewidth=width)
    ax.tick_params(which="both", length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="layer (0 comes first)", ylabel="head")


def stability_panel(setup: ProfileSetup, measured: Mapping[str, Mapping[str, float]]) -> Panel:
    """Core stability ratios per role and condition as bars, the paper's values as diamonds.

    `measured` as of `HeadShares.stability`.
    """
    other = (setup.num_layers, setup.num_heads) != _PUBLISHED_MODEL
    subtitle = (
        "Fraction of a role's heads that have the role in every run, if only blocks, only steps "
        "or only prompts vary. Diamonds: the paper's values for Self "
        f"Forcing{', which is another model' if other else ''}."
    )
    names = [*ROLES, "mean"]

    def draw(ax: Axes, look: Theme) -> None:
        ticks = []
        for group, (condition, published) in enumerate(PUBLISHED_STABILITY.items()):
            places = 5 * group + np.arange(len(names))
            ticks += places.tolist()
            ax.plot(
                places,
                [published[name] for name in names],
                linestyle="",
                marker="D",
                markersize=9,
                markerfacecolor="none",
                markeredgecolor=look.ink,
                markeredgewidth=1.8,
                zorder=4,
                clip_on=False,
                label="" if group else "published",
            )
            about = f"over {_CONDITION_NAMES[condition]}"
            ratios = measured.get(condition)
            if ratios:
                colours = [look.roles.get(name, look.dim) for name in names]
                bars = ax.bar(places, [ratios[name] for name in names], 0.86, color=colours)
                ax.bar_label(
                    bars, fmt="%.2f", label_type="center", size=page.SMALL, color=look.on_colour
                )
            else:
                about += ": not measured"
            ax.text(5 * group + 1.5, -0.18, about, ha="center", size=page.TEXT, color=look.ink)
        ax.set_xticks(ticks, [LETTERS.get(name, name) for name in names] * len(PUBLISHED_STABILITY))
        ax.set(xlim=(-0.8, 13.8), ylim=(0, 1))
        ax.tick_params(axis="x", length=0)
        ax.grid(axis="y")
        page.draw_legend(ax, look)

    return Panel("Stability of the roles", subtitle, 260, draw)
