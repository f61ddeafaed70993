"""Switches in a plan: blends, and what they are numbered by."""

import pytest
import torch
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.describe import describe
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.timeline.switch import Blend, Switch
from headforcing.headforcing_core.timeline.timeline import parse_timeline


def test_a_blend_is_the_weighted_sum_and_the_shorter_text_counts_as_padded():
    old, new = torch.tensor([[4.0, 8.0]]), torch.tensor([[0.0, 4.0], [8.0, 0.0]])
    assert Blend("a", "b", 0.25).interpolate({"a": old, "b": new}).tolist() == [[3.0, 7.0], [2.0, 0.0]]
    assert Blend("b", "a", 0.25).interpolate({"a": old, "b": new}).tolist() == [[1.0, 5.0], [6.0, 0.0]]
    assert Blend("a", "b", 0.5).interpolate({"a": old.bfloat16(), "b": new.bfloat16()}).dtype == torch.bfloat16


TINY = WanConfig(dim=36, num_layers=2, num_heads=6)


def plan(text, seconds=0.0, method="self_forcing", **options):
    return RenderPlan.make(
        TINY, preset(method), schedule("self_forcing"), parse_timeline(text), 64, 64, seconds, **options
    )


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


def test_switches_are_numbered_behind_the_start_frames_and_pictures_count_them():
    text = "0:00 a\n0:03 [flush] b\n0:06 c\n0:09 [re-anchor, blend 2] d"
    made, extended = plan(text, 12), plan(text, 12, start_frames=6)
    assert made.switches == {4: Switch("flush"), 12: Switch(blend_blocks=2, re_anchor=True)}
    assert list(extended.switches) == [6, 14]
    assert made.start_video_frames == [0, 45, 93, 141]
    assert extended.start_video_frames == [21, 69, 117, 165]
    assert [extended.segment_index(block) for block in (0, 1, 5, 6)] == [0, 0, 0, 1]
    lines = describe(extended, torch.float32).splitlines()
    assert lines[-6].split() == ["2", "0:03.000", "0:03.000", "69", "4", "flush", "b"]
    assert lines[-3] == "Prompt 4 is blended in over 2 blocks and used alone from frame 189 on."


def test_switches_survive_a_model_with_other_blocks():
    timeline = parse_timeline("0:00 a\n0:01 [flush, blend 2] b\n0:02 [reset] [recache] c", 3)
    made = RenderPlan.make(TINY, preset("self_forcing"), schedule("causal_forcing_framewise"), timeline, 64, 64)
    assert made.switches == {5: Switch("flush", 2)}
    assert [segment.text for segment in made.timeline.segments] == ["a", "b", "[recache] c"]
    third = [Blend("a", "b", 1 / 3), Blend("a", "b", 2 / 3)]
    assert [row.prompt for row in made.rows] == ["a"] * 5 + third + ["b"] * 2 + ["[recache] c"] * 4


@pytest.mark.parametrize("tag", ["[recache]", "[flush]", "[re-anchor]", "[blend 2, flush]"])
def test_the_past_is_not_changed_while_head_roles_are_found_from_it(tag):
    for at in ("0:03", "0:04"):
        with pytest.raises(
            HeadForcingError, match=r"first 7 blocks.*profile, or move this prompt to 0:05.062 or later"
        ):
            plan(f"0:00 a\n{at} {tag} b", 9, "head_forcing").check_warm_up()
    later = plan(f"0:00 a\n0:05.062 {tag} b", 9, "head_forcing")
    later.check_warm_up()
    assert later.switches.keys() == {7}
    plan("0:00 a\n0:03 [blend 2] b", 9, "head_forcing").check_warm_up()
    plan(f"0:00 a\n0:03 {tag} b", 9).check_warm_up()  # a method without roles finds none
    with pytest.raises(HeadForcingError, match="to 0:04.500 or later"):
        plan(f"0:00 a\n0:03 {tag} b", 9, "head_forcing", start_frames=3).check_warm_up()
    plan(f"0:00 a\n0:04.5 {tag} b", 9, "head_forcing", start_frames=3).check_warm_up()
