"""Prompt switches, scenes that come back and pictures that a scene keeps: what they leave in the
caches and in a plan.

`test_caches.py` compares caches in stories of them with their reference.
"""

import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.cache import scenes
from headforcing.headforcing_core.cache.roles import RolePolicy
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from headforcing.headforcing_core.methods.registry import METHODS, method_named
from headforcing.headforcing_core.plan.describe import describe
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.plan.resources import needs_of
from headforcing.headforcing_core.rollout.loop import WanVideoModel, make_block
from headforcing.headforcing_core.rollout.rows import BlockRow, Script, SeededNoise, lay_out_rows
from headforcing.headforcing_core.timeline.likeness import telling_texts, word_features
from headforcing.headforcing_core.timeline.switch import Blend, Switch
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from jobs import job_of
from small_engine import (
    EVERY_SWITCH,
    KEEPING,
    SHAPE,
    TWO_STEPS,
    F,
    difference,
    embeds,
    every_head,
    latents,
    make_blocks,
    new_cache,
    prompts_of,
    random_pictures,
    random_roles,
)

BLOCKS = 12
STORY = "0:00 a red fox in the snow\n0:03 a grey heron in a pond\n0:06 {} the fox in the snow again"


def held_in(model, switches, method=KEEPING, **options):
    """A video's cache, and per block the history of anchor heads and the entries of memory."""
    cache = new_cache(model, random_roles(model), method, BLOCKS)
    history = {}
    entries = {}
    (anchors,) = cache.sink_groups

    def watch(block, step, clean):
        history[block] = [frame for (frame,) in anchors.sources[: anchors.current.start]]
        entries[block] = list(cache.memory.sources)

    make_blocks(
        model,
        cache,
        BLOCKS,
        prompts=prompts_of(switches, BLOCKS),
        switches=switches,
        on_step=watch,
        **options,
    )
    return cache, history, entries


def test_blocks_before_a_switch_are_byte_identical_and_every_kind_makes_other_ones_after_it(model):
    def video(prompts, switches):
        cache = new_cache(model, random_roles(model), KEEPING, 7)
        return latents(make_blocks(model, cache, 7, prompts=prompts, switches=switches))

    two_prompts = [0] * 5 + [1] * 2
    made = [video([0] * 7, {}), video(two_prompts, {})]
    made += [video(two_prompts, {5: switch}) for switch in EVERY_SWITCH]
    assert torch.equal(made[1], made[2]), "a plain reset is nothing but the other prompt"
    for i, one in enumerate(made[1:]):
        for other in (made[0], *made[2 : i + 1]):
            assert torch.equal(one[:5], other[:5]) and difference(one[5:], other[5:]) > 1e-3


def test_a_flush_leaves_the_first_frames_and_the_last_two_and_a_cut_takes_the_new_scenes_anchors(
    model,
):
    cache, flushed, entries = held_in(model, {5: Switch("flush")})
    assert flushed[5] == [0, 1, 2, 14] and entries[4] and not entries[5] and cache.oldest == 13
    _, cut, entries = held_in(model, {5: Switch(re_anchor=True)})
    expected = [[0, 1, 2, 11], [14], [15, 16, 17], [15, 16, 17, 20], [15, 16, 17, 23]]
    assert [cut[block] for block in range(4, 9)] == expected
    assert entries[4] == entries[5][: len(entries[4])]


@pytest.mark.parametrize(
    ("method", "blocks"),
    [
        (PRESETS["self_forcing"], 5),
        (HeadForcing.uniform(RolePolicy(recent_frames=4), "contiguous"), 3),
    ],
    ids=["every frame is kept", "four frames, in two blocks, and the block before"],
)
def test_a_recache_is_the_past_as_the_new_prompt_would_have_written_it(model, method, blocks):
    roles = every_head(model, "local")
    cache = new_cache(model, roles, method, 9)
    fresh = new_cache(model, roles, method, 9)
    made = make_blocks(model, cache, 6, prompts=[0] * 5 + [1], switches={5: Switch("recache")})
    video = WanVideoModel(model, torch.float32)
    fresh.block = 5 - blocks
    fresh.oldest = fresh.block * F
    video.use_prompt(embeds(model)[1])
    for block in made[5 - blocks : 5]:
        fresh.begin_block()
        video.write_clean(block.latents, fresh)
        fresh.close()
    row = BlockRow("the new prompt", TWO_STEPS.sigmas, seed=3)
    again, _ = make_block(video, fresh, row, SeededNoise(SHAPE), block=5)
    assert torch.equal(again, made[5].latents)


