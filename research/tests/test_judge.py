"""The judge of the world of rooms: its stories, what it sees in videos, and the caches that only it
makes.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import chain, islice

import pytest
import torch
from headforcing.headforcing_core.cache.roles import EpisodicPolicy
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.render.render import begin_render
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.research.ablations import (
    RULES,
    EvenMemory,
    RandomAdmission,
    with_rule,
)
from headforcing.research.rooms import judge as rooms_judge
from headforcing.research.rooms.judge import STORIES, given_last_visits, timeline_of
from headforcing.research.rooms.scenes import CLOCK
from headforcing.research.rooms.stories import last_visits, returns, visits
from headforcing.research.rooms.tables import ROOMS_TABLES
from tiny_files import NAVY, SAND, TEAL, tiny_judge


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return tiny_judge(tmp_path_factory.mktemp("judge"))


def test_the_stories_are_those_of_the_pre_registration_and_a_timeline_shows_them(
    judge,
):
    for story in STORIES.values():
        looks = story(80_001)
        plan = judge.plan(PRESETS["head_forcing"], "profile", timeline_of(looks), 0)
        assert [row.prompt for row in plan.rows] == [look.prompt for look in looks]
    looks = STORIES["second_away_30"](84_000)
    assert (
        looks[4:8] == looks[38:]
        and len({look.room for look in looks}) == 4
        and max(returns(looks)) == 30
    )
    for name, blocks, gap in (
        ("away_15", 23, 15),
        ("away_30", 38, 30),
        ("away_60", 68, 60),
        ("twelve_blocks", 12, 6),
    ):
        looks = STORIES[name](80_000)
        assert (
            len(looks) == blocks
            and max(returns(looks)) == gap
            and len({look.room for look in looks}) == 3
        )
        assert len(set(map(len, (visits(looks)[0], visits(looks)[-1])))) == 1
    looks = STORIES["eight_rooms"](83_000)
    assert (
        len({look.room for look in looks}) == 8
        and looks[0:48:3] == looks[48:]
        and len(visits(looks)) == 16
    )


def test_every_rule_gives_as_many_heads_to_each_role(judge):
    profile = judge.profile
    assert with_rule(profile, "quota").roles == (
        ("anchor", "memory"),
        ("memory", "local"),
    )
    assert with_rule(profile, "function").roles == (
        ("memory", "memory"),
        ("anchor", "local"),
    )
    assert with_rule(with_rule(profile, "function"), "quota") == profile
    draw = random.Random(3)

    def shares_of_a_head():
        parts = [draw.random() for _ in range(3)]
        return [part / sum(parts) for part in parts]

    shares = []
    for _ in range(5):  # layers
        shares.append([shares_of_a_head() for _ in range(6)])
    for fractions in ((0.25, 0.20), (0.0, 0.5), (0.7, 0.3), (1.0, 1.0), (0.0, 0.0)):
        quota, function = RULES.values()
        assert Counter(chain(*quota(shares, *fractions))) == Counter(
            chain(*function(shares, *fractions))
        )


def test_the_rendered_row_keeps_everything_and_another_room_on_return_is_seen(
    judge,
):
    found = judge.measure_truth(STORIES["twelve_blocks"](82_001), 82_001, encoded=False, ahead=True)
    kept = (
        "layout",
        "identity",
        "background",
        "pattern",
        "shape",
        "single",
        "moves",
        "camera",
    )
    assert {name: found[name] for name in kept} == dict.fromkeys(kept, 1.0)
    assert found["layout_by_chance"] < 0.4 and found["outline"] > 0.9 and found["place_error"] < 1.5
    looks = (
        TEAL,
        SAND,
        TEAL,
    )  # the first two blocks of one video and the last one of another: other pictures
    one = rooms_judge.render(looks, 3).video_frames
    other = rooms_judge.render(looks, 4).video_frames
    whole = rooms_judge.story_numbers(one, looks, 3)
    found = rooms_judge.story_numbers(torch.cat((one[:21], other[21:])), looks, 3)
    assert whole["layout"] == 1 and found["layout"] < 0.5
    assert whole["background"] == found["background"] == 1


def test_identity_is_the_colour_of_the_marking_of_the_first_block():
    """Of a video, of one that goes on as the video that stands for chance, and of one that begins
    turned away.
    """
    looks = STORIES["twelve_blocks"](82_000)
    cut = CLOCK.video_frames(1)
    far = rooms_judge.OTHER_VIDEO
    draw = rooms_judge.Marking.draw
    number = next(
        number
        for number in range(4)
        if draw(looks, number).colour != draw(looks, number + far).colour
    )
    clip = rooms_judge.render(looks, number)
    other = rooms_judge.render(looks, (number + far))
    away = clip.video_frames[int((clip.facing == 0).nonzero()[0])].expand(cut, -1, -1, -1)
    later = clip.video_frames[cut:]
    videos = (
        clip.video_frames,
        torch.cat((clip.video_frames[:cut], other.video_frames[cut:])),
        torch.cat((away, later)),
    )
    found = [rooms_judge.story_numbers(video, looks, number) for video in videos]
    assert [numbers["identity"] for numbers in found] == [1.0, 0.0, None]
    assert [numbers["identity_by_chance"] for numbers in found] == [0.0, 1.0, None]


def roll(judge, method, looks):
    """The rollout's cache at its end, its events, and the latents of its blocks."""
    plan = judge.plan(method, "profile", timeline_of(looks), 0)
    with begin_render(
        rooms_judge.job_of(plan), WanVideoModel(judge.backbone, torch.float32)
    ) as render:
        made = [block.latents for block in islice(render.blocks(), len(looks))]
        return render.run.cache, render.run.events, made


