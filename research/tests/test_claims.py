"""Verdicts about the paper's figures: the rule, its statistics, and what is said where nothing is known."""

from __future__ import annotations

import numpy as np
import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from headforcing.headforcing_core.report.learned.registry import COLUMNS as MODELLED
from headforcing.headforcing_core.report.learned.registry import METRICS
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.research.claims import claims
from headforcing.research.claims.claims import Measured, claim_rows, lines_of, named_rows, page
from headforcing.research.claims.paper_numbers import BESIDE, COLUMNS, REPORTED
from headforcing.research.prompts import RESERVED_PROMPTS
from headforcing.research.questions import UNJUDGED, Shuffles
from headforcing.research.statistics import holm, sign_flip_p
from headforcing.research.vbench import COLUMNS as OF_VBENCH


def rows(differences: dict, videos: int = 32, spread: float = 0.1) -> dict[str, Measured]:
    """Head Forcing and the baseline, whose numbers differ by so much in the paper's units, give or take."""
    rng = np.random.default_rng(1)
    ours, theirs = [], []
    for _ in range(videos):
        base = {key: rng.uniform() for key in differences}
        noise = {key: spread * rng.normal() for key in differences}
        theirs.append(base)
        ours.append({key: base[key] + (mean + noise[key]) / 100 for key, mean in differences.items()})
    return {"A": Measured({"one_prompt": theirs}), "D": Measured({"one_prompt": ours})}


def verdicts(differences: dict, **how) -> dict[str, str]:
    return {line.reported.column: line.verdict for line in lines_of(rows(differences, **how), {})}


def test_a_verdict_needs_the_sign_and_half_of_the_size():
    found = verdicts(
        {"dynamic_degree_within": 9.0, "flicker": -0.3, "aesthetic_quality": 0.5, "vbench_motion_smoothness": 0.0}
    )
    assert found["dynamic"] == "agrees"
    assert found["flicker"] == "disagrees", "worse"
    assert found["aesthetic"] == "disagrees", "better, but the paper's difference is 4.19"
    assert found["imaging"] == found["quality"] == "not measured"


def test_what_is_not_sure_is_undecided():
    assert verdicts({"flicker": 0.16}, spread=1.0)["flicker"] == "undecided"
    assert verdicts({"flicker": 0.16}, spread=0.01)["flicker"] == "agrees"
    assert verdicts({"flicker": 0.16}, spread=0.01, videos=31)["flicker"] == "undecided", "with fewer than 32 videos"


def test_consistencies_are_compared_by_their_sign_only():
    small = {"subject_consistency_within": 0.02}  # in the paper 0.19
    (line,) = [line for line in lines_of(rows(small, spread=0.01), {}) if line.better is not None]
    assert line.verdict == "agrees" and line.half is None


def test_p_values_are_corrected_over_all_tests_of_the_page():
    measured = rows({"dynamic_degree_within": 9.0, "flicker": 0.05, "aesthetic_quality": 3.0}, spread=1.0)
    tests = [test for line in lines_of(measured, {}) for test in (line.better, line.half) if test]
    assert len(tests) == 6
    assert [test.holm for test in tests] == holm([test.p for test in tests])
    (flicker,) = [line for line in lines_of(measured, {}) if line.reported.column == "flicker"]
    pairs = zip(
        measured["D"].values("one_prompt", "flicker"), measured["A"].values("one_prompt", "flicker"), strict=True
    )
    assert flicker.better.p == sign_flip_p([100 * a - 100 * b for a, b in pairs])


def test_the_page_says_the_rule_and_why_something_is_missing():
    measured = rows({"flicker": 0.16, "mean_flow": 100.0}, videos=8)
    text = page(lines_of(measured, {"text": "give --stories @FILE"}), measured, {"A": "(A) Baseline"})
    assert claims.RULE in text and claims.LIMITS in text
    assert text.startswith("agrees: 0; disagrees: 0; undecided: 1; not measured: 9.")
    assert (
        "| Clip Score Average, six prompts | +1.75 (Table 4) | – | – | – | not measured | give --stories @FILE |"
        in text
    )
    assert "8 videos are fewer than 32" in text and "flow, all pixels +1.0" in text
    assert "Table 2 has 97.32 for this row at 60 s" in text


def test_figures_that_differ_between_the_papers_tables_are_named():
    notes = [reported.note for reported in REPORTED if reported.column == "smoothness"]
    assert len(notes) == 7 and all("Table 2 has 98.67 for Head Forcing at 60 s" in note for note in notes)


