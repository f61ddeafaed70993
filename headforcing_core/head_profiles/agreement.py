"""Comparison of two head profiles of one model, and the description of a single one."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

from ..errors import HeadForcingError
from ..files import Fields
from .profile import ROLES, Head, HeadProfile, by_head


@dataclass(frozen=True)
class ProfileComparison:
    """Agreement of two profiles; `confusion[i][j]` is the number of heads with ROLES[i] in a and
    ROLES[j] in b, `different` are the heads with other roles in b.
    """

    name_a: str
    name_b: str
    heads: int
    confusion: tuple[tuple[int, ...], ...]
    different: tuple[Head, ...]

    @property
    def same(self) -> int:
        """Number of heads with the same role in both."""
        return self.heads - len(self.different)

    def text(self) -> str:
        """The comparison as a plain-text table."""
        lines = [
            f"a = {self.name_a}",
            f"b = {self.name_b}",
            f"{self.same} of {self.heads} heads have the same role in both "
            f"({self.same / self.heads:.1%})",
            "",
            " " * 13 + "".join(f"{role + ' in b':>13}" for role in ROLES),
        ]
        for role, row in zip(ROLES, self.confusion, strict=True):
            lines.append(f"{role:6} in a  " + "".join(f"{count:13}" for count in row))
        return "\n".join(lines)

    def to_dict(self) -> Fields:
        """The comparison for JSON."""
        return {**asdict(self), "same": self.same, "agreement": self.same / self.heads}


def compare_profiles(a: HeadProfile, b: HeadProfile) -> ProfileComparison:
    """Compare two profiles head by head. Raises HeadForcingError if their dimensions differ."""
    if (a.num_layers, a.num_heads) != (b.num_layers, b.num_heads):
        raise HeadForcingError(
            f"Head profiles '{a.name}' ({a.num_layers}x{a.num_heads} heads) and '{b.name}' "
            f"({b.num_layers}x{b.num_heads}) are of different models; compare profiles of the same "
            "model."
        )
    roles_b = by_head(b.roles)
    pairs: Counter[tuple[str, str]] = Counter()
    different = []
    for head, role in by_head(a.roles).items():
        pairs[role, roles_b[head]] += 1
        if role != roles_b[head]:
            different.append(head)
    confusion = []
    for role_a in ROLES:
        confusion.append(tuple(pairs[role_a, role_b] for role_b in ROLES))
    return ProfileComparison(
        a.name,
        b.name,
        heads=len(roles_b),
        confusion=tuple(confusion),
        different=tuple(different),
    )


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
    disputed = sorted(profile.disputed)
    if disputed:
        places = ", ".join(f"{layer}/{head}" for layer, head in disputed)
        count = profile.num_layers * profile.num_heads
        lines.append(
            f"disputed: {len(disputed)} of {count} heads, hatched in the plot (layer/head {places})"
        )
    return lines
