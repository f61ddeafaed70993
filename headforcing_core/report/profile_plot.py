"""Plots of head profiles: attention shares, roles, and stability of the roles.

Every plot is an RGB `PIL.Image`, 900 pixels wide with text that is legible at half that size. Colours are safe for
colour-blind readers (Okabe and Ito) and always accompanied by letters, marker shapes or line styles. Needs matplotlib,
without pyplot and without changes to its global state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..head_profiles.agreement import compare_profiles
from ..head_profiles.profile import ROLES, HeadProfile
from ..head_profiles.shares import HeadShares

if TYPE_CHECKING:
    from matplotlib.axes import Axes
from . import page
from .page import Panel, Theme
from .shares_plot import stability_panel


def comparison_map(a: HeadProfile, b: HeadProfile, theme: str = "dark") -> Image.Image:
    """Agreement of two profiles: equal roles are faded, different ones split (`a` upper left, `b` lower right).

    Raises HeadForcingError if the profiles have different dimensions.
    """
    comparison = compare_profiles(a, b)
    subtitle = (
        f"{comparison.same} of {comparison.heads} heads have the same role in both (faded). Split cells differ: upper "
        f"left is the role in '{page.cut_name(a.name)}', lower right that in '{page.cut_name(b.name)}'."
    )
    title = f"Agreement of the profiles: {comparison.agreement:.0%} of the heads"
    return page.draw_page([_map_panel(a, b, title, subtitle)], theme)


def profile_picture(profile: HeadProfile, shares: HeadShares | None = None, theme: str = "dark") -> Image.Image:
    """All plots of a profile below each other: shares and stability where they are measured, role map, role counts."""
    panels = [_map_panel(profile), _counts_panel(profile)]
    if profile.shares is not None:
        panels.insert(0, _scatter_panel(profile))
    if shares is not None and (measured := shares.stability()):
        panels.append(stability_panel(shares.setup, measured))
    return page.draw_page(panels, theme)


def _scatter_panel(profile: HeadProfile) -> Panel:
    shares = np.asarray(profile.shares).reshape(-1, 3)
    roles = np.asarray(profile.roles).ravel()
    cuts, name = _cuts(shares, roles), page.cut_name(profile.name)
    subtitle = f"{name}. No lines separate the roles: a role is empty or does not follow these shares."
    if cuts:
        subtitle = (
            f"{name}. Anchors, right of the vertical line: the {profile.anchor_fraction:.0%} of heads with most "
            "attention to the first frame. Local, above the horizontal line: of the others, the "
            f"{profile.local_fraction:.0%} of all heads with most attention to the current block. Memory: the rest."
        )

    def draw(ax: Axes, theme: Theme) -> None:
        size = 90 if len(roles) <= 60 else 46 if len(roles) <= 600 else 20
        for role in reversed(ROLES):
            x, y = shares[roles == role][:, 0], shares[roles == role][:, 2]
            style: dict[str, Any] = {
                "color": theme.roles[role],
                "edgecolor": theme.background,
                "linewidth": 0.6,
                "zorder": 3,
            }
            ax.scatter(x, y, s=size, marker=page.MARKERS[role], **style)
        for set_limits, part in ((ax.set_xlim, 0), (ax.set_ylim, 2)):
            most = max(float(shares[:, part].max()), 0.01)
            set_limits(-0.025 * most, 1.06 * most)
        if cuts:
            ax.axvline(cuts[0], color=theme.dim, linewidth=1.5, zorder=2)
            ax.hlines(cuts[1], ax.get_xlim()[0], cuts[0], color=theme.dim, linewidth=1.5, zorder=2)
        page.add_grid(ax, theme)
        page.percent_axis(ax.xaxis, ax.get_xlim()[1])
        page.percent_axis(ax.yaxis, ax.get_ylim()[1])
        page.label_axes(ax, theme, "attention to the first frame (the sink)", "attention to the current block")
        page.role_legend(ax, theme, profile.counts(), page.MARKERS)

    return Panel("Attention shares, one mark per head", subtitle, 400, draw)


def _cuts(shares: np.ndarray, roles: np.ndarray) -> tuple[float, float] | None:
    """The sink share between anchors and the rest, and the current share between local and memory heads.

    None if such values do not exist.
    """
    anchor, local, memory = (roles == role for role in ("anchor", "local", "memory"))
    result = []
    for above, below, values in ((anchor, ~anchor, shares[:, 0]), (local, memory, shares[:, 2])):
        if not above.any() or not below.any() or values[above].min() < values[below].max():
            return None
        result.append(float(values[above].min() + values[below].max()) / 2)
    return result[0], result[1]


def _map_panel(profile: HeadProfile, other: HeadProfile | None = None, title: str = "", subtitle: str = "") -> Panel:
    layers, heads = profile.num_layers, profile.num_heads
    size = min(max((page.WIDTH - page.LEFT - page.RIGHT) / layers, 18), 60)
    title = title or "The role of every head"
    subtitle = subtitle or page.summarise(profile)
    disputed = sorted(profile.disputed) if other is None else []
    if disputed:
        share = len(disputed) / (layers * heads)
        subtitle += (
            f". Hatched: the {len(disputed)} heads ({share:.0%}) about which the sources of the profile disagree."
        )

    def draw(ax: Axes, theme: Theme) -> None:
        from matplotlib.collections import PolyCollection
        from matplotlib.colors import to_rgb
        from matplotlib.patches import Rectangle

        roles, others = (np.asarray(p.roles).T for p in (profile, other or profile))  # [head, layer]
        paper = np.asarray(to_rgb(theme.background))
        colours = {role: np.asarray(to_rgb(theme.roles[role])) for role in ROLES}
        strength = 1.0 if other is None else 0.22  # equal roles are faded
        cells = np.stack([[strength * colours[r] + (1 - strength) * paper for r in row] for row in roles])
        ax.imshow((cells * 255).round().astype(np.uint8), aspect="auto", interpolation="nearest")
        split = np.argwhere(roles != others)
        for name, sides in ((roles, (0, 0)), (others, (1, 1))):
            corners = np.array([[-0.5, 0.5], [0.5, -0.5], [sides[0] - 0.5, sides[1] - 0.5]])
            triangles = [corners + (layer, head) for head, layer in split]
            ax.add_collection(PolyCollection(triangles, facecolors=[theme.roles[name[h, l]] for h, l in split]))
        for layer, head in disputed:
            style: dict[str, Any] = {"fill": False, "hatch": "////", "edgecolor": theme.background, "linewidth": 0}
            ax.add_patch(Rectangle((layer - 0.5, head - 0.5), 1, 1, **style))
        if layers <= page.LETTER_COLUMNS:
            for head, layer in np.ndindex(heads, layers):
                role, second = str(roles[head, layer]), str(others[head, layer])
                same = role == second
                if same or size >= 40:
                    shift = 0.0 if same else 0.24
                    faded = other is not None and same
                    ink = 0.6 * colours[role] + 0.4 * paper if faded else theme.on_colour
                    page.draw_letter(ax, layer - shift, head - shift, role, ink, size)
                    if not same:
                        page.draw_letter(ax, layer + shift, head + shift, second, ink, size)
        for axis, count in ((ax.xaxis, layers), (ax.yaxis, heads)):
            page.count_ticks(axis, count)
            axis.set_ticks(np.arange(count + 1) - 0.5, minor=True)
        ax.grid(which="minor", color=theme.background, linewidth=2 if size >= 24 else 1)
        ax.tick_params(which="both", length=0)
        ax.spines[:].set_visible(False)
        page.label_axes(ax, theme, "layer (0 comes first)", "head")
        page.role_legend(ax, theme, profile.counts() if other is None else None)

    return Panel(title, subtitle, round(size * heads), draw)


def _counts_panel(profile: HeadProfile) -> Panel:
    layers, height = profile.num_layers, 170

    def draw(ax: Axes, theme: Theme) -> None:
        base = np.zeros(layers)
        for role in ROLES:
            counts = np.array([row.count(role) for row in profile.roles])
            ax.bar(range(layers), counts, 0.86, bottom=base, color=theme.roles[role])
            for layer in (
                np.flatnonzero(counts * height / profile.num_heads >= 18) if layers <= page.LETTER_COLUMNS else ()
            ):
                page.draw_letter(ax, float(layer), base[layer] + counts[layer] / 2, role, theme.on_colour, 30)
            base += counts
        ax.set_xlim(-0.5, layers - 0.5)
        ax.set_ylim(0, profile.num_heads)
        page.count_ticks(ax.xaxis, layers)
        page.count_ticks(ax.yaxis, profile.num_heads + 1, most=6)
        page.label_axes(ax, theme, "layer (0 comes first)", "heads")

    return Panel("How many heads of each layer have which role", "", height, draw, legend_height=8)
