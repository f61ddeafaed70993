"""Roles by quota and by function, and the heads that a rule misnames."""

from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.agreement import sanity_checks
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, bundled_profiles, classify, load_profile
from headforcing.headforcing_core.head_profiles.rules import (
    anchor_floor,
    classify_by_function,
    misnamed_heads,
    with_rule,
)
from headforcing.headforcing_core.head_profiles.shares import ProfileSetup, ReturnStory
from headforcing.headforcing_core.render.describe import describe
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.timeline.timeline import parse_timeline

# one sink, one head that looks at the past and a little at the first frame, broad heads, and some that see their block
SHARES = (
    ((0.60, 0.30, 0.10), (0.06, 0.92, 0.02), (0.04, 0.50, 0.46), (0.03, 0.55, 0.42)),
    ((0.02, 0.08, 0.90), (0.03, 0.52, 0.45), (0.05, 0.15, 0.80), (0.02, 0.50, 0.48)),
)


def profile(**fields) -> HeadProfile:
    options = {"shares": SHARES, "measured": {"window_frames": 21}} | fields
    return HeadProfile("tiny", 2, 4, classify(options["shares"] or SHARES), **options)


def test_the_quota_makes_an_anchor_of_a_head_that_retrieves_and_the_rule_by_function_a_memory_head():
    assert profile().roles[0][:2] == ("anchor", "anchor") and misnamed_heads(profile()) == [(0, 1)]
    (remark,) = [line for line in sanity_checks(profile()) if "not memory heads" in line]
    assert "layer 0, head 1 (called anchor; 92% there, 6% on the first frame)" in remark
    found = with_rule(profile(), "function")
    assert found.roles == (("anchor", "memory", "memory", "memory"), ("local", "memory", "local", "local"))
    assert not misnamed_heads(found) and found.provenance["rule"] == "function"
    assert found.counts()["memory"] == profile().counts()["memory"]


def test_no_anchor_by_function_is_below_twice_an_even_share():
    assert anchor_floor(profile()) == pytest.approx(2 / 21) and anchor_floor(profile(measured={})) == 0
    assert with_rule(profile(), "function").counts()["anchor"] == 1
    assert with_rule(profile(measured={}), "function").counts() == profile().counts()
    assert classify_by_function(SHARES, floor=0.7)[0][0] == "local"


def test_auto_takes_the_rule_by_function_only_where_the_quota_misnames_a_head():
    clear = (((0.6, 0.3, 0.1), (0.3, 0.3, 0.4), (0.04, 0.9, 0.06), (0.03, 0.9, 0.07)), SHARES[1])
    assert with_rule(profile(), "auto").provenance["rule"] == "function"
    assert with_rule(profile(shares=clear), "auto").provenance["rule"] == "quota"
    assert with_rule(with_rule(profile(), "function"), "quota").roles == profile().roles


def test_the_embedded_models_retrieving_head_is_a_memory_head_by_function():
    toy = load_profile(bundled_profiles()["toy_world"])
    assert toy.roles[4][3] == "anchor" and misnamed_heads(toy)[0] == (4, 3)
    assert with_rule(toy, "auto").roles[4][3] == "memory"
    options, timeline = RenderOptions(width=64, height=64), parse_timeline("a red ball in the navy room", 2.0)
    told = [
        describe(options.plan(assets.TOY_CONFIG, timeline, profile=used), torch.float32)
        for used in (toy, with_rule(toy, "function"))
    ]
    assert "layer 4, head 3" in told[0] and "layer 4, head 3" not in told[1]


@pytest.mark.parametrize(("frames", "prompts", "visited", "measured"), [
    (3, (0, 1, 1, 2, 2, 1, 1), range(3, 9), range(5, 7)),
    (1, (0,) * 3 + (1,) * 6 + (2,) * 6 + (1,) * 6, range(3, 9), range(15, 21)),
    (5, (0, 1, 2, 1), range(5, 10), range(3, 4)),
])  # fmt: skip
def test_a_return_story_fills_the_window_and_returns_behind_another_scene(frames, prompts, visited, measured):
    setup = ProfileSetup("x", 2, 4, ("a", "b", "c"), 30, (1.0,), frames, 64, 64)
    story = ReturnStory.of(setup, 0)
    assert (story.prompts, story.visited, story.measured) == (prompts, visited, measured)
    assert ReturnStory.of(setup, 2).prompts[:2] == ((2, 0) if frames != 1 else (2, 2))
    assert 0.2 < story.even_share(frames) < 0.4
    with pytest.raises(HeadForcingError, match="at least four blocks"):
        ReturnStory.of(replace(setup, frames_per_block=8), 0)


def test_thresholds_change_without_measuring_again():
    drawn = torch.rand(30, 12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = (drawn / drawn.sum(dim=-1, keepdim=True)).tolist()
    paper = HeadProfile("p", 30, 12, classify(shares), shares)
    assert paper.counts() == {"local": 72, "anchor": 90, "memory": 198}, "as in the paper"
    changed = with_rule(paper, "quota", 0.35, 0.1)
    assert changed.counts() == {"local": 36, "anchor": 126, "memory": 198}
    assert (changed.anchor_fraction, changed.local_fraction) == (0.35, 0.1)
    assert with_rule(paper, "quota", local_fraction=0.0).counts() == {"local": 0, "anchor": 90, "memory": 270}
    assert with_rule(changed, "quota", 0.25, 0.2) == replace(paper, provenance={"rule": "quota"})
    for fraction in (-0.01, 1.01, float("nan"), float("inf")):
        with pytest.raises(HeadForcingError, match="anchor_fraction must be"):
            with_rule(paper, "quota", fraction)


def test_a_rule_needs_shares_and_a_name():
    with pytest.raises(HeadForcingError, match="has roles only, to which no rule or threshold can be applied"):
        with_rule(profile(shares=None), "function")
    with pytest.raises(HeadForcingError, match="rule"):
        with_rule(profile(), "luck")
