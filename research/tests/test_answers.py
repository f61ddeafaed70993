"""Tables of answers: means and differences are those of the videos, and a table says no more than they know."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from headforcing.headforcing_core.render.comparison import Entry
from headforcing.research.answers import ENOUGH, Answer, answer
from headforcing.research.questions import COLUMNS, QUESTIONS, Question, Rendered, Shuffles, sharing
from headforcing.research.rooms.tables import ROOMS_TABLES
from headforcing.research.statistics import Measured
from stored_answers import read_answer

TRUTH, OTHER, OURS = Rendered("rendered", False), Entry("other", "self_forcing"), Entry("ours", "head_forcing")
QUESTION = Question("Which?", "alone", (TRUTH, OTHER, OURS), ("shape", "motion"), "", "shape")
SHUFFLED = Entry("shuffled", "head_forcing", roles="shuffled")


def with_effect(effect: float):
    """Measure like a model: prompts differ much, methods little but always."""

    def measured(row, number):
        rng = np.random.default_rng(number)
        value = rng.uniform(0.3, 0.6) + (0.0 if row is OURS else effect + rng.normal(0, 0.01))
        return {"shape": value, "motion": value, "layout": None}

    return measured


def cells(told: Answer, row: int) -> list[str]:
    return [cell.strip() for cell in told.table().splitlines()[2 + row].split("|")[2:-1]]


def test_only_a_primary_endpoint_of_enough_videos_is_sure():
    told = answer(replace(QUESTION, columns=("shape", "layout", "motion")), ENOUGH, with_effect(0.2))
    assert told.table().startswith("|  | kind of shape | motion |\n"), "what nobody knows has no column"
    shape, motion = cells(told, 1)
    assert shape.startswith("**0.6") and motion.startswith("0.6") and "† (" in motion
    assert f"Means of {ENOUGH} videos with 95 % t intervals" in told.table()
    few = answer(QUESTION, ENOUGH - 1, with_effect(0.2))
    assert "† (" in cells(few, 1)[0] and "**0" not in few.table()
    assert f"{ENOUGH - 1} are too few for that" in few.table()
    assert "†" not in "".join(cells(answer(QUESTION, ENOUGH, with_effect(0.0)), 1))
    assert all("†" not in cell and "**" not in cell for cell in cells(few, 2)), "others differ from the last row"


def test_interval_and_test_must_agree():
    """Four small differences of one sign, the rest ties: the bootstrap called it sure."""

    def measured(row, number):
        return {"shape": 0.5 + (0.01 * (1 + number / 9) if row is OTHER and number < 5 else 0.0), "motion": None}

    found = answer(QUESTION, 10, measured).compared(1, "shape")
    assert found.interval.excludes(0) and found.p == 0.0625 and not found.clear


def test_holm_counts_the_methods_of_a_table_but_not_the_truth():
    rows = (TRUTH, *(Entry(f"method {i}", "self_forcing") for i in range(4)), OURS)
    told = answer(replace(QUESTION, rows=rows), ENOUGH, with_effect(0.2))
    assert told.endpoints == [(i, "shape") for i in range(1, 5)] and told.compared(0, "shape").holm is None
    assert told.compared(1, "shape").holm == pytest.approx(4 * told.compared(1, "shape").p, rel=1e-6)


def test_shuffles_are_a_factor_of_their_own():
    """Every shuffle is measured on every video; the row is marked only where nearly all of them lie on one side."""
    question = Question("Which?", "alone", (Shuffles(SHUFFLED, 20), OURS), ("shape",), "", "shape")
    for lowest, below in ((9.5, 10), (-0.5, 0)):
        seen = []

        def measured(row, number, lowest=lowest, seen=seen):
            seen.append((row.shuffle, number))
            away = 0.02 * (row.shuffle - lowest) if row.roles == "shuffled" else 0.0
            return {"shape": 0.5 + 0.1 * number + away + 0.001 * ((number + row.shuffle) % 3)}

        told = answer(question, 10, measured)
        assert set(itertools.product(range(20), range(10))) <= set(seen)
        assert told.compared(0, "shape").below == (below, 20) and told.compared(0, "shape").clear == (below == 0)
        line = f"each of 20 shuffles on all videos; of them below the last row: kind of shape {below}."
        assert line in told.table()
        again = read_answer(question, json.loads(json.dumps(told.to_dict())))
        assert again.table() == told.table() and again.compared(0, "shape").below == (below, 20)


@pytest.mark.parametrize(("away", "clear"), [((3.0, -0.1, -0.1), False), ((3.0, 0.1, 0.1), True)])
def test_a_row_of_shuffles_is_marked_only_where_they_lie_on_the_side_of_the_mean(away, clear):
    """Of three shuffles one with a large difference decides the mean; the two others are below the last row."""
    question = replace(QUESTION, rows=(Shuffles(SHUFFLED, 3), OURS), columns=("shape",))

    def shuffled(entry, number):
        return {"shape": 0.5 + 0.01 * (number % 3) * (entry is OURS) + (0 if entry is OURS else away[entry.shuffle])}

    assert answer(question, 12, shuffled).compared(0, "shape").clear == clear


def test_what_is_planned_is_told_without_an_interval():
    question = replace(QUESTION, rows=(OTHER, OURS), columns=("frames_a_head", "motion"), primary="motion")
    told = answer(question, 3, lambda entry, number: {"frames_a_head": 8.541666 if entry is OURS else 21.0})
    assert told.table().splitlines()[0] == "|  | frames a head |"
    assert told.table().splitlines()[2:4] == ["| other | 21 |", "| ours | 8.54 |"]


def test_the_json_holds_every_video_and_says_the_same():
    told = answer(QUESTION, 12, with_effect(0.2))
    stored = json.loads(json.dumps(told.to_dict()))
    assert [row["label"] for row in stored["rows"]] == ["rendered", "other", "ours"]
    for row in stored["rows"]:
        assert row["means"]["shape"]["mean"] == pytest.approx(np.mean([v["shape"] for v in row["videos"]]), abs=1e-5)
    assert stored["rows"][1]["difference_to_last"]["shape"]["mean"] == pytest.approx(0.2, abs=0.02)
    assert read_answer(QUESTION, stored).table() == told.table()
    del stored["rows"][0]  # a row that was added to the question later
    assert "| rendered | – | – |" in read_answer(QUESTION, stored).table()


def test_without_a_last_row_nothing_is_compared():
    question = Question("", "", (Entry("one", "head_forcing"), Entry("two", "head_forcing")), ("shape",))
    found = Answer(question, (Measured(({"shape": 1.0},) * 2), Measured()))
    assert found.compared(0, "shape") is None and not found.endpoints
    assert "| one | 1.000" in found.table() and "| two | – |" in found.table()


def test_tables_with_the_same_videos_say_so():
    told = sharing(QUESTIONS["components"])
    assert "rope (4 rows)" in told and "roles (3 rows)" in told and "length (4 rows)" in told
    assert "admission" not in told and sharing(ROOMS_TABLES["h3"].question) == ""


def test_questions_have_known_columns_and_shuffles_in_rows_of_shuffles():
    for question in [*QUESTIONS.values(), *(table.question for table in ROOMS_TABLES.values())]:
        assert not [row for row in question.rows if isinstance(row, Entry) and row.roles == "shuffled"]
        assert set(question.columns) <= set(COLUMNS), question.asks
    for name, table in ROOMS_TABLES.items():
        assert [row.encoded for row in table.question.rows if isinstance(row, Rendered)] == [False, True], name
