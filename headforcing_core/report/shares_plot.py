"""Panel of the stability of the roles, from measured shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..head_profiles.profile import ROLES
from ..head_profiles.profile_setup import ProfileSetup
from ..head_profiles.shares import PUBLISHED_STABILITY

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
