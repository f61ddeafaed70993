"""Prompt switches: what each leaves in the caches, what a blend is, and what a plan makes of them."""

import gc
import random
import weakref

import pytest
import torch
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy, RolePolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile, AutoProfileCache
from headforcing.headforcing_core.rollout.loop import WanVideoModel, rollout
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.timeline.switch import SWITCHES, Switch
from scripts import script_of
from small_engine import (
    BUSY,
    HEIGHT,
    TWO_STEPS,
    WIDTH,
    F,
    assert_as_specified,
    assert_same_contents,
    difference,
    embeds,
    every_head,
    film,
    latents,
    mixed,
    new_cache,
    poison,
    random_setting,
)

EVERY_SWITCH = [Switch(kind, re_anchor=re_anchor) for kind in SWITCHES for re_anchor in (False, True)]
PAST_CHANGING = [switch for switch in EVERY_SWITCH if switch.changes_cache]


class Stop(Exception):
    pass


def two_scenes(model, switch, blocks=9, at=5, cache=None, policy=BUSY, **options):
    """A film whose second prompt takes over before block `at`."""
    cache = cache or new_cache(model, mixed(model), policy, blocks)
    prompts = [int(block >= at) for block in range(blocks)]
    return film(model, cache, blocks, prompts=prompts, switches={at: switch}, **options)


def sources(cache, role, policy=BUSY) -> list[list[int]]:
    (group,) = [group for group in cache.groups if group.policy == policy.of(role)]
    return group.sources


def before_block(block: int, look):
    """An `on_step` that looks at the history the block is made with."""
    return lambda b, step, clean: look() if (b, step) == (block, 1) else None


def test_blocks_before_a_switch_are_byte_identical_and_every_kind_makes_other_ones_after_it(model):
    plain, changed = (
        latents(film(model, new_cache(model, mixed(model), BUSY, 9), 9, prompts=prompts))
        for prompts in ([0] * 9, [0] * 5 + [1] * 4)
    )
    made = [plain, *(latents(two_scenes(model, switch)) for switch in EVERY_SWITCH)]
    assert torch.equal(made[1], changed), "a plain reset is nothing but the other prompt"
    for i, one in enumerate(made):
        for other in made[:i]:
            assert torch.equal(one[:5], other[:5]) and difference(one[5:], other[5:]) > 1e-3


@pytest.mark.parametrize("switch", PAST_CHANGING, ids=str)
@pytest.mark.parametrize("name", ["head_forcing", "no_rope_reencoding", "self_forcing_sink"])
def test_after_a_switch_no_slot_is_read_that_was_not_written(model, switch, name):
    cache = new_cache(model, mixed(model), PRESETS[name], 9)
    for group in cache.groups:
        poison(group, 0)

    def poison_behind_the_history(block, step, clean):
        if step == 0:
            for group in cache.groups:
                poison(group, group.current.start if block == cache.block else group.frames)

    made = two_scenes(model, switch, cache=cache, on_step=poison_behind_the_history)
    assert torch.equal(latents(made), latents(two_scenes(model, switch, policy=PRESETS[name])))


def test_a_flush_leaves_the_first_frames_and_the_last_two_and_no_memory(model):
    cache, held = new_cache(model, mixed(model), BUSY, 9), {}

    def look():
        held.update({role: list(sources(cache, role)[:-F]) for role in ("local", "anchor", "memory")})
        held["entries"] = cache.memory.sources

    two_scenes(model, Switch("flush"), cache=cache, on_step=before_block(5, look))
    assert held == {"local": [[14]], "anchor": [[0], [1], [2], [14]], "memory": [[13], [14]], "entries": []}


@pytest.mark.parametrize(("f", "left"), [(1, [[4]]), (2, [[8], [9]]), (4, [[18], [19]])])
def test_a_flush_cuts_the_window_to_two_frames_whatever_the_block(model, f, left):
    policy = CachePolicy(memory=RolePolicy(recent_frames=f, episodic_frames=3), episodic=BUSY.episodic)
    cache, held = new_cache(model, every_head(model, "memory"), policy, 8, f=f), []
    look = before_block(5, lambda: held.extend(cache.groups[0].sources[:-f]))
    two_scenes(model, Switch("flush"), 8, cache=cache, schedule=Schedule((1.0, 0.7), f), on_step=look)
    assert held == left


