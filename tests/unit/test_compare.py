"""Comparing profiles, with numbers worked out by hand, and the soft remarks about a single one."""

import json

import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.agreement import compare_profiles, sanity_checks
from headforcing.headforcing_core.head_profiles.profile import HeadProfile

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


def test_the_counts_of_a_small_example_are_those_worked_out_by_hand():
    found = compare_profiles(A, B)
    assert (found.same, found.heads) == (4, 6) and found.agreement == pytest.approx(4 / 6)
    assert found.confusion == ((1, 1, 0), (1, 1, 0), (0, 0, 2))  # local, anchor, memory; rows are the first profile
    assert compare_profiles(A, A).agreement == 1


def test_different_dimensions_are_refused_with_both_names_and_sizes():
    with pytest.raises(HeadForcingError, match=r"'first' \(2x3 heads\) and 'tall' \(3x2\)"):
        compare_profiles(A, profile("tall", "LA", "MM", "AA"))


def test_rank_correlation_of_a_hand_computed_example_with_a_tie():
    """Ranks 1 2 3 4 against 1 2.5 2.5 4 (shares .1 .2 .2 .4): covariance 4.5, variances 5 and 4.5."""
    a = with_shares("a", ["AL", "MM"], [0.0, 0.1, 0.2, 0.3], [0.5, 0.4, 0.3, 0.2])
    b = with_shares("b", ["AL", "MM"], [0.1, 0.2, 0.2, 0.4], [0.1, 0.2, 0.3, 0.4])
    found = compare_profiles(a, b)
    assert found.sink_correlation == pytest.approx(4.5 / (5 * 4.5) ** 0.5)
    assert found.current_correlation == pytest.approx(-1)


def test_the_text_holds_every_number_and_the_dictionary_is_json():
    found = compare_profiles(A, B)
    rows = [line.split() for line in found.text().splitlines()]
    assert "4 of 6 heads have the same role in both (66.7%)" in found.text()
    assert ["anchor", "in", "a", "1", "1", "0"] in rows
    data = json.loads(json.dumps(found.to_dict()))
    assert data["confusion"] == [[1, 1, 0], [1, 1, 0], [0, 0, 2]] and data["same"] == 4
    assert data["agreement"] == pytest.approx(4 / 6) and data["name_b"] == "second"


def test_anchors_below_even_attention_are_counted_and_the_weakest_is_named():
    measured = {"window_frames": 10}
    found = sanity_checks(
        with_shares("p", ["AA", "LM"], [0.3, 0.05, 0.01, 0.02], [0.2, 0.2, 0.9, 0.3], measured=measured)
    )
    assert len(found) == 2 and "rule `function`" in found[1]
    assert found[0].startswith("1 of 2 anchors") and "(10.0%)" in found[0] and "layer 0, head 1 with 5.0%" in found[0]


def test_local_heads_that_look_elsewhere_are_remarked_on():
    found = sanity_checks(with_shares("p", ["LLM"], [0.0, 0.0, 0.0], [0.9, 0.4, 0.1]))
    assert len(found) == 1
    assert found[0].startswith("1 of 2 local heads") and "layer 0, head 1 with 40.0%" in found[0]


@pytest.mark.parametrize(
    "other",
    [B, with_shares("flat", ["LLA", "AMM"], [0.25] * 6, [0.25] * 6)],
    ids=["without shares", "all shares equal"],
)
def test_correlations_are_not_known_without_varying_shares_on_both_sides(other):
    a = with_shares("a", ["LLA", "AMM"], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.1] * 6)
    found = compare_profiles(a, other)
    assert found.sink_correlation is None and found.current_correlation is None
    assert "first frame not available" in found.text()


@pytest.mark.parametrize("window", [None, "10", 0, True, -3])
def test_an_unusable_window_leaves_the_anchors_without_a_remark(window):
    p = with_shares("p", ["AL"], [0.01, 0.0], [0.5, 0.9], measured={"window_frames": window})
    assert sanity_checks(p) == []