def test_the_papers_figures_are_about_known_rows_and_columns_and_always_in_its_favour():
    assert {reported.row for reported in REPORTED} == set(claim_rows(1)) - {"D"}
    assert {reported.column for reported in REPORTED} == set(COLUMNS)
    assert all(reported.difference > 0 for reported in REPORTED)
    known = {*MODELLED, *OF_VBENCH, *UNJUDGED}
    assert {*BESIDE, *(key for column in COLUMNS.values() for key in column.keys)} <= known
    for column in COLUMNS.values():
        own = [key for key in column.keys if not key.startswith("vbench_")]
        metric = METRICS[column.needs] if column.needs else None
        assert metric is None or {each.key for each in metric.columns} >= set(own)


def test_rows_are_chosen_by_name_and_head_forcing_is_always_there():
    assert list(named_rows("random, a", 3)) == ["A", "D", "random"]
    row = named_rows("random", 3)["random"]
    assert isinstance(row, Shuffles) and len(row.entries) == 3
    labels = [entry.label for entry in claim_rows(1).values()]
    assert len(set(labels)) == 8
    for text in ("D", ""):
        with pytest.raises(HeadForcingError, match="must name a row besides D"):
            named_rows(text, 1)
    with pytest.raises(HeadForcingError, match="--rows are names such as A,D,random, of A, B, C, D"):
        named_rows("A,E", 1)


def test_the_dynamic_degree_of_a_whole_video_is_compared_by_its_sign_only():
    for key, by_sign in (("dynamic_degree_within", False), ("dynamic_degree", True), ("vbench_dynamic_degree", True)):
        (line,) = [line for line in lines_of(rows({key: 1.0}), {}) if line.better is not None]
        assert line.key == key and (line.half is None) == by_sign
        assert line.verdict == ("agrees" if by_sign else "disagrees"), "1.00 is less than half of the paper's 9.45"


def test_of_several_shuffles_all_but_one_must_lie_on_the_side_of_the_verdict():
    rng = np.random.default_rng(2)
    ours = Measured({"one_prompt": [{"dynamic_degree_within": 0.5 + 0.01 * rng.normal()} for _ in range(32)]})

    def verdict(*means):
        videos = [[{"dynamic_degree_within": mean + 0.01 * rng.normal()} for _ in range(32)] for mean in means]
        row = Measured.of_shuffles([Measured({"one_prompt": made}) for made in videos])
        line = next(line for line in lines_of({"random": row, "D": ours}, {}) if line.better is not None)
        return line.verdict, line.remark

    assert verdict(0.3, 0.3, 0.3, 0.3, 0.6) == ("agrees", "better than 4 of 5 shuffles")
    assert verdict(0.1, 0.1, 0.1, 0.6, 0.6) == ("undecided", "better than 3 of 5 shuffles")
    assert verdict(0.3) == ("agrees", "")
    assert verdict(0.01, 0.6, 0.6) == ("undecided", "better than 1 of 3 shuffles")
    assert verdict(0.1, 0.1, 0.6) == ("undecided", "better than 2 of 3 shuffles"), "all, with fewer than 5"
    assert verdict(-9.0, *[0.55] * 19) == ("undecided", "better than 1 of 20 shuffles")
    assert verdict(0.4, *[0.6] * 4)[0] == verdict(0.6, 0.6)[0] == "disagrees", "worse"
    assert verdict(0.49, 0.49, 0.49)[0] == "disagrees", "better, but less than half of the paper's difference"
    assert verdict(0.6, 0.6, 0.6, 0.42, 0.1)[0] == "undecided", "two are better by half of the paper's difference"


def test_shuffles_count_as_their_mean():
    made = [{"a": 1.0, "b": None}, {"a": 3.0, "b": 1.0}]
    assert Measured.of_shuffles([Measured({"x": [each]}) for each in made]).videos == {"x": [{"a": 2.0, "b": None}]}


def test_no_head_profile_is_measured_on_the_reserved_prompts():
    assert len(set(RESERVED_PROMPTS)) == len(RESERVED_PROMPTS) == 32
    assert all(parse_timeline(prompt, 60.0).texts == [prompt] for prompt in RESERVED_PROMPTS), "no times, no tags"
    assert not {p.lower() for p in RESERVED_PROMPTS} & {p.lower() for p in PROFILING_PROMPTS}
