"""The head-wise cache equals its specification, the reference cache, whatever roles and policies are set."""

import pytest
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.cache.memory import (
    candidate_frame,
)
from headforcing.headforcing_core.cache.policy import CachePolicy, EpisodicPolicy
from headforcing.headforcing_core.cache.reference import ReferenceCache
from small_engine import BUSY, assert_as_specified, film, mixed, new_cache, random_setting


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


def test_a_pinned_entry_is_never_merged_and_a_free_one_is(model):
    pinned = CachePolicy(episodic=EpisodicPolicy(novelty_threshold=2.0, update_interval=1, pin_first=True))
    cache = new_cache(model, mixed(model), pinned, 30)
    film(model, cache, 30)
    assert cache.memory.sources[0] == [0]
    assert len(cache.memory.sources[1]) > 10
    assert len(cache.memory.sources) == 5


def test_fifo_forgets_the_oldest_entry_and_says_so(model):
    policy = CachePolicy(episodic=EpisodicPolicy(update_interval=1, admission="uniform", eviction="fifo"))
    cache = new_cache(model, mixed(model), policy, 9)
    events = [block.event for block in film(model, cache, 9) if block.event]
    assert cache.memory.sources == [[9], [12], [15], [18], [21]]
    assert [event.dropped for event in events] == 5 * [None] + [[0], [3], [6]]
    assert "dropped" in events[-1].to_dict() and "dropped" not in events[0].to_dict()


def test_uniform_admission_takes_every_candidate_and_a_low_threshold_only_the_first(model):
    for admission, threshold, entries in (("uniform", -1.0, 4), ("novelty", -1.0, 1), ("novelty", 2.0, 4)):
        episodic = EpisodicPolicy(threshold, update_interval=2, admission=admission)
        cache = new_cache(model, mixed(model), CachePolicy(episodic=episodic), 8)
        events = [block.event for block in film(model, cache, 8) if block.event]
        assert [event.frame for event in events] == [0, 6, 12, 18]
        assert len(cache.memory.sources) == entries
        assert events[0].delta == -1.0 and all(-1 <= event.delta <= 1.0001 for event in events[1:])


def test_candidates_are_the_first_frames_of_every_third_block_once_it_left_fast_memory():
    frames = [candidate_frame(block, 3, 3, 3) for block in range(8)]
    assert frames == [None, 0, None, None, 9, None, None, 18]
    assert [candidate_frame(block, 1, 2, 2) for block in range(6)] == [None, None, 0, None, 2, None]


@pytest.mark.parametrize("kind", [HeadCache, ReferenceCache])
def test_a_model_without_memory_heads_keeps_no_episodic_memory(model, kind):
    roles = [[role if role != "memory" else "anchor" for role in row] for row in mixed(model)]
    cache = new_cache(model, roles, BUSY, 6, kind)
    blocks = film(model, cache, 6)
    assert all(block.event is None for block in blocks)
    assert cache.memory.sources == []


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
