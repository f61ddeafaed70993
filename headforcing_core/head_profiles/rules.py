"""Rules that make roles of attention shares, by name: the paper's, and one that asks what a head
does.

The paper fills anchors and locals by quota, and memory heads are what is left. On models with few
clear sinks the quota of anchors is then filled with heads that look at everything, and heads that
look at the past most are not memory heads.
The rule by function begins at the other end: memory heads are those that look most at the middle.
It is ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from statistics import median

from ..cache.roles import HeadRole, check_choice
from ..errors import HeadForcingError
from ..names import RULES
from .profile import (
    ANCHOR_FRACTION,
    LOCAL_FRACTION,
    MIDDLE,
    SINK,
    Head,
    HeadProfile,
    RoleRows,
    Shares,
    by_head,
    classify,
    heads_with_most,
    name_heads,
)

# a head that retrieves gives an earlier visit at least this many times an even share of the context
RETRIEVES = 1.5


def classify_by_function(
    shares: Shares,
    anchor_fraction: float = ANCHOR_FRACTION,
    local_fraction: float = LOCAL_FRACTION,
) -> RoleRows:
    """Roles `[layer][head]` from attention shares, as many of each as `classify` gives.

    Memory heads are those with the largest middle share. Of the others, those with the largest sink
    share are anchors; the rest is local.
    """
    by_quota = classify(shares, anchor_fraction, local_fraction)
    counts = Counter(chain(*by_quota))
    memory = heads_with_most(shares, MIDDLE, counts[HeadRole.MEMORY])
    anchors = heads_with_most(shares, SINK, counts[HeadRole.ANCHOR], besides=memory)
    return name_heads(
        shares, {HeadRole.MEMORY: memory, HeadRole.ANCHOR: anchors}, rest=HeadRole.LOCAL
    )


def misnamed_heads(profile: HeadProfile) -> list[Head]:
    """The heads that look at the past and get none of it: that with the largest middle share first.

    They are called anchors or locals, and give the middle more than the median memory head does.
    """
    roles = by_head(profile.roles)
    of_memory = []
    others = []  # with their middle shares
    for at, (_, middle, _) in by_head(profile.shares).items():
        if roles[at] == HeadRole.MEMORY:
            of_memory.append(middle)
        else:
            others.append((-middle, at))
    usual = median(of_memory or [1.0])
    return [at for middle, at in sorted(others) if -middle > usual]


def retrieving_heads(profile: HeadProfile) -> list[Head]:
    """The heads that give an earlier visit `RETRIEVES` times an even share or more, most first."""
    even = profile.measured.get("return_even_share")
    least = RETRIEVES * even if isinstance(even, float) else 1.0
    found = {at: share for at, share in by_head(profile.returns).items() if share >= least}
    return sorted(found, key=found.__getitem__, reverse=True)


def remark_on_rule(profile: HeadProfile) -> list[str]:
    """One sentence about the heads that a profile misnames, none if there are no such heads: where
    returns were measured, those that retrieve and are no memory heads, else `misnamed_heads`.
    """
    if profile.returns is not None:
        roles = by_head(profile.roles)
        wrong = [at for at in retrieving_heads(profile) if roles[at] != HeadRole.MEMORY]
        texts = {at: f"{share:.0%} to the visit" for at, share in by_head(profile.returns).items()}
        does = "look up the earlier visit of a scene"
        advice = "or head_forcing_scenes, which gives scenes back to anchors, too"
    else:
        wrong = misnamed_heads(profile)
        texts = {}
        for at, (sink, middle, _) in by_head(profile.shares).items():
            texts[at] = f"{middle:.0%} there, {sink:.0%} on the first frame"
        does = "give the middle of the context more than most memory heads do"
        advice = "which makes memory heads of them"
    if not wrong:
        return []
    layer, head = wrong[0]
    return [
        f"{len(wrong)} heads that {does} are not memory heads; the first is layer {layer}, head "
        f"{head} (called {profile.roles[layer][head]}; {texts[wrong[0]]}). Choose the rule "
        f"`function`, {advice}."
    ]


def with_rule(
    profile: HeadProfile,
    rule: str | None = None,
    anchor_fraction: float | None = None,
    local_fraction: float | None = None,
) -> HeadProfile:
    """The same measurement with the roles that a rule of `names.RULES` gives, by default with the
    profile's rule and fractions.

    `auto` takes the roles by function where the quota misnames a head, else those by quota; the
    rule is noted in the provenance. Raises HeadForcingError for a profile without shares.
    """
    rule = rule or profile.provenance.get("rule", RULES[0])
    check_choice("rule", rule, RULES)
    if profile.shares is None:
        raise HeadForcingError(
            f"Head profile '{profile.name}' has roles but no measured shares, so rules and "
            "thresholds cannot be applied; choose a profile with measured shares."
        )
    anchor = profile.anchor_fraction if anchor_fraction is None else anchor_fraction
    local = profile.local_fraction if local_fraction is None else local_fraction
    assert anchor is not None and local is not None  # with shares
    by_quota = classify(profile.shares, anchor, local)
    found = replace(profile, roles=by_quota, anchor_fraction=anchor, local_fraction=local)
    if rule == "auto":
        rule = "function" if misnamed_heads(found) else "quota"
    if rule == "function":
        found = replace(found, roles=classify_by_function(profile.shares, anchor, local))
    return replace(found, provenance={**profile.provenance, "rule": rule})
