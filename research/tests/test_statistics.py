"""Intervals and tests on synthetic numbers whose truth is known, and what a table may call sure."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from headforcing.headforcing_core.render.comparison import Entry
from headforcing.research.answers import ENOUGH, Answer, answer
from headforcing.research.questions import COLUMNS, QUESTIONS, Question, Rendered, Shuffles, sharing
from headforcing.research.rooms.tables import ROOMS_TABLES
from headforcing.research.statistics import DRAWS, differences, holm, mean_interval, sign_flip_p, t_quantile
from stored_answers import read_answer

# --- intervals


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (9, 2.2622), (31, 2.0395), (199, 1.972)])
def test_quantiles_of_students_t_are_those_of_the_tables(freedom: int, quantile: float):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


@pytest.mark.parametrize(
    ("count", "draw", "least"), [(10, "normal", 0.94), (32, "normal", 0.94), (32, "skewed", 0.915)]
)
def test_an_interval_holds_the_truth_in_95_of_100_samples(count: int, draw: str, least: float):
    rng = np.random.default_rng(0)
    size = (3000, count)
    samples = rng.normal(0.0, 1.0, size) if draw == "normal" else rng.exponential(1.0, size) - 1
    held = np.mean([not mean_interval(list(sample)).excludes(0.0) for sample in samples])
    assert least < held < 0.965


def test_unknown_values_are_left_out_and_one_value_is_never_sure():
    assert mean_interval([None, float("nan")]) is None and sign_flip_p([None]) is None
    found = mean_interval([1.0, None, 3.0])
    assert (found.mean, found.count) == (2.0, 2) and found.high == pytest.approx(2 + 12.7062, abs=1e-3)
    assert mean_interval([2.0]).low == mean_interval([2.0]).high == 2.0 and not mean_interval([2.0]).excludes(0.0)


def test_a_paired_difference_is_narrower_than_two_means():
    rng = np.random.default_rng(1)
    prompts = rng.normal(0, 5, 40)
    worse, better = prompts + rng.normal(0, 0.1, 40), prompts + 0.5 + rng.normal(0, 0.1, 40)
    assert mean_interval(differences(better, worse)).excludes(0)
    assert mean_interval(better).low < mean_interval(worse).high  # alone they overlap
    assert mean_interval(differences([1.0, None, 5.0], [0.5, 2.0, None])).count == 1


# --- exact tests


@pytest.mark.parametrize("seed", range(4))
def test_the_sign_flip_test_is_exact_up_to_16_values(seed: int):
    values = np.random.default_rng(seed).normal(0.4, 1.0, 7).tolist()
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in itertools.product((1, -1), repeat=7)
    ]
    assert sign_flip_p(values) == pytest.approx(np.mean([total >= abs(sum(values)) - 1e-9 for total in sums]))
    assert sign_flip_p([1.0] * 16) == 2 / 2**16
    assert sign_flip_p([1.0, 2.0, 3.0, 4.0] + 6 * [0.0]) == 0.125, "four of one sign and six ties say little"
    assert sign_flip_p([0.0, 0.0]) == 1.0


def test_with_more_values_20000_signs_are_drawn_and_the_same_each_time():
    values = np.random.default_rng(3).normal(0.0, 1.0, 40).tolist()
    assert 0 < sign_flip_p(values) < 1 and sign_flip_p(values) == sign_flip_p(values)
    assert sign_flip_p([1.0] * 40) == pytest.approx(1 / (DRAWS + 1)), "never 0"


def test_the_test_is_wrong_in_no_more_than_5_of_100_cases_without_a_difference():
    rng = np.random.default_rng(5)
    skewed = rng.exponential(1.0, (400, 8)) * rng.choice((-1, 1), (400, 8))
    assert np.mean([sign_flip_p(list(sample)) <= 0.05 for sample in skewed]) < 0.075


def test_holms_adjustment_is_the_published_one():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []
    rng = np.random.default_rng(6)
    families = rng.uniform(size=(1000, 6))  # without any difference
    assert np.mean([min(holm(list(family))) <= 0.05 for family in families]) < 0.07


# --- what a table says

OTHER, OURS = Entry("other", "self_forcing"), Entry("ours", "head_forcing")
QUESTION = Question("Which?", "alone", (Rendered("rendered", False), OTHER, OURS), ("shape", "motion"), "", "shape")


def with_effect(effect: float):
    def measured(row, number):
        rng = np.random.default_rng(number)
        base = rng.uniform(0.3, 0.6)
        gain = 0.0 if row is OURS else effect + rng.normal(0, 0.01)
        return {"shape": base + gain, "motion": base + gain}

    return measured


def cells(told: Answer, row: int) -> list[str]:
    return [cell.strip() for cell in told.table().splitlines()[2 + row].split("|")[2:-1]]


def test_only_a_primary_endpoint_of_enough_videos_is_sure():
    shape, motion = cells(answer(QUESTION, ENOUGH, with_effect(0.2)), 1)
    assert shape.startswith("**0.6") and motion.startswith("0.6") and "† (" in motion
    few = answer(QUESTION, ENOUGH - 1, with_effect(0.2))
    assert "† (" in cells(few, 1)[0] and "**0" not in few.table()
    assert f"{ENOUGH - 1} are too few for that" in few.table()
    assert "†" not in "".join(cells(answer(QUESTION, ENOUGH, with_effect(0.0)), 1))
    assert all("†" not in cell and "**" not in cell for cell in cells(few, 2)), (
        "the last row is what others differ from"
    )


def test_interval_and_test_must_agree():
    """Four small differences of one sign, the rest ties: the bootstrap called it sure."""

    def measured(row, number):
        return {"shape": 0.5 + (0.01 * (1 + number / 9) if row is OTHER and number < 5 else 0.0), "motion": None}

    told = answer(QUESTION, 10, measured)
    found = told.compared(1, "shape")
    assert found.interval.excludes(0) and found.p == 0.0625 and not found.clear


def test_holm_counts_the_methods_of_a_table_but_not_the_truth():
    rows = (Rendered("rendered", False), *(Entry(f"method {i}", "self_forcing") for i in range(4)), OURS)
    question = Question("Which?", "alone", rows, ("shape",), "", "shape")
    told = answer(question, ENOUGH, with_effect(0.2))
    assert told.endpoints == [(i, "shape") for i in range(1, 5)] and told.compared(0, "shape").holm is None
    assert told.compared(1, "shape").holm == pytest.approx(4 * told.compared(1, "shape").p, rel=1e-6)


def test_shuffles_are_a_factor_of_their_own():
    """Every shuffle is measured on every video; the row is marked only where nearly all of them lie on one side."""
    entry = Entry("shuffled", "head_forcing", roles="shuffled")
    question = Question("Which?", "alone", (Shuffles(entry, 20), OURS), ("shape",), "", "shape")
    seen = []

    def measured(row, number):
        seen.append((row.shuffle, number))
        away = 0.02 * (row.shuffle - lowest) if row.roles == "shuffled" else 0.0
        return {"shape": 0.5 + 0.1 * number + away + 0.001 * ((number + row.shuffle) % 3)}

    lowest = 9.5
    told = answer(question, 10, measured)
    assert set(itertools.product(range(20), range(10))) <= set(seen)
    assert told.compared(0, "shape").ranked == (10, 20) and not told.compared(0, "shape").clear
    assert "each of 20 shuffles on all videos; of them below the last row: kind of shape 10." in told.table()
    lowest = -0.5
    told = answer(question, 10, measured)
    assert told.compared(0, "shape").ranked == (0, 20) and told.compared(0, "shape").clear
    again = read_answer(question, json.loads(json.dumps(told.to_dict())))
    assert again.table() == told.table() and again.compared(0, "shape").ranked == (0, 20)


def test_a_stored_answer_says_the_same():
    told = answer(QUESTION, 12, with_effect(0.1))
    stored = json.loads(json.dumps(told.to_dict()))
    assert read_answer(QUESTION, stored).table() == told.table()
    del stored["rows"][0]  # a row that was added to the question later
    assert "| rendered | – | – |" in read_answer(QUESTION, stored).table()


def test_without_a_last_row_nothing_is_compared():
    question = Question("", "", (Entry("one", "head_forcing"), Entry("two", "head_forcing")), ("shape",))
    found = Answer(question, (({"shape": 1.0},) * 2, ()))
    assert found.compared(0, "shape") is None and not found.endpoints
    assert "| one | 1.000" in found.table() and "| two | – |" in found.table()


def test_tables_with_the_same_videos_say_so():
    told = sharing(QUESTIONS["components"])
    assert "rope (4 rows)" in told and "roles (3 rows)" in told and "length (4 rows)" in told
    assert "admission" not in told and sharing(ROOMS_TABLES["h3"].question) == ""


def test_shuffles_belong_into_a_row_of_shuffles():
    for question in [*QUESTIONS.values(), *(table.question for table in ROOMS_TABLES.values())]:
        assert not [row for row in question.rows if isinstance(row, Entry) and row.roles == "shuffled"]


def test_every_table_of_the_rooms_has_rows_of_the_truth_and_known_columns():
    for name, table in ROOMS_TABLES.items():
        assert [row.encoded for row in table.question.rows if isinstance(row, Rendered)] == [False, True], name
        assert set(table.question.columns) <= set(COLUMNS), name
