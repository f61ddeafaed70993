"""The head-wise cache equals its specification in every story, and a stored one goes on as if it
had never stopped.

Float32 on CPU. "Equal" means the same bytes where the arithmetic is the same, and within 1e-4 where
only its order differs.
"""

import os
import random
from dataclasses import replace

import pytest
import torch
from attention_cases import WHOLE_LAYER
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.roles import EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.cache.scenes import MAX_SCENES
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.timeline.switch import Switch
from headforcing.research.recordings.reference_cache import ReferenceCache
from small_engine import (
    BUSY,
    EVERY_SWITCH,
    HEIGHT,
    KEEPING,
    WIDTH,
    F,
    assert_same_contents,
    difference,
    fill_with_nan,
    latents,
    make_blocks,
    new_cache,
    prompts_of,
    random_pictures,
    random_roles,
    wan,
)

BLOCKS = 12
STORIES = ("one scene", "switches", "recalls", "pictures")
SEEDS = range(12 if os.environ.get("HEADFORCING_EVERYTHING") else 5)
WAYS = [
    {},
    {"kind": "flush"},
    {"kind": "recache"},
    {"re_anchor": True},
    {"continues": True},
    {"recall": 1},
]


# ------------------------------------------------------------------------------------- as specified


def random_setting(seed: int):
    """A model, roles and method drawn from everything the policies allow."""
    chooser = random.Random(seed)
    f = chooser.choice((1, 2, 3))
    layers, heads = chooser.choice(((1, 3), (2, 3), (2, 4)))
    model = wan(layers, heads, head_dim=chooser.choice((6, 22, 26)), seed=seed, ffn_dim=16)
    every = ("local", "anchor", "memory")
    names = chooser.choice(
        (every, every, ("memory",), ("memory", "memory", "anchor"), ("local", "anchor"))
    )
    roles = []
    for _ in range(layers):
        roles.append([chooser.choice(names) for _ in range(heads)])
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
        seed=chooser.choice((0, 7, 2**63 - 1)),
    )
    recent = f * chooser.choice((0, 1, 1, 2)) + chooser.choice((0, 0, 1, 2))
    entries = chooser.choice((0, 2, 3, 3, 5))
    sinks = chooser.choice((0, 0, 1, 3, 4))
    method = HeadForcing(
        local=RolePolicy(recent_frames=chooser.choice((0, 1, 2))),
        anchor=RolePolicy(
            sink_frames=chooser.choice((0, 1, 3, 4)), recent_frames=chooser.choice((0, 1, 5, None))
        ),
        memory=RolePolicy(sinks, recent_frames=recent, episodic_frames=entries),
        rope=chooser.choice(("contiguous", "contiguous", "absolute")),
        episodic=episodic,
    )
    return model, roles, method, f


def random_story(kind: str, seed: int, f: int):
    """Changes of the method, and the switches and pictures of a video."""
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
    pictures = {}
    for block in (0, 2, 5, 7, 9):
        if draw.random() < 0.7:
            pictures[block] = random_pictures(draw.choice((1, 2, 3)), f, seed=block)
    return {"kept_scenes": MAX_SCENES, "picture_frames": 5}, switches, pictures


