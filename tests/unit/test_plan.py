"""A render is thought through before it starts: lengths, prompts, sizes, roles and cost, and what a user is told."""

import itertools
import math
from collections import Counter

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.memory import MemoryEvent
from headforcing.headforcing_core.cache.policy import (
    PRESETS,
    EpisodicPolicy,
    HeadRole,
    RolePolicy,
    arrange_roles,
    preset,
)
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.describe import describe, format_bytes
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.report.latents import describe_events
from headforcing.headforcing_core.timeline.timeline import parse_timeline

TWO_PROMPTS = "0:00 a cat wakes up\n0:10 the cat jumps"  # 20 s
TINY = WanConfig(dim=36, num_layers=2, num_heads=6)


def plan(
    text=TWO_PROMPTS, config=None, method="head_forcing", family="self_forcing", profile=None, start_frames=0, **options
):
    asked = RenderOptions(method=method, model_family=family, **options)
    return asked.plan(config or WanConfig(), parse_timeline(text), start_frames, profile)


def prompts_of(made: RenderPlan) -> list[int]:
    """Per block the number of its prompt."""
    texts = [segment.text for segment in made.timeline.segments]
    return [texts.index(row.prompt) for row in made.rows]


@pytest.mark.parametrize("family", ["self_forcing", "causal_forcing_framewise"])
@pytest.mark.parametrize("seconds", [0.01, 0.5625, 0.563, 7.3, 61.0001, 3600])
def test_a_length_rounds_up_to_the_fewest_whole_blocks_that_hold_it(family, seconds):
    made = plan("one prompt", family=family, seconds=seconds)
    f = made.schedule.frames_per_block
    assert made.video_frames == math.ceil(seconds * 16 - 1e-6) <= 4 * (made.frames - 1) + 1
    assert made.blocks == 1 or 4 * (made.frames - f - 1) + 1 < made.video_frames
    assert made.steps == 4 * made.blocks and (made.frames, made.block_shape) == (f * made.blocks, (f, 16, 60, 104))
    assert (made.shape.rows, made.shape.columns) == (30, 52)


def test_a_shorter_length_cuts_the_timeline_and_a_longer_one_holds_the_last_prompt():
    held, whole, both = plan(seconds=40), plan(seconds=20), plan(seconds=12)
    assert held.rows[: whole.blocks] == whole.rows and set(prompts_of(held)[whole.blocks :]) == {1}
    assert plan(seconds=0).video_frames == whole.video_frames == 320 and plan("one prompt").video_frames == 160
    assert prompts_of(plan(seconds=8)) == [0] * 11, "129 pictures for 128"
    assert prompts_of(both) == [0] * 14 + [1] * 3 and both.rows == whole.rows[:17]
    assert plan(family="causal_forcing_framewise_1_step", seconds=1).steps == 4 + 4 * 1, "the first block is longer"
    assert prompts_of(whole).index(1) == 14  # picture 165; 10 s is picture 160, block 13 starts at 153
    framewise = plan(family="causal_forcing_framewise")
    assert prompts_of(framewise).index(1) == 41 and framewise.frames == 81  # picture 161


@pytest.mark.parametrize(("seconds", "new_blocks"), [(10, 14), (0.75, 1), (0.76, 2), (0, 27)])
def test_start_frames_come_first_and_are_counted_in_the_pictures(seconds, new_blocks):
    made = plan(seconds=seconds, start_frames=12)
    assert (made.start_frames, made.new_blocks, made.blocks) == (12, new_blocks, 4 + new_blocks)
    assert made.video_frames == 45 + math.ceil((seconds or 20) * 16) and made.steps == 4 * new_blocks
    assert 4 * (made.frames - 1) + 1 >= made.video_frames > 4 * (made.frames - 4) + 1
    assert prompts_of(made) == [0] * 4 + [int(block >= 13) for block in range(new_blocks)]  # 13 * 12 = 156 pictures


def profile(roles, name="mine") -> HeadProfile:
    return HeadProfile(name, len(roles), len(roles[0]), tuple(map(tuple, roles)))


def test_without_a_profile_the_bundled_one_that_fits_is_taken_or_the_roles_are_found():
    assert plan().profile_name == "bundled profile 'self_forcing'" and plan().auto is None
    assert plan(family="longlive").profile_name == "bundled profile 'longlive'"
    found = plan(config=TINY)
    assert found.auto is not None and found.profile_name == "to be found in the first seconds"
    assert found.cache_bytes(torch.float32) > found.shape.bytes(torch.float32)
    one = plan(config=TINY, method="self_forcing_window_21", seconds=60)
    assert (one.profile_name, one.shape.frame_slots) == ("one cache for every head", 12 * 21)
    with pytest.raises(HeadForcingError, match="'mine' is for 1x2 heads, the model has 30x12"):
        plan(profile=profile([["local", "memory"]]))


