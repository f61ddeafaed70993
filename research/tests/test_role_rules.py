"""The rules that name roles: as many of each, other heads."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, classify
from headforcing.research.role_rules import RULES, classify_by_function, with_rule

# a broad head with a little more sink than the others, as in models without sinks; one that looks back, and two more
SHARES = ((((0.20, 0.75, 0.05)), (0.05, 0.60, 0.35)), ((0.10, 0.20, 0.70), (0.02, 0.08, 0.90)))


def measured(shares=SHARES, **more):
    return HeadProfile("probe", len(shares), len(shares[0]), classify(shares, 0.25, 0.25), shares, 0.25, 0.25, **more)


def test_by_quota_the_broadest_head_is_an_anchor_by_function_it_is_memory():
    assert classify(SHARES, 0.25, 0.25) == (("anchor", "memory"), ("memory", "local"))
    assert classify_by_function(SHARES, 0.25, 0.25) == (("memory", "memory"), ("anchor", "local"))


@pytest.mark.parametrize("fractions", [(0.25, 0.20), (0.0, 0.5), (0.7, 0.3), (1.0, 1.0), (0.0, 0.0)])
def test_every_rule_gives_as_many_heads_to_each_role(fractions):
    draw = random.Random(3)
    parts = [[[draw.random() for _ in range(3)] for _ in range(6)] for _ in range(5)]
    shares = [[[part / sum(head) for part in head] for head in layer] for layer in parts]
    counts = [Counter(role for layer in rule(shares, *fractions) for role in layer) for rule in RULES.values()]
    assert counts[0] == counts[1]


def test_a_profile_takes_another_rule_and_comes_back():
    profile = measured()
    other = with_rule(profile, "function")
    assert other.roles == classify_by_function(SHARES, 0.25, 0.25) and other.shares == profile.shares
    assert with_rule(other, "quota") == profile


def test_an_unknown_rule_and_a_profile_without_shares_are_refused():
    with pytest.raises(HeadForcingError, match="function"):
        with_rule(measured(), "functions")
    with pytest.raises(HeadForcingError, match="roles only"):
        with_rule(replace(measured(), shares=None), "function")