# ------------------------------------------------------------------------------ scenes and pictures


def test_a_scene_comes_back_with_frames_of_its_whole_visit_and_with_its_first_ones(model):
    cache, history, entries = held_in(
        model, {3: Switch(), 6: Switch(), 8: Switch(recall=2), 10: Switch()}
    )
    assert cache.recalls == [scenes.Recall(block=8, scene=2, frames=[9, 10, 11, 12, 15])]
    assert (
        cache.recalls[0].describe() == "before block 8: recalled scene 2: frames 9, 10, 11, 12, 15"
    )
    assert [history[block][0] for block in range(3, BLOCKS)] == [0] * 5 + [9] * 2 + [0] * 2
    assert history[8][:3] == [9, 10, 11] and entries[7] != entries[8][:3] == [[9], [12], [15]]
    _, history, _ = held_in(model, {3: Switch(re_anchor=True), 6: Switch(recall=1), 8: Switch()})
    assert [history[block][0] for block in (2, 5, 7, 9)] == [0, 9, 0, 9], (
        "left for the anchors of a cut"
    )


def test_frames_of_the_first_visit_are_spread_over_it_whatever_its_length():
    spread = {}
    numbers = SimpleNamespace(
        keep_frame=lambda frame: frame, policy=RolePolicy(recent_frames=3, episodic_frames=5)
    )
    for blocks in (1, 4, 6, 11, 300):
        story = scenes.Scenes(numbers, ())
        for block in range(blocks):
            story.copy_frames(3 * block, 3)
            assert len(story.kept[1].spread) < 10
        story.begin(Switch(), 3 * blocks)
        spread[blocks] = story.kept[1].spread
    gaps = [b - a for a, b in zip(spread[300], spread[300][1:], strict=False)]
    assert len(gaps) == 4 and max(gaps) <= 2 * min(gaps) and spread.pop(300)[-1] > 0.7 * 3 * 300
    assert spread == {1: [0], 4: [0, 3, 6, 9], 6: [0, 3, 6, 12, 15], 11: [0, 6, 12, 24, 30]}
    story = scenes.Scenes(numbers, ())  # of a later visit nothing is kept
    for block, switch in enumerate(
        [None, None, None, Switch(), Switch(recall=1), Switch(continues=True), None]
    ):
        if switch is not None:
            story.begin(switch, 3 * block)
        story.copy_frames(3 * block, 3)
    assert story.kept[1].spread == [0, 3, 6] and story.kept[2].spread == [9]


def test_what_is_kept_is_in_main_memory_bounded_and_only_of_memory_heads_and_anchors(model):
    cache, _, _ = held_in(model, {block: Switch() for block in range(1, BLOCKS)})
    # the first one, since its frames are the sinks, the last ones, and the current one
    kept = cache.scenes.kept
    assert list(kept) == [1, *range(BLOCKS - scenes.MAX_SCENES, BLOCKS + 1)]
    keys = []
    for scene in kept.values():
        for frame in (*scene.spread, *chain(*scene.first)):
            keys += frame.k
    assert all(k.device.type == "cpu" for k in keys)
    roles = Counter(chain(*random_roles(model)))
    memory = roles["memory"]
    anchors = roles["anchor"]
    # of one block each
    assert sum(map(len, keys)) == len(kept) * (memory + 3 * anchors)
    assert cache.shape.scene_slots == 10 * (5 * memory + 3 * anchors) + 5 * memory
    without = new_cache(model, random_roles(model), replace(KEEPING, kept_scenes=0), BLOCKS)
    assert without.scenes is None and without.shape.scene_slots == 0


