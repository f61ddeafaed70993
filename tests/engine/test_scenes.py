"""Scenes that come back, and pictures that a scene keeps: what the caches hold, and what the keys of blocks know."""

import json
from dataclasses import replace
from itertools import chain

import pytest
import torch
from headforcing.headforcing_core.cache.scenes import (
    MAX_SCENES,
    Recall,
    Scenes,
    number_recalls,
    recalled_scenes,
    scene_features,
)
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import METHODS, method_policy
from headforcing.headforcing_core.render.describe import describe
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.resources import needs_of
from headforcing.headforcing_core.rollout.rows import Script, lay_out_rows
from headforcing.headforcing_core.timeline.likeness import telling_texts, word_features
from headforcing.headforcing_core.timeline.switch import Blend, Switch
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from small_engine import BUSY, HEIGHT, TWO_STEPS, WIDTH, difference, film, latents, make, mixed, new_cache

BUSY = replace(BUSY, kept_scenes=MAX_SCENES + 2, picture_frames=5)
BLOCKS = 12
BACK = {4: Switch(), 8: Switch(recall=1)}  # three scenes, the last of which brings the first one back
STORY = "0:00 a red fox in the snow\n0:03 a grey heron in a pond\n0:06 {} the fox in the snow again"


def shown(count: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, 16, HEIGHT, WIDTH, generator=generator) for _ in range(count)]


def held_in(model, switches, policy=BUSY, **options):
    """A film's cache, and per block the history of anchor heads and the entries of memory."""
    cache, sinks, entries = new_cache(model, mixed(model), policy, BLOCKS), {}, {}
    (anchors,) = cache.sink_groups

    def watch(block, step, clean):
        sinks[block] = [frame for (frame,) in anchors.sources[: anchors.current.start - 1]]
        entries[block] = list(cache.memory.sources)

    prompts = [sum(block >= first for first in switches) % 2 for block in range(BLOCKS)]
    film(model, cache, BLOCKS, prompts=prompts, switches=switches, on_step=watch, **options)
    return cache, sinks, entries


def test_a_scene_comes_back_with_frames_of_its_whole_visit_and_with_its_first_ones(model):
    cache, sinks, entries = held_in(model, {3: Switch(), 6: Switch(), 8: Switch(recall=2), 10: Switch()})
    assert cache.recalls == [Recall(block=8, scene=2, frames=(9, 10, 11, 12, 15))]
    assert cache.recalls[0].describe() == "before block 8: recalled scene 2: frames 9, 10, 11, 12, 15"
    video, second = [0, 1, 2], [9, 10, 11]
    assert [sinks[block] for block in range(3, BLOCKS)] == [video] * 5 + [second] * 2 + [video] * 2
    assert entries[7] != entries[8][:3] == [[9], [12], [15]]


def test_after_a_re_anchor_a_scene_that_came_back_is_left_for_the_new_anchors(model):
    _, sinks, _ = held_in(model, {3: Switch(re_anchor=True), 6: Switch(recall=1), 8: Switch()})
    assert [sinks[block] for block in (2, 5, 7, 9)] == [[0, 1, 2], [9, 10, 11], [0, 1, 2], [9, 10, 11]]


class Numbered:
    """A store whose kept frames are their numbers."""

    def keep_frame(self, frame):
        return frame


def test_frames_of_the_first_visit_are_spread_over_it_whatever_its_length():
    kept = {}
    for blocks in (1, 4, 6, 11, 40, 300):
        scenes = Scenes(Numbered(), 5, (), ())
        for block in range(blocks):
            scenes.keep(3 * block, 3)
            assert len(scenes.kept[1].spread) < 10
        scenes.begin(Switch(), 3 * blocks)
        kept[blocks] = scenes.kept[1].spread
    assert kept[1] == [0] and kept[4] == [0, 3, 6, 9] and kept[6] == [0, 3, 6, 12, 15]
    assert kept[11] == [0, 6, 12, 24, 30]
    for blocks in (40, 300):
        gaps = [b - a for a, b in zip(kept[blocks], kept[blocks][1:], strict=False)]
        assert len(gaps) == 4 and max(gaps) <= 2 * min(gaps) and kept[blocks][-1] > 0.7 * 3 * blocks
    scenes = Scenes(Numbered(), 5, (), ())  # of a later visit nothing is kept
    for block, switch in enumerate([None, None, None, Switch(), Switch(recall=1), Switch(continues=True), None]):
        if switch is not None:
            scenes.begin(switch, 3 * block)
        scenes.keep(3 * block, 3)
    assert scenes.kept[1].spread == [0, 3, 6] and scenes.kept[2].spread == [9]


