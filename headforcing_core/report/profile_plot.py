"""Plots of head profiles: attention shares, roles, and stability of the roles.

Every plot is an RGB `PIL.Image`, 900 pixels wide with text that is legible at half that size. Colours are safe for
colour-blind readers (Okabe and Ito) and always accompanied by letters, marker shapes or line styles. Needs matplotlib,
without pyplot and without changes to its global state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..head_profiles.agreement import compare_profiles
from ..head_profiles.profile import ROLES, HeadProfile
from ..head_profiles.profile_setup import ProfileSetup
from ..head_profiles.rules import RETRIEVES, retrieving_heads
from ..head_profiles.shares import PUBLISHED_STABILITY, HeadShares
from . import page
from .page import Panel, Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTERS = {"local": "L", "anchor": "A", "memory": "M"}
MARKERS = {"local": "o", "anchor": "^", "memory": "s"}
_LETTER_COLUMNS = 32  # with more columns, cells are too narrow for letters
_CONDITION_NAMES = {"blocks": "blocks of a video", "steps": "denoising steps", "prompts": "prompts"}
_PUBLISHED_MODEL = (30, 12)  # layers and heads of the model whose stability ratios the paper reports


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
    if profile.returns is not None:
        panels.append(_returns_panel(profile))
    if shares is not None and (measured := shares.stability()):
        panels.append(stability_panel(shares.setup, measured))
    return page.draw_page(panels, theme)


def _scatter_panel(profile: HeadProfile) -> Panel:
    shares, roles = np.asarray(profile.shares).reshape(-1, 3), np.asarray(profile.roles).ravel()
    cuts, name = _cuts(shares, roles), page.cut_name(profile.name)
    subtitle = f"{name}. No lines separate the roles: a role is empty or does not follow these shares."
    if cuts:
        subtitle = (
            f"{name}. Anchors, right of the vertical line: the {profile.anchor_fraction:.0%} of heads with most "
            "attention to the first frame. Local, above the horizontal line: of the others, the "
            f"{profile.local_fraction:.0%} of all heads with most attention to the current block. Memory: the rest."
        )

    def draw(ax: Axes, theme: Theme) -> None:
        _mark_heads(ax, theme, profile, shares[:, 0], shares[:, 2])
        if cuts:
            ax.axvline(cuts[0], color=theme.dim, linewidth=1.5, zorder=2)
            ax.hlines(cuts[1], ax.get_xlim()[0], cuts[0], color=theme.dim, linewidth=1.5, zorder=2)
        page.label_axes(ax, theme, "attention to the first frame (the sink)", "attention to the current block")

    return Panel("Attention shares, one mark per head", subtitle, 400, draw)


def _returns_panel(profile: HeadProfile) -> Panel:
    returns = np.asarray(profile.returns).ravel()
    middle = np.asarray(profile.shares).reshape(-1, 3)[:, 1] if profile.shares else np.zeros(len(returns))
    found = retrieving_heads(profile)
    subtitle = (
        f"The prompt of an earlier scene returns: attention to the frames of its first visit. {len(found)} heads, "
        "above the line, look them up; the first five are named by layer and head."
    )

    def draw(ax: Axes, theme: Theme) -> None:
        line = RETRIEVES * float(profile.measured.get("return_even_share", 0.0))
        _mark_heads(ax, theme, profile, middle, returns, least_top=line, room=1.1)
        ax.axhline(line, color=theme.dim, linewidth=1.5, zorder=2)
        for layer, head in found[:5]:
            at = layer * profile.num_heads + head
            place = (middle[at], returns[at])
            ax.annotate(f"{layer}.{head}", place, (7, 4), textcoords="offset points", color=theme.ink)
        page.label_axes(ax, theme, "attention to the middle, one prompt", "to the earlier visit (return)")

    return Panel("Heads that retrieve, one mark per head", subtitle, 300, draw)


def _mark_heads(
    ax: Axes,
    theme: Theme,
    profile: HeadProfile,
    x: np.ndarray,
    y: np.ndarray,
    least_top: float = 0.0,
    room: float = 1.06,
) -> None:
    """Draw a mark for each head at its shares of attention, on axes of percent.

    They reach `room` times as far as the marks, upwards at least as `least_top`.
    """
    roles = np.asarray(profile.roles).ravel()
    size = 90 if len(roles) <= 60 else 46 if len(roles) <= 600 else 20
    for role in reversed(ROLES):
        chosen = roles == role
        ax.scatter(
            x[chosen], y[chosen], s=size, marker=MARKERS[role], color=theme.roles[role], edgecolor=theme.background,
            linewidth=0.6, zorder=3,
        )  # fmt: skip
    for axis, set_limits, most in ((ax.xaxis, ax.set_xlim, x.max()), (ax.yaxis, ax.set_ylim, max(y.max(), least_top))):
        most = max(float(most), 0.01)
        set_limits(-0.025 * most, room * most)
        page.percent_axis(axis, room * most)
    page.add_grid(ax, theme)
    _role_legend(ax, theme, profile.counts(), MARKERS)


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


def _map_panel(
    profile: HeadProfile, other: HeadProfile | None = None, title: str = "The role of every head", subtitle: str = ""
) -> Panel:
    layers, heads = profile.num_layers, profile.num_heads
    size = min(max((page.WIDTH - page.LEFT - page.RIGHT) / layers, 18), 60)
    disputed = sorted(profile.disputed) if other is None else []
    if not subtitle:
        subtitle = (
            f"{page.cut_name(profile.name)}: {layers} layer{'s' * (layers > 1)}, {heads} head{'s' * (heads > 1)} in "
            "each"
        )
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
        for name, side in ((roles, -0.5), (others, 0.5)):
            corners = np.array([[-0.5, 0.5], [0.5, -0.5], [side, side]])
            triangles = [corners + (layer, head) for head, layer in split]
            ax.add_collection(PolyCollection(triangles, facecolors=[theme.roles[name[h, l]] for h, l in split]))
        hatched: dict[str, Any] = {"fill": False, "hatch": "////", "edgecolor": theme.background, "linewidth": 0}
        for layer, head in disputed:
            ax.add_patch(Rectangle((layer - 0.5, head - 0.5), 1, 1, **hatched))
        for head, layer in np.ndindex(heads, layers) if layers <= _LETTER_COLUMNS else ():
            role, second = str(roles[head, layer]), str(others[head, layer])
            if role == second:
                ink = theme.on_colour if other is None else 0.6 * colours[role] + 0.4 * paper
                _draw_letter(ax, layer, head, role, ink, size)
            elif size >= 40:
                _draw_letter(ax, layer - 0.24, head - 0.24, role, theme.on_colour, size)
                _draw_letter(ax, layer + 0.24, head + 0.24, second, theme.on_colour, size)
        for axis, count in ((ax.xaxis, layers), (ax.yaxis, heads)):
            page.count_ticks(axis, count)
            axis.set_ticks(np.arange(count + 1) - 0.5, minor=True)
        ax.grid(which="minor", color=theme.background, linewidth=2 if size >= 24 else 1)
        ax.tick_params(which="both", length=0)
        ax.spines[:].set_visible(False)
        page.label_axes(ax, theme, "layer (0 comes first)", "head")
        _role_legend(ax, theme, profile.counts() if other is None else None)

    return Panel(title, subtitle, round(size * heads), draw)


def _counts_panel(profile: HeadProfile) -> Panel:
    layers, height = profile.num_layers, 170

    def draw(ax: Axes, theme: Theme) -> None:
        base = np.zeros(layers)
        for role in ROLES:
            counts = np.array([row.count(role) for row in profile.roles])
            ax.bar(range(layers), counts, 0.86, bottom=base, color=theme.roles[role])
            tall = np.flatnonzero(counts * height / profile.num_heads >= 18)
            for layer in tall if layers <= _LETTER_COLUMNS else ():
                _draw_letter(ax, float(layer), base[layer] + counts[layer] / 2, role, theme.on_colour, 30)
            base += counts
        ax.set_xlim(-0.5, layers - 0.5)
        ax.set_ylim(0, profile.num_heads)
        page.count_ticks(ax.xaxis, layers)
        page.count_ticks(ax.yaxis, profile.num_heads + 1, most=6)
        page.label_axes(ax, theme, "layer (0 comes first)", "heads")

    return Panel("How many heads of each layer have which role", "", height, draw, legend_height=8)


def stability_panel(setup: ProfileSetup, measured: Mapping[str, Mapping[str, float]]) -> Panel:
    """Draw core stability ratios per role and condition as bars, the paper's values as diamonds.

    `measured` as of `HeadShares.stability`.
    """
    other = (setup.num_layers, setup.num_heads) != _PUBLISHED_MODEL
    subtitle = (
        "Fraction of a role's heads that have the role in every run, if only blocks, only steps or only prompts "
        f"vary. Diamonds: the paper's values for Self Forcing{', which is another model' if other else ''}."
    )

    def draw(ax: Axes, theme: Theme) -> None:
        from matplotlib.lines import Line2D

        names = [*ROLES, "mean"]
        diamond: dict[str, Any] = {"ls": "", "marker": "D", "ms": 9, "mfc": "none", "mec": theme.ink, "mew": 1.8}
        for group, (condition, published) in enumerate(PUBLISHED_STABILITY.items()):
            ratios = measured.get(condition)
            for x, name in enumerate(names, group * 5):
                ax.plot(x, published[name], zorder=4, clip_on=False, **diamond)
                if ratios:
                    ax.bar(x, ratios[name], 0.86, color=theme.roles.get(name, theme.dim))
                    inside = ratios[name] > 0.12
                    ink, y = (theme.on_colour, 0.025) if inside else (theme.ink, ratios[name] + 0.02)
                    ax.text(x, y, f"{ratios[name]:.2f}", ha="center", va="bottom", fontsize=page.SMALL, color=ink)
            if not ratios:
                ax.text(group * 5 + 1.5, 0.1, "not measured", ha="center", fontsize=page.SMALL, color=theme.dim)
            text = f"over {_CONDITION_NAMES[condition]}"
            ax.annotate(text, (group * 5 + 1.5, 0), (0, -38), "data", "offset points", ha="center", va="center",
                        fontsize=page.TEXT, color=theme.ink)  # fmt: skip
        places = [group * 5 + i for group in range(len(PUBLISHED_STABILITY)) for i in range(len(names))]
        ax.set_xticks(places, [LETTERS.get(name, name) for name in names] * len(PUBLISHED_STABILITY))
        ax.set_xlim(-0.8, 13.8)
        ax.set_ylim(0, 1)
        ax.tick_params(axis="x", length=0)
        page.add_grid(ax, theme, "y")
        _role_legend(ax, theme, None, None, Line2D([], [], label="published", **diamond))

    return Panel("Stability of the roles", subtitle, 260, draw)


def _role_legend(
    ax: Axes, theme: Theme, counts: dict[str, int] | None = None, markers: dict[str, str] | None = None, *more: Any
) -> None:
    """Legend of the roles' colours, letters and markers, with the number of heads if `counts` are given."""
    from matplotlib.lines import Line2D

    handles = []
    for role in ROLES:
        number = f": {counts[role]} ({counts[role] / max(sum(counts.values()), 1):.0%})" if counts else ""
        text = f"{role}{number}" if markers else f"{LETTERS[role]}  {role}{number}"
        marker = markers[role] if markers else "s"
        handles.append(Line2D([], [], ls="", marker=marker, ms=11, color=theme.roles[role], mec="none", label=text))
    page.draw_legend(ax, theme, [*handles, *more])


def _draw_letter(ax: Axes, x: float, y: float, role: str, ink: Any, size: float) -> None:
    """Draw a role's letter in a cell `size` pixels wide."""
    style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "weight": "bold", "color": ink}
    ax.text(x, y, LETTERS[role], fontsize=min(size * 0.42, page.TEXT), **style)
