"""The rule of the pre-registration: every verdict can be reached, and the bounds are where they
were written down.
"""

from __future__ import annotations

import random

import pytest
from headforcing.research.rooms import returning, verdicts
from headforcing.research.rooms.tables import ABLATED, NO_MEMORY, OURS, ROOMS_TABLES
from headforcing.research.rooms.verdicts import FACTS
from headforcing.research.statistics import corrected


def around(mean, spread=0.01, count=64, seed=0):
    """Values with exactly this mean."""
    draw = random.Random(seed)
    values = []
    for _ in range(count // 2):
        offset = draw.uniform(0, spread)
        values += [mean + offset, mean - offset]
    return values


@pytest.mark.parametrize(
    ("values", "above", "below", "outcome"),
    [
        (around(0.12), 0.10, 0.10, "supports"),
        (around(0.08), 0.10, 0.10, "refutes"),
        (around(0.10), 0.10, 0.10, "undecided"),
        (
            around(0.11, 0.4),
            0.10,
            0.10,
            "undecided",
        ),  # the mean is above the bound, its interval is not
        (around(0.09, 0.4), 0.10, 0.10, "undecided"),
        (
            [0.125] * 64,
            0.125,
            0.125,
            "undecided",
        ),  # a bound that is met is not passed
        (around(0.02), 0.05, 0.0, "undecided"),
        (around(-0.02), 0.05, 0.0, "refutes"),
        (around(0.5, count=30), 0.10, 0.10, "undecided"),  # too few
        ([None] * 40 + around(0.5, count=24), 0.10, 0.10, "undecided"),
        ([None] * 64, 0.10, 0.10, "not measured"),
    ],
)
def test_a_difference_is_decided_by_its_interval(values, above, below, outcome):
    assert verdicts.difference("H1", "", values=values, above=above, below=below).outcome == outcome


def test_what_is_tested_is_the_bound_that_was_passed():
    far = around(0.5)
    near = around(0.1003, 0.0016)
    assert verdicts.difference("H1", "", values=far, above=0.10, below=0.10).p < 0.001
    assert 0.001 < verdicts.difference("H1", "", values=near, above=0.10, below=0.10).p < 0.5
    assert verdicts.difference("H5", "", values=around(-0.02), above=0.05, below=0.0).p < 0.001
    gates = [
        verdicts.gate(*effects).outcome for effects in ((0.4, 0.6), (0.399, 0.9), (0.9, 0.599))
    ]
    assert gates == ["supports", "refutes", "refutes"]


def shuffles(better, count=20, gain=0.01):
    """Differences of which the profile is better in so many; their mean is 0 for half of them."""
    return [around(gain if i < better else -gain, seed=i) for i in range(count)]


@pytest.mark.parametrize(
    ("better", "gain", "even", "outcome"),
    [
        (20, 0.1, 0.05, "supports"),
        (19, 0.1, 0.05, "supports"),
        (18, 0.1, 0.05, "undecided"),
        (19, 0.1, 0.0, "undecided"),  # no better than uniform memory
        (10, 0.01, 0.05, "refutes"),
        (15, 0.01, 0.05, "refutes"),
        (5, 0.01, 0.05, "refutes"),
        (4, 0.01, 0.05, "undecided"),  # out of the middle half
        (16, 0.01, 0.05, "undecided"),
        (
            15,
            0.2,
            0.05,
            "undecided",
        ),  # in the middle half, but the mean is 0.1 away
    ],
)
def test_roles_are_decided_by_their_rank_and_by_uniform_memory(better, gain, even, outcome):
    assert verdicts.roles_matter(shuffles(better, gain=gain), around(even)).outcome == outcome


def test_few_shuffles_or_a_lead_over_uniform_memory_alone_decide_nothing_of_the_roles():
    """19 of 20 tiny gains; what is left of them over the videos is noise."""
    found = verdicts.roles_matter(
        [around(0.001 if i else -0.001, 0.1) for i in range(20)], around(0.5)
    )
    assert found.numbers["better"] == 19 and found.outcome == "undecided" and found.p > 0.05
    assert verdicts.roles_matter(shuffles(20, gain=0.1), around(0.5)).p < 0.001
    assert verdicts.roles_matter(shuffles(19, count=19), around(0.5)).outcome == "undecided"
    assert verdicts.roles_matter([], around(0.5)).outcome == "not measured"


def costs(own, **own_of):
    found = {}
    for role, mine in FACTS.items():
        means = dict.fromkeys(FACTS.values(), 0.0)
        means[mine] = own_of.get(role, own)
        found[role] = {fact: around(mean, seed=len(fact)) for fact, mean in means.items()}
    return found


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        (costs(1.0), "supports"),
        (costs(-1.0), "refutes"),
        (costs(1.0, anchor=-1.0), "undecided"),
        (costs(-1.0, anchor=1.0), "undecided"),
        (
            costs(1.0, local=0.0005),
            "undecided",
        ),  # the largest, but not surely ahead
        ({}, "not measured"),
        (
            {role: facts for role, facts in costs(1.0).items() if role != "local"},
            "not measured",
        ),
    ],
)
def test_names_of_heads_are_decided_by_what_each_costs(found, outcome):
    assert verdicts.names_of_heads(found).outcome == outcome


