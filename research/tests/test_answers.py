"""Rows, and tables of answers: means and differences are those of the videos, and a table says no
more.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from headforcing.cli.cards import paper_heads
from headforcing.headforcing_core.cache.roles import RolePolicy
from headforcing.headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.research.claims.claims import PAPERS_ROWS
from headforcing.research.rooms.answers import Question, answer
from headforcing.research.rooms.tables import window
from headforcing.research.rows import MethodRow, Rendered, Shuffles
from stored_answers import read_answer

TRUTH = Rendered("rendered", False)
OTHER = MethodRow("other", "self_forcing")
OURS = MethodRow("ours", "head_forcing")
QUESTION = Question("Which?", "alone", (TRUTH, OTHER, OURS), ("shape", "outline", "layout"))
SHUFFLED = MethodRow("shuffled", "head_forcing", roles="shuffled")


def with_effect(effect: float, count: int = 12):
    """Measure like a model: prompts differ much, methods little but always, and nobody knows the
    layout.
    """

    def measured(row):
        draws = map(np.random.default_rng, range(count))
        values = [
            rng.uniform(0.3, 0.6) + (0.0 if row is OURS else effect + rng.normal(0, 0.01))
            for rng in draws
        ]
        return [{"shape": value, "outline": value, "layout": None} for value in values]

    return measured


def test_a_table_marks_what_differs_from_the_last_row_and_rows_without_numbers_are_empty():
    told = answer(QUESTION, with_effect(0.2))
    lines = told.table().splitlines()
    assert lines[0] == "|  | kind of shape | overlap with the outline |", (
        "what nobody knows has no column"
    )
    assert (
        "† (" in lines[3]
        and "†" not in lines[4]
        and "Means of 12 videos with 95 % t intervals" in lines[6]
    )
    assert "†" not in "".join(answer(QUESTION, with_effect(0.0)).table().splitlines()[:5])
    assert told.compared(1, "shape").interval.mean == pytest.approx(0.2, abs=0.02)
    stored = json.loads(json.dumps(told.to_dict()))
    del stored["rows"][0]  # a row that was added to the question later
    assert "| rendered | – | – |" in read_answer(QUESTION, stored).table()
    without = answer(QUESTION, lambda row: [] if row is OURS else with_effect(0.2)(row))
    assert without.compared(1, "shape") is None and "| ours | – | – |" in without.table()


def test_interval_and_test_must_agree():
    """Four small differences of one sign, the rest ties: the bootstrap called it sure."""
    found = answer(
        QUESTION,
        lambda row: [{"shape": 0.01 * (10 + i) * (row is OTHER and i < 5)} for i in range(10)],
    )
    test = found.compared(1, "shape")
    assert test.interval.excludes(0) and test.p == 0.0625 and not test.clear


@pytest.mark.parametrize(("lowest", "below"), [(9.5, 10), (-0.5, 0)])
def test_shuffles_are_a_factor_of_their_own(lowest, below):
    """Every shuffle is measured on every video; the row is marked only where nearly all of them lie
    on one side.
    """
    question = Question("Which?", "alone", (Shuffles(SHUFFLED, 20), OURS), ("shape",))

    def measured(row):
        away = 0.02 * (row.shuffle - lowest) if row.roles == "shuffled" else 0.0
        return [
            {"shape": 0.5 + 0.1 * i + away + 0.001 * ((i + row.shuffle) % 3)} for i in range(10)
        ]

    told = answer(question, measured)
    assert told.compared(0, "shape").below == (below, 20) and told.compared(0, "shape").clear == (
        below == 0
    )
    assert (
        f"each of 20 shuffles on all videos; of them below the last row: kind of shape {below}."
        in told.table()
    )


def test_every_ablation_differs_from_head_forcing_in_what_it_is_about():
    plain = window(9).method.memory
    sunk = window(9, sink=3).method.memory
    assert (
        plain.sink_frames,
        plain.recent_frames,
        sunk.sink_frames,
        sunk.recent_frames,
    ) == (0, 6, 3, 3)
    ours = PRESETS["head_forcing"]
    baseline = PAPERS_ROWS["A"].method
    allocated = PAPERS_ROWS["B"].method
    remembering = PAPERS_ROWS["C"].method
    last = PAPERS_ROWS["D"].method
    assert isinstance(allocated, HeadForcing) and isinstance(remembering, HeadForcing)
    assert {method.rope for method in (baseline, allocated, remembering)} == {"absolute"}
    assert last.rope == "contiguous"
    assert not baseline.heads_by and allocated.heads_by and last == ours
    assert (
        allocated.memory == RolePolicy(recent_frames=8) and remembering.memory.episodic_frames == 5
    )
    roles = ["profile"] * 4 + [
        "shuffled",
        "profile",
        "anchor_to_memory",
        "local_to_memory",
    ]
    assert [row.roles for row in PAPERS_ROWS.values()] == roles


def test_budgets_are_those_of_the_caches(repo_root):
    page = (repo_root / "research" / "README.md").read_text("utf-8").partition("## Budgets")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", page, re.MULTILINE)
    assert len(rows) == 10 and ("head_forcing", f"{72 * 4 + 90 * 7 + 198 * 11:,}") in rows
    config = WanConfig()
    minute = parse_timeline("a minute", 60.0)
    for method, told in rows:
        plan = RenderPlan.of(
            config, RenderOptions(method_name=method), minute, profile=paper_heads(config)
        )
        assert f"{plan.shape.frame_slots:,}" == told, method
