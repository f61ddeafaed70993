"""Comparing profiles, with numbers worked out by hand, and the soft remarks about a single one."""

import json

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.agreement import compare_profiles, sanity_checks
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, bundled_profiles, load_profile

LETTERS = {"L": "local", "A": "anchor", "M": "memory"}


def profile(name, *layers, **more):
    roles = tuple(tuple(LETTERS[letter] for letter in layer) for layer in layers)
    return HeadProfile(name, len(roles), len(roles[0]), roles, **more)


def with_shares(name, layers, sinks, currents, **more):
    """A profile whose heads, counted through all layers, have these sink and current shares."""
    flat = [(sink, 1 - sink - current, current) for sink, current in zip(sinks, currents, strict=True)]
    width = len(layers[0])
    shares = tuple(tuple(flat[i : i + width]) for i in range(0, len(flat), width))
    return profile(name, *layers, shares=shares, **more)


A = profile("first", "LLA", "AMM")
B = profile("second", "LAA", "LMM")


def test_the_counts_of_a_small_example_are_those_worked_out_by_hand_in_text_and_json():
    found = compare_profiles(A, B)
    assert (found.same, found.heads, found.agreement) == (4, 6, pytest.approx(4 / 6))
    rows = [line.split() for line in found.text().splitlines()]
    assert "4 of 6 heads have the same role in both (66.7%)" in found.text()
    assert ["anchor", "in", "a", "1", "1", "0"] in rows
    data = json.loads(json.dumps(found.to_dict()))
    assert data["confusion"] == [[1, 1, 0], [1, 1, 0], [0, 0, 2]]  # local, anchor, memory; rows are the first profile
    assert data["agreement"] == pytest.approx(4 / 6) and data["name_b"] == "second"


def test_profiles_of_other_dimensions_are_refused():
    with pytest.raises(HeadForcingError, match=r"'first' \(2x3 heads\) and 'tall' \(3x2\)"):
        compare_profiles(A, profile("tall", "LA", "MM", "AA"))


def test_the_imported_lists_of_two_models_overlap_as_published():
    lists = {name: load_profile(bundled_profiles()[name]) for name in ("self_forcing", "longlive")}
    _, anchors, memory = compare_profiles(lists["self_forcing"], lists["longlive"]).confusion
    assert (sum(anchors), anchors[1] + memory[1], anchors[1]) == (134, 154, 129)


def test_heads_unlike_their_role_are_counted_and_the_one_that_is_furthest_off_is_named():
    weak = [0.3, 0.05, 0.01, 0.02], [0.2, 0.2, 0.9, 0.3]
    found = sanity_checks(with_shares("p", ["AA", "LM"], *weak, measured={"window_frames": 10}))
    assert len(found) == 2 and "rule `function`" in found[1]
    assert found[0].startswith("1 of 2 anchors") and "(10.0%)" in found[0] and "layer 0, head 1 with 5.0%" in found[0]
    (local,) = sanity_checks(with_shares("p", ["LLM"], [0.0, 0.0, 0.0], [0.9, 0.4, 0.1]))
    assert local.startswith("1 of 2 local heads") and "layer 0, head 1 with 40.0%" in local
    for window in (None, "10", 0, True, -3):  # that no share can be compared with
        assert (
            sanity_checks(with_shares("p", ["AL"], [0.01, 0.0], [0.5, 0.9], measured={"window_frames": window})) == []
        )
