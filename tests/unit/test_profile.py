"""Head profiles: classification by quota and by function, the file format, bundled files, mistakes,
comparison.
"""

import json
import random
from dataclasses import replace
from itertools import chain

import pytest
import torch
from headforcing.headforcing_core.cache.roles import HeadRole
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles import profile as profiles
from headforcing.headforcing_core.head_profiles.agreement import (
    compare_profiles,
    describe_profile,
)
from headforcing.headforcing_core.head_profiles.profile import (
    HeadProfile,
    bundled_profiles,
    classify,
    load_profile,
)
from headforcing.headforcing_core.head_profiles.rules import (
    misnamed_heads,
    remark_on_rule,
    with_rule,
)
from headforcing.headforcing_core.head_profiles.shares import ProfileSetup, ReturnStory
from headforcing.headforcing_core.methods.pyramid_labels import HeadLabel
from headforcing.headforcing_core.plan.describe import describe
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint


def random_shares(layers: int, heads: int):
    draw = random.Random(0)

    def shares_of_a_head():
        parts = [draw.random() for _ in range(3)]
        return tuple(part / sum(parts) for part in parts)

    shares = []
    for _ in range(layers):
        shares.append(tuple(shares_of_a_head() for _ in range(heads)))
    return tuple(shares)


def measured(layers: int = 5, heads: int = 3) -> HeadProfile:
    shares = random_shares(layers, heads)
    details = {
        "window_frames": 21,
        "rope": "absolute",
        "prompts_hash": "ab12",
        "seed": 7,
        "blocks": [3, 9],
        "steps": 4,
    }
    note = {"source": "test", "licence": "Apache-2.0", "note": "ünïcode"}
    return HeadProfile(
        "probe", layers, heads, classify(shares), shares, measured=details, provenance=note
    )


def test_anchors_rank_by_sink_share_over_the_whole_model_before_local_heads_and_halves_round_up():
    shares = [[(0.9, 0.0, 0.1), (0.3, 0.0, 0.7)], [(0.1, 0.1, 0.8), (0.0, 0.9, 0.1)]]
    assert classify(shares, 0.25, 0.25) == (("anchor", "memory"), ("local", "memory"))
    assert classify(shares, 0.5, 0.25) == (("anchor", "anchor"), ("local", "memory"))
    equal = [[(0.2, 0.6, 0.2)] * 2] * 2
    assert classify(equal, 0.25, 0.25) == (("anchor", "local"), ("memory", "memory")), (
        "the lower layer and head"
    )
    for heads, fraction, anchors in [
        (2, 0.25, 1),
        (6, 0.25, 2),
        (10, 0.35, 4),
        (50, 0.29, 15),
        (4, 0, 0),
        (4, 1, 4),
    ]:
        assert classify(random_shares(1, heads), fraction, 0.0)[0].count("anchor") == anchors
    first = [["anchor", "anchor", "local", "memory"]]
    second = [["anchor", "memory", "local", "memory"]]
    expected = {"local": 1, "anchor": 1 / 1.5, "memory": 1 / 1.5, "mean": 7 / 9}
    assert profiles.stability([first, second]) == pytest.approx(expected), (
        "shared heads over mean size"
    )


def test_a_saved_profile_loads_equal_with_exact_shares_and_unknown_keys_are_ignored(tmp_path):
    profile = replace(measured(), families=("self_forcing",))
    profile.save(tmp_path / "deep" / "probe.json")
    found = load_profile(tmp_path / "deep" / "probe.json")
    assert found == profile and set(map(type, chain(*found.roles))) == {HeadRole}
    text = profile.to_json()
    assert sum(line.strip().startswith("[[") for line in text.splitlines()) == 5, "one layer a line"
    assert HeadProfile.from_json(json.dumps(json.loads(text) | {"colour": [1, 2]})) == profile


GOOD = json.loads(measured().to_json())


def without(key: str) -> dict:
    return {name: value for name, value in GOOD.items() if name != key}


def with_first(key: str, value: object) -> dict:
    """A profile whose first head has this value."""
    return GOOD | {key: [[value, *GOOD[key][0][1:]], *GOOD[key][1:]]}