def test_what_is_kept_is_in_main_memory_bounded_and_only_of_memory_heads_and_anchors(model):
    roles, switches = mixed(model), {block: Switch() for block in range(1, BLOCKS)}
    cache, _, _ = held_in(model, switches)
    kept = cache.scenes.kept  # the first one, since its frames are the sinks, the last ones, and the current one
    assert list(kept) == [1, *range(BLOCKS - MAX_SCENES, BLOCKS + 1)]
    frames = [frame for scene in kept.values() for frame in (*scene.spread, *chain(*scene.first))]
    assert all(x.device.type == "cpu" for frame in frames for x in frame.k)
    memory, anchors = (sum(row.count(role) for row in roles) for role in ("memory", "anchor"))
    assert sum(len(x) for frame in frames for x in frame.k) == len(kept) * (memory + 3 * anchors)  # of one block each
    assert cache.shape.scene_slots == 10 * (5 * memory + 3 * anchors) + 5 * memory
    without, _, _ = held_in(model, switches, replace(BUSY, kept_scenes=0))
    assert without.scenes is None and without.shape.scene_slots == 0


# ------------------------------------------------------------------------------------------------------- pictures


def test_a_scene_holds_its_pictures_until_the_next_one_and_then_its_own_first_frames(model):
    _, sinks, entries = held_in(model, {4: Switch(), 8: Switch()}, pictures={0: shown(1), 4: shown(2)})
    assert sinks[1] == sinks[3] == [-3, -2, -1], "one picture: the whole block"
    assert sinks[4] == sinks[7] == [-3, -2], "two pictures: the first frame of each"
    assert sinks[8] == sinks[11] == [0, 1, 2], "the video's own first frames, which were made behind a picture"
    assert entries[0] == [[-1]] and entries[4] == entries[7][:2] == [[-2], [-1]] and len(entries[7]) > 2
    assert all(frame >= 0 for block in range(8, BLOCKS) for sources in entries[block] for frame in sources)


def test_pictures_stay_where_memory_is_full_and_where_it_is_flushed(model):
    policy = replace(BUSY, memory=replace(BUSY.memory, episodic_frames=4))
    _, _, entries = held_in(model, {9: Switch("flush", continues=True)}, policy, pictures={0: shown(3)})
    assert all(held[:2] == [[-3], [-2]] for held in entries.values()), "two entries are left to the video's own frames"
    assert max(map(len, entries.values())) == 4 and len(max(entries[8][2:], key=len)) > 2, "which are merged"


def test_a_picture_is_written_alone_and_changes_no_block_before_it(model):
    two = {4: Switch(), 8: Switch()}
    plain, with_picture = (
        make(model, mixed(model), BUSY, BLOCKS, switches=two, pictures=told) for told in ({}, {8: shown()})
    )
    assert torch.equal(plain[:8], with_picture[:8]) and difference(plain[8], with_picture[8]) > 1e-3
    caches = [new_cache(model, mixed(model), BUSY, 2) for _ in range(2)]
    film(model, caches[0], 1, prompts=[0], pictures={0: shown()})
    film(model, caches[1], 2, prompts=[0, 0], switches={1: Switch()}, pictures={1: shown()})
    (one,), (other,) = (cache.sink_groups for cache in caches)
    assert all(torch.equal(a[:, :3], b[:, :3]) for a, b in zip(one.v, other.v, strict=True))
    short = film(model, new_cache(model, mixed(model), BUSY, 1), 1, prompts=[0], pictures={0: shown(3)})
    assert latents(short).isfinite().all(), "a video of one block has room for its pictures"


# --------------------------------------------------------------------------------------------------- plans and keys


def plan_of(tag: str, method: str = "head_forcing", text: str = STORY, seconds=9.0) -> RenderPlan:
    timeline = parse_timeline(text.format(tag), seconds)
    return RenderOptions(method=method, width=96, height=64, seed=3).plan(assets.TOY_CONFIG, timeline)


def embeds_of(plan: RenderPlan) -> dict[str, torch.Tensor]:
    return {text: word_hash.encode(text) for text in plan.timeline.texts}


def keys_of(*arguments: str) -> list[str]:
    plan = plan_of(*arguments)
    return RenderJob(plan, embeds_of(plan), "toy").keys


def test_a_plan_keeps_scenes_for_a_story_that_recalls_one_and_says_what_they_take():
    plan, without = plan_of("[recall 1]"), plan_of("")
    assert plan.shape.policy.kept_scenes == 3 and without.shape.policy.kept_scenes == 0
    assert plan.shape.frame_slots == without.shape.frame_slots
    memory, anchors = (sum(layer.count(role) for layer in plan.shape.roles) for role in ("memory", "anchor"))
    slots = 3 * (5 * memory + 3 * anchors) + 5 * memory
    told = describe(plan, torch.float32)
    assert "latent frames of 3 scenes in anchor and memory heads" in told and f"up to {slots} frame-slots" in told
    assert "may come back" not in describe(without, torch.float32)
    needs = [needs_of(made, torch.float32, 0, kept=True, state=True) for made in (plan, without)]
    assert needs[0].state - needs[1].state == plan.shape.bytes_of(slots, torch.float32)
    assert needs[0].cache == needs[1].cache
    assert [str(switch) for switch in plan.switches.values()] == ["reset", "recall 1"] and not without.switches


