"""The head-wise cache equals its specification, each head sees what its role keeps, and memory decides as it should.

Float32 on CPU unless a test says otherwise. "Equal" means the same bytes where the arithmetic is the same, and within
1e-4 where only its order differs.
"""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy, EpisodicPolicy
from headforcing.headforcing_core.cache.reference import ReferenceCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.timeline.switch import Switch
from small_engine import (
    BUSY,
    SELF_FORCING,
    TWO_STEPS,
    F,
    assert_as_specified,
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
    random_setting,
)

BLOCKS = 14
CAPACITY = 3
BACK = {5: Switch(), 8: Switch(recall=1)}
PROMPTS = [0] * 5 + [1] * (BLOCKS - 5)
SMALL = replace(BUSY, memory=replace(BUSY.memory, episodic_frames=CAPACITY), kept_scenes=2)


@pytest.mark.parametrize("seed", range(20))
def test_head_cache_equals_the_specification_for_random_roles_and_policies(seed):
    assert_as_specified(seed)


def test_the_random_settings_reach_every_branch():
    settings = [random_setting(seed) for seed in range(20)]
    policies = [policy for _, _, policy, _, _ in settings]
    memory = [p.episodic for p in policies if p.memory.episodic_frames]
    assert {p.rope for p in policies} == {"contiguous", "absolute"}
    assert {e.eviction for e in memory} == {"summary", "fifo"}
    assert {e.token_selection for e in memory} == {"prompt", "random"}
    assert {e.admission for e in memory} == {"novelty", "uniform"}
    assert {e.center_keys for e in memory} == {e.pin_first for e in memory} == {True, False}
    assert {f for _, _, _, f, _ in settings} == {1, 2, 3}


# ------------------------------------------------------------------------------------------------ what each head sees


@pytest.mark.parametrize("role", ["local", "anchor", "memory", "mixed"])
def test_the_first_block_is_plain_self_forcing_whatever_the_roles_and_the_second_without_local_heads(model, role):
    plain = make(model, every_head(model, "memory"), SELF_FORCING, 3)
    ours = make(model, mixed(model) if role == "mixed" else every_head(model, role), CachePolicy(), 3)
    assert difference(ours[0], plain[0]) < 1e-5 and difference(ours[2], plain[2]) > 1e-3
    assert (difference(ours[1], plain[1]) < 1e-5) == (role in ("memory", "anchor")), "of one kind"


def test_each_role_sees_as_many_frames_as_the_paper_says_and_none_of_them_twice(model):
    cache = new_cache(model, mixed(model), BUSY, 40)
    counts: dict[str, list[int]] = {"local": [], "anchor": [], "memory": []}

    def inspect(block, step, clean):
        for group in cache.groups:
            frames = [frame for sources in group.sources for frame in sources]
            assert len(frames) == len(set(frames))
            assert group.sources[-F:] == [[F * block + i] for i in range(F)]
            assert group.indices == list(range(group.frames)), "contexts are numbered from zero"
        if step == 0:
            for role, frames in counts.items():
                frames += [g.frames for g in cache.groups if g.policy == BUSY.of(role)]

    film(model, cache, 40, on_step=inspect)
    assert counts["local"] == [3] + 39 * [4]
    assert counts["anchor"] == [3, 6] + 38 * [7]  # in block 1 the last of the first three frames is the last frame
    assert counts["memory"] == [3, 6, 7, 8, 9, 10] + 34 * [11]
    assert cache.memory.has_summary


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
    policy, roles = PRESETS.get(preset, BUSY), mixed(model)
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


# ----------------------------------------------------------------------------------------- what is admitted and dropped


def test_a_pinned_entry_is_never_merged_and_a_free_one_is(model):
    cache = new_cache(model, mixed(model), replace(BUSY, episodic=replace(BUSY.episodic, pin_first=True)), 30)
    film(model, cache, 30)
    assert cache.memory.sources[0] == [0] and len(cache.memory.sources[1]) > 10 and len(cache.memory.sources) == 5


def test_uniform_admission_takes_every_candidate_and_a_low_threshold_only_the_first(model):
    for admission, threshold, entries in (("uniform", -1.0, 4), ("novelty", -1.0, 1), ("novelty", 2.0, 4)):
        episodic = EpisodicPolicy(threshold, update_interval=2, admission=admission)
        cache = new_cache(model, mixed(model), CachePolicy(episodic=episodic), 8)
        events = [block.event for block in film(model, cache, 8) if block.event]
        assert [event.frame for event in events] == [0, 6, 12, 18]
        assert len(cache.memory.sources) == entries
        assert events[0].delta == -1.0 and all(-1 <= event.delta <= 1.0001 for event in events[1:])


def test_candidates_are_the_first_frames_of_every_third_block_once_it_left_fast_memory():
    frames = [EpisodicPolicy().candidate_frame(block, 3, 3) for block in range(8)]
    assert frames == [None, 0, None, None, 9, None, None, 18]
    assert [EpisodicPolicy(update_interval=2).candidate_frame(block, 1, 2) for block in range(6)] == [
        None,
        None,
        0,
        None,
        2,
        None,
    ]