SHARES = "shares of layer 0, head 0 must be three numbers from 0 with sum 1"
MALFORMED = {  # what is wrong with a file, and what is said of it
    "truncated": (json.dumps(GOOD)[:-200], "JSON"),
    "a pickle": (b"\x80\x04\x95\x1a", "cannot be read as a head pr"),
    "nested 10,000 deep": ("[" * 10_000 + "]" * 10_000, "JSON"),
    "a number of 10,000 digits": (
        '{"format_version": ' + "1" * 10_000 + "}",
        "JSON|format_version",
    ),
    "null": (None, "format_version .* must be 1"),
    "newer version": (
        GOOD | {"format_version": 2},
        "must be 1, found 2; a profile of a newer version",
    ),
    "no name": (without("name"), "'name' is missing"),
    "no roles": (without("roles"), "'roles' is missing"),
    "empty name": (GOOD | {"name": " "}, "name must be a text"),
    "name is a list": (GOOD | {"name": ["p"]}, "name m"),
    "no layers at all": (
        GOOD | {"num_layers": 0, "roles": []},
        "num_layers must be a whole number",
    ),
    "a billion layers": (
        GOOD | {"num_layers": 10**9},
        "roles must have 1000000000 layers of 3 heads, found 5 of 3",
    ),
    "ragged roles": (
        GOOD | {"roles": [*GOOD["roles"][:4], ["local"]]},
        "roles must have .* found 5 of 1, 3",
    ),
    "unknown role": (
        with_first("roles", "sink"),
        "roles of layer 0, head 0 must be local, .* found 'sink'",
    ),
    **{
        f"shares {value}": (with_first("shares", value), SHARES)
        for value in (
            ["0.2", "0.3", "0.5"],
            [True, False, False],
            [0.5, None, 0.5],
            [float("nan"), 0.5, 0.5],
            [-0.2, 0.7, 0.5],
            [0.2, 0.4, 0.5],
            [0.5, 0.5],
            [10**400, 0.5, 0.5],
        )
    },
    "fraction in percent": (
        GOOD | {"anchor_fraction": 25},
        "anchor_fraction must be a number in 0-1, found 25",
    ),
    "families as text": (GOOD | {"families": "self_forcing"}, "families must be a list"),
    "measured as list": (GOOD | {"measured": []}, "measured must be an object"),
    "an unknown label": (
        GOOD | {"labels": [["local"] * 3] * 5},
        "labels of layer 0, head 0 must be wave",
    ),
    "larger than 16 MB": (" " * (profiles.MAX_FILE_BYTES + 1), "larger than any head profile"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_gives_one_clear_error(case, tmp_path):
    content, message = MALFORMED[case]
    path = tmp_path / "broken.json"
    text = content if isinstance(content, (str, bytes)) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(HeadForcingError, match=message) as error:
        load_profile(path)
    said = str(error.value)
    assert said.startswith("broken.json") and len(said) < 300 and "\n" not in said


def test_bundled_profiles_load_and_say_where_they_come_from():
    found = {name: load_profile(path) for name, path in bundled_profiles().items()}
    assert {name: tuple(profile.counts().values()) for name, profile in found.items()} == {
        "self_forcing": (72, 90, 198),
        "forcing_kv_self_forcing": (0, 134, 226),
        "causal_forcing": (0, 134, 226),
        "raven": (0, 134, 226),
        "longlive": (0, 154, 206),
        "krea_14b": (0, 800, 800),
        "toy_world": (10, 12, 26),
        "pyramid_self_forcing": (156, 32, 172),
        "consensus_self_forcing": (102, 96, 162),
    }
    for name, profile in found.items():
        assert {"source", "licence", "note"} <= set(profile.provenance), name
        assert (
            profile.counts()["local"]
            or "NOT the paper's three-way measurement" in profile.provenance["note"]
        )
        assert profile.to_json() == bundled_profiles()[name].read_text()
    toy = found["toy_world"]  # a measurement of the embedded model
    assert toy.roles == classify(toy.shares)
    assert toy.measured["fingerprint"] == inspect_checkpoint(assets.model_path()).fingerprint
    lines = describe_profile(found["consensus_self_forcing"])
    assert lines[0] == "102 local, 96 anchor, 162 memory" and any(
        "cohen_kappa 0.5935" in line for line in lines
    )
    assert lines[-1].startswith(
        "disputed: 74 of 360 heads, hatched in the plot (layer/head 0/0, 0/1, 0/7, 0/9, 0/10, 1/0, 1/3, "
    )


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ((30, 12), "self_forcing"),
        ((30, 12, "longlive"), "longlive"),
        ((40, 40), "krea_14b"),
        ((8, 6), "toy_world"),
        ((30, 12, "unheard of"), "self_forcing"),
        ((30, 12, "self_forcing", "roles", True), "forcing_kv_self_forcing"),
        ((30, 12, "unheard of", "roles", True), "forcing_kv_self_forcing"),
        ((8, 6, None, "roles", True), "toy_world"),
        ((30, 12, "self_forcing", "labels"), "pyramid_self_forcing"),
        ((8, 6, None, "labels"), "toy_world"),
    ],
)
def test_the_default_follows_the_family_and_then_the_size_and_labels_where_a_method_uses_them(
    asked, name
):
    profile = profiles.default_profile(*asked)
    labels, _ = profile.kinds("labels")
    assert profile.name == name
    assert labels == profile.labels if name.startswith("pyramid") else profile.labels is None
    assert set(chain(*labels)) <= set(HeadLabel)
    assert HeadLabel.ANCHOR != HeadRole.ANCHOR and HeadLabel.ANCHOR not in profile.roles[0]