def test_a_scene_holds_its_pictures_until_the_next_one_and_then_its_own_first_frames(model):
    _, history, entries = held_in(
        model, {4: Switch(), 8: Switch()}, pictures={0: random_pictures(1), 4: random_pictures(2)}
    )
    assert history[1][:-1] == history[3][:-1] == [-3, -2, -1], "one picture: the whole block"
    assert history[4][:-1] == history[7][:-1] == [-3, -2], "two pictures: the first frame of each"
    assert history[8][:-1] == history[11][:-1] == [0, 1, 2], (
        "the video's own first frames, made behind a picture"
    )
    assert (
        entries[0] == [[-1]]
        and entries[4] == entries[7][:2] == [[-2], [-1]]
        and len(entries[7]) > 2
    )
    for block in range(8, BLOCKS):
        assert min(chain(*entries[block])) >= 0


def test_pictures_stay_where_memory_is_full_and_where_it_is_flushed(model):
    method = replace(KEEPING, memory=replace(KEEPING.memory, episodic_frames=4))
    _, _, entries = held_in(
        model, {9: Switch("flush", continues=True)}, method, pictures={0: random_pictures(3)}
    )
    assert all(held[:2] == [[-3], [-2]] for held in entries.values()), (
        "two entries are left to the video's own frames"
    )
    assert max(map(len, entries.values())) == 4 and len(max(entries[8][2:], key=len)) > 2, (
        "which are merged"
    )


