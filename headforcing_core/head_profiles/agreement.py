"""Comparison of two head profiles of one model, and warnings about unusual values in a single one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import HeadForcingError
from .profile import ROLES, HeadProfile
from .rules import remark_on_rule

LOW_CURRENT_SHARE = 0.5  # in the paper, local heads typically have more than 0.85


@dataclass(frozen=True)
class RoleOverlap:
    """Numbers of heads with one role in each profile and in both; `jaccard` = both / either, 1 if no head has it."""

    in_a: int
    in_b: int
    in_both: int
    jaccard: float


@dataclass(frozen=True)
class ProfileComparison:
    """Agreement of two profiles.

    Attributes:
        same: number of heads with the same role in both.
        heads: number of all heads.
        overlaps: by role, in the order of ROLES.
        confusion: `confusion[i][j]` is the number of heads with ROLES[i] in a and ROLES[j] in b.
        sink_correlation, current_correlation: Spearman rank correlation of the shares; None if a profile has no shares
            or equal shares for all heads.
    """

    name_a: str
    name_b: str
    same: int
    heads: int
    overlaps: dict[str, RoleOverlap]
    confusion: tuple[tuple[int, ...], ...]
    sink_correlation: float | None
    current_correlation: float | None

    @property
    def agreement(self) -> float:
        """Fraction of heads with the same role in both, 0-1."""
        return self.same / self.heads

    def text(self) -> str:
        """The comparison as a plain-text table."""
        lines = [
            f"a = {self.name_a}",
            f"b = {self.name_b}",
            f"{self.same} of {self.heads} heads have the same role in both ({self.agreement:.1%})",
            "",
            f"{'':8}{'in a':>8}{'in b':>8}{'in both':>9}{'both / either':>15}",
        ]
        for role, row in self.overlaps.items():
            lines.append(f"{role:8}{row.in_a:8}{row.in_b:8}{row.in_both:9}{row.jaccard:15.2f}")
        lines += ["", f"{'':13}" + "".join(f"{f'{role} in b':>13}" for role in ROLES)]
        for role, counts in zip(ROLES, self.confusion, strict=True):
            lines.append(f"{f'{role} in a':13}" + "".join(f"{count:13}" for count in counts))
        lines += [
            "",
            "rank correlation (Spearman) of the attention shares: "
            f"first frame {_format(self.sink_correlation)}, current block {_format(self.current_correlation)}",
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The comparison for JSON."""
        return {**asdict(self), "confusion": [list(row) for row in self.confusion], "agreement": self.agreement}


def compare_profiles(a: HeadProfile, b: HeadProfile) -> ProfileComparison:
    """Compare two profiles head by head. Raises HeadForcingError if their dimensions differ."""
    if (a.num_layers, a.num_heads) != (b.num_layers, b.num_heads):
        raise HeadForcingError(
            f"Head profiles '{a.name}' ({a.num_layers}x{a.num_heads} heads) and '{b.name}' "
            f"({b.num_layers}x{b.num_heads}) are of different models; compare profiles of the same model."
        )
    pairs: list[tuple[str, str]] = [
        (x, y) for row_a, row_b in zip(a.roles, b.roles, strict=True) for x, y in zip(row_a, row_b, strict=True)
    ]
    confusion = tuple(tuple(pairs.count((x, y)) for y in ROLES) for x in ROLES)
    overlaps = {}
    for i, role in enumerate(ROLES):
        in_a, in_b, both = sum(confusion[i]), sum(row[i] for row in confusion), confusion[i][i]
        either = in_a + in_b - both
        overlaps[role] = RoleOverlap(in_a, in_b, both, both / either if either else 1.0)
    sink, current = (_spearman(_share(a, part), _share(b, part)) if a.shares and b.shares else None for part in (0, 2))
    same = sum(confusion[i][i] for i in range(len(ROLES)))
    return ProfileComparison(a.name, b.name, same, len(pairs), overlaps, confusion, sink, current)


def describe_profile(profile: HeadProfile) -> list[str]:
    """Lines about one profile: how many heads have which role, where it is from, where its sources disagree."""
    lines = [", ".join(f"{count} {role}" for role, count in profile.counts().items())]
    agreement = profile.provenance.get("agreement")
    for key, value in profile.provenance.items():
        if key == "agreement" and isinstance(agreement, dict):
            value = ", ".join(f"{name} {found}" for name, found in agreement.items())
        if key != "disputed":
            lines.append(f"{key}: {value}")
    if disputed := profile.disputed:
        heads = profile.num_layers * profile.num_heads
        layers = ((i, [str(j) for layer, j in sorted(disputed) if layer == i]) for i in range(profile.num_layers))
        places = "; ".join(f"layer {layer}: {' '.join(found)}" for layer, found in layers if found)
        lines.append(f"disputed: {len(disputed)} of {heads} heads, hatched in the plot ({places})")
    return lines


def sanity_checks(profile: HeadProfile) -> list[str]:
    """Remarks about unusual shares and roles of a profile, one or two sentences each; none of them is an error."""
    return [*_weak_anchors(profile), *_unfocused_locals(profile), *remark_on_rule(profile)]


def _weak_anchors(profile: HeadProfile) -> list[str]:
    window = profile.measured.get("window_frames")
    if profile.shares is None or type(window) is not int or window < 1:
        return []
    anchors = _heads(profile, "anchor", part=0)
    weak = [anchor for anchor in anchors if anchor[0] < 1 / window]
    if not weak:
        return []
    return [
        f"{len(weak)} of {len(anchors)} anchors give the first frame less attention than a uniform distribution over "
        f"{window} frames would ({1 / window:.1%}); the weakest is {_place(weak[0])}. They are anchors by rank only, "
        "so a smaller anchor percentage may fit this model better."
    ]


def _unfocused_locals(profile: HeadProfile) -> list[str]:
    if profile.shares is None:
        return []
    locals_ = _heads(profile, "local", part=2)
    low = [local for local in locals_ if local[0] < LOW_CURRENT_SHARE]
    if not low:
        return []
    return [
        f"{len(low)} of {len(locals_)} local heads give the current block less than {LOW_CURRENT_SHARE:.0%} of their "
        f"attention; the lowest is {_place(low[0])}. The paper reports typically more than 85% for local heads of its "
        "model. Such heads attend to frames that a local cache does not hold, so a smaller local percentage may fit "
        "this model better."
    ]


def _heads(profile: HeadProfile, role: str, part: int) -> list[tuple[float, int, int]]:
    """(share, layer, head) of all heads of a role, smallest share first; `part` as in `HeadProfile.shares`."""
    return sorted(
        (shares[part], layer, head)
        for layer, row in enumerate(profile.shares or ())
        for head, shares in enumerate(row)
        if profile.roles[layer][head] == role
    )


def _place(entry: tuple[float, int, int]) -> str:
    share, layer, head = entry
    return f"layer {layer}, head {head} with {share:.1%}"


def _share(profile: HeadProfile, part: int) -> np.ndarray:
    return np.asarray(profile.shares, dtype=np.float64)[..., part].ravel()


def _spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """Spearman rank correlation, with mean ranks for ties; None if either side is constant."""
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    da, db = ranks_a - ranks_a.mean(), ranks_b - ranks_b.mean()
    scale = float(np.sqrt((da**2).sum() * (db**2).sum()))
    return float((da * db).sum()) / scale if scale else None


def _ranks(values: np.ndarray) -> np.ndarray:
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(sizes) - (sizes + 1) / 2)[group]


def _format(correlation: float | None) -> str:
    return "not available" if correlation is None else f"{correlation:.2f}"
