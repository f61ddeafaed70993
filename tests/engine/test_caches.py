"""The head-wise cache equals its specification in every story, and a stored one goes on as if it had never stopped.

Float32 on CPU. "Equal" means the same bytes where the arithmetic is the same, and within 1e-4 where only its order
differs. Guards are compared with their formulas.
"""

import cmath
import itertools
import math
import os
import random
from dataclasses import replace

import pytest
import torch
from attention_cases import WHOLE_LAYER
from guarded_reference import GuardedReferenceCache, statistics, trigonometric
from headforcing.headforcing_core.cache import guards
from headforcing.headforcing_core.cache.guards import Guards
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.method import VideoFacts
from headforcing.headforcing_core.cache.policy import CachePolicy, EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.cache.scenes import MAX_SCENES
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.model.rope import RotaryEmbedding
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.rollout.schedule import Schedule, schedule
from headforcing.headforcing_core.timeline.switch import Switch
from small_engine import (
    BUSY,
    EVERY_SWITCH,
    HEIGHT,
    KEEPING,
    WIDTH,
    F,
    assert_same_contents,
    difference,
    film,
    latents,
    mixed,
    new_cache,
    poison,
    prompts_of,
    shown,
    wan,
)

BLOCKS = 12
STORIES = ("one scene", "switches", "recalls", "pictures")
SEEDS = range(12 if os.environ.get("HEADFORCING_EVERYTHING") else 5)
WAYS = [{}, {"kind": "flush"}, {"kind": "recache"}, {"re_anchor": True}, {"continues": True}, {"recall": 1}]


# --------------------------------------------------------------------------------------------------------- as specified


def random_setting(seed: int):
    """A model, roles and policy drawn from everything the policies allow."""
    chooser = random.Random(seed)
    f = chooser.choice((1, 2, 3))
    layers, heads = chooser.choice(((1, 3), (2, 3), (2, 4)))
    model = wan(layers, heads, head_dim=chooser.choice((6, 22, 26)), seed=seed, ffn_dim=16)
    every = ("local", "anchor", "memory")
    names = chooser.choice((every, every, ("memory",), ("memory", "memory", "anchor"), ("local", "anchor")))
    roles = [[chooser.choice(names) for _ in range(heads)] for _ in range(layers)]
    if layers > 1 and chooser.random() < 0.4:
        roles[chooser.randrange(layers)] = ["anchor"] * heads  # a layer without memory heads
    episodic = EpisodicPolicy(
        novelty_threshold=chooser.choice((0.3, 0.8, 0.97, 2.0)),
        update_interval=chooser.choice((1, 1, 2, 3)),
        admission=chooser.choice(("novelty", "novelty", "uniform")),
        eviction=chooser.choice(("summary", "summary", "fifo")),
        token_selection=chooser.choice(("prompt", "prompt", "random")),
        center_keys=chooser.random() < 0.3,
        pin_first=chooser.random() < 0.3,
    )
    recent, entries = f * chooser.choice((0, 1, 1, 2)), chooser.choice((0, 2, 3, 3, 5))
    policy = CachePolicy(
        local=RolePolicy(recent_frames=chooser.choice((0, 1, 2))),
        anchor=RolePolicy(sink_frames=chooser.choice((0, 1, 3, 4)), recent_frames=chooser.choice((0, 1, 5, None))),
        memory=RolePolicy(recent_frames=recent, episodic_frames=entries),
        rope=chooser.choice(("contiguous", "contiguous", "absolute")),
        episodic=episodic,
        guards=Guards(chooser.choice((0.0, 0.0, 0.5)), chooser.choice((0.0, 0.0, 0.8))),
    )
    return model, roles, trigonometric(model, policy) if chooser.random() < 0.3 else policy, f