@pytest.mark.parametrize("sinks", range(5))
@pytest.mark.parametrize("entries", [0, 2, 3, 4, 6])
def test_pictures_take_no_more_than_the_sinks_and_leave_two_entries_of_memory(sinks, entries):
    """Whatever the number of pictures, of three latent frames each: of the first frames as many as
    there are sinks, one of each picture at least while there is room.
    """

    def group(**policy):
        return SimpleNamespace(
            keep_frame=lambda frame: SimpleNamespace(frame=frame), policy=RolePolicy(**policy)
        )

    for count in range(1, 7):
        story = scenes.Scenes(
            group(recent_frames=3, episodic_frames=entries), [group(sink_frames=sinks)]
        )
        story.keep_pictures([torch.zeros(3, 1)] * count, lambda latents: nullcontext())
        (first,) = story.pictures.first
        held = min(sinks, count * min(3, max(1, sinks // count)))
        assert [kept.frame for kept in first] == list(range(-sinks, held - sinks)), count
        spread = [kept.frame for kept in story.pictures.spread]
        assert spread == list(range(-count, min(0, max(0, entries - 2) - count))), count


def test_a_picture_is_written_alone(model):
    at_first = new_cache(model, random_roles(model), KEEPING, 2)
    make_blocks(model, at_first, 1, prompts=[0], pictures={0: random_pictures()})
    later = new_cache(model, random_roles(model), KEEPING, 2)
    make_blocks(
        model,
        later,
        2,
        prompts=[0, 0],
        switches={1: Switch()},
        pictures={1: random_pictures()},
    )
    (one,) = at_first.sink_groups
    (other,) = later.sink_groups
    assert all(torch.equal(a[:, :3], b[:, :3]) for a, b in zip(one.v, other.v, strict=True))
    cache = new_cache(model, random_roles(model), KEEPING, 1)
    short = make_blocks(model, cache, 1, prompts=[0], pictures={0: random_pictures(3)})
    assert latents(short).isfinite().all(), "a video of one block has room for its pictures"


# ----------------------------------------------------------------------------------- plans and keys


def plan(
    text: str, seconds=0.0, method="self_forcing", start_frames=0, config=assets.TOY_CONFIG
) -> RenderPlan:
    options = RenderOptions(method_name=method, width=64, height=64)
    return RenderPlan.of(config, options, parse_timeline(text, seconds), start_frames)


def test_a_blend_is_the_weighted_sum_and_the_shorter_text_counts_as_padded():
    old = torch.tensor([[4.0, 8.0]])
    new = torch.tensor([[0.0, 4.0], [8.0, 0.0]])
    assert Blend("a", "b", 0.25).interpolate({"a": old, "b": new}).tolist() == [
        [3.0, 7.0],
        [2.0, 0.0],
    ]
    assert Blend("b", "a", 0.25).interpolate({"a": old, "b": new}).tolist() == [
        [1.0, 5.0],
        [6.0, 0.0],
    ]
    assert (
        Blend("a", "b", 0.5).interpolate({"a": old.bfloat16(), "b": new.bfloat16()}).dtype
        == torch.bfloat16
    )


@pytest.mark.parametrize(
    ("blend", "seconds", "blended"), [(3, 6, 3), (16, 4.4, 2), (16, 4.0, 1), (16, 3.2, 0)]
)
def test_a_blend_goes_over_evenly_and_leaves_the_new_prompt_a_block_of_its_own(
    blend, seconds, blended
):
    made = plan(f"0:00 a\n0:03 [blend {blend}] b", seconds)
    blends = [Blend("a", "b", (i + 1) / (blended + 1)) for i in range(blended)]
    prompts = [row.prompt for row in made.rows]
    assert (
        prompts == ["a"] * 4 + blends + ["b"] * (made.blocks - 4 - blended) and prompts[-1] == "b"
    )
    assert [made.segment_index(block) for block in (0, 3, 4, made.blocks - 1)] == [0, 0, 1, 1]


def test_switches_are_numbered_behind_the_start_frames_and_video_frames_count_them():
    text = "0:00 a\n0:03 [flush] b\n0:06 c\n0:09 [re-anchor, blend 2] d"
    made = plan(text, 12)
    extended = plan(text, 12, start_frames=6)
    assert made.switches == {4: Switch("flush"), 12: Switch(blend_blocks=2, re_anchor=True)}
    assert list(extended.switches) == [6, 14]
    assert made.prompt_video_frames == [0, 45, 93, 141]
    assert extended.prompt_video_frames == [21, 69, 117, 165]
    assert [extended.segment_index(block) for block in (0, 1, 5, 6)] == [0, 0, 0, 1]
    lines = describe(extended, torch.float32).splitlines()
    assert lines[-6].split() == ["2", "0:03.000", "0:03.000", "69", "4", "flush", "b"]
    assert lines[-3] == "Prompt 4 is blended in over 2 blocks and used alone from frame 189 on."


def test_a_plan_keeps_scenes_for_a_story_that_recalls_one_and_says_what_they_take():
    made = plan(STORY.format("[recall 1]"), 9, "head_forcing")
    without = plan(STORY.format(""), 9, "head_forcing")
    assert made.shape.method.kept_scenes == 3 and without.shape.method.kept_scenes == 0
    assert made.shape.frame_slots == without.shape.frame_slots
    roles = Counter(chain(*made.shape.roles))
    memory = roles["memory"]
    anchors = roles["anchor"]
    slots = 3 * (5 * memory + 3 * anchors) + 5 * memory
    text = describe(made, torch.float32)
    assert "latent frames of 3 scenes in anchor and memory heads" in text
    assert f"up to {slots} frame-slots" in text
    assert "may come back" not in describe(without, torch.float32)
    needs = [needs_of(each, torch.float32, 0, kept=True, state=True) for each in (made, without)]
    assert needs[0].state - needs[1].state == made.shape.bytes_of(slots, torch.float32)
    assert needs[0].cache == needs[1].cache
    assert [str(switch) for switch in made.switches.values()] == ["reset", "recall 1"]
    assert not without.switches


def keys_of(text: str, method="head_forcing") -> list[str]:
    made = plan(text, 9, method)
    return job_of(made, {text: word_hash.encode(text) for text in made.timeline.texts}, "toy").keys


def test_a_recall_changes_the_keys_of_its_scene_alone_and_by_likeness_they_are_those_of_the_scene_it_means():
    without = keys_of(STORY.format(""))
    numbered = keys_of(STORY.format("[recall 1]"))
    other = keys_of(STORY.format("[recall 2]"))
    alike = keys_of(STORY.format("[recall]"))
    assert [a == b for a, b in zip(without, numbered, strict=True)] == [True] * 8 + [False] * 5
    assert numbered == alike != other


def test_scenes_are_compared_by_their_own_embedding_and_not_by_a_blend():
    embeds = {"a": [[1.0, 0.0]], "b": [[0.0, 1.0]], "c": [[0.9, 0.1], [0.0, 0.0]]}
    switches = {2: Switch(), 3: Switch(blend_blocks=1, recall=0)}
    rows = lay_out_rows(["a", "a", "b", Blend("b", "c", 0.1), "c"], TWO_STEPS, switches=switches)
    script = Script(rows, {text: torch.tensor(rows) for text, rows in embeds.items()})
    assert scenes.scene_features(script)[2].tolist() == pytest.approx([0.99388, 0.11043], abs=1e-5)
    recalled = scenes.recalled_scenes(script)
    assert recalled == {3: scenes.RecalledScene(1)}
    numbered = scenes.number_recalls(script, recalled)
    recalls = [row.switch and row.switch.recall for row in numbered.rows]
    assert recalls == [None, None, None, 1, None]
    assert numbered.rows[3].recall_key == (1, 0, 2, 3), (
        "its number, and where the visits up to it begin"
    )


def test_by_likeness_a_scene_comes_back_of_which_frames_are_kept():
    """The first of ten scenes is the most alike, and its frames are dropped."""
    prompts = [f"scene {number}" for number in range(1, 12)]
    likeness = {"scene 1": 1.0, "scene 4": 0.9, "scene 11": 1.0}
    embeds = {
        text: torch.tensor([[likeness.get(text, 0.0), 1 - likeness.get(text, 0.0)]])
        for text in prompts
    }
    switches = {block: Switch(recall=0 if block == 10 else None) for block in range(1, 11)}
    script = Script(lay_out_rows(prompts, TWO_STEPS, switches=switches), embeds)
    assert scenes.recalled_scenes(script) == {10: scenes.RecalledScene(4)}


def test_echo_forcing_compares_scenes_by_embeddings_or_by_words_and_the_keys_know_which_one_comes_back():
    text = "0:00 a fox in the forest\n0:03 a heron heron heron\n0:06 {} the fox and a heron, heron"
    made = plan(text.format("[recall]"), 9, "echo_forcing")
    first, second, third = made.timeline.alike.values()
    embeds = {
        first: torch.tensor([[1.0, 0.0]]),
        second: torch.tensor([[-1.0, 0.0]]),
        third: torch.tensor([[1.0, 0.0]]),
    }
    script = Script(made.rows, embeds, made.timeline.alike)
    by_words = replace(made.method, compares_words=True)
    outcomes = [method.recalled(script) for method in (made.method, by_words)]
    assert outcomes == [{8: scenes.RecalledScene(1, (0,))}, {8: scenes.RecalledScene(2, (1,))}]
    one = keys_of(text.format("[recall 1]"), "echo_forcing")
    other = keys_of(text.format("[recall 2]"), "echo_forcing")
    assert one != other


def test_words_that_tell_scenes_apart_are_as_recorded(repo_root):
    folder = repo_root / "tests" / "golden" / "peers" / "echo_forcing"
    for case in json.loads((folder / "config.json").read_text())["text_cases"]:
        assert telling_texts(case["prompts"]) == case["filtered_for_similar"]
        features = torch.stack(word_features(case["prompts"]))
        if case["idf_similarities"] is not None:
            assert features.shape[1] == case["idf_vocabulary_size"]
            assert (
                features @ features.T - torch.tensor(case["idf_similarities"])
            ).abs().max() < 1e-6


def test_what_cannot_come_back_is_refused_before_anything_is_made():
    recalling = {"head_forcing", "self_forcing_sink", "livetalk", "echo_forcing"}
    for name in METHODS.keys() - recalling:
        with pytest.raises(
            HeadForcingError,
            match=r"keeps nothing of earlier scenes.*choose head_forcing or echo_f",
        ):
            method_named(name).own_switch(Switch(recall=1))
    text = "\n".join(f"0:{3 * i:02} scene {i}" for i in range(10)) + "\n0:30 [recall 2] back"
    with pytest.raises(
        HeadForcingError,
        match="prompt 11 recalls the scene of prompt 2, .* recall one from prompt 3 on",
    ):
        plan(text, 33.0, "head_forcing")