def test_a_flushed_frame_is_no_candidate_for_memory_and_the_next_ones_are(model):
    made = two_scenes(model, Switch("flush"), 12)
    events = {block.index: block.event for block in made}
    assert events[4].frame == 9 and events[4].admitted
    assert events[5] is None, "block 4 has left fast memory, but its first frame was flushed"
    assert (events[6].frame, events[6].delta) == (15, -1.0), "the memory was empty"


def test_after_a_cut_the_anchors_are_the_new_scenes_first_frames(model):
    cache, anchors = new_cache(model, mixed(model), BUSY, 9), {}

    def look(block, step, clean):
        anchors[block] = [frame for (frame,) in sources(cache, "anchor")[:-F]]

    two_scenes(model, Switch(re_anchor=True), cache=cache, on_step=look)
    assert anchors[4] == [0, 1, 2, 11]
    assert anchors[5] == [14], "the old anchors are dropped at once"
    assert anchors[6] == [15, 16, 17]
    assert anchors[7] == [15, 16, 17, 20] and anchors[8] == [15, 16, 17, 23]


def replayed(model, cache, blocks, prompt):
    video = WanVideoModel(model, torch.float32)
    video.use_prompt(embeds(model)[prompt])
    for block in blocks:
        cache.begin_block()
        video.write_clean(block, cache)
        cache.close()
    return cache


def stopped_before(model, policy, block, switch, roles=None):
    """The cache that `block` of `two_scenes` is made with, and the blocks before it."""
    cache, made = new_cache(model, roles or mixed(model), policy, 9), []

    def stop(b, step, clean):
        if b == block and cache.groups[0].current.stop == cache.groups[0].frames and cache.block == block:
            raise Stop

    with pytest.raises(Stop):
        prompts, noise = [int(b >= block) for b in range(9)], SeededNoise((F, 16, HEIGHT, WIDTH))
        script = script_of(prompts, TWO_STEPS, embeds(model), seed=3, switches={block: switch})
        for done in rollout(WanVideoModel(model, torch.float32), cache, script, noise, on_step=stop):
            made.append(done.latents)
    return cache, made


def test_with_every_frame_kept_a_recache_is_the_past_as_the_new_prompt_would_have_written_it(model):
    roles, policy = every_head(model, "memory"), PRESETS["self_forcing"]
    cache, made = stopped_before(model, policy, 5, Switch("recache"), roles)
    fresh = replayed(model, new_cache(model, roles, policy, 9), made, prompt=1)
    fresh.begin_block()
    slots = slice(0, 5 * F)
    for layer in range(3):
        assert torch.equal(cache.groups[0].k[layer][:, slots], fresh.groups[0].k[layer][:, slots])
        assert torch.equal(cache.groups[0].v[layer][:, slots], fresh.groups[0].v[layer][:, slots])


def test_a_block_that_is_written_again_sees_no_frame_of_its_past_twice(model):
    cache, pasts = new_cache(model, mixed(model), BUSY, 9), []

    def look_before_a_pass(block, step, clean):
        if (block, step) == (5, 0):
            pasts.append([list(sources(cache, role))[:-F] for role in ("anchor", "memory")])  # without the open block

    two_scenes(model, Switch("recache"), cache=cache, on_step=look_before_a_pass)
    rewound, second, _ = pasts
    assert rewound == [[[0], [1], [2]], [[0], [3], [6], [9]]]
    assert second == [[[0], [1], [2], [11]], [[0], [3], [6], [9], [10], [11]]], "frame 9 is remembered"


