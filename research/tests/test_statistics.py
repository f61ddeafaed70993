"""Intervals and tests on synthetic numbers whose truth is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from headforcing.research.statistics import (
    DRAWS,
    Measured,
    differences,
    holm,
    mean_interval,
    mean_of,
    sign_flip_p,
)


@pytest.mark.parametrize(("count", "draw", "least"), [(10, "normal", 0.94), (32, "skewed", 0.915)])
def test_an_interval_holds_the_truth_in_95_of_100_samples(count: int, draw: str, least: float):
    rng = np.random.default_rng(0)
    size = (3000, count)
    samples = rng.normal(0.0, 1.0, size) if draw == "normal" else rng.exponential(1.0, size) - 1
    held = np.mean([not mean_interval(list(sample)).excludes(0.0) for sample in samples])
    assert least < held < 0.965


def test_reach_is_that_of_the_tables_of_t_unknown_values_are_left_out_and_one_value_is_never_sure():
    for freedom, quantile in (
        (1, 12.7062),
        (2, 4.3027),
        (9, 2.2622),
        (31, 2.0395),
        (199, 1.972),
    ):
        values = [float(i) for i in range(freedom + 1)]
        found = mean_interval([None, *values, float("nan")])
        reach = quantile * np.std(values, ddof=1) / (freedom + 1) ** 0.5
        assert (found.high - found.mean, found.count) == (
            pytest.approx(reach, rel=1e-4),
            freedom + 1,
        )
    assert mean_interval([None, float("nan")]) is None and sign_flip_p([None]) is None
    assert differences([1.0, None, 5.0], [0.5, 2.0, None]) == [0.5, None, None]
    assert mean_interval([2.0]).low == mean_interval([2.0]).high == 2.0 and not mean_interval(
        [2.0]
    ).excludes(0.0)


@pytest.mark.parametrize("seed", range(4))
def test_the_sign_flip_test_is_exact_up_to_16_values(seed: int):
    values = np.random.default_rng(seed).normal(0.4, 1.0, 7).tolist()
    signs = np.array(list(itertools.product((1, -1), repeat=7)))
    sums = np.abs(signs @ np.array(values))
    assert sign_flip_p(values) == pytest.approx(np.mean(sums >= abs(sum(values)) - 1e-9))
    assert sign_flip_p([1.0] * 16) == 2 / 2**16
    assert sign_flip_p([1.0, 2.0, 3.0, 4.0] + 6 * [0.0]) == 0.125, (
        "four of one sign and six ties say little"
    )
    assert sign_flip_p([0.0, 0.0]) == 1.0


def test_with_more_values_20000_signs_are_drawn_and_the_same_each_time():
    values = np.random.default_rng(3).normal(0.0, 1.0, 40).tolist()
    assert 0 < sign_flip_p(values) < 1 and sign_flip_p(values) == sign_flip_p(values)
    assert sign_flip_p([1.0] * 40) == pytest.approx(1 / (DRAWS + 1)), "never 0"
    skewed = np.random.default_rng(5).exponential(1.0, (400, 8)) * np.random.default_rng(6).choice(
        (-1, 1), (400, 8)
    )
    assert np.mean([sign_flip_p(list(sample)) <= 0.05 for sample in skewed]) < 0.075, (
        "wrong in 5 of 100 cases"
    )


def test_holms_adjustment_is_the_published_one():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0] and holm([]) == []


def test_a_mean_of_one_video_needs_all_its_numbers_where_it_decides_and_one_where_it_describes():
    assert mean_of([[1.0, None, 0.0], [0.0, 1.0, 0.0]]) == [0.5, None, 0.0]
    shuffles = [[{"a": 1.0, "b": None}], [{"a": 3.0, "b": 1.0}]]
    for decides, b in ((True, None), (False, 1.0)):
        assert Measured.of_shuffles(shuffles, decides).videos == [{"a": 2.0, "b": b}]