def random_story(kind: str, seed: int, f: int):
    """Changes of the policy, and the switches and pictures of a film."""
    draw = random.Random(seed)
    if kind == "one scene":
        return {}, {}, {}
    if kind == "switches":
        places = sorted(draw.sample(range(1, BLOCKS), draw.choice((1, 2, 4, 7))))
        return {}, {block: draw.choice(EVERY_SWITCH[1:]) for block in places}, {}
    if kind == "recalls":
        switches = {2: Switch(), 3: Switch(recall=1), 9: Switch("recache", recall=3)}
        switches |= {block: Switch(**draw.choice(WAYS)) for block in (5, 7, 10)}
        return {"kept_scenes": MAX_SCENES}, switches, {}
    switches = {2: Switch()} | {block: Switch(**draw.choice(WAYS)) for block in (4, 5, 7, 9, 10)}
    pictures = {b: shown(draw.choice((1, 2, 3)), f, b) for b in (0, 2, 5, 7, 9) if draw.random() < 0.7}
    return {"kept_scenes": MAX_SCENES, "picture_frames": 5}, switches, pictures


def assert_as_specified(model, roles, policy, f, switches, pictures, whole="tables"):
    """A film has the latents, decisions and scenes of the reference, group by group and with all heads in one call."""
    caches = [
        new_cache(model, roles, policy, BLOCKS, kind, f=f) for kind in (HeadCache, GuardedReferenceCache, HeadCache)
    ]
    caches[2].attention = WHOLE_LAYER[whole]
    told = dict(
        prompts=prompts_of(switches, BLOCKS), switches=switches, pictures=pictures, schedule=Schedule((1.0,), f)
    )
    ours, specified, in_one_call = (film(model, cache, BLOCKS, **told) for cache in caches)
    for made in (ours, in_one_call):
        assert difference(latents(made), latents(specified)) < 1e-4 * float(latents(specified).abs().max())
    for a, b in zip(ours, specified, strict=True):
        assert (a.event is None) == (b.event is None)
        if a.event is not None:
            assert a.event.delta == pytest.approx(b.event.delta, abs=1e-4)
            assert {**a.event.to_dict(), "delta": 0} == {**b.event.to_dict(), "delta": 0}
    assert caches[0].memory.sources == caches[1].memory.sources == caches[2].memory.sources
    for cache in (caches[0], caches[2]):
        assert cache.recalls == caches[1].recalls and cache.scene_starts == caches[1].scene_starts
    for group in caches[0].groups:
        assert len(set(map(tuple, group.sources))) == len(group.sources), "a frame is held twice"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", STORIES)
def test_the_cache_equals_the_specification_for_random_roles_policies_and_stories(kind, seed):
    seed += 12 * (kind == "switches")  # settings of its own
    model, roles, policy, f = random_setting(seed)
    changes, switches, pictures = random_story(kind, seed, f)
    assert_as_specified(model, roles, replace(policy, **changes), f, switches, pictures, list(WHOLE_LAYER)[seed % 2])


def busy(recent_blocks=1, entries=5, f=F, eviction="summary", **changes):
    memory = RolePolicy(recent_frames=recent_blocks * f, episodic_frames=entries)
    return replace(KEEPING, memory=memory, episodic=replace(BUSY.episodic, eviction=eviction), **changes), f


BACK = {4: Switch(), 8: Switch(recall=1)}
PICTURES = {0: shown(1), 5: shown(3, seed=1), 8: shown(2, seed=2)}
SPECIAL = {  # policy and frames of a block, switches, pictures
    "a first frame that is recent": (busy(), {4: Switch(), 7: Switch(), 8: Switch(recall=3)}),
    "an entry that is recent, and recalled": (busy(4), {8: Switch(recall=1), 10: Switch(recall=2)}),
    "and written again": (busy(4), {8: Switch(recall=1), 10: Switch("recache", recall=2), 11: Switch(recall=3)}),
    "while it is the oldest recent one": (busy(2), {8: Switch(recall=1), 9: Switch(recall=2)}),
    "part of a summary": (busy(4, 2), {8: Switch(recall=1), 10: Switch(recall=2)}),
    "an entry that is dropped": (busy(4, 2, eviction="fifo"), {8: Switch(recall=1)}),
    "an entry that is flushed": (busy(2, 2, 1), {8: Switch(recall=1), 9: Switch("flush")}),
    "an entry that is a candidate": (busy(3, 5, 1), {8: Switch(recall=1), 10: Switch(recall=2)}),
    "entries that are there already": (busy(0, 7, 1), BACK),
    "pictures and recalls": (
        busy(), {2: Switch(), 5: Switch(), 8: Switch("flush", recall=2), 10: Switch("recache")}, PICTURES
    ),
    "pictures in absolute positions": (
        busy(rope="absolute"), {5: Switch(), 8: Switch("recache", re_anchor=True, recall=1)}, PICTURES
    ),
    "other pictures in a scene that goes on": (busy(), {5: Switch(), 8: Switch(continues=True)}, {8: shown(2)}),
}  # fmt: skip