def test_the_description_says_length_roles_slots_and_bytes():
    flat = ["anchor"] * 90 + ["local"] * 72 + ["memory"] * 198
    paper = profile([flat[12 * layer : 12 * layer + 12] for layer in range(30)], "paper")
    text = describe(plan(seconds=60, profile=paper), torch.bfloat16)
    for part in (
        "832x480, 960 frames = 60.00 s at 16 fps, 81 blocks of 3 latent frames to make",
        "72 local, 90 anchor, 198 memory (profile 'paper'); rotary positions contiguous", "3,096 frame-slots = 2.47 GB",
        "all 243 latent frames in every head would take 87,480 = 69.87 GB", "the cat jumps", "0:10",
    ):  # fmt: skip
        assert part in text
    extended = describe(plan("one prompt", seconds=6, start_frames=9), torch.float32)
    assert "8 blocks of 3 latent frames to make after 9 start frames" in extended
    assert extended.endswith("from the end of the 9 start frames, video frames from the start of the video.")
    sizes = [(0, "0 bytes"), (999, "999 bytes"), (1530, "1.53 kB"), (2.5e6, "2.5 MB"), (2_472_837_120, "2.47 GB")]
    assert all(format_bytes(count) == told for count, told in sizes)


def test_memory_events_are_a_line_for_every_frame_remembered_and_one_for_the_rest():
    events = [
        MemoryEvent(1, 0, -1.0, True), MemoryEvent(4, 9, 0.9636, False),
        MemoryEvent(7, 18, 0.5, True, merged=[[0, 3], [9]]), MemoryEvent(10, 27, 0.25, True, dropped=[6]),
        MemoryEvent(13, 36, 0.981, False),
    ]  # fmt: skip
    assert describe_events(events).splitlines() == [
        "after block 1: admitted frame 0",
        "after block 7: admitted frame 18 (similarity 0.500), merged the summary of 2 frames and frame 9",
        "after block 10: admitted frame 27 (similarity 0.250), forgot frame 6",
        "2 of 5 candidates were not novel enough (similarity 0.964 to 0.981)",
    ]
    assert describe_events([]) == ""


ROLES = [["local", "anchor", "memory"] * 2, ["memory"] * 6]


def test_every_preset_makes_a_cache_as_large_as_it_announces():
    for name, total_frames in itertools.product(PRESETS, (3, 240)):
        shape = CacheShape.for_model(TINY, ROLES, preset(name), 4, 6, 3, total_frames)
        cache = HeadCache(shape, torch.float16)
        assert 0 < shape.frame_slots <= 12 * total_frames, name
        held = sum(x.nbytes for group in cache.groups for x in (*group.k, *group.v))
        assert cache.bytes == shape.bytes(torch.float16) == held, name


def test_history_is_sinks_from_the_origin_then_recent_frames_that_are_not_too_old_each_once():
    choices = ((0, 1, 7), (0, 4, None), (0, 1, 5, 12, 29), (0, 9, 12), (0, 3, 10, 12))
    for sinks, recent, seen, origin, oldest in itertools.product(*choices):
        policy = RolePolicy(sinks, recent)
        late = max(oldest, 0 if recent is None else seen - recent)
        kept = policy.history(seen, origin, oldest)
        assert kept == [n for n in range(seen) if n >= late or origin <= n < origin + sinks]
        for f in (1, 3):
            assert seen + f > 32 or len(kept) + f <= policy.capacity(f, 32) <= 32


def test_candidates_are_the_first_frames_of_every_third_block_once_it_left_fast_memory():
    frames = [EpisodicPolicy().candidate_frame(block, 3, 3) for block in range(8)]
    assert frames == [None, 0, None, None, 9, None, None, 18]
    every_second = EpisodicPolicy(update_interval=2)
    assert [every_second.candidate_frame(block, 1, 2) for block in range(6)] == [None, None, 0, None, 2, None]


def test_roles_are_arranged_by_name_and_seed_and_equal_their_names():
    assert arrange_roles(ROLES, "profile") == ROLES
    assert arrange_roles(ROLES, "local_to_memory") == [["memory", "anchor", "memory"] * 2, ["memory"] * 6]
    assert arrange_roles(ROLES, "anchor_to_memory") == [["local", "memory", "memory"] * 2, ["memory"] * 6]
    made = plan(config=TINY, profile=profile(ROLES), roles="shuffled", shuffle=1)
    assert made.profile_name == "profile 'mine', roles shuffled (1)"
    shuffled = [arrange_roles(ROLES, "shuffled", seed) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2] and ROLES not in shuffled
    assert all(Counter(sum(roles, [])) == Counter(sum(ROLES, [])) and len(roles[0]) == 6 for roles in shuffled)
    assert {"memory": 1}[HeadRole.MEMORY] == {HeadRole.MEMORY: 1}["memory"] == 1
