"""The pages of evidence say what the stored measurements say, and the measurements can be made again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.checkpoint import inspect_checkpoint
from headforcing.headforcing_core.comparison import Entry
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.demo.judge import Judge, mixed, one_prompt
from headforcing.headforcing_core.evaluate import QUESTIONS, Answer, window
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.profile import bundled_profiles, load_profile

EVIDENCE = Path(__file__).parent / "evidence"
STORED = sorted(EVIDENCE.glob("*.json"))
HEAD_FORCING = method_policy("head_forcing")


@pytest.fixture(scope="module")
def judge():
    torch.set_num_threads(1)
    return Judge()


def test_every_question_has_been_answered():
    assert {path.stem for path in STORED} >= set(QUESTIONS)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_table_follows_from_its_measurements(path: Path):
    stored, question = json.loads(path.read_text("utf-8")), QUESTIONS[path.stem.split("_base")[0]]
    assert [row["label"] for row in stored["rows"]] == [row.label for row in question.rows]
    told = Answer(question, tuple(tuple(row["videos"]) for row in stored["rows"]))
    page = (EVIDENCE / "README.md").read_text("utf-8")
    assert told.table() in page
    if "_base" not in path.stem:
        assert stored["weights"] == inspect_checkpoint(assets.model_path()).fingerprint


def test_prompts_are_followed_and_the_stored_numbers_come_out_again(judge: Judge):
    """A sample of the 200 videos; machines may differ in the last bits, which a rollout can turn into other pixels."""
    stories = mixed(10, seconds=81 / 16)
    made = [judge.measure(HEAD_FORCING, "profile", story, seed) for seed, story in enumerate(stories)]
    means = {
        key: np.mean([numbers[f"early_{key}"] for numbers in made]) for key in ("background", "pattern", "present")
    }
    assert means["background"] > 0.99 and means["pattern"] > 0.97 and means["present"] > 0.9
    (*_, ours) = json.loads((EVIDENCE / "horizon.json").read_text("utf-8"))["rows"]
    for key, mean in means.items():
        assert mean == pytest.approx(np.mean([video[f"early_{key}"] for video in ours["videos"][:10]]), abs=0.06)


def test_a_minute_of_head_forcing_still_shows_what_it_should(judge: Judge):
    made = [judge.measure(HEAD_FORCING, "profile", story, seed) for seed, story in enumerate(one_prompt(4, 60.0))]
    assert np.mean([numbers["background"] for numbers in made]) > 0.97
    assert np.mean([numbers["present"] for numbers in made]) > 0.8
    assert np.nanmean([numbers["colour_error"] for numbers in made]) < 0.15


def test_positions_out_of_the_trained_range_predict_worse(judge: Judge):
    """The same frames, once where they are in the video and once counted from the beginning of the window."""
    sunk = window(9, sink=3).policy
    absolute = Entry("", "absolute", rope="absolute", given=sunk).policy
    losses = [
        [judge.history_losses(policy, "profile", number)["loss_0.9375"] for number in range(3)]
        for policy in (sunk, absolute)
    ]
    assert np.mean(losses[1]) > 1.02 * np.mean(losses[0])


def test_what_is_said_of_head_roles_is_what_was_measured():
    page = (EVIDENCE / "README.md").read_text("utf-8")
    before, after = load_profile(EVIDENCE / "heads" / "base.json"), load_profile(bundled_profiles()["toy_world"])
    assert after.measured["fingerprint"] == inspect_checkpoint(assets.model_path()).fingerprint
    sink, own = ([[head[i] for layer in p.shares for head in layer] for p in (before, after)] for i in (0, 2))
    words = " ".join(page.split())
    assert (
        f"gives it {max(sink[0]):.1%} of its attention before and {max(sink[1]):.1%} after".replace("%", " %") in words
    )
    evenly = [sum(share > 1 / 21 for share in shares) for shares in sink]
    assert f"({evenly[0]} of 48 before, {evenly[1]} after)" in words
    middle = [float(np.median(shares)) for shares in own]
    assert f"(median head: {middle[0]:.0%} before, {middle[1]:.0%} after)".replace("%", " %") in words
