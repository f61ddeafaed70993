"""Comparison of two head profiles of one model, and warnings about unusual values in a single
one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import chain

from ..cache.roles import HeadRole
from ..errors import HeadForcingError
from ..files import Fields
from .profile import CURRENT, ROLES, SINK, HeadProfile, by_head
from .rules import EVEN_SHARES, anchor_floor, remark_on_rule

LOW_CURRENT_SHARE = 0.5  # in the paper, local heads typically have more than 0.85
_WEAK_ANCHORS = (
    "{low} of {heads} anchors give the first frame less attention than a uniform distribution over "
    "the measured window would ({least:.1%}); the weakest is {first}. They are anchors by rank "
    "only, so a smaller anchor percentage may fit this model better."
)
_FAR_LOCALS = (
    "{low} of {heads} local heads give the current block less than {least:.0%} of their attention "
    "(in the paper typically more than 85%); the lowest is {first}. They attend to frames that a "
    "local cache does not hold, so a smaller local percentage may fit this model better."
)


@dataclass(frozen=True)
class ProfileComparison:
    """Agreement of two profiles; `confusion[i][j]` is the number of heads with ROLES[i] in a and
    ROLES[j] in b.
    """

    name_a: str
    name_b: str
    confusion: tuple[tuple[int, ...], ...]

    @property
    def same(self) -> int:
        """Number of heads with the same role in both."""
        return sum(row[i] for i, row in enumerate(self.confusion))

    @property
    def heads(self) -> int:
        return sum(map(sum, self.confusion))

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
            " " * 13 + "".join(f"{role + ' in b':>13}" for role in ROLES),
        ]
        for role, row in zip(ROLES, self.confusion, strict=True):
            lines.append(f"{role:6} in a  " + "".join(f"{count:13}" for count in row))
        return "\n".join(lines)

    def to_dict(self) -> Fields:
        """The comparison for JSON."""
        return {**asdict(self), "same": self.same, "heads": self.heads, "agreement": self.agreement}


def compare_profiles(a: HeadProfile, b: HeadProfile) -> ProfileComparison:
    """Compare two profiles head by head. Raises HeadForcingError if their dimensions differ."""
    if (a.num_layers, a.num_heads) != (b.num_layers, b.num_heads):
        raise HeadForcingError(
            f"Head profiles '{a.name}' ({a.num_layers}x{a.num_heads} heads) and '{b.name}' "
            f"({b.num_layers}x{b.num_heads}) are of different models; compare profiles of the same "
            "model."
        )
    pairs: Counter[tuple[str, str]] = Counter(zip(chain(*a.roles), chain(*b.roles), strict=True))
    confusion = []
    for role_a in ROLES:
        confusion.append(tuple(pairs[role_a, role_b] for role_b in ROLES))
    return ProfileComparison(a.name, b.name, tuple(confusion))


def describe_profile(profile: HeadProfile) -> list[str]:
    """Lines about one profile: how many heads have which role, where it is from, where its sources
    disagree.
    """
    lines = [profile.counted]
    for key, value in profile.provenance.items():
        if key == "agreement" and isinstance(value, dict):
            value = ", ".join(f"{name} {found}" for name, found in value.items())
        if key != "disputed":
            lines.append(f"{key}: {value}")
    disputed = profile.disputed
    if disputed:
        by_layer: dict[int, list[str]] = {}
        for layer, head in sorted(disputed):
            by_layer.setdefault(layer, []).append(str(head))
        places = "; ".join(f"layer {layer}: {' '.join(heads)}" for layer, heads in by_layer.items())
        count = profile.num_layers * profile.num_heads
        lines.append(f"disputed: {len(disputed)} of {count} heads, hatched in the plot ({places})")
    return lines


def sanity_checks(profile: HeadProfile) -> list[str]:
    """Remarks about unusual shares and roles of a profile, one or two sentences each; none of them
    is an error.
    """
    even = anchor_floor(profile) / EVEN_SHARES
    remarks = []
    for role, part, least, remark in (
        (HeadRole.ANCHOR, SINK, even, _WEAK_ANCHORS),
        (HeadRole.LOCAL, CURRENT, LOW_CURRENT_SHARE, _FAR_LOCALS),
    ):
        heads = _heads(profile, role, part)
        low = [entry for entry in heads if entry[0] < least]
        if low:
            share, layer, head = low[0]
            first = f"layer {layer}, head {head} with {share:.1%}"
            numbers = {"low": len(low), "heads": len(heads), "least": least, "first": first}
            remarks.append(remark.format(**numbers))
    return [*remarks, *remark_on_rule(profile)]


def _heads(profile: HeadProfile, role: str, part: int) -> list[tuple[float, int, int]]:
    """(share, layer, head) of all heads of a role, smallest share first; `part` as in
    `HeadProfile.shares`.
    """
    roles = by_head(profile.roles)
    shares = by_head(profile.shares)
    return sorted((shares[at][part], *at) for at in shares if roles[at] == role)