@pytest.mark.slow
def test_only_as_many_finished_blocks_are_held_as_a_recache_needs(model):
    cache = new_cache(model, mixed(model), CachePolicy(), 30)
    script = script_of([0] * 30, TWO_STEPS, embeds(model), switches={29: Switch("recache")})
    noise, made = SeededNoise((F, 16, HEIGHT, WIDTH)), []
    for block in rollout(WanVideoModel(model, torch.float32), cache, script, noise):
        made.append(weakref.ref(block.latents))
        del block
        gc.collect()
        assert sum(latents() is not None for latents in made) <= cache.shape.recache_blocks == 2


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_a_recache_can_be_stopped_before_each_of_its_passes(model, passes):
    calls, seen = [], []

    class Counting(WanVideoModel):
        def flow(self, *args, **options):
            calls.append(1)
            return super().flow(*args, **options)

    def stop(block, step, clean):
        if block == 4:
            seen.append(len(calls))
            if len(seen) > passes:
                raise Stop

    cache = new_cache(model, mixed(model), CachePolicy(), 6)
    script = script_of([0] * 6, TWO_STEPS, embeds(model), switches={4: Switch("recache")})
    noise = SeededNoise((F, 16, HEIGHT, WIDTH))
    with pytest.raises(Stop):
        list(rollout(Counting(model, torch.float32), cache, script, noise, on_step=stop))
    assert seen == [12 + i for i in range(passes + 1)]  # four blocks of two steps and a clean pass


def random_switches(seed: int) -> dict[int, Switch]:
    draw = random.Random(seed)
    return {block: draw.choice(PAST_CHANGING) for block in sorted(draw.sample(range(1, 12), draw.choice((1, 2, 4, 7))))}


@pytest.mark.parametrize("seed", range(20))
def test_switched_caches_equal_the_specification_for_random_roles_policies_and_switches(seed):
    assert_as_specified(seed, switches=random_switches(seed))


def test_the_random_switches_reach_memory_windows_and_every_kind():
    drawn = [(random_setting(seed)[2], random_switches(seed)) for seed in range(20)]
    assert {switch for _, switches in drawn for switch in switches.values()} == set(PAST_CHANGING)
    recached = [policy for policy, switches in drawn if any(s.kind == "recache" for s in switches.values())]
    assert {policy.anchor.recent_frames for policy in recached} >= {0, 5, None}
    assert any(policy.memory.episodic_frames for policy in recached)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_film_with_switches_is_extended_as_if_it_had_never_stopped(model, seed):
    switches, prompts = random_switches(seed), [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 1]
    whole = latents(film(model, new_cache(model, mixed(model), BUSY, 12), 12, prompts=prompts, switches=switches))
    for blocks in (1, min(switches), max(switches) + 1):
        cache = new_cache(model, mixed(model), BUSY, 12)
        start = whole[:blocks].flatten(0, 1)
        extended = film(model, cache, 12, prompts=prompts, switches=switches, start=start)
        assert torch.equal(latents(extended), whole)


def test_a_stored_state_keeps_how_far_the_past_reaches(model):
    cache = new_cache(model, mixed(model), BUSY, 9)
    two_scenes(model, Switch("flush", re_anchor=True), cache=cache)
    again = new_cache(model, mixed(model), BUSY, 9)
    again.restore(cache.state())
    assert_same_contents(cache, again)
    assert (again.origin, again.oldest) == (15, 13)


def test_history_counts_sinks_from_the_origin_and_reaches_back_to_the_oldest():
    policy = RolePolicy(sink_frames=3, recent_frames=5)
    assert policy.history(12) == [0, 1, 2, 7, 8, 9, 10, 11]
    assert policy.history(12, oldest=10) == [0, 1, 2, 10, 11]
    assert policy.history(12, oldest=3) == policy.history(12)
    assert policy.history(12, origin=12) == [7, 8, 9, 10, 11]
    assert policy.history(15, origin=12) == [10, 11, 12, 13, 14]
    assert policy.history(18, origin=12) == [12, 13, 14, 15, 16, 17]
    assert policy.history(24, origin=12) == [12, 13, 14, 19, 20, 21, 22, 23]
    assert policy.history(12, origin=12, oldest=12) == policy.history(0) == []
    assert policy.history(6, origin=9, oldest=8) == [], "rewound to before a flush and a cut"
    assert RolePolicy(recent_frames=None).history(4, origin=3, oldest=2) == [2, 3]