@pytest.mark.parametrize("kind", [HeadCache, ReferenceCache])
def test_a_model_without_memory_heads_keeps_no_episodic_memory(model, kind):
    roles = [[role if role != "memory" else "anchor" for role in row] for row in mixed(model)]
    cache = new_cache(model, roles, BUSY, 6, kind)
    assert all(block.event is None for block in film(model, cache, 6)) and cache.memory.sources == []


def test_memory_heads_of_all_layers_share_one_decision(model):
    """Layers without memory heads have no say and hold no entries; the others hold the same frames."""
    roles = mixed(model)
    roles[1] = ["anchor"] * 5
    cache = new_cache(model, roles, BUSY, 10)
    film(model, cache, 10)
    group = cache.memory_group
    assert [len(k) for k in group.k] == [row.count("memory") for row in roles]
    assert len(cache.memory.entries[0].pooled) == sum(row.count("memory") for row in roles)
    assert group.sources[: group.entries] == cache.memory.sources


def nearest_two(pooled: list[torch.Tensor]) -> tuple[int, int]:
    """The two entries whose pooled keys `[heads, d]` have the highest mean cosine."""
    pairs = [(i, j) for j in range(len(pooled)) for i in range(j)]
    alike = [float(torch.cosine_similarity(pooled[i], pooled[j], dim=-1).mean()) for i, j in pairs]
    return pairs[alike.index(max(alike))]


def film_and_entries(model, cache, **options):
    """The blocks of a film, and what memory held before each of them: sources and pooled key of every entry."""
    held = {}

    def watch(block, step, clean):
        held[block] = [(list(entry.sources), entry.pooled.clone()) for entry in cache.memory.entries]

    return film(model, cache, BLOCKS, prompts=PROMPTS, on_step=watch, **options), held


def test_the_first_merge_after_a_recall_is_that_of_the_nearest_entries_since_none_is_a_summary(model):
    nearest = set()
    for seed in range(6):
        cache = new_cache(model, mixed(model, seed), SMALL, BLOCKS)
        made, held = film_and_entries(model, cache, seed=seed, switches=BACK)
        merges = [block.event for block in made if block.event is not None and block.event.merged]
        assert merges[0].after_block < 8 and len(held[8]) == CAPACITY, "there was a summary before the recall"
        first = next(event for event in merges if event.after_block >= 8)
        sources, pooled = zip(*held[first.after_block], strict=True)
        pair = nearest_two(list(pooled))
        assert first.merged == [sources[place] for place in pair]
        nearest.add(pair)
    assert (1, 2) in nearest, "the first entry would be one of the two if it were taken for a summary"


@pytest.mark.parametrize("pinned", [False, True])
def test_fifo_holds_the_frames_admitted_last_and_those_pinned_and_says_what_it_drops(model, pinned):
    policy = replace(SMALL, episodic=replace(SMALL.episodic, eviction="fifo", pin_first=pinned))
    made, held = film_and_entries(model, new_cache(model, mixed(model), policy, BLOCKS))
    admitted, dropped = [], []
    for block in made:
        first = CAPACITY - 1 if pinned else CAPACITY
        expected = admitted[:1] * pinned + admitted[pinned:][-first:] if len(admitted) > CAPACITY else admitted
        assert [sources for sources, _ in held[block.index]] == [[frame] for frame in expected]
        if block.event is not None:
            assert block.event.admitted and ("dropped" in block.event.to_dict()) == (len(admitted) >= CAPACITY)
            admitted.append(block.event.frame)
            dropped += block.event.dropped or []
    assert len(admitted) > CAPACITY + 2 and dropped == admitted[pinned:][: len(dropped)] and dropped


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_stored_cache_goes_on_with_the_same_merges_wherever_it_was_stored(model, seed):
    cache = partial(new_cache, model, mixed(model, seed), SMALL, BLOCKS)
    straight = film(model, cache(), BLOCKS, prompts=PROMPTS, seed=seed)
    merges = [block.index for block in straight if block.event is not None and block.event.merged]
    for stop in merges[:-1]:  # right before each merge but the first
        first, again = cache(), cache()
        film(model, first, stop + 1, prompts=PROMPTS[: stop + 1], seed=seed)
        again.restore(first.state())
        made = [block.latents for block in straight[: stop + 1]]
        rest = film(model, again, BLOCKS, prompts=PROMPTS, seed=seed, given=made)
        assert [block.event for block in rest[stop + 1 :]] == [block.event for block in straight[stop + 1 :]]
        assert torch.equal(latents(rest), latents(straight))


def test_frames_of_a_scene_come_back_once_also_where_they_are_entries_already(model):
    """Without recent frames a block of one frame is considered as soon as it is made."""
    memory = replace(BUSY.memory, recent_frames=0, episodic_frames=7)
    cache = new_cache(model, mixed(model), replace(SMALL, memory=memory), BLOCKS, f=1)
    _, held = film_and_entries(model, cache, switches=BACK, schedule=replace(TWO_STEPS, frames_per_block=1))
    assert [sources for sources, _ in held[5]] == [sources for sources, _ in held[8]] == [[n] for n in range(5)]
    assert cache.recalls[0].frames == (0, 1, 2, 3, 4)
