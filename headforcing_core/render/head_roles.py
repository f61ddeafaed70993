"""The head roles of a render: those of a profile, which may be rearranged, or to be found while sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..cache.method import Method
from ..cache.policy import CachePolicy
from ..cache.query_score import QueryStatistics
from ..cache.roles import HeadRole, Roles, arrange_roles
from ..errors import HeadForcingError
from ..head_profiles.auto import AutoProfile
from ..head_profiles.profile import HeadProfile, default_profile
from ..head_profiles.rules import remark_on_rule
from ..model.wan import WanConfig


class HeadRoles(NamedTuple):
    """The roles of a render's heads.

    Attributes:
        name: of the profile, in reports.
        auto: how they are found while sampling; None if they are known.
        queries: reads the query statistics of the profile; None if it has none.
        remarks: sentences for reports.
    """

    name: str
    roles: Roles
    auto: AutoProfile | None = None
    queries: Callable[[], QueryStatistics | None] = lambda: None
    remarks: tuple[str, ...] = ()


def head_roles(
    config: WanConfig,
    policy: Method,
    profile: HeadProfile | AutoProfile | None,
    family: str | None,
    arrangement: str,
    shuffle: int,
) -> HeadRoles:
    """The roles from the arguments of `RenderPlan.make`; raises HeadForcingError where they do not fit together."""
    source = "profile"
    if profile is None and policy.heads_by:
        source, labelled = "bundled profile", policy.heads_by == "labels"
        try:
            profile = default_profile(config.num_layers, config.num_heads, family, labelled)
        except HeadForcingError:
            profile = AutoProfile()
    if not isinstance(policy, CachePolicy):  # whose roles may be found while sampling
        _check_roles(policy, arrangement, measured=not isinstance(profile, AutoProfile))
    queries = (lambda: profile.query_statistics) if isinstance(profile, HeadProfile) else (lambda: None)
    if profile is None or not policy.heads_by:
        every_head = [[HeadRole.MEMORY] * config.num_heads] * config.num_layers
        return HeadRoles("one cache for every head", every_head, queries=queries)
    if isinstance(profile, AutoProfile):
        if arrangement != "profile":
            raise HeadForcingError(f"roles = {arrangement!r} rearranges a head profile; load one instead of auto")
        expected = profile.expected_roles(config.num_layers, config.num_heads)
        return HeadRoles("to be found in the first seconds", expected, profile)
    profile.check_model(config.num_layers, config.num_heads)
    name = f"{source} {profile.name!r}"
    if policy.heads_by == "labels":
        name += "" if profile.labels else ", labels from its roles"
        return HeadRoles(name, profile.heads_for(labelled=True), queries=queries)
    remarks = tuple(remark_on_rule(profile)) if arrangement == "profile" else ()
    if arrangement != "profile":
        name += f", roles {arrangement}" + (f" ({shuffle})" if arrangement == "shuffled" else "")
    return HeadRoles(name, arrange_roles(profile.roles, arrangement, shuffle), None, queries, remarks)


def _check_roles(policy: Method, arrangement: str, measured: bool) -> None:
    """Refuse an arrangement of roles, or roles that are not `measured` yet, for a method that cannot use them."""
    if arrangement != "profile" and policy.heads_by != "roles":
        why = "rearranges head roles, and this method uses labels"
        if not policy.heads_by:
            why = "rearranges a head profile, and this method uses none"
        raise HeadForcingError(f"roles = {arrangement!r} {why}")
    if policy.heads_by and not measured:
        raise HeadForcingError(
            "this method needs the head roles from the first block on; load or measure a head profile"
        )
