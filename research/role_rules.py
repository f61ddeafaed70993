"""Rules that make as many roles of each kind of attention shares, by name: to compare them at one size of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..headforcing_core.cache.roles import HeadRole
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.head_profiles.profile import ANCHOR_FRACTION, LOCAL_FRACTION, HeadProfile, classify
from ..headforcing_core.head_profiles.rules import classify_by_function

Shares = Sequence[Sequence[Sequence[float]]]
RULES: dict[str, Callable[[Shares, float, float], tuple[tuple[HeadRole, ...], ...]]] = {
    "quota": classify,
    "function": classify_by_function,
}
"""Roles `[layer][head]` from shares `[layer][head]` = (sink, middle, current) and the fractions of anchors, locals."""


def with_rule(profile: HeadProfile, rule: str) -> HeadProfile:
    """The same measurement with the roles that a rule of `RULES` gives, and as many of each, whatever their shares are.

    Raises HeadForcingError for a profile without shares.
    """
    if profile.shares is None:
        raise HeadForcingError(
            f"Head profile '{profile.name}' has roles only, so no rule can be applied to it; choose a profile with "
            "measured shares."
        )
    anchor, local = profile.anchor_fraction, profile.local_fraction
    fractions = (ANCHOR_FRACTION if anchor is None else anchor, LOCAL_FRACTION if local is None else local)
    return replace(profile, roles=RULES[rule](profile.shares, *fractions))
