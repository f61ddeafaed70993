"""Verdicts about the paper's figures: the rule, what is said where nothing is known, and the texts
of the videos.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain

import numpy as np
import pytest
import torch
from headforcing.cli.texts import read_text
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.prompts import PROFILING_PROMPTS
from headforcing.headforcing_core.timeline.paste.paste import read_any
from headforcing.headforcing_core.timeline.returns import with_returns
from headforcing.research.claims import claims
from headforcing.research.claims.claims import (
    ADDED_ROWS,
    PAPERS_ROWS,
    lines_of,
    named_rows,
)
from headforcing.research.claims.page import page
from headforcing.research.claims.paper_numbers import (
    COLUMNS,
    PRIMARY,
    REPORTED,
    RETURN,
)
from headforcing.research.claims.returns import (
    Visits,
    return_happened,
    similarities,
    spread,
)
from headforcing.research.claims.stories import (
    RESERVED_PROMPTS,
    return_stories,
    texts_of,
    with_recall,
)
from headforcing.research.metrics.registry import METRICS
from headforcing.research.rows import Shuffles
from headforcing.research.statistics import Measured, holm, sign_flip_p
from headforcing.research.vbench import DIMENSIONS, PROGRAMS
from headforcing.research.videos import Scores


def rows(
    differences: dict, videos: int = 32, spread: float = 0.1
) -> dict[str, dict[str, Measured]]:
    """Head Forcing and the baseline, whose numbers differ by so much in the paper's units, give or
    take.
    """
    rng = np.random.default_rng(1)
    ours = []
    theirs = []
    for _ in range(videos):
        base = {key: rng.uniform() for key in differences}
        noise = {key: spread * rng.normal() for key in differences}
        theirs.append(base)
        ours.append(
            {key: base[key] + (mean + noise[key]) / 100 for key, mean in differences.items()}
        )
    return {
        "A": {"one_prompt": Measured(theirs)},
        "D": {"one_prompt": Measured(ours)},
    }


def measured_lines(found: dict) -> list:
    return [line for line in lines_of(found, {}) if line.better is not None]


def verdicts(spread=0.1, videos=32, **differences: float) -> dict[str, str]:
    return {
        line.reported.column: line.verdict
        for line in lines_of(rows(differences, videos, spread), {})
    }


def test_a_verdict_needs_the_sign_and_half_of_the_size():
    found = verdicts(
        dynamic_degree_within=9.0,
        flicker=-0.3,
        aesthetic_quality=0.5,
        vbench_motion_smoothness=0.0,
    )
    assert found["dynamic"] == "agrees"
    assert found["flicker"] == "disagrees", "worse"
    assert found["aesthetic"] == "disagrees", "better, but the paper's difference is 4.19"
    assert found["imaging"] == found["quality"] == "not measured"
    for wide, videos, verdict in (
        (1.0, 32, "undecided"),
        (0.01, 32, "agrees"),
        (0.01, 31, "undecided"),
    ):
        assert verdicts(wide, videos, flicker=0.16)["flicker"] == verdict


def test_what_is_on_another_scale_is_compared_by_its_sign_only():
    small = {"subject_consistency_within": 0.02}  # in the paper 0.19
    (line,) = measured_lines(rows(small, spread=0.01))
    assert line.verdict == "agrees" and line.half is None
    for key, by_sign in (
        ("dynamic_degree_within", False),
        ("dynamic_degree", True),
        ("vbench_dynamic_degree", True),
    ):
        (line,) = measured_lines(rows({key: 1.0}))
        assert line.key == key and (line.half is None) == by_sign, (
            "of clips of 2 s, or of whole videos"
        )
        assert line.verdict == ("agrees" if by_sign else "disagrees"), (
            "1.00 is less than half of the paper's 9.45"
        )


def test_p_values_are_corrected_over_the_primary_endpoints_and_no_others():
    found = rows(
        {"dynamic_degree_within": 9.0, "flicker": 0.16, "return_above": 0.5},
        spread=1.0,
    )
    found = {row: {**made, RETURN: made["one_prompt"]} for row, made in found.items()}
    lines = measured_lines(found | {"scenes": found["A"]})
    family = list(chain(*(line.tests for line in lines if line.primary)))
    assert len(family) == 4, (
        "dynamic has two tests, a return to a scene is compared by its sign: A and scenes"
    )
    assert [test.holm for test in family] == holm([test.p for test in family])
    (flicker,) = [line for line in lines if line.reported.column == "flicker"]
    pairs = zip(*(found[row]["one_prompt"].values("flicker") for row in "DA"), strict=True)
    assert not flicker.primary
    assert flicker.better.holm == flicker.better.p == sign_flip_p([100 * (a - b) for a, b in pairs])


def test_the_page_says_the_rule_and_why_something_is_missing():
    measured = rows({"flicker": 0.16}, videos=8)
    text = page(
        lines_of(measured, {"text": "give --stories @FILE"}),
        measured,
        {"A": "(A) Baseline"},
    )
    assert claims.RULE in text and claims.LIMITS in text
    assert text.startswith(
        "Measured lines: 1, of these agrees 0, disagrees 0, better 0, worse 0, undecided 1. Not"
    )
    before, missing = text.split("## Not measured")
    assert "| Clip Score Average, six prompts | (A) Baseline | give --stories @FILE |" in missing
    assert "Clip Score" not in before and "Temporal Flickering" not in missing, (
        "what is not measured stands apart"
    )
    assert "| undecided | 8 videos are fewer than 32" in text
    assert "## Primary endpoints" in before and "not measured" in before, (
        "a primary endpoint is never dropped silently"
    )


def test_a_return_is_compared_with_the_first_visits_of_the_other_videos():
    rng = np.random.default_rng(5)
    visits = torch.tensor(rng.normal(size=(3, 3, 4)))
    pairs = torch.tensor(rng.normal(size=(3, 3, 4)))
    happened = (True, False, None)
    videos = [Visits(*each) for each in zip(visits, pairs, happened, strict=True)]
    found, (first, between, again) = similarities(videos), visits.unbind(1)
    assert found[2]["return_pair"] == pytest.approx(float(pairs[2, 0] @ pairs[2, 2]))
    assert found[2]["return_pair_left"] == pytest.approx(float(pairs[2, 1] @ pairs[2, 2]))
    assert [video.get("return_happened") for video in found] == [1.0, 0.0, None]
    above = [video.get("return_above_happened") for video in found]
    assert above == [found[0]["return_above"], None, None], "only where the return happened"
    assert found[1]["return_similarity"] == pytest.approx(float(again[1] @ first[1]))
    assert found[1]["return_chance"] == pytest.approx(
        float(again[1] @ first[0] + again[1] @ first[2]) / 2
    )
    assert found[1]["return_above"] == pytest.approx(
        found[1]["return_similarity"] - found[1]["return_chance"]
    )
    assert found[0]["return_prompt"] == pytest.approx(float(again[0] @ between[2])), (
        "of the video before, in a circle"
    )
    a, b = torch.eye(2)
    assert return_happened(b, a, torch.eye(2)) and not return_happened(a, a, torch.eye(2))
    assert not return_happened(b, b, torch.eye(2)), "the second visit shows what was between"
    assert spread(10, 42) == list(range(11, 42, 2)) and spread(3, 6) == [3, 4, 5]


def test_a_story_of_reserved_prompts_returns_to_its_second_prompt_alone_by_words_and_by_tag():
    assert len(set(RESERVED_PROMPTS)) == len(RESERVED_PROMPTS) == 32
    assert not {p.lower() for p in RESERVED_PROMPTS} & {p.lower() for p in PROFILING_PROMPTS}
    assert all(read_any(prompt, 60.0).texts == [prompt] for prompt in RESERVED_PROMPTS), (
        "no times, no tags"
    )
    stories = return_stories(RESERVED_PROMPTS)
    for i, story in enumerate(stories):
        assert json.loads(story)["prompts"][1] == json.loads(stories[i - 1])["prompts"][2], (
            "the same prompt elsewhere"
        )
        timeline = with_returns(read_any(story, 60.0), most=8)
        assert [segment.switch.recall for segment in timeline.segments] == [
            None,
            None,
            None,
            2,
        ]
        (_, a, _, again) = read_any(with_recall(story), 60.0).segments
        assert again.switch.recall == 2 and again.text == a.text
    for few in (["a fox", "a cat", "a  fox"], ["a fox", "a cat"]):
        with pytest.raises(
            HeadForcingError,
            match="stories that return take 3 or more --videos with different",
        ):
            return_stories(few)


def test_the_papers_figures_are_about_known_rows_and_columns_and_always_in_its_favour():
    assert {reported.row for reported in REPORTED} == set(PAPERS_ROWS) - {"D"}
    assert {reported.column for reported in REPORTED} == set(COLUMNS) - {"return"}
    assert {row for row, _ in PRIMARY} <= {*PAPERS_ROWS, *ADDED_ROWS}
    assert {column for _, column in PRIMARY} <= set(COLUMNS)
    assert all(reported.difference > 0 for reported in REPORTED)
    known = {"flicker", "return_above"}
    for prefix in PROGRAMS.values():
        known |= {f"{prefix}{name}" for name in DIMENSIONS}
    for metric in METRICS.values():
        known |= {column.key for column in metric.columns}
    for column in COLUMNS.values():
        assert set(column.keys) <= known
    for column in (column for column in COLUMNS.values() if column.needs):
        own = {key for key in column.keys if not key.startswith("vbench_")}
        assert own <= {
            "return_above",
            *(each.key for each in METRICS[column.needs].columns),
        }


def test_a_number_of_plain_vbench_never_stands_beside_vbench_longs_without_saying_so():
    plain = rows({"vbench_imaging_quality": 1.2, "vbench_motion_smoothness": 0.3})
    lines = {line.reported.column: line for line in measured_lines(plain)}
    for column in ("imaging", "smoothness"):
        assert "by plain VBench on whole videos; the paper's is VBench-Long's" in (
            lines[column].remark
        )
    both = rows({"vbench_imaging_quality": -5.0, "vbench_long_imaging_quality": 1.2})
    lines = {line.reported.column: line for line in measured_lines(both)}
    assert lines["imaging"].key == "vbench_long_imaging_quality"
    assert lines["imaging"].verdict == "agrees" and "plain" not in lines["imaging"].remark


def test_rows_of_the_same_budget_are_compared_with_the_papers_figures_of_table_5():
    found = named_rows("local+memory=, uniform", 1)
    assert list(found) == ["D", "uniform", "local+memory="]
    made = rows({"dynamic_degree_within": 10.0})
    lines = lines_of({"local+memory=": made["A"], "D": made["D"]}, {})
    told = {line.reported.column: line for line in lines}
    assert told["dynamic"].reported.value == 34.28 and told["dynamic"].verdict == "agrees"
    assert {line.reported.table for line in lines} == {"Table 5"}


def test_rows_are_chosen_by_name_and_better_or_worse_where_the_paper_has_no_figure():
    found = named_rows("random, a, longlive", 3)
    assert list(found) == ["A", "D", "random", "longlive"]
    assert found["random"] == Shuffles(PAPERS_ROWS["random"], 3)
    made = rows({"flicker": 0.5, "dynamic_degree": 1.0})
    lines = lines_of({"longlive": made["A"], "D": made["D"]}, {"text": "give --stories"})
    told = {line.reported.column: (line.verdict, line.remark) for line in lines}
    assert told["flicker"] == told["dynamic"] == ("better", "") and told["text"] == (
        "not measured",
        "give --stories",
    )
    assert set(told) == set(COLUMNS) - {"return"} and not any(line.primary for line in lines)
    above = {"D": 0.2, "A": 0.1, "scenes": 0.5, "echo": 0.2}
    videos = {}
    for row, mean in above.items():
        videos[row] = [{"return_above": mean + 0.001 * i} for i in range(32)]
    lines = measured_lines({row: {RETURN: Measured(each)} for row, each in videos.items()})
    told = {
        "A": ("better", True),
        "scenes": ("worse", True),
        "echo": ("undecided", False),
    }
    assert {line.reported.row: (line.verdict, line.primary) for line in lines} == told


def test_of_several_shuffles_all_but_one_must_lie_on_the_side_of_the_verdict():
    rng = np.random.default_rng(2)

    def around(mean):
        return [{"dynamic_degree_within": mean + 0.01 * rng.normal()} for _ in range(32)]

    ours = {"one_prompt": Measured(around(0.5))}

    def verdict(*means):
        made = [around(mean) for mean in means]
        row = Measured.of_shuffles(made, decides=True) if len(made) > 1 else Measured(made[0])
        (line,) = measured_lines({"random": {"one_prompt": row}, "D": ours})
        return line.verdict, line.remark

    assert verdict(0.3, 0.3, 0.3, 0.3, 0.6) == (
        "agrees",
        "better than 4 of 5 shuffles",
    )
    assert verdict(0.1, 0.1, 0.1, 0.6, 0.6) == (
        "undecided",
        "better than 3 of 5 shuffles",
    )
    assert verdict(0.3) == ("agrees", "")
    assert verdict(0.1, 0.1, 0.6) == ("undecided", "better than 2 of 3 shuffles"), (
        "all, with fewer than 5"
    )
    assert verdict(-9.0, *[0.55] * 19) == (
        "undecided",
        "better than 1 of 20 shuffles",
    )
    assert verdict(0.4, *[0.6] * 4)[0] == verdict(0.6, 0.6)[0] == "disagrees", "worse"
    assert verdict(0.49, 0.49, 0.49)[0] == "disagrees", (
        "better, but less than half of the paper's difference"
    )
    assert verdict(0.6, 0.6, 0.6, 0.42, 0.1)[0] == "undecided", (
        "two are better by half of the paper's difference"
    )


def test_stories_have_six_texts_that_no_head_profile_is_measured_on():
    def stories(*lines):
        args = argparse.Namespace(prompts=None, videos=2, stories="\n".join(map(json.dumps, lines)))
        return texts_of(args)["six_prompts"]

    texts = [f"a fox, part {part}" for part in range(6)]
    good = {"prompts": texts}
    assert stories(good, good, good) == [json.dumps(good)] * 2
    for bad, message in (
        (texts[:5], "--stories must have 6 texts in each line.*line 2"),
        ([*texts[:5], 6], "--stories must have 6 texts in each line.*line 2"),
        (
            [*texts[:5], PROFILING_PROMPTS[0]],
            "measured on 'A red fox.*line 2 of --stories",
        ),
    ):
        with pytest.raises(HeadForcingError, match=message):
            stories(good, {"prompts": bad})
    with pytest.raises(HeadForcingError, match="--stories must have a line for each of 2 videos"):
        stories(good)


def test_scores_by_other_model_files_do_not_count_and_those_that_nobody_asks_for_are_not_told():
    def scored(stamp):
        note = {
            "metrics": {"flow": stamp},
            "numbers": {"mean_flow": 1.0, "flicker": 0.1},
        }
        return argparse.Namespace(name=stamp, note=lambda: note)

    videos = [scored("old"), scored("new")]
    assert [each.name for each in Scores(videos, {"flow": "new"}).todo] == ["old"]
    assert Scores(videos, {"flow": "new"}).known["new"]["mean_flow"] == 1.0
    assert Scores(videos, {}).known == {
        "old": {"flicker": 0.1},
        "new": {"flicker": 0.1},
    }


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_prompts_and_stories_are_one_a_line_and_a_line_names_no_other_file(newline, tmp_path):
    texts = [f"a cat{other}a dog" for other in "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"]
    stories = [json.dumps({"prompts": [text] * 6}, ensure_ascii=False) for text in texts]
    args = argparse.Namespace(
        prompts=newline.join(texts),
        videos=len(texts),
        stories=newline.join(stories),
    )
    assert texts_of(args) == {"one_prompt": texts, "six_prompts": stories}
    (tmp_path / "prompts.txt").write_text(
        f"@{tmp_path / 'secret.txt'}\n\na fox\n", encoding="utf-8"
    )
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    args = argparse.Namespace(prompts=f"@{tmp_path / 'prompts.txt'}", videos=2, stories=None)
    first, second = texts_of(args)["one_prompt"]
    assert read_text(first).strip() == f"@{tmp_path / 'secret.txt'}" and second == "a fox"