def test_a_model_of_another_size_has_no_default():
    with pytest.raises(HeadForcingError, match="7x5 heads; load one"):
        profiles.default_profile(7, 5)


def test_query_statistics_of_an_earlier_version_are_ignored():
    profile = measured(8, 6)
    data = json.loads(profile.to_json()) | {"queries": [[[1.0, -2.0, 3.0]] * 6] * 8}
    assert HeadProfile.from_json(json.dumps(data)) == profile


# one sink, one head that looks at the past and a little at the first frame, broad heads, and some
# that see their block
SMALL = (
    ((0.60, 0.30, 0.10), (0.06, 0.92, 0.02), (0.04, 0.50, 0.46), (0.03, 0.55, 0.42)),
    ((0.02, 0.08, 0.90), (0.03, 0.52, 0.45), (0.05, 0.15, 0.80), (0.02, 0.50, 0.48)),
)


def small(**fields) -> HeadProfile:
    options = {"shares": SMALL, "measured": {"window_frames": 21}} | fields
    return HeadProfile("tiny", 2, 4, classify(options["shares"] or SMALL), **options)


def test_the_quota_makes_an_anchor_of_a_head_that_retrieves_and_the_rule_by_function_a_memory_head():
    assert small().roles[0][:2] == ("anchor", "anchor") and misnamed_heads(small()) == [(0, 1)]
    (remark,) = remark_on_rule(small())
    assert "layer 0, head 1 (called anchor; 92% there, 6% on the first frame)" in remark
    found = with_rule(small(), "function")
    assert found.roles == (
        ("anchor", "memory", "memory", "memory"),
        ("local", "memory", "anchor", "local"),
    )
    assert not misnamed_heads(found) and found.counts()["memory"] == small().counts()["memory"]
    toy = load_profile(bundled_profiles()["toy_world"])
    assert toy.roles[4][3] == "anchor" and misnamed_heads(toy)[0] == (4, 3)
    assert with_rule(toy, "auto").roles[4][3] == "memory"
    options = RenderOptions(width=64, height=64)
    timeline = parse_timeline("a red ball in the navy room", 2.0)
    plans = [
        RenderPlan.of(assets.TOY_CONFIG, options, timeline, profile=used)
        for used in (toy, with_rule(toy, "function"))
    ]
    assert ["layer 4, head 3" in describe(plan, torch.float32) for plan in plans] == [True, False]


def test_auto_takes_the_rule_by_function_where_a_head_is_misnamed():
    clear = (((0.6, 0.3, 0.1), (0.3, 0.3, 0.4), (0.04, 0.9, 0.06), (0.03, 0.9, 0.07)), SMALL[1])
    assert with_rule(small(), "auto").provenance["rule"] == "function"
    assert with_rule(small(shares=clear), "auto").provenance["rule"] == "quota"
    assert with_rule(with_rule(small(), "function"), "quota").roles == small().roles
    by_function = with_rule(small(), "function")
    assert with_rule(by_function, "auto").roles == by_function.roles, (
        "whatever the roles of the file are"
    )