def test_a_cache_that_is_finding_its_roles_refuses_to_change_the_past(model):
    shape = new_cache(model, mixed(model), BUSY, 9).shape
    cache = AutoProfileCache(shape, AutoProfile(), torch.float32)
    for switch in (Switch("flush"), Switch("recache"), Switch(re_anchor=True), Switch(recall=1)):
        with pytest.raises(HeadForcingError, match="while head roles are being measured; load a head profile"):
            cache.apply_switch(switch, lambda latents: None, [])


def test_a_flush_forgets_the_summary(model):
    cache = new_cache(model, mixed(model), BUSY, 14)
    two_scenes(model, Switch("flush"), 14, at=11, cache=cache)
    assert not cache.memory.has_summary
    assert cache.memory.sources == [[33], [36]]


def test_a_recache_soon_after_a_flush_brings_nothing_back(model):
    cache = new_cache(model, every_head(model, "memory"), PRESETS["self_forcing"], 9)
    switches = {4: Switch("flush"), 7: Switch("recache")}
    film(model, cache, 9, prompts=[0] * 4 + [1] * 3 + [0] * 2, switches=switches)
    assert cache.groups[0].sources == [[frame] for frame in range(10, 27)]


def test_a_cut_leaves_local_and_memory_heads_as_they_were(model):
    held = []
    for switch in (Switch(), Switch(re_anchor=True)):
        cache = new_cache(model, mixed(model), BUSY, 9)
        look = before_block(5, lambda c=cache: held.append([list(sources(c, role)) for role in ("local", "memory")]))
        two_scenes(model, switch, cache=cache, on_step=look)
    assert held[0] == held[1]


def test_with_a_window_a_recache_is_the_last_blocks_written_from_nothing(model):
    roles, policy = every_head(model, "local"), CachePolicy.uniform(RolePolicy(recent_frames=4), "contiguous")
    cache, made = stopped_before(model, policy, 5, Switch("recache"), roles)
    assert cache.shape.recache_blocks == 3  # four frames lie in two blocks, and one before
    fresh = new_cache(model, roles, policy, 9)
    fresh.block, fresh.oldest = 2, 6
    replayed(model, fresh, made[2:], prompt=1).begin_block()
    for layer in range(3):
        assert torch.equal(cache.groups[0].k[layer][:, :4], fresh.groups[0].k[layer][:, :4])
        assert torch.equal(cache.groups[0].v[layer][:, :4], fresh.groups[0].v[layer][:, :4])


def test_a_recache_changes_recent_frames_and_neither_anchors_nor_memory(model):
    reset, _ = stopped_before(model, BUSY, 5, Switch())
    recached, _ = stopped_before(model, BUSY, 5, Switch("recache"))
    assert recached.memory.sources == reset.memory.sources != []
    compared = 0
    for a, b in zip(reset.groups, recached.groups, strict=True):
        assert (a.sources, a.entries) == (b.sources, b.entries)
        for slot, (frame, *_) in enumerate(a.sources[:-F]):
            for layer in range(1, 3):  # keys and values of the first layer do not depend on the text
                values = a.v[layer][:, slot], b.v[layer][:, slot]
                if not len(values[0]):
                    continue
                compared += 1
                if slot < a.entries or frame < 3:
                    assert torch.equal(*values)
                else:
                    assert difference(*values) > 1e-3
    assert compared > 10


def test_a_recache_in_the_second_block_rewrites_the_anchors_too(model):
    reset, _ = stopped_before(model, BUSY, 1, Switch())
    recached, _ = stopped_before(model, BUSY, 1, Switch("recache"))
    for a, b in zip(reset.groups, recached.groups, strict=True):
        assert a.sources == b.sources
        for layer in range(1, 3):
            if len(a.v[layer]):
                assert difference(a.v[layer][:, : a.frames - F], b.v[layer][:, : a.frames - F]) > 1e-3
