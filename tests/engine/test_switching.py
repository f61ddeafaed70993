"""Prompt switches: what each leaves in the caches, what a blend is, and what a plan makes of them."""

import pytest
import torch
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy, RolePolicy, preset
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile, AutoProfileCache
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.describe import describe
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.settings import RenderSettings
from headforcing.headforcing_core.rollout.loop import WanVideoModel, make_block
from headforcing.headforcing_core.rollout.rows import BlockRow, SeededNoise
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.timeline.switch import SWITCHES, Blend, Switch
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from small_engine import (
    BUSY,
    HEIGHT,
    TWO_STEPS,
    WIDTH,
    F,
    difference,
    embeds,
    every_head,
    film,
    latents,
    make,
    mixed,
    new_cache,
)

EVERY_SWITCH = [Switch(kind, re_anchor=re_anchor) for kind in SWITCHES for re_anchor in (False, True)]


def two_scenes(model, switch, blocks=9, at=5, cache=None, policy=BUSY, **options):
    """A film whose second prompt takes over before block `at`."""
    cache = cache or new_cache(model, mixed(model), policy, blocks)
    prompts = [int(block >= at) for block in range(blocks)]
    return film(model, cache, blocks, prompts=prompts, switches={at: switch}, **options)


def test_blocks_before_a_switch_are_byte_identical_and_every_kind_makes_other_ones_after_it(model):
    plain, changed = (make(model, mixed(model), BUSY, 9, prompts=told) for told in ([0] * 9, [0] * 5 + [1] * 4))
    made = [plain, *(latents(two_scenes(model, switch)) for switch in EVERY_SWITCH)]
    assert torch.equal(made[1], changed), "a plain reset is nothing but the other prompt"
    for i, one in enumerate(made):
        for other in made[:i]:
            assert torch.equal(one[:5], other[:5]) and difference(one[5:], other[5:]) > 1e-3


def histories(model, switch) -> dict[int, dict[str, list[list[int]]]]:
    """Per block the frames that heads of each role hold while it is made, without its own."""
    cache, held = new_cache(model, mixed(model), BUSY, 9), {}
    role_of = {BUSY.of(role): role for role in ("local", "anchor", "memory")}

    def look(block, step, clean):
        if clean is not None:
            held[block] = {role_of[group.policy]: group.sources[:-F] for group in cache.groups}

    two_scenes(model, switch, cache=cache, on_step=look)
    return held


def test_a_flush_leaves_the_first_frames_and_the_last_two_and_no_memory(model):
    held = histories(model, Switch("flush"))
    assert held[5] == {"local": [[14]], "anchor": [[0], [1], [2], [14]], "memory": [[13], [14]]}


def test_after_a_cut_the_anchors_are_the_new_scenes_first_frames(model):
    held, plain = histories(model, Switch(re_anchor=True)), histories(model, Switch())
    anchors = [[frame for (frame,) in held[block]["anchor"]] for block in range(4, 9)]
    assert anchors == [[0, 1, 2, 11], [14], [15, 16, 17], [15, 16, 17, 20], [15, 16, 17, 23]]
    assert all(held[5][role] == plain[5][role] for role in ("local", "memory"))


@pytest.mark.parametrize(("policy", "blocks"), [
    (PRESETS["self_forcing"], 5), (CachePolicy.uniform(RolePolicy(recent_frames=4), "contiguous"), 3),
], ids=["every frame is kept", "four frames, in two blocks, and the block before"])  # fmt: skip
def test_a_recache_is_the_past_as_the_new_prompt_would_have_written_it(model, policy, blocks):
    roles = every_head(model, "local")
    made = two_scenes(model, Switch("recache"), 6, cache=new_cache(model, roles, policy, 9))
    fresh, video = new_cache(model, roles, policy, 9), WanVideoModel(model, torch.float32)
    fresh.block = 5 - blocks
    fresh.oldest = fresh.block * F
    video.use_prompt(embeds(model)[1])
    for block in made[5 - blocks : 5]:
        fresh.begin_block()
        video.write_clean(block.latents, fresh)
        fresh.close()
    row = BlockRow("the new prompt", TWO_STEPS.sigmas, seed=3)
    again, _ = make_block(video, fresh, row, SeededNoise((F, 16, HEIGHT, WIDTH)), block=5)
    assert torch.equal(again, made[5].latents)


def test_a_cache_that_is_finding_its_roles_refuses_to_change_the_past(model):
    cache = AutoProfileCache(new_cache(model, mixed(model), BUSY, 9).shape, AutoProfile(), torch.float32)
    for switch in (Switch("flush"), Switch("recache"), Switch(re_anchor=True), Switch(recall=1)):
        with pytest.raises(HeadForcingError, match="while head roles are being measured"):
            cache.apply_switch(switch, lambda latents: None, [])


