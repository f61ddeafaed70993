"""Roles, policies and presets: what each keeps, and errors that name the field and the value."""

from collections import Counter
from dataclasses import replace

import pytest
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


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("total_frames", [3, 9, 240])
def test_every_preset_makes_a_cache_and_announces_its_size(name, total_frames):
    shape = CacheShape.for_model(TINY, ROLES, preset(name), 4, 6, 3, total_frames)
    assert 0 < shape.frame_slots <= 12 * total_frames
    assert HeadCache(shape, torch.float16).bytes == shape.bytes(torch.float16)


def test_the_preset_table_holds_the_paper_its_ablations_and_the_baselines():
    paper = preset("head_forcing")
    assert paper.local == RolePolicy(0, 1, 0)
    assert paper.anchor == RolePolicy(3, 1, 0)
    assert paper.memory == RolePolicy(0, 3, 5)
    assert (paper.rope, paper.episodic.novelty_threshold, paper.episodic.update_interval) == ("contiguous", 0.95, 3)
    ablations = {
        "no_rope_reencoding": {"rope": "absolute"},
        "uniform_admission": {"episodic": EpisodicPolicy(admission="uniform")},
        "fifo_eviction": {"episodic": EpisodicPolicy(eviction="fifo")},
        "random_tokens": {"episodic": EpisodicPolicy(token_selection="random")},
        "no_episodic_memory": {"memory": RolePolicy(recent_frames=8)},
    }
    for name, change in ablations.items():
        assert preset(name) == replace(paper, **change), name
    assert preset("self_forcing").memory.recent_frames is None
    windows = {"self_forcing_window_21": (0, 18), "self_forcing_sink": (1, 17)}
    for name, (sinks, recent) in windows.items():
        assert preset(name) == CachePolicy.uniform(RolePolicy(sinks, recent), "absolute")
        assert sinks + recent + 3 == 21


@pytest.mark.parametrize("sinks", [0, 1, 7])
@pytest.mark.parametrize("recent", [0, 4, None])
@pytest.mark.parametrize("seen", [0, 1, 5, 29])
def test_history_is_sinks_then_recents_without_repetition(sinks, recent, seen):
    kept = RolePolicy(sinks, recent).history(seen)
    expected = {n for n in range(seen) if n < sinks or recent is None or n >= seen - recent}
    assert kept == sorted(expected)
    for f in (1, 3):
        if seen + f <= 32:
            assert len(kept) + f <= RolePolicy(sinks, recent).capacity(f, 32)


def test_merging_a_role_into_memory_touches_no_other_role():
    assert arrange_roles(ROLES, "profile") == ROLES
    assert arrange_roles(ROLES, "local_to_memory") == [["memory", "anchor", "memory"] * 2, ["memory"] * 6]
    assert arrange_roles(ROLES, "anchor_to_memory") == [["local", "memory", "memory"] * 2, ["memory"] * 6]


def test_shuffling_keeps_the_counts_and_depends_on_the_seed_alone():
    def counts(roles):
        return Counter(role for layer in roles for role in layer)

    shuffled = [arrange_roles(ROLES, "shuffled", seed) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert all(counts(roles) == counts(ROLES) and [len(layer) for layer in roles] == [6, 6] for roles in shuffled)
    assert shuffled[0] != ROLES


def test_a_role_equals_its_name_in_text_and_as_a_key():
    assert f"{HeadRole.LOCAL} {HeadRole.ANCHOR!s}" == "local anchor"
    assert {"memory": 1}[HeadRole.MEMORY] == {HeadRole.MEMORY: 1}["memory"] == 1


def test_the_groups_of_a_large_cache_are_computed_once(monkeypatch):
    calls = []
    monkeypatch.setattr(CachePolicy, "of", lambda self, role, of=CachePolicy.of: calls.append(role) or of(self, role))
    roles = [[list(HeadRole)[(layer + head) % 3] for head in range(12)] for layer in range(30)]
    HeadCache(CacheShape(roles, CachePolicy(), 1, 2, 8, 3, 60), torch.float32)
    assert len(calls) <= 2 * len(HeadRole)


def test_no_episodic_memory_holds_a_window_of_the_same_size():
    with_memory, without = preset("head_forcing").memory, preset("no_episodic_memory").memory
    assert with_memory.capacity(3, 999) == without.capacity(3, 999) == 11


def test_only_methods_that_treat_roles_differently_need_a_profile():
    need = {name for name, policy in PRESETS.items() if policy.heads_by}
    assert need == {name for name in PRESETS if not name.startswith(("self_forcing", "uniform_memory"))}


def test_a_short_video_needs_no_more_slots_than_it_has_frames():
    assert RolePolicy(0, 3, 5).capacity(3, 9) == 9
    assert RolePolicy(0, None).capacity(3, 243) == 243
    assert RolePolicy(3, 1).capacity(3, 243) == 7


def test_memory_numbers_replace_only_those_of_memory_heads():
    changed = preset("fifo_eviction").with_memory(4, 6, 0.8, 2)
    assert changed.memory == RolePolicy(0, 6, 4)
    assert changed.episodic == EpisodicPolicy(0.8, 2, eviction="fifo")
    assert (changed.local, changed.anchor) == (CachePolicy().local, CachePolicy().anchor)
    for name in ("self_forcing", "no_episodic_memory"):
        assert preset(name).with_memory(4, 6, 0.8, 2) == preset(name)
