"""Head profiles: classification, the file format, bundled files, and every way a file can be wrong."""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import replace

import pytest
from headforcing.headforcing_core.cache.policy import HeadRole
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.agreement import describe_profile
from headforcing.headforcing_core.head_profiles.profile import (
    MAX_FILE_BYTES,
    HeadProfile,
    bundled_profiles,
    classify,
    default_profile,
    load_profile,
    stability,
)
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint


def random_shares(layers: int, heads: int, seed: int = 0):
    draw = random.Random(seed)

    def one():
        parts = [draw.random() for _ in range(3)]
        return tuple(part / sum(parts) for part in parts)

    return tuple(tuple(one() for _ in range(heads)) for _ in range(layers))


def measured(layers: int = 5, heads: int = 3) -> HeadProfile:
    shares = random_shares(layers, heads)
    details = {"window_frames": 21, "rope": "absolute", "prompts_hash": "ab12", "seed": 7, "blocks": [3, 9], "steps": 4}
    note = {"source": "test", "licence": "Apache-2.0", "note": "ünïcode"}
    return HeadProfile("probe", layers, heads, classify(shares), shares, measured=details, provenance=note)


def test_anchors_rank_by_sink_share_and_come_before_local_heads():
    shares = [[(0.9, 0.0, 0.1), (0.3, 0.0, 0.7)], [(0.1, 0.1, 0.8), (0.0, 0.9, 0.1)]]
    assert classify(shares, 0.25, 0.25) == (("anchor", "memory"), ("local", "memory"))
    assert classify(shares, 0.5, 0.25) == (("anchor", "anchor"), ("local", "memory"))
    shares = [[(0.9, 0.1, 0.0)] * 3, [(0.1, 0.9, 0.0)] * 3]  # the ranking is over the whole model
    assert classify(shares, 0.5, 0.0) == (("anchor",) * 3, ("memory",) * 3)
    assert {role for row in classify(random_shares(2, 2), 0.75, 0.75) for role in row} == {"anchor", "local"}


def test_ties_go_to_the_lower_layer_and_head():
    shares = [[(0.2, 0.6, 0.2)] * 2] * 2
    assert classify(shares, 0.25, 0.25) == (("anchor", "local"), ("memory", "memory"))


@pytest.mark.parametrize(
    ("heads", "fraction", "anchors"), [(2, 0.25, 1), (6, 0.25, 2), (10, 0.35, 4), (50, 0.29, 15), (4, 0, 0), (4, 1, 4)]
)
def test_halves_round_up_as_a_person_expects(heads, fraction, anchors):
    roles = classify(random_shares(1, heads), fraction, 0.0)
    assert roles[0].count("anchor") == anchors


def test_thresholds_change_without_measuring_again():
    changed = measured(30, 12).with_thresholds(35, 10)
    assert changed.counts() == {"local": 36, "anchor": 126, "memory": 198}
    assert (changed.anchor_fraction, changed.local_fraction) == (0.35, 0.1)
    assert changed.with_thresholds(25, 20) == measured(30, 12)
    assert measured(30, 12).counts() == {"local": 72, "anchor": 90, "memory": 198}, "as in the paper"
    with pytest.raises(HeadForcingError, match="has roles only.*measured shares"):
        default_profile(30, 12).with_thresholds(25, 20)
    for percent in (-1, 101, float("nan"), float("inf")):
        with pytest.raises(HeadForcingError, match="anchor_fraction must be"):
            measured().with_thresholds(percent, 20)


def test_stability_is_shared_heads_over_mean_size():
    first = [["anchor", "anchor", "local", "memory"]]
    second = [["anchor", "memory", "local", "memory"]]
    assert stability([first, second]) == pytest.approx(
        {"local": 1, "anchor": 1 / 1.5, "memory": 1 / 1.5, "mean": 7 / 9}
    )
    assert stability([first])["mean"] == 1
    for wrong in ([], [first, [["anchor"]]]):
        with pytest.raises(HeadForcingError, match="stability needs"):
            stability(wrong)