def assert_as_specified(model, roles, method, f, switches, pictures, whole="tables"):
    """The cache makes the latents, decisions and scenes of the reference, group by group and with
    all heads in one call.
    """

    def blocks_of(cache):
        return make_blocks(
            model,
            cache,
            BLOCKS,
            prompts=prompts_of(switches, BLOCKS),
            switches=switches,
            pictures=pictures,
            schedule=Schedule((1.0,), f),
        )

    cache = new_cache(model, roles, method, BLOCKS, HeadCache, f=f)
    reference = new_cache(model, roles, method, BLOCKS, ReferenceCache, f=f)
    in_one_call = new_cache(model, roles, method, BLOCKS, HeadCache, f=f)
    in_one_call.attention = WHOLE_LAYER[whole]
    blocks = blocks_of(cache)
    expected = blocks_of(reference)
    tolerance = 1e-4 * float(latents(expected).abs().max())
    assert difference(latents(blocks), latents(expected)) < tolerance
    assert difference(latents(blocks_of(in_one_call)), latents(expected)) < tolerance
    for a, b in zip(blocks, expected, strict=True):
        assert (a.event is None) == (b.event is None)
        if a.event is not None:
            assert a.event.delta == pytest.approx(b.event.delta, abs=1e-4)
            assert {**a.event.to_dict(), "delta": 0} == {**b.event.to_dict(), "delta": 0}
    for ours in (cache, in_one_call):
        assert ours.memory.sources == reference.memory.sources
        assert ours.recalls == reference.recalls
        assert ours.scene_starts == reference.scene_starts
    for group in cache.groups:
        assert len(set(map(tuple, group.sources))) == len(group.sources), "a frame is held twice"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", STORIES)
def test_the_cache_equals_the_specification_for_random_roles_policies_and_stories(kind, seed):
    seed += 12 * (kind == "switches")  # settings of its own
    model, roles, method, f = random_setting(seed)
    changes, switches, pictures = random_story(kind, seed, f)
    assert_as_specified(
        model, roles, replace(method, **changes), f, switches, pictures, list(WHOLE_LAYER)[seed % 2]
    )


def busy(recent_blocks=1, entries=5, f=F, eviction="summary", more=0, sinks=0, **changes):
    memory = RolePolicy(sinks, recent_frames=recent_blocks * f + more, episodic_frames=entries)
    return replace(
        KEEPING, memory=memory, episodic=replace(BUSY.episodic, eviction=eviction), **changes
    ), f