@pytest.mark.parametrize("case", SPECIAL)
def test_the_cache_equals_the_specification_where_scenes_meet(model, case):
    (policy, f), switches, *pictures = SPECIAL[case]
    assert_as_specified(model, mixed(model), policy, f, switches, *pictures or [{}])


# --------------------------------------------------------------------------------------------------------------- stored


STOPS = {
    "merges and a cut": (BUSY, {5: Switch("flush", re_anchor=True)}, {}, (5, 6, 10)),
    "a recall and pictures": (KEEPING, BACK, {4: shown(2)}, (4, 5, 8, 10)),
    "a cut, a recall and a new scene": (
        KEEPING, {3: Switch(re_anchor=True), 5: Switch(recall=1), 8: Switch()}, {}, (4, 7, 9)
    ),
    "guards": (replace(BUSY, guards=Guards(0.5, 0.8)), {}, {}, (7,)),
}  # fmt: skip


@pytest.mark.parametrize("story", STOPS)
def test_a_stored_cache_goes_on_to_the_same_blocks_and_decisions(model, story):
    policy, switches, pictures, stops = STOPS[story]
    policy = trigonometric(model, policy) if policy.guards else policy
    straight_cache = new_cache(model, mixed(model), policy, BLOCKS)
    told = dict(prompts=prompts_of(switches, BLOCKS), switches=switches, pictures=pictures)
    straight = film(model, straight_cache, BLOCKS, **told)
    for stop in stops:
        first, again = (new_cache(model, mixed(model), policy, BLOCKS) for _ in range(2))
        before = {name: {b: v for b, v in told[name].items() if b < stop} for name in ("switches", "pictures")}
        film(model, first, stop, prompts=told["prompts"][:stop], **before)
        again.restore(first.state())
        assert_same_contents(first, again)
        rest = film(model, again, BLOCKS, given=[block.latents for block in straight[:stop]], **told)
        assert torch.equal(latents(rest), latents(straight))
        assert [block.event for block in rest[stop:]] == [block.event for block in straight[stop:]]
        assert again.recalls == straight_cache.recalls and again.scene_starts == straight_cache.scene_starts


def test_a_state_of_another_cache_is_refused(model):
    cache = new_cache(model, mixed(model), BUSY, BLOCKS)
    film(model, cache, 3)
    with pytest.raises(HeadForcingError, match="no frames of earlier scenes"):
        new_cache(model, mixed(model), KEEPING, BLOCKS).restore(cache.state())
    for other in (new_cache(model, mixed(model, 2), BUSY, BLOCKS), new_cache(wan(3), mixed(wan(3)), BUSY, BLOCKS)):
        with pytest.raises(HeadForcingError, match="does not fit this render"):
            other.restore(cache.state())


def stored_objects(value, where=""):
    """The fields of every object in the plain part of a state, and where they are; maps by number have no fields."""
    if isinstance(value, list):
        for place, part in enumerate(value):
            yield from stored_objects(part, f"{where}.{place}")
    elif isinstance(value, dict) and "items" in value:
        if value["items"] and all(isinstance(key, str) for key, _ in value["items"]):
            yield where, value["items"]
        for key, part in value["items"]:
            yield from stored_objects(part, f"{where}.{key}")