def test_a_saved_profile_loads_equal_with_exact_shares(tmp_path):
    profile = replace(measured(), families=("self_forcing",))
    profile.save(tmp_path / "deep" / "probe.json")
    assert load_profile(tmp_path / "deep" / "probe.json") == profile
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["probe.json"]
    text = profile.to_json()
    assert sum(line.strip().startswith("[[") for line in text.splitlines()) == 5, "one layer a line"
    assert HeadProfile.from_json(json.dumps(json.loads(text) | {"colour": [1, 2]})) == profile


def test_names_of_roles_become_roles_where_they_are_read():
    profile = HeadProfile("p", 1, 3, (("local", "anchor", HeadRole.MEMORY),))
    assert profile.roles == (("local", "anchor", "memory"),) == HeadProfile.from_json(profile.to_json()).roles
    assert all(type(role) is HeadRole for role in profile.roles[0])


def test_a_profile_that_json_cannot_hold_is_not_written(tmp_path):
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(HeadForcingError, match="cannot be written"):
            replace(measured(), measured={"seed": value}).save(tmp_path / "p.json")
    assert not list(tmp_path.iterdir())


GOOD = json.loads(measured().to_json())


def without(key: str) -> dict:
    return {name: value for name, value in GOOD.items() if name != key}


def with_shares(entry: object) -> dict:
    return GOOD | {"shares": [[entry, *GOOD["shares"][0][1:]], *GOOD["shares"][1:]]}


def with_role(role: object) -> dict:
    return GOOD | {"roles": [[role, *GOOD["roles"][0][1:]], *GOOD["roles"][1:]]}