def test_a_recall_changes_the_keys_of_its_scene_alone_and_by_likeness_they_are_those_of_the_scene_it_means():
    without, numbered, other, alike = (keys_of(tag) for tag in ("", "[recall 1]", "[recall 2]", "[recall]"))
    assert [a == b for a, b in zip(without, numbered, strict=True)] == [True] * 8 + [False] * 5
    assert numbered == alike != other


def test_scenes_are_compared_by_their_own_embedding_and_not_by_a_blend():
    embeds = {"a": [[1.0, 0.0]], "b": [[0.0, 1.0]], "c": [[0.9, 0.1], [0.0, 0.0]]}
    switches = {2: Switch(), 3: Switch(blend_blocks=1, recall=0)}
    rows = lay_out_rows(["a", "a", "b", Blend("b", "c", 0.1), "c"], TWO_STEPS, switches=switches)
    script = Script(rows, {text: torch.tensor(rows) for text, rows in embeds.items()})
    assert scene_features(script)[2].tolist() == pytest.approx([0.99388, 0.11043], abs=1e-5)
    numbered = number_recalls(script, recalled := recalled_scenes(script))
    assert recalled == {3: (1,)}
    assert [row.switch and row.switch.recall for row in numbered.rows] == [None, None, None, 1, None]
    assert numbered.rows[3].recall == (1, 0, 2, 3), "its number, and where the visits up to it begin"


def test_by_likeness_a_scene_comes_back_of_which_frames_are_kept():
    """The first of ten scenes is the most alike, and its frames are dropped."""
    prompts = [f"scene {number}" for number in range(1, 12)]
    likeness = {"scene 1": 1.0, "scene 4": 0.9, "scene 11": 1.0}
    embeds = {text: torch.tensor([[likeness.get(text, 0.0), 1 - likeness.get(text, 0.0)]]) for text in prompts}
    switches = {block: Switch(recall=0 if block == 10 else None) for block in range(1, 11)}
    script = Script(lay_out_rows(prompts, TWO_STEPS, switches=switches), embeds)
    assert recalled_scenes(script) == {10: (4,)}


def test_echo_forcing_compares_scenes_by_embeddings_or_by_words_and_the_keys_know_which_one_comes_back():
    text = "0:00 a fox in the forest\n0:03 a heron heron heron\n0:06 {} the fox and a heron, heron"
    plan = plan_of("[recall]", "echo_forcing", text)
    opposite = torch.tensor([[1.0, 0.0]])
    signs = dict(zip(plan.alike.values(), (1, -1, 1), strict=True))
    script = Script(plan.rows, {text: sign * opposite for text, sign in signs.items()}, plan.alike)
    by_words = replace(plan.policy, compares_words=True)
    outcomes = [policy.recalled(script) for policy in (plan.policy, by_words)]
    assert outcomes == [{8: (1, 0)}, {8: (2, outcomes[1][8][1])}]
    assert keys_of("[recall 1]", "echo_forcing", text) != keys_of("[recall 2]", "echo_forcing", text)


def test_words_that_tell_scenes_apart_are_as_recorded(repo_root):
    folder = repo_root / "tests" / "golden" / "peers" / "echo_forcing"
    for case in json.loads((folder / "config.json").read_text())["text_cases"]:
        assert telling_texts(case["prompts"]) == case["filtered_for_similar"]
        features = torch.stack(word_features(case["prompts"]))
        if case["idf_similarities"] is not None:
            assert features.shape[1] == case["idf_vocabulary_size"]
            assert (features @ features.T - torch.tensor(case["idf_similarities"])).abs().max() < 1e-6


def test_what_cannot_come_back_is_refused_before_anything_is_made():
    for name in [name for name in METHODS if name not in ("head_forcing", "self_forcing_sink", "echo_forcing")]:
        with pytest.raises(HeadForcingError, match=r"keeps nothing of earlier scenes.*choose head_forcing or echo_f"):
            method_policy(name).own_switch(Switch(recall=1))
    text = "\n".join(f"0:{3 * i:02} scene {i}" for i in range(10)) + "\n0:30 [recall 2] back"
    with pytest.raises(HeadForcingError, match="prompt 11 recalls the scene of prompt 2, .* recall one from 3 on"):
        plan_of("", text=text, seconds=33.0)
