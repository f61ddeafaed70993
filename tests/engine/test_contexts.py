"""What each head sees: the frames its role keeps, in buffers of the announced size, and nothing that was not written.

Float32 on CPU unless a test says otherwise. "Equal" means the same bytes where the arithmetic is the same, and within
1e-4 where only its order differs.
"""

import random

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy, EpisodicPolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from small_engine import (
    BUSY,
    SELF_FORCING,
    F,
    assert_same_contents,
    difference,
    embeds,
    every_head,
    film,
    latents,
    make,
    mixed,
    new_cache,
    poison,
)


@pytest.mark.parametrize("role", ["local", "anchor", "memory", "mixed"])
def test_the_first_block_is_plain_self_forcing_whatever_the_roles(model, role):
    plain = make(model, every_head(model, "memory"), SELF_FORCING, 3)
    roles = mixed(model) if role == "mixed" else every_head(model, role)
    ours = make(model, roles, CachePolicy(), 3)
    assert difference(ours[0], plain[0]) < 1e-5
    assert difference(ours[2], plain[2]) > 1e-3


def test_memory_heads_equal_plain_self_forcing_in_the_second_block_too(model):
    plain = make(model, every_head(model, "memory"), SELF_FORCING, 2)
    assert difference(make(model, every_head(model, "memory"), CachePolicy(), 2), plain) < 1e-5
    assert difference(make(model, every_head(model, "local"), CachePolicy(), 2)[1], plain[1]) > 1e-3


def test_no_frame_is_twice_in_a_context_and_contexts_are_numbered_from_zero(model):
    cache = new_cache(model, mixed(model), BUSY, 40)
    seen = []

    def inspect(block, step, clean):
        for group in cache.groups:
            frames = [frame for sources in group.sources for frame in sources]
            assert len(frames) == len(set(frames))
            assert group.sources[-F:] == [[F * block + i] for i in range(F)]
            assert group.indices == list(range(group.frames))
        seen.append(len(cache.memory.sources))

    film(model, cache, 40, on_step=inspect)
    assert max(seen) == 5 and cache.memory.has_summary


def test_each_role_sees_as_many_frames_as_the_paper_says(model):
    cache = new_cache(model, mixed(model), BUSY, 12)
    counts: dict[str, list[int]] = {"local": [], "anchor": [], "memory": []}

    def count(block, step, clean):
        if step == 0:
            for role, frames in counts.items():
                frames += [g.frames for g in cache.groups if g.policy == BUSY.of(role)]

    film(model, cache, 12, on_step=count)
    assert counts["local"] == [3] + 11 * [4]
    assert counts["anchor"] == [3, 6] + 10 * [7]  # in block 1 the last of the first three frames is the last frame
    assert counts["memory"] == [3, 6, 7, 8, 9, 10] + 6 * [11]


def test_anchor_heads_keep_the_first_frames_and_memory_heads_do_not(model):
    cache = new_cache(model, mixed(model), CachePolicy(episodic=EpisodicPolicy(novelty_threshold=-1.0)), 7)
    film(model, cache, 7)
    by_policy = {group.policy: group.sources for group in cache.groups}
    assert by_policy[CachePolicy().local] == [[20]]
    assert by_policy[CachePolicy().anchor] == [[0], [1], [2], [20]]
    assert by_policy[CachePolicy().memory] == [[0], [18], [19], [20]]  # only an empty memory admits at -1


def test_the_papers_setting_takes_3096_frame_slots_and_2_47_gb():
    flat = 90 * ["anchor"] + 72 * ["local"] + 198 * ["memory"]
    random.Random(0).shuffle(flat)
    roles = [flat[12 * layer : 12 * layer + 12] for layer in range(30)]
    shape = CacheShape.for_model(WanConfig(), roles, CachePolicy(), 480 // 8, 832 // 8, 3, 243)
    assert shape.frame_slots == 3096 == 90 * 7 + 72 * 4 + 198 * 11
    assert shape.bytes(torch.bfloat16) == 3096 * 1560 * 128 * 2 * 2
    assert round(shape.bytes(torch.bfloat16) / 1e9, 2) == 2.47


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_buffers_are_as_large_as_was_announced(model, dtype):
    cache = new_cache(model, mixed(model), CachePolicy(), 9, dtype=dtype)
    assert cache.bytes == cache.shape.bytes(dtype)
    assert cache.bytes == sum(b.nbytes for group in cache.groups for b in (*group.k, *group.v))


def test_roles_that_do_not_fit_the_model_are_refused_by_their_numbers(model):
    with pytest.raises(HeadForcingError, match=r"3 layers x 5 heads, got \[\(2, 5\)\]"):
        new_cache(model, every_head(model, "local")[:2], CachePolicy(), 2)
    with pytest.raises(HeadForcingError, match="3 layers x 5 heads"):
        new_cache(model, [["local"] * 5, ["local"] * 4, ["local"] * 5], CachePolicy(), 2)


@pytest.mark.parametrize("preset", ["head_forcing", "busy", "no_rope_reencoding", "fifo_eviction", "self_forcing"])
def test_a_context_never_reads_a_slot_that_was_not_written(model, preset):
    policy = BUSY if preset == "busy" else PRESETS[preset]
    roles = mixed(model)
    cache = new_cache(model, roles, policy, 14)
    for group in cache.groups:
        poison(group, 0)

    def poison_everything_behind_the_history(block, step, clean):
        if step == 0:
            for group in cache.groups:
                poison(group, group.current.start)

    ours = latents(film(model, cache, 14, on_step=poison_everything_behind_the_history))
    assert ours.isfinite().all()
    assert torch.equal(ours, make(model, roles, policy, 14))


def test_the_passes_of_a_block_leave_no_trace_but_the_clean_one(model):
    """History comes from clean passes only: other noise levels inside a block change nothing that is stored of it."""
    start = make(model, mixed(model), BUSY, 2).flatten(0, 1)
    caches = [new_cache(model, mixed(model), BUSY, 3) for _ in range(2)]
    for cache, passes in zip(caches, (0, 3), strict=True):
        video = WanVideoModel(model, torch.float32)
        video.use_prompt(embeds(model)[0])
        for block in start.split(F):
            cache.begin_block()
            for sigma in (1.0, 0.6, 0.2)[:passes]:
                video.denoise(torch.randn(block.shape, generator=torch.Generator().manual_seed(1)), sigma, cache)
            video.write_clean(block, cache)
            cache.commit(video.prompt)
    assert_same_contents(*caches)
