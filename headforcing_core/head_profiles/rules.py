"""Rules that make roles of attention shares, by name: the paper's, and one that asks what a head does.

The paper fills anchors and locals by quota, and memory heads are what is left. On models with few clear sinks the quota
of anchors is then filled with heads that look at everything, and heads that look at the past most are not memory heads.
The rule by function begins at the other end: memory heads are those that look most at the middle. It is ours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from ..cache.roles import HeadRole, check_choice
from ..errors import HeadForcingError
from ..names import RULES
from .profile import ANCHOR_FRACTION, LOCAL_FRACTION, HeadProfile, classify, heads_with_most, name_heads

RETRIEVES = 1.5  # a head that retrieves gives an earlier visit at least this many times an even share of the context
EVEN_SHARES = 2.0  # an anchor gives the first frame at least this many times an even share of the window


def classify_by_function(
    shares: Sequence[Sequence[Sequence[float]]],
    anchor_fraction: float = ANCHOR_FRACTION,
    local_fraction: float = LOCAL_FRACTION,
    floor: float = 0.0,
) -> tuple[tuple[HeadRole, ...], ...]:
    """Roles `[layer][head]` from attention shares, as many memory heads as `classify` gives.

    Memory heads are those with the largest middle share. Of the others, those with the largest sink share are anchors,
    as many as `classify` gives, but none below `floor`; the rest is local.
    """
    by_quota = classify(shares, anchor_fraction, local_fraction)
    counts = Counter(role for layer in by_quota for role in layer)
    memory = heads_with_most(shares, 1, counts[HeadRole.MEMORY])
    most = heads_with_most(shares, 0, counts[HeadRole.ANCHOR], besides=memory)
    anchors = {at for at in most if shares[at[0]][at[1]][0] >= floor}
    return name_heads(shares, {HeadRole.MEMORY: memory, HeadRole.ANCHOR: anchors}, rest=HeadRole.LOCAL)


def anchor_floor(profile: HeadProfile) -> float:
    """The least sink share of an anchor by function: twice an even share of the measured window; 0 if not known."""
    window = profile.measured.get("window_frames")
    if type(window) is int and window > 0:
        return EVEN_SHARES / window
    return 0.0


def misnamed_heads(profile: HeadProfile) -> list[tuple[int, int]]:
    """`(layer, head)` of the heads that look at the past and get none of it: that with the largest middle share first.

    They are called anchors or locals, and give the middle more than the median memory head does; an anchor only if its
    sink share is below `anchor_floor`.
    """
    shares = profile.shares or ()
    floor = anchor_floor(profile)
    of = {(i, j): (role, shares[i][j]) for i, row in enumerate(profile.roles) for j, role in enumerate(row) if shares}
    middles = [share[1] for role, share in of.values() if role == HeadRole.MEMORY]
    usual = median(middles) if middles else 1.0
    wrong = [
        at
        for at, (role, (sink, middle, _)) in of.items()
        if role != HeadRole.MEMORY and middle > usual and (role == HeadRole.LOCAL or sink < floor)
    ]
    return sorted(wrong, key=lambda at: -of[at][1][1])


def retrieving_heads(profile: HeadProfile) -> list[tuple[int, int]]:
    """`(layer, head)` of the heads that give an earlier visit `RETRIEVES` times an even share or more, most first."""
    even = profile.measured.get("return_even_share")
    of = {(i, j): share for i, row in enumerate(profile.returns or ()) for j, share in enumerate(row)}
    least = RETRIEVES * even if isinstance(even, float) else 1.0
    return sorted((at for at, share in of.items() if share >= least), key=lambda at: -of[at])


def describe_returns(profile: HeadProfile) -> list[str]:
    """Lines on the heads that retrieve; none where returns were not measured."""
    if profile.returns is None:
        return []
    found = retrieving_heads(profile)
    returns = profile.returns
    roles = profile.roles
    lines = [f"  layer {i}, head {j} ({roles[i][j]}): {returns[i][j]:.0%} to the visit" for i, j in found[:3]]
    return [f"{len(found)} heads look up the earlier visit of a scene whose prompt returns", *lines]


def remark_on_rule(profile: HeadProfile) -> list[str]:
    """A sentence about the heads that a profile misnames: where returns were measured, those that retrieve and are no
    memory heads, else `misnamed_heads`. None if it misnames none."""
    if profile.returns is None:
        wrong = misnamed_heads(profile)
    else:
        wrong = [(i, j) for i, j in retrieving_heads(profile) if profile.roles[i][j] != HeadRole.MEMORY]
    if not wrong:
        return []
    layer, head = wrong[0]
    if profile.returns is not None:
        does = "look up the earlier visit of a scene"
        share = f"{profile.returns[layer][head]:.0%} to the visit"
        advice = "or head_forcing_scenes, which gives scenes back to anchors, too"
    else:
        sink, middle, _ = (profile.shares or ())[layer][head]
        does = "give the middle of the context more than most memory heads do"
        share = f"{middle:.0%} there, {sink:.0%} on the first frame"
        advice = "which makes memory heads of them"
    return [
        f"{len(wrong)} heads that {does} are not memory heads; the first is layer {layer}, head {head} (called "
        f"{profile.roles[layer][head]}; {share}). Choose the rule `function`, {advice}."
    ]


def with_rule(
    profile: HeadProfile, rule: str, anchor_fraction: float | None = None, local_fraction: float | None = None
) -> HeadProfile:
    """The same measurement with the roles that a rule of `names.RULES` gives, by default with the profile's fractions.

    `auto` takes the roles by function where the quota misnames a head, else those by quota; the rule is noted in the
    provenance. Raises HeadForcingError for a profile without shares.
    """
    check_choice("rule", rule, RULES)
    if profile.shares is None:
        raise HeadForcingError(
            f"Head profile '{profile.name}' has roles only, to which no rule or threshold can be applied; choose a "
            "profile with measured shares."
        )
    anchor = profile.anchor_fraction if anchor_fraction is None else anchor_fraction
    local = profile.local_fraction if local_fraction is None else local_fraction
    assert anchor is not None and local is not None  # with shares
    by_quota = classify(profile.shares, anchor, local)
    found = replace(profile, roles=by_quota, anchor_fraction=anchor, local_fraction=local)
    if rule == "auto":
        rule = "function" if misnamed_heads(found) else "quota"
    if rule == "function":
        found = replace(found, roles=classify_by_function(profile.shares, anchor, local, anchor_floor(profile)))
    return replace(found, provenance={**profile.provenance, "rule": rule})
