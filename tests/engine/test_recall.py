"""`[recall]`: frames of an earlier scene come back as entries of episodic memory."""

import json
import random
from dataclasses import replace
from itertools import chain

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.cache.policy import PRESETS
from headforcing.headforcing_core.cache.reference import ReferenceCache
from headforcing.headforcing_core.cache.scenes import (
    MAX_SCENES,
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
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.resources import needs_of
from headforcing.headforcing_core.rollout.rows import Script, lay_out_rows
from headforcing.headforcing_core.rollout.schedule import Schedule, schedule
from headforcing.headforcing_core.timeline.likeness import telling_texts, word_features
from headforcing.headforcing_core.timeline.switch import Blend, Switch
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from small_engine import (
    BUSY,
    TWO_STEPS,
    assert_as_specified,
    difference,
    film,
    latents,
    mixed,
    new_cache,
)

BUSY = replace(BUSY, kept_scenes=MAX_SCENES + 2)
BLOCKS = 12
BACK = {4: Switch(), 8: Switch(recall=1)}  # three scenes, the last of which brings the first one back
STORY = "0:00 a red fox in the snow\n0:03 a grey heron in a pond\n0:06 {} the fox in the snow again"


def prompts_of(switches) -> list[int]:
    return [sum(block >= first for first in switches) % 2 for block in range(BLOCKS)]


def film_of(model, cache, switches=BACK, **options):
    return film(model, cache, BLOCKS, prompts=prompts_of(switches), switches=switches, **options)


def plan_of(tag: str, method: str = "head_forcing", text: str = STORY) -> RenderPlan:
    timeline = parse_timeline(text.format(tag), 9.0)
    return RenderPlan.make(assets.TOY_CONFIG, method_policy(method), schedule("self_forcing"), timeline, 96, 64, seed=3)


def job_of(plan: RenderPlan) -> RenderJob:
    return RenderJob(plan, {text: word_hash.encode(text) for text in plan.timeline.texts}, "toy")


def test_a_scene_comes_back_with_frames_of_its_whole_visit_and_with_its_first_ones(model):
    cache, held = new_cache(model, mixed(model), BUSY, BLOCKS), []
    watch = lambda block, step, clean: held.append(cache.memory.sources) if (block, step) == (8, 1) else None  # noqa: E731
    film_of(model, cache, on_step=watch)
    assert held == [[[0], [3], [6], [9]]]
    assert [recall.to_dict() for recall in cache.recalls] == [{"block": 8, "scene": 1, "frames": (0, 1, 2, 3, 6, 9)}]
    assert cache.recalls[0].describe() == "before block 8: recalled scene 1: frames 0, 1, 2, 3, 6, 9"


def anchors_held(model, switches) -> dict[int, list[int]]:
    """Per block the frames that anchor heads hold as their first ones."""
    cache, held = new_cache(model, mixed(model), BUSY, BLOCKS), {}
    (anchors,) = cache.sink_groups

    def watch(block, step, clean):
        held[block] = [frame for (frame,) in anchors.sources[: anchors.policy.sink_frames]]

    film_of(model, cache, switches, on_step=watch)
    return held


def test_anchor_heads_hold_the_first_block_of_the_scene_that_came_back_and_then_their_own_again(model):
    held = anchors_held(model, {3: Switch(), 6: Switch(), 8: Switch(recall=2), 10: Switch()})
    video, second = [0, 1, 2], [9, 10, 11]
    assert [held[block] for block in range(3, BLOCKS)] == [video] * 5 + [second] * 2 + [video] * 2


def test_frames_of_a_visit_are_spread_over_it_whatever_its_length():
    kept = {}
    for blocks in (1, 4, 6, 11, 40, 300):
        scenes = Scenes(5, ())
        for block in range(blocks):
            scenes.keep(3 * block, 3, Numbered(), ())
            assert len(scenes.kept[1].spread) < 10
        scenes.begin(Switch(), 3 * blocks)
        kept[blocks] = scenes.kept[1].spread
    assert kept[1] == [0] and kept[4] == [0, 3, 6, 9] and kept[6] == [0, 3, 6, 12, 15]
    assert kept[11] == [0, 6, 12, 24, 30]
    for blocks in (40, 300):
        gaps = [b - a for a, b in zip(kept[blocks], kept[blocks][1:], strict=False)]
        assert len(gaps) == 4 and max(gaps) <= 2 * min(gaps) and kept[blocks][-1] > 0.7 * 3 * blocks


def test_of_a_later_visit_to_a_scene_nothing_is_kept():
    scenes = Scenes(5, ())
    for block, switch in enumerate([None, None, None, Switch(), Switch(recall=1), Switch(continues=True), None]):
        if switch is not None:
            scenes.begin(switch, 3 * block)
        scenes.keep(3 * block, 3, Numbered(), ())
    assert scenes.kept[1].spread == [0, 3, 6] and scenes.kept[2].spread == [9]


class Numbered:
    """A store whose kept frames are their numbers."""

    def keep_frame(self, frame):
        return frame


@pytest.mark.parametrize(
    ("switch", "rope"),
    [
        (Switch(recall=3), "contiguous"),  # the scene that has just ended: its last frame is a recent one, too
        (Switch("recache", re_anchor=True, recall=2), "contiguous"),
        (Switch("flush", re_anchor=True, recall=1), "absolute"),
        (Switch(continues=True), "contiguous"),
    ],
)
def test_the_grouped_cache_recalls_as_the_reference_does(model, switch, rope):
    caches = [
        new_cache(model, mixed(model), replace(BUSY, rope=rope), BLOCKS, kind) for kind in (HeadCache, ReferenceCache)
    ]
    switches = {4: Switch(), 6: Switch("recache"), 8: switch, 10: Switch("flush"), 11: Switch(recall=2)}
    made = [latents(film_of(model, cache, switches)) for cache in caches]
    assert difference(*made) < 1e-4
    assert caches[0].memory.sources == caches[1].memory.sources
    assert caches[0].scenes.recalls == caches[1].scenes.recalls
    assert len(caches[0].recalls) == 1 + (switch.recall is not None)
    assert caches[0].scenes.numbers == caches[1].scenes.numbers


def test_a_first_frame_that_is_recent_when_its_scene_comes_back_is_held_once(model):
    switches, held = {4: Switch(), 7: Switch(), 8: Switch(recall=3)}, []
    caches = [new_cache(model, mixed(model), BUSY, BLOCKS, kind) for kind in (HeadCache, ReferenceCache)]
    (anchors,) = caches[0].sink_groups

    def watch(block, step, clean):
        if (block, step) == (8, 1):
            held.extend(frame for (frame,) in anchors.sources[: anchors.current.start])

    made = [
        latents(film_of(model, cache, switches, on_step=step))
        for cache, step in zip(caches, (watch, lambda block, step, clean: None), strict=True)
    ]
    assert held == sorted(set(held)) and {21, 22, 23} <= set(held) and difference(*made) < 1e-4


@pytest.mark.parametrize(
    ("f", "recent_blocks", "entries", "eviction", "second"),
    [
        (3, 4, 5, "summary", {10: Switch(recall=2)}),
        (3, 4, 5, "summary", {10: Switch("recache", recall=2), 11: Switch(recall=3)}),
        (3, 2, 5, "summary", {9: Switch(recall=2)}),  # while the block of that frame is the oldest recent one
        (3, 4, 2, "summary", {10: Switch(recall=2)}),  # it is part of a summary by then
        (3, 4, 2, "fifo", {}),  # a new entry drops it
        (1, 2, 2, "summary", {9: Switch("flush")}),
        (1, 3, 5, "summary", {10: Switch(recall=2)}),  # block 10 considers it as a candidate
    ],
)
def test_a_recalled_frame_is_dropped_with_its_entry_even_while_it_is_recent(
    model, f, recent_blocks, entries, eviction, second
):
    memory = replace(BUSY.memory, recent_frames=recent_blocks * f, episodic_frames=entries)
    policy = replace(BUSY, memory=memory, episodic=replace(BUSY.episodic, eviction=eviction))
    switches = {8: Switch(recall=1), **second}
    caches = [new_cache(model, mixed(model), policy, BLOCKS, kind, f=f) for kind in (HeadCache, ReferenceCache)]
    made = [latents(film_of(model, cache, switches, schedule=Schedule((1.0,), f))) for cache in caches]
    assert difference(*made) < 1e-4
    assert caches[0].memory.sources == caches[1].memory.sources
    (group,) = [group for group in caches[0].groups if group.policy == memory]
    assert caches[0].recalls[0].frames[-1] >= 4 * f and len(set(map(tuple, group.sources))) == len(group.sources)


@pytest.mark.parametrize("seed", range(8))
def test_both_caches_recall_alike_with_any_policy(seed):
    ways = ({}, {"kind": "flush"}, {"kind": "recache"}, {"re_anchor": True}, {"continues": True}, {"recall": 1})
    chooser = random.Random(seed)
    switches = {2: Switch(), 3: Switch(recall=1), 9: Switch("recache", recall=3)}
    switches |= {block: Switch(**chooser.choice(ways)) for block in (5, 7, 10)}
    assert_as_specified(seed, {"kept_scenes": MAX_SCENES}, switches=switches)


def test_what_is_kept_is_in_main_memory_bounded_and_only_of_memory_heads(model):
    roles, switches = mixed(model), {block: Switch() for block in range(1, BLOCKS)}
    cache = new_cache(model, roles, BUSY, BLOCKS)
    film_of(model, cache, switches)
    kept = cache.scenes.kept  # the first one, since its frames are the sinks, the last ones, and the current one
    assert list(kept) == [1, *range(BLOCKS - MAX_SCENES, BLOCKS + 1)]
    frames = [frame for scene in kept.values() for frame in (*scene.spread, *chain(*scene.first))]
    assert all(x.device.type == "cpu" for frame in frames for x in frame.k)
    memory, anchors = (sum(row.count(role) for row in roles) for role in ("memory", "anchor"))
    assert sum(len(x) for frame in frames for x in frame.k) == len(kept) * (memory + 3 * anchors)  # of one block each
    assert cache.shape.scene_slots == 10 * (5 * memory + 3 * anchors) + 5 * memory
    without = new_cache(model, roles, replace(BUSY, kept_scenes=0), BLOCKS)
    film_of(model, without, switches)
    assert without.scenes is None and without.shape.scene_slots == 0


@pytest.mark.parametrize("stop", [5, 10])  # before the recall and after it
def test_a_restored_cache_recalls_the_same(model, stop):
    straight = film_of(model, new_cache(model, mixed(model), BUSY, BLOCKS))
    switches = {block: switch for block, switch in BACK.items() if block < stop}
    first = new_cache(model, mixed(model), BUSY, BLOCKS)
    film(model, first, stop, prompts=prompts_of(BACK)[:stop], switches=switches)
    again = new_cache(model, mixed(model), BUSY, BLOCKS)
    again.restore(first.state())
    rest = film_of(model, again, given=[block.latents for block in straight[:stop]])
    assert torch.equal(latents(rest), latents(straight))
    assert [recall.scene for recall in again.recalls] == [1]


def test_a_state_without_scenes_is_refused_where_they_are_needed(model):
    cache = new_cache(model, mixed(model), replace(BUSY, kept_scenes=0), BLOCKS)
    film(model, cache, 3)
    with pytest.raises(HeadForcingError, match="no frames of earlier scenes"):
        new_cache(model, mixed(model), BUSY, BLOCKS).restore(cache.state())


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
    without, numbered, other, alike = (
        job_of(plan_of(tag)).keys for tag in ("", "[recall 1]", "[recall 2]", "[recall]")
    )
    assert [a == b for a, b in zip(without, numbered, strict=True)] == [True] * 8 + [False] * 5
    assert numbered == alike != other


def test_without_encoded_words_scenes_are_compared_by_their_own_embedding_and_not_by_a_blend():
    embeds = {"a": [[1.0, 0.0]], "b": [[0.0, 1.0]], "c": [[0.9, 0.1], [0.0, 0.0]]}
    switches = {2: Switch(), 3: Switch(blend_blocks=1, recall=0)}
    rows = lay_out_rows(["a", "a", "b", Blend("b", "c", 0.1), "c"], TWO_STEPS, switches=switches)
    script = Script(rows, {text: torch.tensor(rows) for text, rows in embeds.items()})
    features = scene_features(script)
    assert features[2].tolist() == pytest.approx([0.99388, 0.11043], abs=1e-5)
    assert recalled_scenes(script) == {3: (1,)}
    numbered = number_recalls(script, recalled_scenes(script))
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
    assert (
        job_of(plan_of("[recall 1]", "echo_forcing", text)).keys
        != job_of(plan_of("[recall 2]", "echo_forcing", text)).keys
    )


def test_words_that_tell_scenes_apart_are_as_recorded(repo_root):
    folder = repo_root / "tests" / "golden" / "peers" / "echo_forcing"
    for case in json.loads((folder / "config.json").read_text())["text_cases"]:
        assert telling_texts(case["prompts"]) == case["filtered_for_similar"]
        features = torch.stack(word_features(case["prompts"]))
        if case["idf_similarities"] is not None:
            assert features.shape[1] == case["idf_vocabulary_size"]
            assert (features @ features.T - torch.tensor(case["idf_similarities"])).abs().max() < 1e-6


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name not in ("head_forcing", "self_forcing_sink", "echo_forcing")]
)
def test_other_methods_say_that_they_cannot_recall(name):
    with pytest.raises(HeadForcingError, match=r"keeps nothing of earlier scenes.*choose head_forcing or echo_forcing"):
        method_policy(name).own_switch(Switch(recall=1))