BACK = {4: Switch(), 8: Switch(recall=1)}
PICTURES = {0: random_pictures(1), 5: random_pictures(3, seed=1), 8: random_pictures(2, seed=2)}
SPECIAL = {  # method and frames of a block, switches, pictures
    "a first frame that is recent": (busy(), {4: Switch(), 7: Switch(), 8: Switch(recall=3)}),
    "an entry that is recent, and recalled": (busy(4), {8: Switch(recall=1), 10: Switch(recall=2)}),
    "and written again": (
        busy(4),
        {8: Switch(recall=1), 10: Switch("recache", recall=2), 11: Switch(recall=3)},
    ),
    "while it is the oldest recent one": (busy(2), {8: Switch(recall=1), 9: Switch(recall=2)}),
    "part of a summary": (busy(4, 2), {8: Switch(recall=1), 10: Switch(recall=2)}),
    "an entry that is dropped": (busy(4, 2, eviction="fifo"), {8: Switch(recall=1)}),
    "an entry that is flushed": (busy(2, 2, 1), {8: Switch(recall=1), 9: Switch("flush")}),
    "an entry that is a candidate": (busy(3, 5, 1), {8: Switch(recall=1), 10: Switch(recall=2)}),
    "entries that are there already": (busy(0, 7, 1), BACK),
    "part of a block is recent": (
        busy(0, more=1),
        {4: Switch(), 8: Switch(recall=1), 10: Switch("recache", recall=2)},
    ),
    "a part of the block before, too": (busy(1, 2, more=2), BACK),
    "part of a block is flushed": (busy(0, 3, more=2), {5: Switch("flush")}),
    "pictures and recalls": (
        busy(),
        {2: Switch(), 5: Switch(), 8: Switch("flush", recall=2), 10: Switch("recache")},
        PICTURES,
    ),
    "pictures in absolute positions": (
        busy(rope="absolute"),
        {5: Switch(), 8: Switch("recache", re_anchor=True, recall=1)},
        PICTURES,
    ),
    "sinks beside entries": (busy(1, 3, sinks=4), {6: Switch(re_anchor=True)}),
    "sinks that come back as entries": (
        busy(2, sinks=3),
        {3: Switch(), 6: Switch(recall=1), 8: Switch("recache", recall=2), 10: Switch()},
    ),
    "entries that come back as sinks": (
        busy(1, sinks=3),
        {2: Switch(re_anchor=True), 3: Switch(recall=1), 7: Switch()},
    ),
    "sinks of absolute positions that are flushed": (
        busy(0, 3, more=2, sinks=2, rope="absolute"),
        {4: Switch("flush"), 8: Switch("flush", re_anchor=True)},
    ),
    "pictures in place of the sinks of memory heads": (
        busy(sinks=3),
        {2: Switch(), 5: Switch(), 8: Switch("flush", recall=2), 10: Switch("recache")},
        PICTURES,
    ),
    "other pictures in a scene that goes on": (
        busy(),
        {5: Switch(), 8: Switch(continues=True)},
        {8: random_pictures(2)},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SPECIAL)
def test_the_cache_equals_the_specification_where_scenes_meet(model, case):
    (method, f), switches, *pictures = SPECIAL[case]
    assert_as_specified(model, random_roles(model), method, f, switches, *pictures or [{}])


# ------------------------------------------------------------------------------------------- stored


STOPS = {
    "merges and a cut": (BUSY, {5: Switch("flush", re_anchor=True)}, {}, (5, 6, 10)),
    "a recall and pictures": (KEEPING, BACK, {4: random_pictures(2)}, (4, 5, 8, 10)),
    "part of a block in fast memory": (busy(0, 3, more=1)[0], BACK, {}, (3, 5, 9)),
    "sinks beside entries": (busy(1, 3, sinks=3)[0], BACK, {}, (1, 5, 9)),
    "a cut, a recall and a new scene": (
        KEEPING,
        {3: Switch(re_anchor=True), 5: Switch(recall=1), 8: Switch()},
        {},
        (4, 7, 9),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("story", STOPS)
def test_a_stored_cache_goes_on_to_the_same_blocks_and_decisions(model, story):
    method, switches, pictures, stops = STOPS[story]
    straight_cache = new_cache(model, random_roles(model), method, BLOCKS)
    prompts = prompts_of(switches, BLOCKS)
    inputs = dict(prompts=prompts, switches=switches, pictures=pictures)
    straight = make_blocks(model, straight_cache, BLOCKS, **inputs)
    for stop in stops:
        first = new_cache(model, random_roles(model), method, BLOCKS)
        make_blocks(
            model,
            first,
            stop,
            prompts=prompts[:stop],
            switches={block: switch for block, switch in switches.items() if block < stop},
            pictures={block: held for block, held in pictures.items() if block < stop},
        )
        again = new_cache(model, random_roles(model), method, BLOCKS)
        again.restore(first.state())
        assert_same_contents(first, again)
        finished = [block.latents for block in straight[:stop]]
        rest = make_blocks(model, again, BLOCKS, given=finished, **inputs)
        assert torch.equal(latents(rest), latents(straight))
        assert [block.event for block in rest[stop:]] == [block.event for block in straight[stop:]]
        assert again.recalls == straight_cache.recalls
        assert again.scene_starts == straight_cache.scene_starts


def test_a_state_of_another_cache_is_refused(model):
    cache = new_cache(model, random_roles(model), BUSY, BLOCKS)
    make_blocks(model, cache, 3)
    with pytest.raises(HeadForcingError, match="no frames of earlier scenes"):
        new_cache(model, random_roles(model), KEEPING, BLOCKS).restore(cache.state())
    for other in (
        new_cache(model, random_roles(model, 2), BUSY, BLOCKS),
        new_cache(wan(3), random_roles(wan(3)), BUSY, BLOCKS),
    ):
        with pytest.raises(HeadForcingError, match="does not fit this render"):
            other.restore(cache.state())


def stored_objects(value, where=""):
    """The fields of every object in the plain part of a state, and where they are; maps by number
    have no fields.
    """
    if isinstance(value, list):
        for place, part in enumerate(value):
            yield from stored_objects(part, f"{where}.{place}")
    elif isinstance(value, dict) and "items" in value:
        if value["items"] and all(isinstance(key, str) for key, _ in value["items"]):
            yield where, value["items"]
        for key, part in value["items"]:
            yield from stored_objects(part, f"{where}.{key}")


@pytest.mark.parametrize("name", ["head_forcing_scenes", "deep_forcing", "echo_forcing"])
def test_a_state_with_a_field_more_or_less_is_refused_and_writes_no_attribute(model, name):
    method = KEEPING if name == "head_forcing_scenes" else method_named(name)
    shape = method.shape(model.config, random_roles(model), HEIGHT, WIDTH, F, 7 * F)
    made = method.cache_class(shape, torch.float32)
    if method is KEEPING:
        switches = {2: Switch(), 4: Switch(recall=1)}
        make_blocks(model, made, 6, prompts=prompts_of(switches, 6), switches=switches)
    state = made.state()
    objects = dict(stored_objects(state.plain["value"]))
    assert len(objects) > 2
    for where, items in objects.items():
        for changed in (items[1:], [*items, ["attend", 1]]):
            whole, items[:] = list(items), changed
            other = method.cache_class(shape, torch.float32)
            with pytest.raises(
                HeadForcingError, match="does not fit this render: it has .* instead of "
            ):
                other.restore(state)
                pytest.fail(where)
            items[:] = whole
            assert callable(other.attend)


def test_the_papers_setting_takes_3096_frame_slots_and_2_47_gb():
    flat = 90 * ["anchor"] + 72 * ["local"] + 198 * ["memory"]
    random.Random(0).shuffle(flat)
    roles = [flat[12 * layer : 12 * layer + 12] for layer in range(30)]
    shape = CacheShape.for_model(WanConfig(), roles, HeadForcing(), 480 // 8, 832 // 8, 3, 243)
    assert shape.frame_slots == 3096 == 90 * 7 + 72 * 4 + 198 * 11
    assert shape.bytes(torch.bfloat16) == 3096 * 1560 * 128 * 2 * 2
    sinks = replace(HeadForcing(), memory=replace(HeadForcing().memory, sink_frames=3))
    with_sinks = replace(shape, method=sinks)
    assert with_sinks.frame_slots == 3096 + 3 * 198, "of memory heads that have them beside entries"
    assert round(shape.bytes(torch.bfloat16) / 1e9, 2) == 2.47


def test_roles_that_do_not_fit_the_model_are_refused_by_their_numbers(model):
    with pytest.raises(HeadForcingError, match=r"2 layers x 4 heads, got \[\("):
        new_cache(model, [["local"] * 4, ["local"] * 3], HeadForcing(), 2)


@pytest.mark.parametrize("whole", [None, *WHOLE_LAYER])
@pytest.mark.parametrize("rope", ["contiguous", "absolute"])
def test_a_context_never_reads_a_slot_that_was_not_written(model, whole, rope):
    switches = {4: Switch("flush", re_anchor=True), 7: Switch("recache"), 10: Switch("flush")}
    inputs = dict(
        prompts=prompts_of(switches, BLOCKS), switches=switches, schedule=Schedule((1.0,), F)
    )
    method = replace(BUSY, rope=rope)
    cache = new_cache(model, random_roles(model), method, BLOCKS)
    untouched = new_cache(model, random_roles(model), method, BLOCKS)
    if whole:
        cache.attention = WHOLE_LAYER[whole]
        untouched.attention = WHOLE_LAYER[whole]
    for group in cache.groups:
        fill_with_nan(group, 0)

    def fill_behind_the_history(block, step, clean):
        if step == 0:
            for group in cache.groups:
                first = group.current.start if block == cache.block else group.frames
                fill_with_nan(group, first)

    found = latents(make_blocks(model, cache, BLOCKS, on_step=fill_behind_the_history, **inputs))
    assert found.isfinite().all()
    assert torch.equal(found, latents(make_blocks(model, untouched, BLOCKS, **inputs)))
