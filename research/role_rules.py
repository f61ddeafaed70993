"""Rules that make roles of attention shares, by name: the paper's, and one that asks what a head is for.

The paper fills anchors and locals by quota, and memory heads are what is left. On models without clear sinks the quota
of anchors is then filled with heads that look at everything, and the heads that look at the past most are not memory
heads. The rule by function begins at the other end: memory heads are those that look most at the middle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..headforcing_core.cache.roles import HeadRole
from ..headforcing_core.errors import HeadForcingError, unknown_name
from ..headforcing_core.head_profiles.profile import ANCHOR_FRACTION, LOCAL_FRACTION, HeadProfile, classify

Rule = Callable[[Sequence[Sequence[Sequence[float]]], float, float], tuple[tuple[HeadRole, ...], ...]]
"""Roles `[layer][head]` from shares `[layer][head]` = (sink, middle, current) and the fractions of anchors, locals."""


def classify_by_function(
    shares: Sequence[Sequence[Sequence[float]]],
    anchor_fraction: float = ANCHOR_FRACTION,
    local_fraction: float = LOCAL_FRACTION,
) -> tuple[tuple[HeadRole, ...], ...]:
    """Roles `[layer][head]` from attention shares, as many of each as `classify` gives.

    Memory heads are those with the largest middle share; of the others, those with the largest sink share are anchors,
    and the rest is local. Of equal shares, the lower (layer, head) comes first. Raises HeadForcingError for a fraction
    outside 0-1.
    """
    by_quota = classify(shares, anchor_fraction, local_fraction)
    counts = Counter(role for layer in by_quota for role in layer)
    heads = [(layer, head) for layer, row in enumerate(shares) for head in range(len(row))]
    by_middle = sorted(heads, key=lambda at: -shares[at[0]][at[1]][1])
    memory = set(by_middle[: counts[HeadRole.MEMORY]])
    by_sink = sorted((at for at in heads if at not in memory), key=lambda at: -shares[at[0]][at[1]][0])
    anchors = set(by_sink[: counts[HeadRole.ANCHOR]])

    def role(at: tuple[int, int]) -> HeadRole:
        return HeadRole.MEMORY if at in memory else HeadRole.ANCHOR if at in anchors else HeadRole.LOCAL

    return tuple(tuple(role((layer, head)) for head in range(len(row))) for layer, row in enumerate(shares))


RULES: dict[str, Rule] = {"quota": classify, "function": classify_by_function}


def with_rule(profile: HeadProfile, rule: str) -> HeadProfile:
    """The same measurement with the roles that a rule of `RULES` gives, and as many of each.

    Raises HeadForcingError for an unknown rule and for a profile without shares.
    """
    if rule not in RULES:
        raise unknown_name("rule of roles", rule, RULES)
    if profile.shares is None:
        raise HeadForcingError(
            f"Head profile '{profile.name}' has roles only, so no rule can be applied to it; choose a profile with "
            "measured shares."
        )
    anchor, local = profile.anchor_fraction, profile.local_fraction
    roles = RULES[rule](
        profile.shares,
        ANCHOR_FRACTION if anchor is None else anchor,
        LOCAL_FRACTION if local is None else local,
    )
    return replace(profile, roles=roles)