def test_a_recall_of_a_scene_whose_frames_are_dropped_is_refused_before_anything_is_made():
    text = "\n".join(f"0:{3 * i:02} scene {i}" for i in range(10)) + "\n0:30 [recall 2] back"
    with pytest.raises(HeadForcingError, match="prompt 11 recalls the scene of prompt 2, .* recall one from 3 on"):
        RenderPlan.make(
            assets.TOY_CONFIG, PRESETS["head_forcing"], schedule("self_forcing"), parse_timeline(text, 33.0), 96, 64
        )


def script_of(plan: RenderPlan) -> Script:
    return plan.script({text: word_hash.encode(text) for text in plan.timeline.texts})


def test_after_a_re_anchor_a_scene_that_came_back_is_left_for_the_new_anchors(model):
    held = anchors_held(model, {3: Switch(re_anchor=True), 6: Switch(recall=1), 8: Switch()})
    assert [held[block] for block in (2, 5, 7, 9)] == [[0, 1, 2], [9, 10, 11], [0, 1, 2], [9, 10, 11]]


def test_a_recall_changes_the_blocks_after_it_and_none_before(model):
    plain = latents(film_of(model, new_cache(model, mixed(model), BUSY, BLOCKS), {4: Switch(), 8: Switch()}))
    back = latents(film_of(model, new_cache(model, mixed(model), BUSY, BLOCKS)))
    assert torch.equal(plain[:8], back[:8]) and difference(plain[8], back[8]) > 1e-3


def test_the_most_alike_scene_is_found_without_the_words_that_prompts_share():
    shared = "a wide static shot of "
    plan = plan_of("[recall]", text="\n".join(line.replace("} ", "} " + shared) for line in STORY.splitlines()))
    assert len(plan.alike) == 3 and len(plan.timeline.texts) == 6
    assert script_of(plan).rows[8].switch.recall == 1