def test_given_frames_are_those_of_the_visit_before_and_change_nothing_before_it_returns(
    judge,
):
    looks = (TEAL, TEAL, SAND, TEAL, NAVY, SAND)
    assert [list(visit) for visit in last_visits(looks)] == [
        [],
        [],
        [],
        [0, 1],
        [],
        [2],
    ]
    assert given_last_visits(looks).given == (
        (),
        (),
        (),
        (0, 1, 2, 4, 5),
        (),
        (6, 7, 8),
    )
    looks = (TEAL, TEAL, SAND, NAVY, TEAL, TEAL)
    given, _, shown = roll(judge, given_last_visits(looks), looks)
    _, _, plain = roll(judge, PRESETS["head_forcing"], looks)
    assert [torch.equal(a, b) for a, b in zip(shown, plain, strict=True)][:5] == [True] * 4 + [
        False
    ]
    assert given.memory.sources == given.memory.store.sources[:5] == [[0], [1], [2], [4], [5]]


def test_even_memory_has_the_frame_slots_of_head_forcing_and_random_admission_admits_some(
    judge,
):
    story = timeline_of(STORIES["away_15"](80_000))
    ours = judge.plan(PRESETS["head_forcing"], "profile", story, 0).shape
    even = judge.plan(EvenMemory(), "profile", story, 0).shape
    assert even.frame_slots == ours.frame_slots
    assert {method.recent_frames for method in even.groups} == {3}
    assert sorted(method.episodic_frames for method in even.groups) == [2, 3]
    cache, _, _ = roll(judge, EvenMemory(), (TEAL, SAND, NAVY) * 3)
    held = [group.entries for group in cache.groups]
    assert held == [len(cache.memory.entries), len(cache.others[0][1].entries)] and min(held) >= 1
    _, events, _ = roll(
        judge,
        RandomAdmission(episodic=EpisodicPolicy(update_interval=1, admission="uniform")),
        (TEAL, SAND, NAVY) * 4,
    )
    assert {event.admitted for event in events} == {True, False}


def test_a_model_is_judged_one_block_ahead_of_a_true_past(judge):
    rows = {row.label: row for row in ROOMS_TABLES["h3"].rows}
    found = [
        judge.measure_story(rows[label].method, "profile", (TEAL, SAND, TEAL), 5, ahead=True)
        for label in ("Head Forcing", "local heads see their own block alone")
    ]
    assert found[0]["loss_0.9375"] != found[1]["loss_0.9375"]
    assert all(0 <= numbers["place_error"] <= 32 for numbers in found)