def test_costs_are_in_standard_deviations_and_positive_where_it_gets_worse():
    whole = [{"layout": 1.0, "identity": 1.0, "place_error": 1.0}] * 4
    worse = [{"layout": 0.0, "identity": 1.0, "place_error": 3.0}] * 4
    found = verdicts.costs_of(whole, {"local": whole, "anchor": whole, "memory": worse})
    assert found["memory"]["identity"] == [0.0] * 4  # equal everywhere: nothing is lost
    assert found["local"]["layout"] == [0.0] * 4
    assert found["memory"]["layout"] == pytest.approx(
        [(15 / (12 * 1 / 4 * 3 / 4 * 16 / 12)) ** 0.5] * 4
    )
    assert found["memory"]["place_error"] == pytest.approx(found["memory"]["layout"])


def test_what_was_not_measured_makes_the_correction_no_weaker():
    one = verdicts.difference("H1", "", values=around(0.5), above=0.1, below=0.1)
    found = corrected(
        [
            one,
            *(verdicts.difference(f"H{i}", "", values=[], above=0, below=0) for i in range(2, 6)),
        ]
    )
    assert found[0].holm == pytest.approx(5 * one.p) and found[0].sure and not found[1].sure
    table = verdicts.verdict_table([verdicts.gate(0.5, 0.7), *found])
    assert "supported (sure)" in table and "supported |" in table
    assert table.count("not measured") == 4


def layouts(*means, count=returning.VIDEOS):
    """Videos of the rows of `returns`: ceiling, floor, scenes by quota, scenes by function,
    control.
    """
    others = dict.fromkeys(returning.COLUMNS, 1.0)
    rows = {}
    for row, mean in zip(returning.ROWS, means, strict=True):
        rows[row] = [others | {"layout": value} for value in around(mean, 0.02, count)]
    return rows


@pytest.mark.parametrize(
    ("videos", "outcomes"),
    [
        (layouts(0.95, 0.03, 0.75, 0.9, 0.7), ["supports", "supports"]),
        (
            layouts(0.95, 0.03, 0.60, 0.7, 0.7),
            ["undecided", "refutes"],
        ),  # a gain, but below what was asked
        (layouts(0.95, 0.03, 0.30, 0.1, 0.7), ["refutes", "refutes"]),
        (
            layouts(0.50, 0.03, 0.45, 0.4, 0.1),
            ["undecided", "undecided"],
        ),  # ceiling and floor are too near
        (
            layouts(0.90, 0.00, 0.80, 0.9, 0.1, count=18),
            ["undecided", "undecided"],
        ),  # too few
    ],
)
def test_rooms_that_come_back_follow_the_second_rule(videos, outcomes):
    assert [verdict.outcome for verdict in returning.verdicts_of(videos)] == outcomes
    assert all(f"| {row} |" in returning.table(videos) for row in returning.ROWS)


def test_the_tables_are_those_of_the_pre_registration(repo_root):
    page = (repo_root / "research" / "evidence" / "PREREGISTRATION.md").read_text("utf-8")
    shared = (
        OURS,
        NO_MEMORY,
        "rendered",
        "window of 9, re-encoded",
        "window of 21, re-encoded",
    )
    for table in ROOMS_TABLES.values():
        assert f"{table.first:,} to {table.first + 63:,}".replace(",", " ") in page
        labels = [row.label for row in table.rows]
        assert set(shared) <= set(labels) and labels[-1] == OURS
        assert ("all frames" in labels) == (table.story == "twelve_blocks")
    assert set(ABLATED) == set(FACTS)
