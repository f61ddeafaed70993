"""Decisions of episodic memory in whole videos: merges, drops, scenes that come back, stored caches."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from headforcing.headforcing_core.cache.state import cache_state, restore_cache
from headforcing.headforcing_core.timeline.switch import Switch
from small_engine import BUSY, TWO_STEPS, film, latents, mixed, new_cache
from toy_renders import Render, toy_model

BLOCKS = 14
CAPACITY = 3
BACK = {5: Switch(), 8: Switch(recall=1)}
PROMPTS = [0] * 5 + [1] * (BLOCKS - 5)
SMALL = replace(BUSY, memory=replace(BUSY.memory, episodic_frames=CAPACITY), kept_scenes=2)


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
        made, held = film_and_entries(
            model, new_cache(model, mixed(model, seed), SMALL, BLOCKS), seed=seed, switches=BACK
        )
        merges = [block.event for block in made if block.event is not None and block.event.merged]
        assert merges[0].after_block < 8 and len(held[8]) == CAPACITY, "there was a summary before the recall"
        first = next(event for event in merges if event.after_block >= 8)
        sources, pooled = zip(*held[first.after_block], strict=True)
        pair = nearest_two(list(pooled))
        assert first.merged == [sources[place] for place in pair]
        nearest.add(pair)
    assert (1, 2) in nearest, "the first entry would be one of the two if it were taken for a summary"


@pytest.mark.parametrize("pinned", [False, True])
def test_fifo_holds_the_frames_admitted_last_and_those_pinned(model, pinned):
    policy = replace(SMALL, episodic=replace(SMALL.episodic, eviction="fifo", pin_first=pinned))
    made, held = film_and_entries(model, new_cache(model, mixed(model), policy, BLOCKS))
    admitted = []
    for block in made:
        first = CAPACITY - 1 if pinned else CAPACITY
        expected = admitted[:1] * pinned + admitted[pinned:][-first:] if len(admitted) > CAPACITY else admitted
        assert [sources for sources, _ in held[block.index]] == [[frame] for frame in expected]
        if block.event is not None:
            assert block.event.admitted
            admitted.append(block.event.frame)
    assert len(admitted) > CAPACITY + 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_stored_cache_goes_on_with_the_same_merges_wherever_it_was_stored(model, seed):
    cache = partial(new_cache, model, mixed(model, seed), SMALL, BLOCKS)
    straight = film(model, cache(), BLOCKS, prompts=PROMPTS, seed=seed)
    merges = [block.index for block in straight if block.event is not None and block.event.merged]
    for stop in merges[:-1]:  # right before each merge but the first
        first, again = cache(), cache()
        film(model, first, stop + 1, prompts=PROMPTS[: stop + 1], seed=seed)
        restore_cache(again, cache_state(first))
        made = [block.latents for block in straight[: stop + 1]]
        rest = film(model, again, BLOCKS, prompts=PROMPTS, seed=seed, given=made)
        assert [block.event for block in rest[stop + 1 :]] == [block.event for block in straight[stop + 1 :]]
        assert torch.equal(latents(rest), latents(straight))


# ------------------------------------------------------------------------------------------- what is kept of a scene


def test_frames_of_a_scene_come_back_once_also_where_they_are_entries_already(model):
    """Without recent frames a block of one frame is considered as soon as it is made."""
    memory = replace(BUSY.memory, recent_frames=0, episodic_frames=7)
    cache = new_cache(model, mixed(model), replace(SMALL, memory=memory), BLOCKS, f=1)
    _, held = film_and_entries(model, cache, switches=BACK, schedule=replace(TWO_STEPS, frames_per_block=1))
    assert [sources for sources, _ in held[5]] == [[0], [1], [2], [3], [4]]
    assert cache.recalls[0].frames == (0, 1, 2, 3, 4)
    assert [sources for sources, _ in held[8]] == [[0], [1], [2], [3], [4]]


def test_the_most_alike_scene_is_one_of_the_last_eight_of_which_frames_are_kept(tmp_path):
    """The first scene is told in the very words of the last one, and its frames are kept no more."""
    ball, others = "a red ball in the teal room", "a yellow cross in the navy room"
    scenes = [ball, others, others, others, f"{ball} now", others, others, others, others, others, f"[recall] {ball}"]
    text = "\n".join(f"{0.75 * number}s {scene}" for number, scene in enumerate(scenes))
    render = Render(toy_model(layers=2), tmp_path, text, seconds=9.0)
    render.go()
    (recall,) = render.run.recalls
    assert (recall.block, recall.scene) == (10, 5) and recall.frames
