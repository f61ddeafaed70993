"""Head profiles: classification by quota and by function, the file format, bundled files, and mistakes in a file."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.cache.policy import HeadRole
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles import profile as profiles
from headforcing.headforcing_core.head_profiles.agreement import describe_profile, sanity_checks
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
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint


def random_shares(layers: int, heads: int):
    draw = random.Random(0)
    parts = [[[draw.random() for _ in range(3)] for _ in range(heads)] for _ in range(layers)]
    return tuple(tuple(tuple(x / sum(three) for x in three) for three in row) for row in parts)


def measured(layers: int = 5, heads: int = 3) -> HeadProfile:
    shares = random_shares(layers, heads)
    details = {"window_frames": 21, "rope": "absolute", "prompts_hash": "ab12", "seed": 7, "blocks": [3, 9], "steps": 4}
    note = {"source": "test", "licence": "Apache-2.0", "note": "ünïcode"}
    return HeadProfile("probe", layers, heads, classify(shares), shares, measured=details, provenance=note)


def test_anchors_rank_by_sink_share_over_the_whole_model_before_local_heads_and_halves_round_up():
    shares = [[(0.9, 0.0, 0.1), (0.3, 0.0, 0.7)], [(0.1, 0.1, 0.8), (0.0, 0.9, 0.1)]]
    assert classify(shares, 0.25, 0.25) == (("anchor", "memory"), ("local", "memory"))
    assert classify(shares, 0.5, 0.25) == (("anchor", "anchor"), ("local", "memory"))
    assert {role for row in classify(shares, 0.75, 0.75) for role in row} == {"anchor", "local"}
    equal = [[(0.2, 0.6, 0.2)] * 2] * 2
    assert classify(equal, 0.25, 0.25) == (("anchor", "local"), ("memory", "memory")), "the lower layer and head"
    for heads, fraction, anchors in [(2, 0.25, 1), (6, 0.25, 2), (10, 0.35, 4), (50, 0.29, 15), (4, 0, 0), (4, 1, 4)]:
        assert classify(random_shares(1, heads), fraction, 0.0)[0].count("anchor") == anchors
    first, second = [["anchor", "anchor", "local", "memory"]], [["anchor", "memory", "local", "memory"]]
    expected = {"local": 1, "anchor": 1 / 1.5, "memory": 1 / 1.5, "mean": 7 / 9}
    assert profiles.stability([first, second]) == pytest.approx(expected), "shared heads over mean size"


def test_a_saved_profile_loads_equal_with_exact_shares_and_unknown_keys_are_ignored(tmp_path):
    profile = replace(measured(), families=("self_forcing",))
    profile.save(tmp_path / "deep" / "probe.json")
    assert load_profile(tmp_path / "deep" / "probe.json") == profile
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["probe.json"]
    text = profile.to_json()
    assert sum(line.strip().startswith("[[") for line in text.splitlines()) == 5, "one layer a line"
    assert HeadProfile.from_json(json.dumps(json.loads(text) | {"colour": [1, 2]})) == profile
    assert all(type(role) is HeadRole for row in load_profile(tmp_path / "deep" / "probe.json").roles for role in row)


GOOD = json.loads(measured().to_json())


def with_first(key: str, value: object) -> dict:
    """A profile whose first head has this value."""
    return GOOD | {key: [[value, *GOOD[key][0][1:]], *GOOD[key][1:]]}


SHARES = "shares of layer 0, head 0 must be three numbers from 0 with sum 1"
MALFORMED = {  # what is wrong with a file, and what is said of it
    "zero bytes": ("", "JSON"), "truncated": (json.dumps(GOOD)[:-200], "JSON"),
    "a pickle": (b"\x80\x04\x95\x1a\x00\x00\x00", "cannot be read as a head profile"),
    "UTF-16": (json.dumps(GOOD).encode("utf-16"), "cannot be read as a head profile"),
    "nested 10,000 deep": ("[" * 10_000 + "]" * 10_000, "JSON"),
    "a number of 10,000 digits": ('{"format_version": ' + "1" * 10_000 + "}", "JSON|format_version"),
    "no version": ({"name": "x"}, "format_version .* must be 1"), "null": (None, "format_version .* must be 1"),
    "newer version": (GOOD | {"format_version": 2}, "must be 1, found 2; a profile of a newer version"),
    **{f"no {key}": ({name: value for name, value in GOOD.items() if name != key}, f"'{key}' is missing")
       for key in ("name", "num_layers", "num_heads", "roles")},
    "empty name": (GOOD | {"name": " "}, "name must be a text"), "name is a list": (GOOD | {"name": ["p"]}, "name m"),
    "layers as text": (GOOD | {"num_layers": "5"}, "num_layers must be a whole number"),
    "no layers at all": (GOOD | {"num_layers": 0, "roles": []}, "num_layers must be a whole number"),
    "a billion layers": (GOOD | {"num_layers": 10**9}, "roles must have 1000000000 layers of 3 heads, found 5 of 3"),
    "wrong head count": (GOOD | {"num_heads": 12}, "roles must have 5 layers of 12 heads, found 5 of 3"),
    "ragged roles": (GOOD | {"roles": [*GOOD["roles"][:4], ["local"]]}, "roles must have .* found 5 of 1, 3"),
    "a layer as text": (GOOD | {"roles": ["abc"] * 5}, "roles must have 5 layers"),
    "unknown role": (with_first("roles", "sink"), "roles of layer 0, head 0 must be local, .* found 'sink'"),
    "role as list": (with_first("roles", ["local"]), "roles of layer 0, head 0 must be"),
    **{f"shares {value}": (with_first("shares", value), SHARES) for value in (
        ["0.2", "0.3", "0.5"], [True, False, False], [0.5, None, 0.5], [float("nan"), 0.5, 0.5], [-0.2, 0.7, 0.5],
        [0.2, 0.4, 0.5], [0.5, 0.5], [20, 30, 50], [10**400, 0.5, 0.5])},
    "fraction in percent": (GOOD | {"anchor_fraction": 25}, "anchor_fraction must be a number in 0-1, found 25"),
    "fraction NaN": (GOOD | {"local_fraction": float("nan")}, "local_fraction must be"),
    "families as text": (GOOD | {"families": "self_forcing"}, "families must be a list"),
    "measured as list": (GOOD | {"measured": []}, "measured must be an object"),
    "an unknown label": (GOOD | {"labels": [["local"] * 3] * 5}, "labels of layer 0, head 0 must be wave"),
    "larger than 16 MB": (" " * (profiles.MAX_FILE_BYTES + 1), "larger than any head profile"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_gives_one_clear_error(case, tmp_path):
    content, message = MALFORMED[case]
    path = tmp_path / "broken.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(HeadForcingError, match=message) as error:
        load_profile(path)
    text = str(error.value)
    assert text.startswith("broken.json") and len(text) < 300 and "\n" not in text


def test_something_that_is_not_a_file_gives_one_clear_error(tmp_path):
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path, tmp_path / "missing.json", tmp_path / "loop.json", tmp_path / "pipe.json", "nul\0.json"):
        with pytest.raises(HeadForcingError, match="is a folder|was not found|is a pipe"):
            load_profile(path)


@pytest.mark.parametrize(("name", "size", "counts"), [
    ("self_forcing", (30, 12), (0, 134, 226)), ("causal_forcing", (30, 12), (0, 134, 226)),
    ("raven", (30, 12), (0, 134, 226)), ("longlive", (30, 12), (0, 154, 206)), ("krea_14b", (40, 40), (0, 800, 800)),
    ("toy_world", (8, 6), (10, 12, 26)), ("pyramid_self_forcing", (30, 12), (156, 32, 172)),
    ("consensus_self_forcing", (30, 12), (102, 96, 162)),
])  # fmt: skip
def test_bundled_profiles_load_and_say_where_they_come_from(name, size, counts):
    profile = load_profile(bundled_profiles()[name])
    assert (profile.num_layers, profile.num_heads) == size
    assert profile.counts() == dict(zip(("local", "anchor", "memory"), counts, strict=True))
    assert {"source", "licence", "note"} <= set(profile.provenance)
    if not counts[0]:
        assert "NOT the paper's three-way measurement" in profile.provenance["note"]
    assert profile.to_json() == bundled_profiles()[name].read_text()
    if name == "toy_world":  # a measurement of the embedded model
        assert profile.roles == classify(profile.shares)
        assert profile.measured["fingerprint"] == inspect_checkpoint(assets.model_path()).fingerprint


@pytest.mark.parametrize(("asked", "name"), [
    ((30, 12), "self_forcing"), ((30, 12, "longlive"), "longlive"), ((40, 40), "krea_14b"), ((8, 6), "toy_world"),
    ((30, 12, "causal_forcing_chunkwise"), "causal_forcing"), ((30, 12, "unheard of"), "self_forcing"),
    ((30, 12, "self_forcing", True), "pyramid_self_forcing"), ((8, 6, None, True), "toy_world"), ((7, 5), None),
])  # fmt: skip
def test_the_default_follows_the_family_and_then_the_size_and_labels_where_a_method_uses_them(asked, name):
    if name is None:
        with pytest.raises(HeadForcingError, match="7x5 heads; load one"):
            profiles.default_profile(*asked)
        return
    profile = profiles.default_profile(*asked)
    labels = profile.heads_for(labelled=True)
    assert profile.name == name and profile.heads_for(labelled=False) == profile.roles
    assert labels == profile.labels if name.startswith("pyramid") else profile.labels is None
    assert {label for row in labels for label in row} <= {"wave", "anchor", "veil"}


def test_the_consensus_profile_says_how_far_its_two_lists_agree_and_where_they_do_not():
    consensus = load_profile(bundled_profiles()["consensus_self_forcing"])
    pyramid, forcing_kv = (load_profile(bundled_profiles()[name]) for name in ("pyramid_self_forcing", "self_forcing"))
    broad = [
        [(a == "anchor", b == "memory") for a, b in zip(*rows, strict=True)]
        for rows in zip(pyramid.labels, forcing_kv.roles, strict=True)
    ]
    disputed = [[i, j] for i, row in enumerate(broad) for j, (a, b) in enumerate(row) if a != b]
    assert consensus.provenance["disputed"] == disputed and len(disputed) == 74
    assert consensus.provenance["agreement"]["agree"] == 360 - len(disputed)
    lines = describe_profile(consensus)
    assert lines[0] == "102 local, 96 anchor, 162 memory" and any("cohen_kappa 0.5935" in line for line in lines)
    assert lines[-1].startswith("disputed: 74 of 360 heads, hatched in the plot (layer 0: 0 1 7 9 10; layer 1: 0 3")
    roles = [[a and b for a, b in row] for row in broad]
    assert roles == [[role == "memory" for role in row] for row in consensus.roles]


def test_query_statistics_are_checked_and_a_file_may_have_none():
    profile = profiles.default_profile(8, 6)
    values = [[[1.0, -2.0, 0.5, 0.0, 3.0, 2.0] for _ in range(6)] for _ in range(8)]
    data = json.loads(replace(profile, queries=values).to_json())
    statistics = HeadProfile.from_json(json.dumps(data)).query_statistics
    assert statistics.mean[7, 5].tolist() == [1 + 0.5j, -2 + 0j] and statistics.size[7, 5].tolist() == [3.0, 2.0]
    older = {key: value for key, value in data.items() if key != "queries"}
    assert HeadProfile.from_json(json.dumps(older)).query_statistics is None
    for wrong in ([1.0, 2.0], [], "abc", [1.0, 1.0, -1.0], [1.0, float("nan"), 1.0], None):
        data["queries"][3][2] = wrong
        with pytest.raises(HeadForcingError, match="queries of layer 3, head 2 must be finite numbers in threes"):
            HeadProfile.from_json(json.dumps(data))
    data["queries"][3][2] = [1.0, 2.0, 3.0]
    with pytest.raises(HeadForcingError, match="the same number of values for every head"):
        HeadProfile.from_json(json.dumps(data))


# one sink, one head that looks at the past and a little at the first frame, broad heads, and some that see their block
SMALL = (
    ((0.60, 0.30, 0.10), (0.06, 0.92, 0.02), (0.04, 0.50, 0.46), (0.03, 0.55, 0.42)),
    ((0.02, 0.08, 0.90), (0.03, 0.52, 0.45), (0.05, 0.15, 0.80), (0.02, 0.50, 0.48)),
)


def small(**fields) -> HeadProfile:
    options = {"shares": SMALL, "measured": {"window_frames": 21}} | fields
    return HeadProfile("tiny", 2, 4, classify(options["shares"] or SMALL), **options)


def test_the_quota_makes_an_anchor_of_a_head_that_retrieves_and_the_rule_by_function_a_memory_head():
    assert small().roles[0][:2] == ("anchor", "anchor") and misnamed_heads(small()) == [(0, 1)]
    (remark,) = [line for line in sanity_checks(small()) if "not memory heads" in line]
    assert "layer 0, head 1 (called anchor; 92% there, 6% on the first frame)" in remark
    found = with_rule(small(), "function")
    assert found.roles == (("anchor", "memory", "memory", "memory"), ("local", "memory", "local", "local"))
    assert not misnamed_heads(found) and found.provenance["rule"] == "function"
    assert found.counts()["memory"] == small().counts()["memory"]


def test_no_anchor_by_function_is_below_twice_an_even_share_and_auto_takes_that_rule_where_a_head_is_misnamed():
    assert anchor_floor(small()) == pytest.approx(2 / 21) and anchor_floor(small(measured={})) == 0
    assert with_rule(small(), "function").counts()["anchor"] == 1
    assert with_rule(small(measured={}), "function").counts() == small().counts()
    assert classify_by_function(SMALL, floor=0.7)[0][0] == "local"
    clear = (((0.6, 0.3, 0.1), (0.3, 0.3, 0.4), (0.04, 0.9, 0.06), (0.03, 0.9, 0.07)), SMALL[1])
    assert with_rule(small(), "auto").provenance["rule"] == "function"
    assert with_rule(small(shares=clear), "auto").provenance["rule"] == "quota"
    assert with_rule(with_rule(small(), "function"), "quota").roles == small().roles


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

    with pytest.raises(HeadForcingError, match="has roles only, to which no rule or threshold can be applied"):
        with_rule(small(shares=None), "function")
    with pytest.raises(HeadForcingError, match="rule"):
        with_rule(small(), "luck")