MALFORMED = {
    "zero bytes": ("", "JSON"), "not JSON": ("local anchor memory", "JSON"),
    "truncated": (json.dumps(GOOD)[:-200], "JSON"), "trailing data": (json.dumps(GOOD) + "{}", "JSON"),
    "binary": (b"\x80\x02\xff\xfe\x00", "not text"), "a pickle": (b"\x80\x04\x95\x1a\x00\x00\x00", "not text"),
    "UTF-16": (json.dumps(GOOD).encode("utf-16"), "not text"), "a list": ([GOOD], "JSON object"),
    "null": (None, "JSON object"), "nested 10,000 deep": ("[" * 10_000 + "]" * 10_000, "nested too deeply"),
    "roles nested 10,000 deep": ('{"format_version": 1, "roles": ' + "[" * 10_000, "nested too deeply|JSON"),
    "a number of 10,000 digits": ('{"format_version": ' + "1" * 10_000 + "}", "JSON|format_version"),
    "no version": (without("format_version"), "format_version must be"),
    "newer version": (GOOD | {"format_version": 2}, "must be 1, found 2; a profile of a newer version"),
    "version true": (GOOD | {"format_version": True}, "format_version must be"),
    "no name": (without("name"), "'name' is missing"), "no layers": (without("num_layers"), "'num_layers' is missing"),
    "no heads": (without("num_heads"), "'num_heads' is missing"), "no roles": (without("roles"), "'roles' is missing"),
    "empty name": (GOOD | {"name": " "}, "needs a name"), "name is a list": (GOOD | {"name": ["p"]}, "needs a name"),
    "layers as text": (GOOD | {"num_layers": "5"}, "num_layers must be a whole number"),
    "negative heads": (GOOD | {"num_heads": -3}, "num_heads must be a whole number"),
    "no layers at all": (GOOD | {"num_layers": 0, "roles": []}, "num_layers must be a whole number"),
    "wrong layer count": (GOOD | {"num_layers": 30}, "roles must have 30 layers, found 5"),
    "wrong head count": (GOOD | {"num_heads": 12}, "roles of layer 0 must have 12 heads, found 3"),
    "ragged roles": (GOOD | {"roles": [*GOOD["roles"][:4], ["local"]]}, "roles of layer 4 must have 3 heads, found 1"),
    "unknown role": (with_role("sink"), "roles of layer 0, head 0 must be local, anchor or memory, found 'sink'"),
    "role as number": (with_role(1), "roles of layer 0, head 0 must be"),
    "fewer share layers": (GOOD | {"shares": GOOD["shares"][:-1]}, "shares must have 5 layers, found 4"),
    "ragged shares": (GOOD | {"shares": [*GOOD["shares"][:4], []]}, "shares of layer 4 must have 3 heads, found 0"),
    "shares as text": (with_shares(["0.2", "0.3", "0.5"]), "must be three numbers from 0 with sum 1"),
    "shares as booleans": (with_shares([True, False, False]), "must be three numbers from 0 with sum 1"),
    "share missing": (with_shares([0.5, None, 0.5]), "must be three numbers from 0 with sum 1"),
    "NaN share": (with_shares([float("nan"), 0.5, 0.5]), "with sum 1, found nan, 0.5, 0.5"),
    "negative share": (with_shares([-0.2, 0.7, 0.5]), "sum 1"),
    "shares of 1.1": (with_shares([0.2, 0.4, 0.5]), "with sum 1, found 0.2, 0.4, 0.5"),
    "fraction in percent": (GOOD | {"anchor_fraction": 25}, "anchor_fraction must be a number in 0-1, found 25"),
    "fraction NaN": (GOOD | {"local_fraction": float("nan")}, "local_fraction must be"),
    "families as text": (GOOD | {"families": "self_forcing"}, "families must be a list"),
    "larger than 16 MB": (" " * (MAX_FILE_BYTES + 1), "larger than any head profile"),
    "version zero": (GOOD | {"format_version": 0}, "format_version must be"),
    "version as text": (GOOD | {"format_version": "1"}, "format_version must be"),
    "layers as float": (GOOD | {"num_layers": 5.0}, "num_layers must be a whole number"),
    "a billion layers": (GOOD | {"num_layers": 10**9}, "roles must have 1000000000 layers"),
    "roles as text": (GOOD | {"roles": "local"}, "roles must have 5 layers, found 'local'"),
    "a layer as text": (GOOD | {"roles": ["abc"] * 5}, "roles of layer 0 must have 3 heads"),
    "role as list": (with_role(["local"]), "roles of layer 0, head 0 must be"),
    "two shares": (with_shares([0.5, 0.5]), "shares of layer 0, head 0 must be three numbers from 0 with sum 1"),
    "infinite share": (with_shares([float("inf"), 0.0, 0.0]), "sum 1"),
    "shares of 0.99": (with_shares([0.2, 0.4, 0.39]), "sum 1"),
    "shares in percent": (with_shares([20, 30, 50]), "sum 1"),
    "huge share": (with_shares([10**400, 0.5, 0.5]), "sum 1"),
    "fraction as text": (GOOD | {"local_fraction": "0.2"}, "local_fraction must be"),
    "family as number": (GOOD | {"families": [1]}, "families must be a list"),
    "measured as list": (GOOD | {"measured": []}, "measured must be an object"),
    "provenance as text": (GOOD | {"provenance": "mine"}, "provenance must be an object"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_gives_one_clear_error_at_once(case, tmp_path):
    content, message = MALFORMED[case]
    path = tmp_path / "broken.json"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    start = time.process_time()
    with pytest.raises(HeadForcingError, match=message) as error:
        load_profile(path)
    assert time.process_time() - start < 1
    text = str(error.value)
    assert text.startswith("broken.json: ")
    assert len(text) < 300 and "\n" not in text


def test_something_that_is_not_a_file_gives_one_clear_error(tmp_path):
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path, tmp_path / "missing.json", tmp_path / "loop.json", tmp_path / "pipe.json", "nul\0.json"):
        with pytest.raises(HeadForcingError, match="found a folder or nothing|cannot be read"):
            load_profile(path)


@pytest.mark.parametrize(("name", "size", "counts"), [
    ("self_forcing", (30, 12), {"local": 0, "anchor": 134, "memory": 226}),
    ("causal_forcing", (30, 12), {"local": 0, "anchor": 134, "memory": 226}),
    ("raven", (30, 12), {"local": 0, "anchor": 134, "memory": 226}),
    ("longlive", (30, 12), {"local": 0, "anchor": 154, "memory": 206}),
    ("krea_14b", (40, 40), {"local": 0, "anchor": 800, "memory": 800}),
    ("toy_world", (8, 6), {"local": 10, "anchor": 12, "memory": 26}),
    ("pyramid_self_forcing", (30, 12), {"local": 156, "anchor": 32, "memory": 172}),
    ("consensus_self_forcing", (30, 12), {"local": 102, "anchor": 96, "memory": 162}),
])  # fmt: skip
def test_bundled_profiles_load_and_say_where_they_come_from(name, size, counts):
    profile = load_profile(bundled_profiles()[name])
    assert (profile.num_layers, profile.num_heads) == size
    assert profile.counts() == counts
    assert {"source", "licence", "note"} <= set(profile.provenance)
    if name in ("self_forcing", "causal_forcing", "raven", "longlive", "krea_14b"):
        assert "NOT the paper's three-way measurement" in profile.provenance["note"]
    assert profile.to_json() == bundled_profiles()[name].read_text()
    if name == "toy_world":  # a measurement of the embedded model
        assert profile.roles == classify(profile.shares)
        assert profile.measured["fingerprint"] == inspect_checkpoint(assets.model_path()).fingerprint


def test_the_default_follows_the_family_and_then_the_size():
    assert default_profile(30, 12).name == "self_forcing"
    assert default_profile(30, 12, "longlive").name == "longlive"
    assert default_profile(30, 12, "causal_forcing_chunkwise").name == "causal_forcing"
    assert default_profile(30, 12, "unheard of").name == "self_forcing"
    assert default_profile(40, 40).name == "krea_14b"
    assert default_profile(8, 6).name == "toy_world"
    with pytest.raises(HeadForcingError, match="7x5 heads; load one"):
        default_profile(7, 5, "self_forcing")


def test_labels_are_for_methods_that_use_them():
    labelled = default_profile(30, 12, "self_forcing", labelled=True)
    assert labelled.name == "pyramid_self_forcing"
    assert labelled.heads_for(labelled=True) == labelled.labels and labelled.heads_for(labelled=False) == labelled.roles
    toy = default_profile(8, 6, labelled=True)
    assert toy.labels is None and toy.name == "toy_world"
    assert [set(row) for row in toy.heads_for(labelled=True)[:1]] <= [{"wave", "anchor", "veil"}]
    with pytest.raises(HeadForcingError, match="labels of layer 0, head 0 must be wave, anchor or veil, found 'local'"):
        HeadProfile("p", 1, 1, [["local"]], labels=[["local"]])


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
    told = describe_profile(consensus)
    assert told[0] == "102 local, 96 anchor, 162 memory" and any("cohen_kappa 0.5935" in line for line in told)
    assert told[-1].startswith("disputed: 74 of 360 heads, hatched in the plot (layer 0: 0 1 7 9 10; layer 1: 0 3")
    roles = [[("memory" if a and b else "other") for a, b in row] for row in broad]
    assert roles == [["memory" if role == "memory" else "other" for role in row] for row in consensus.roles]


def test_query_statistics_are_checked_and_older_files_have_none():
    profile = default_profile(8, 6)
    values = [[[1.0, -2.0, 0.5, 0.0, 3.0, 2.0] for _ in range(6)] for _ in range(8)]
    data = json.loads(replace(profile, queries=values).to_json())
    assert HeadProfile.from_json(json.dumps(data)).query_statistics.mean[7, 5].tolist() == [1 + 0.5j, -2 + 0j]
    assert HeadProfile.from_json(json.dumps(data)).query_statistics.size[7, 5].tolist() == [3.0, 2.0]
    older = {key: value for key, value in data.items() if key != "queries"}
    assert HeadProfile.from_json(json.dumps(older)).query_statistics is None
    for wrong in ([1.0, 2.0], [], "abc", [1.0, 1.0, -1.0], [1.0, float("nan"), 1.0], None):
        data["queries"][3][2] = wrong
        with pytest.raises(HeadForcingError, match="queries of layer 3, head 2 must be finite numbers in threes"):
            HeadProfile.from_json(json.dumps(data))
    data["queries"][3][2] = [1.0, 2.0, 3.0]
    with pytest.raises(HeadForcingError, match="the same number of values for every head"):
        HeadProfile.from_json(json.dumps(data))