@pytest.mark.parametrize("method", ["head_forcing_scenes", "deep_forcing", "echo_forcing"])
def test_a_state_with_a_field_more_or_less_is_refused_and_writes_no_attribute(model, method):
    policy = KEEPING if method == "head_forcing_scenes" else method_policy(method)
    shape = policy.shape(model.config, mixed(model), HEIGHT, WIDTH, F, 7 * F)
    made = policy.cache_class(shape, torch.float32)
    if policy is KEEPING:
        switches = {2: Switch(), 4: Switch(recall=1)}
        film(model, made, 6, prompts=prompts_of(switches, 6), switches=switches)
    tensors, plain = made.state()
    objects = dict(stored_objects(plain["value"]))
    assert len(objects) > 2
    for where, items in objects.items():
        for changed in (items[1:], [*items, ["attend", 1]]):
            whole, items[:] = list(items), changed
            other = policy.cache_class(shape, torch.float32)
            with pytest.raises(HeadForcingError, match="does not fit this render: it has .* instead of "):
                other.restore((tensors, plain))
                pytest.fail(where)
            items[:] = whole
            assert callable(other.attend)


def test_the_papers_setting_takes_3096_frame_slots_and_2_47_gb():
    flat = 90 * ["anchor"] + 72 * ["local"] + 198 * ["memory"]
    random.Random(0).shuffle(flat)
    roles = [flat[12 * layer : 12 * layer + 12] for layer in range(30)]
    shape = CacheShape.for_model(WanConfig(), roles, CachePolicy(), 480 // 8, 832 // 8, 3, 243)
    assert shape.frame_slots == 3096 == 90 * 7 + 72 * 4 + 198 * 11
    assert shape.bytes(torch.bfloat16) == 3096 * 1560 * 128 * 2 * 2
    assert round(shape.bytes(torch.bfloat16) / 1e9, 2) == 2.47


def test_roles_that_do_not_fit_the_model_are_refused_by_their_numbers(model):
    with pytest.raises(HeadForcingError, match=r"2 layers x 4 heads, got \[\("):
        new_cache(model, [["local"] * 4, ["local"] * 3], CachePolicy(), 2)


@pytest.mark.parametrize("whole", [None, *WHOLE_LAYER])
@pytest.mark.parametrize("rope", ["contiguous", "absolute"])
def test_a_context_never_reads_a_slot_that_was_not_written(model, whole, rope):
    switches = {4: Switch("flush", re_anchor=True), 7: Switch("recache"), 10: Switch("flush")}
    told = dict(prompts=prompts_of(switches, BLOCKS), switches=switches, schedule=Schedule((1.0,), F))
    caches = [new_cache(model, mixed(model), replace(BUSY, rope=rope), BLOCKS) for _ in range(2)]
    for cache in caches if whole else ():
        cache.attention = WHOLE_LAYER[whole]
    for group in caches[0].groups:
        poison(group, 0)

    def poison_behind_the_history(block, step, clean):
        if step == 0:
            for group in caches[0].groups:
                poison(group, group.current.start if block == caches[0].block else group.frames)

    ours = latents(film(model, caches[0], BLOCKS, on_step=poison_behind_the_history, **told))
    assert ours.isfinite().all() and torch.equal(ours, latents(film(model, caches[1], BLOCKS, **told)))


# --------------------------------------------------------------------------------------------------------------- guards


def everything(model) -> CachePolicy:
    return trigonometric(model, replace(BUSY, guards=Guards(0.5, 0.8)))


def test_a_cache_reports_what_its_guards_did(model):
    cache = new_cache(model, mixed(model), everything(model), 11)
    film(model, cache, 11)
    gate, jitter, compression = cache.report
    assert 0 < cache.gate.left_out < cache.gate.frames and cache.memory.score.merges > 2
    assert gate.startswith(f"sink gate 0.5: left out {cache.gate.left_out:,} of ")
    assert jitter.startswith("rope jitter 0.8: rotary bases from ") and jitter.endswith(" in place of 10,000")
    assert compression.startswith(f"compression trigonometric: tokens of {cache.memory.score.merges} merges")
    assert new_cache(model, mixed(model), BUSY, 11).report == []


def test_guards_take_a_copy_of_one_group_in_one_layer_and_are_never_replayed_as_a_cuda_graph(model):
    plain, guarded = (new_cache(model, mixed(model), policy, 9) for policy in (BUSY, everything(model)))
    shape = guarded.shape
    assert guarded.bytes == plain.bytes == shape.bytes(torch.float32)
    jittered = replace(shape, policy=replace(shape.policy, guards=Guards(rope_jitter=0.8)))
    assert jittered.peak_bytes(torch.float32, False) == plain.bytes
    slots = max(row.count(role) * frames for row in mixed(model) for role, frames in (("anchor", 7), ("memory", 11)))
    assert shape.peak_bytes(torch.float32, False) == plain.bytes + 2 * 4 * 6 * 22 * slots
    plain.begin_block()
    guarded.begin_block()
    assert plain.layout is not None and guarded.layout is None


def test_every_head_has_a_base_of_its_own_and_rotations_by_it_compose():
    bases = guards.jittered_bases(0.8, 4, 6)
    assert bases.unique().numel() == 24 and bases.min() >= 2000 and bases.max() <= 18000
    x = torch.randn(3, 2, 6, 22, generator=torch.Generator().manual_seed(0))
    plain, same = RotaryEmbedding(22, 2, 3), guards.JitteredRotary(guards.jittered_bases(0.0, 1, 3)[0], 22, 2, 3)
    torch.testing.assert_close(same.rotate(x, [7, 7]), plain.rotate(x, [7, 7]), atol=1e-5, rtol=0)
    rope = guards.JitteredRotary(bases[0, :3], 22, 2, 3)
    turned = rope.rerotate(rope.rotate(x, [4, 9]), [3, -2])
    torch.testing.assert_close(turned, rope.rotate(x, [7, 7]), atol=1e-5, rtol=0)
    assert difference(turned, plain.rotate(x, [7, 7])) > 0.1


def test_the_score_is_the_published_sum():
    heads, pairs, tokens, temporal = 3, 11, 7, 5  # head_dim 22: 5 temporal pairs, 6 spatial ones
    generator = torch.Generator().manual_seed(4)
    mean = torch.randn(1, heads, pairs, dtype=torch.complex64, generator=generator)
    size = mean.abs() + 0.3
    keys = torch.randn(heads, tokens, 2 * pairs, generator=generator)
    policy = replace(BUSY, queries=guards.QueryStatistics(mean, size))
    shape = CacheShape([["memory"] * heads], policy, 1, tokens, 22, 3, 60)
    score = guards.QueryScore(shape, [torch.arange(heads)])
    distances = score.begin_merge(frame=30, source=6)
    assert distances == (8, 9, 10), "five entries and three recent frames lie before the queries"
    absolute = guards.QueryScore(replace(shape, policy=replace(policy, rope="absolute")), [])
    assert absolute.begin_merge(frame=30, source=6) == (25, 26, 28, 32, 40, 56, 88, 152)
    expected = torch.zeros(heads, tokens, dtype=torch.float64)
    for h, t, f in itertools.product(range(heads), range(tokens), range(pairs)):
        k, q = complex(*keys[h, t, 2 * f : 2 * f + 2].tolist()), complex(mean[0, h, f])
        phase = cmath.phase(q * k.conjugate())
        w = 10000.0 ** (-f / temporal) if f < temporal else 0.0
        cosines = [math.cos(w * distance + phase) for distance in distances]
        expected[h, t] += abs(q) * abs(k) * sum(cosines) / 3 + (float(size[0, h, f]) - abs(q)) * abs(k)
    expected = (expected - expected.mean(1, keepdim=True)) / expected.std(1, keepdim=True)
    assert torch.allclose(score(0, keys, distances).double(), expected.mean(0), atol=1e-4)
    q = torch.tensor([[[3.0, 4.0, 1.0, 0.0], [-3.0, 4.0, 0.0, 1.0]]])  # one head, two queries, two pairs
    assert torch.allclose(guards.query_means(q), torch.tensor([[[0.0, 0.5], [4.0, 0.5], [5.0, 1.0]]]))


def test_query_statistics_come_from_the_profile_and_must_fit_the_model(model):
    chosen, measured = CachePolicy().with_guards(Guards(), "trigonometric"), statistics(model)
    facts = VideoFacts(schedule("self_forcing"), 3, profile="profile 'x'", queries=lambda: measured)
    assert chosen.for_video(facts).queries is measured
    narrow = guards.QueryStatistics(torch.zeros(2, 4, 4, dtype=torch.complex64), torch.zeros(2, 4, 4))
    with pytest.raises(HeadForcingError, match="for heads 8 wide, this model's are 22 wide"):
        new_cache(model, mixed(model), replace(everything(model), queries=narrow), 3)
