"""Pictures that a scene keeps: in the contexts of anchor and memory heads, as the reference specifies."""

import random
from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.cache.reference import ReferenceCache
from headforcing.headforcing_core.cache.scenes import MAX_SCENES
from headforcing.headforcing_core.timeline.switch import Switch
from small_engine import (
    BUSY,
    HEIGHT,
    WIDTH,
    assert_as_specified,
    difference,
    film,
    latents,
    mixed,
    new_cache,
    random_setting,
)

BUSY = replace(BUSY, kept_scenes=MAX_SCENES + 2, picture_frames=5)
BLOCKS = 12
PROMPTS = [block // 4 % 2 for block in range(BLOCKS)]


def shown(count: int = 1, frames: int = 3, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(frames, 16, HEIGHT, WIDTH, generator=generator) for _ in range(count)]


def film_of(model, cache, **options):
    return film(model, cache, BLOCKS, prompts=PROMPTS, **options)


def test_a_scene_holds_its_pictures_until_the_next_one_and_then_its_own_first_frames(model):
    cache, sinks, entries = new_cache(model, mixed(model), BUSY, BLOCKS), {}, {}
    (anchors,) = cache.sink_groups

    def watch(block, step, clean):
        sinks[block] = [frame for (frame,) in anchors.sources[: anchors.current.start - 1]]
        entries[block] = [sources[0] for sources in cache.memory.sources]

    switches = {4: Switch(), 8: Switch()}
    film_of(model, cache, switches=switches, pictures={0: shown(1), 4: shown(2)}, on_step=watch)
    assert sinks[1] == sinks[3] == [-3, -2, -1], "one picture: the whole block"
    assert sinks[4] == sinks[7] == [-3, -2], "two pictures: the first frame of each"
    assert sinks[8] == sinks[11] == [0, 1, 2], "the video's own first frames, which were made behind a picture"
    assert entries[0] == [-1] and entries[4] == [-2, -1] and entries[7][:2] == [-2, -1] and len(entries[7]) > 2
    assert all(frame >= 0 for block in range(8, BLOCKS) for frame in entries[block])


def test_pictures_stay_where_memory_is_full_and_where_it_is_flushed(model):
    memory = replace(BUSY.memory, episodic_frames=4)
    cache, held = new_cache(model, mixed(model), replace(BUSY, memory=memory), BLOCKS), []

    def watch(block, step, clean):
        if clean is not None:
            held.append(list(cache.memory.sources))

    switches = {9: Switch("flush", continues=True)}
    film_of(model, cache, switches=switches, pictures={0: shown(3)}, on_step=watch)
    assert all(entries[:2] == [[-3], [-2]] for entries in held), "two entries are left to the video's own frames"
    assert max(map(len, held)) == 4 and len(max(held[16][2:], key=len)) > 2, "which are merged into a summary"


@pytest.mark.parametrize(
    ("switch", "rope"),
    [
        (Switch("flush", recall=2), "contiguous"),
        (Switch("recache", re_anchor=True, recall=1), "absolute"),
        (Switch(continues=True), "contiguous"),
    ],
    ids=str,
)
def test_the_grouped_cache_holds_pictures_as_the_reference_does(model, switch, rope):
    policy, kinds = replace(BUSY, rope=rope), (HeadCache, ReferenceCache)
    switches = {2: Switch(), 5: Switch(), 8: switch, 10: Switch("recache")}
    pictures = {0: shown(1), 5: shown(3, seed=1), 8: shown(2, seed=2)}
    caches = [new_cache(model, mixed(model), policy, BLOCKS, kind) for kind in kinds]
    made = [latents(film_of(model, cache, switches=switches, pictures=pictures)) for cache in caches]
    assert difference(*made) < 1e-4 and caches[0].memory.sources == caches[1].memory.sources
    without = latents(film_of(model, new_cache(model, mixed(model), BUSY, BLOCKS), switches=switches))
    assert difference(made[0], without) > 1e-3


@pytest.mark.parametrize("seed", range(8))
def test_both_caches_hold_pictures_alike_with_any_policy(seed):
    f, chooser = random_setting(seed)[3], random.Random(seed)
    ways = ({}, {"kind": "flush"}, {"kind": "recache"}, {"re_anchor": True}, {"continues": True}, {"recall": 1})
    switches = {2: Switch()} | {block: Switch(**chooser.choice(ways)) for block in (4, 5, 7, 9, 10)}
    pictures = {
        block: shown(chooser.choice((1, 2, 3)), f, block) for block in (0, 2, 5, 7, 9) if chooser.random() < 0.7
    }
    assert_as_specified(seed, {"kept_scenes": MAX_SCENES, "picture_frames": 5}, switches=switches, pictures=pictures)


@pytest.mark.parametrize("stop", [4, 5, 8])
def test_a_restored_cache_goes_on_with_its_pictures(model, stop):
    options = {"switches": {4: Switch(), 8: Switch()}, "pictures": {4: shown(2)}}
    straight = film_of(model, new_cache(model, mixed(model), BUSY, BLOCKS), **options)
    first = new_cache(model, mixed(model), BUSY, BLOCKS)
    before = {name: {b: value for b, value in told.items() if b < stop} for name, told in options.items()}
    film(model, first, stop, prompts=PROMPTS[:stop], **before)
    again = new_cache(model, mixed(model), BUSY, BLOCKS)
    again.restore(first.state())
    rest = film_of(model, again, given=[block.latents for block in straight[:stop]], **options)
    assert torch.equal(latents(rest), latents(straight))


def test_a_picture_is_written_alone_and_nothing_else_changes(model):
    """The same picture gives the same frames wherever in a story it is shown, and no block before it changes."""
    film_at = {
        at: latents(film_of(model, new_cache(model, mixed(model), BUSY, BLOCKS), pictures=told, switches=switches))
        for at, told, switches in ((8, {8: shown()}, {4: Switch(), 8: Switch()}), (0, {}, {4: Switch(), 8: Switch()}))
    }
    assert torch.equal(film_at[8][:8], film_at[0][:8]) and difference(film_at[8][8], film_at[0][8]) > 1e-3
    caches = [new_cache(model, mixed(model), BUSY, 2) for _ in range(2)]
    film(model, caches[0], 1, prompts=[0], pictures={0: shown()})
    film(model, caches[1], 2, prompts=[0, 0], switches={1: Switch()}, pictures={1: shown()})
    (one,), (other,) = (cache.sink_groups for cache in caches)
    assert all(torch.equal(a[:, :3], b[:, :3]) for a, b in zip(one.v, other.v, strict=True))


def test_a_video_of_one_block_has_room_for_its_pictures(model):
    cache = new_cache(model, mixed(model), BUSY, 1)
    assert torch.isfinite(latents(film(model, cache, 1, prompts=[0], pictures={0: shown(3)}))).all()
