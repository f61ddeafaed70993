"""Roles, policies and presets: what each keeps."""

import itertools
from collections import Counter

import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import (
    PRESETS,
    CachePolicy,
    EpisodicPolicy,
    HeadRole,
    RolePolicy,
    arrange_roles,
    preset,
)
from headforcing.headforcing_core.model.wan import WanConfig

TINY = WanConfig(dim=36, num_layers=2, num_heads=6)
ROLES = [["local", "anchor", "memory"] * 2, ["memory"] * 6]


def test_every_preset_makes_a_cache_as_large_as_it_announces():
    for name, total_frames in itertools.product(PRESETS, (3, 240)):
        shape = CacheShape.for_model(TINY, ROLES, preset(name), 4, 6, 3, total_frames)
        cache = HeadCache(shape, torch.float16)
        assert 0 < shape.frame_slots <= 12 * total_frames, name
        held = sum(x.nbytes for group in cache.groups for x in (*group.k, *group.v))
        assert cache.bytes == shape.bytes(torch.float16) == held, name


def test_the_preset_table_holds_the_paper_and_the_baselines_at_its_sizes():
    paper = preset("head_forcing")
    assert (paper.local, paper.anchor, paper.memory) == (RolePolicy(0, 1), RolePolicy(3, 1), RolePolicy(0, 3, 5))
    assert (paper.rope, paper.episodic.novelty_threshold, paper.episodic.update_interval) == ("contiguous", 0.95, 3)
    for name, sinks, recent in (("self_forcing_window_21", 0, 18), ("self_forcing_sink", 1, 17)):
        assert preset(name) == CachePolicy.uniform(RolePolicy(sinks, recent), "absolute") and sinks + recent + 3 == 21
    assert preset("self_forcing").memory.recent_frames is None
    assert preset("no_episodic_memory").memory.capacity(3, 999) == paper.memory.capacity(3, 999) == 11
    need = {name for name, policy in PRESETS.items() if policy.heads_by}
    assert need == {name for name in PRESETS if not name.startswith(("self_forcing", "uniform_memory"))}


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
    shuffled = [arrange_roles(ROLES, "shuffled", seed) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2] and ROLES not in shuffled
    assert all(Counter(sum(roles, [])) == Counter(sum(ROLES, [])) and len(roles[0]) == 6 for roles in shuffled)
    assert {"memory": 1}[HeadRole.MEMORY] == {HeadRole.MEMORY: 1}["memory"] == 1


def test_memory_numbers_replace_only_those_of_memory_heads():
    memory, episodic = RolePolicy(0, 6, 4), EpisodicPolicy(0.8, 2, eviction="fifo")
    assert preset("fifo_eviction").with_memory(4, 6, 0.8, 2) == CachePolicy(memory=memory, episodic=episodic)
    for name in ("self_forcing", "no_episodic_memory"):
        assert preset(name).with_memory(4, 6, 0.8, 2) == preset(name)