@pytest.mark.parametrize("window", [None, 1, 9, 21, 120])
def test_the_published_weights_have_as_many_anchors_by_function_as_by_quota_in_any_window(window):
    """The shares that others measured on 360 heads: few of them give the first frame much."""
    published = load_profile(bundled_profiles()["self_forcing"])
    noted = {} if window is None else {"window_frames": window}
    found = with_rule(replace(published, measured=noted), "auto")
    assert found.provenance["rule"] == "function" and len(misnamed_heads(published)) == 0
    assert found.counts() == {"local": 72, "anchor": 90, "memory": 198}
    by_quota = with_rule(published, "quota")
    assert by_quota.counts() == found.counts() and len(misnamed_heads(by_quota)) > 30


@pytest.mark.parametrize(
    ("frames", "prompts", "visited", "measured"),
    [
        (3, (0, 1, 1, 2, 2, 1, 1), range(3, 9), range(5, 7)),
        (5, (0, 1, 2, 1), range(5, 10), range(3, 4)),
        (1, (0,) * 3 + (1,) * 6 + (2,) * 6 + (1,) * 6, range(3, 9), range(15, 21)),
    ],
)
def test_a_return_story_fills_the_window_and_returns_behind_another_scene(
    frames, prompts, visited, measured
):
    setup = ProfileSetup("x", 2, 4, ("a", "b", "c"), 30, (1.0,), frames, 64, 64)
    story = ReturnStory.of(setup, 0)
    assert (story.prompts, story.visited, story.measured) == (prompts, visited, measured)
    assert ReturnStory.of(setup, 2).prompts[:2] == ((2, 0) if frames != 1 else (2, 2))
    assert 0.2 < story.even_share(frames) < 0.4


def test_a_window_of_less_than_four_blocks_holds_no_return_story():
    setup = ProfileSetup("x", 2, 4, ("a", "b", "c"), 30, (1.0,), 8, 64, 64)
    with pytest.raises(HeadForcingError, match="at least four blocks"):
        ReturnStory.of(setup, 0)


def test_thresholds_change_without_measuring_again():
    shares = random_shares(30, 12)
    paper = HeadProfile("p", 30, 12, classify(shares), shares)
    assert paper.counts() == {"local": 72, "anchor": 90, "memory": 198}, "as in the paper"
    changed = with_rule(paper, "quota", 0.35, 0.1)
    assert changed.counts() == {"local": 36, "anchor": 126, "memory": 198}
    assert (changed.anchor_fraction, changed.local_fraction) == (0.35, 0.1)
    assert with_rule(changed, "quota", 0.25, 0.2) == replace(paper, provenance={"rule": "quota"})
    for profile, words, told in (
        *(
            (paper, ("quota", fraction), "anchor_fraction must be")
            for fraction in (-0.01, float("nan"))
        ),
        (small(shares=None), ("function",), "has roles but no measured shares"),
        (small(), ("luck",), "rule"),
    ):
        with pytest.raises(HeadForcingError, match=told):
            with_rule(profile, *words)


def test_two_profiles_are_compared_in_text_and_json_as_worked_out_by_hand():
    found = compare_profiles(lettered("first", "LLA", "AMM"), lettered("second", "LAA", "LMM"))
    assert (found.same, found.heads, found.different) == (4, 6, ((0, 1), (1, 0)))
    assert found.to_dict()["agreement"] == pytest.approx(4 / 6)
    assert "4 of 6 heads have the same role in both (66.7%)" in found.text()
    # local, anchor, memory; rows are the first profile
    assert [list(row) for row in found.confusion] == [[1, 1, 0], [1, 1, 0], [0, 0, 2]]
    assert ["anchor", "in", "a", "1", "1", "0"] in [
        line.split() for line in found.text().splitlines()
    ]
    with pytest.raises(HeadForcingError, match=r"'first' \(1x3 heads\) and 'tall' \(3x1\)"):
        compare_profiles(lettered("first", "LAM"), lettered("tall", "L", "M", "A"))


def lettered(name: str, *layers: str, **more) -> HeadProfile:
    names = {"L": "local", "A": "anchor", "M": "memory"}
    roles = []
    for layer in layers:
        roles.append(tuple(names[letter] for letter in layer))
    return HeadProfile(name, len(roles), len(roles[0]), tuple(roles), **more)