# ------------------------------------------------------------------------------------------------------ in a plan

TINY = WanConfig(dim=36, num_layers=2, num_heads=6)


def plan(text, seconds=0.0, method="self_forcing", **options):
    family = schedule(options.pop("family", "self_forcing"))
    settings = RenderSettings(width=64, height=64, seconds=seconds)
    return RenderPlan.make(TINY, preset(method), family, parse_timeline(text), settings, **options)


def test_a_blend_is_the_weighted_sum_and_the_shorter_text_counts_as_padded():
    old, new = torch.tensor([[4.0, 8.0]]), torch.tensor([[0.0, 4.0], [8.0, 0.0]])
    assert Blend("a", "b", 0.25).interpolate({"a": old, "b": new}).tolist() == [[3.0, 7.0], [2.0, 0.0]]
    assert Blend("b", "a", 0.25).interpolate({"a": old, "b": new}).tolist() == [[1.0, 5.0], [6.0, 0.0]]
    assert Blend("a", "b", 0.5).interpolate({"a": old.bfloat16(), "b": new.bfloat16()}).dtype == torch.bfloat16


def test_a_blend_goes_over_evenly_and_ends_with_the_new_prompt_alone():
    made = plan("0:00 a\n0:03 [blend 3] b\n0:06 [blend 1] c", 9)
    script = made.script({text: torch.full((1, 2), float(10**i)) for i, text in enumerate("abc")})
    first = [float(script.embedding(block)[0, 0]) for block in range(13)]
    assert first == [1] * 4 + [3.25, 5.5, 7.75, 10] + [55] + [100] * 4
    assert [made.segment_index(block) for block in (0, 3, 4, 7, 8, 12)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(("seconds", "blended"), [(4.4, 2), (4.0, 1), (3.2, 0)])
def test_a_blend_leaves_the_new_prompt_a_block_of_its_own_however_short_it_is(seconds, blended):
    made = [row.prompt for row in plan("0:00 a\n0:03 [blend 16] b", seconds).rows[4:]]
    assert made == [*(Blend("a", "b", (i + 1) / (blended + 1)) for i in range(blended)), "b"]


def test_switches_are_numbered_behind_the_start_frames_and_video_frames_count_them():
    text = "0:00 a\n0:03 [flush] b\n0:06 c\n0:09 [re-anchor, blend 2] d"
    made, extended = plan(text, 12), plan(text, 12, start_frames=6)
    assert made.switches == {4: Switch("flush"), 12: Switch(blend_blocks=2, re_anchor=True)}
    assert list(extended.switches) == [6, 14]
    assert made.start_video_frames == [0, 45, 93, 141] and extended.start_video_frames == [21, 69, 117, 165]
    assert [extended.segment_index(block) for block in (0, 1, 5, 6)] == [0, 0, 0, 1]
    lines = describe(extended, torch.float32).splitlines()
    assert lines[-6].split() == ["2", "0:03.000", "0:03.000", "69", "4", "flush", "b"]
    assert lines[-3] == "Prompt 4 is blended in over 2 blocks and used alone from frame 189 on."


def test_switches_survive_a_model_with_other_blocks():
    made = plan("0:00 a\n0:01 [flush, blend 2] b\n0:02 [reset] [recache] c", 3, family="causal_forcing_framewise")
    assert made.switches == {5: Switch("flush", 2)}
    assert [segment.text for segment in made.timeline.segments] == ["a", "b", "[recache] c"]
    third = [Blend("a", "b", 1 / 3), Blend("a", "b", 2 / 3)]
    assert [row.prompt for row in made.rows] == ["a"] * 5 + third + ["b"] * 2 + ["[recache] c"] * 4


@pytest.mark.parametrize("tag", ["[recache]", "[flush]", "[re-anchor]", "[blend 2, flush]"])
def test_the_past_is_not_changed_while_head_roles_are_found_from_it(tag):
    for at, start_frames, earliest in (("0:03", 0, "0:05.062"), ("0:04", 0, "0:05.062"), ("0:03", 3, "0:04.500")):
        with pytest.raises(HeadForcingError, match=f"first 7 blocks.*profile, or move this prompt to {earliest} or"):
            plan(f"0:00 a\n{at} {tag} b", 9, "head_forcing", start_frames=start_frames).check_warm_up()
    for at, start_frames in (("0:05.062", 0), ("0:04.5", 3)):
        later = plan(f"0:00 a\n{at} {tag} b", 9, "head_forcing", start_frames=start_frames)
        later.check_warm_up()
        assert later.switches.keys() == {7}
    plan("0:00 a\n0:03 [blend 2] b", 9, "head_forcing").check_warm_up()
    plan(f"0:00 a\n0:03 {tag} b", 9).check_warm_up()  # a method without roles finds none
