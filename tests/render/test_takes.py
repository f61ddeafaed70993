"""Takes: a seed before a prompt re-rolls the video from there on, in the run folder that holds all takes."""

import pytest
import torch
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from toy_renders import STORY, Render, files

SIX = ("a red ball", "a blue cube", "a pink star", "a yellow ring", "a green cone", "a white disc")


def story(**tags):
    """Six scenes of two blocks, with tags such as `scene_4="[seed 7]"`."""
    return "\n".join(f"{1.5 * n}s {tags.get(f'scene_{n + 1}', '')} {text}" for n, text in enumerate(SIX))


def six(backbone, folder, **tags):
    return Render(backbone, folder, story(**tags), seed=3)


def blocks_on_disk(render):
    return {path.name: path.read_bytes() for path in files(render) if path.name.startswith("block-")}


def test_re_rolling_scene_4_reuses_the_blocks_before_it_and_keeps_both_takes(backbone, tmp_path):
    first, second = six(backbone, tmp_path), six(backbone, tmp_path, scene_4="[seed 7]")
    assert first.setup == second.setup
    before = first.go()
    stored = blocks_on_disk(first)
    after = second.go()
    scene_4 = first.plan.prompts.index(3)
    assert 0 < second.video.reused == scene_4 < first.plan.new_blocks
    assert torch.equal(after, second.straight())
    assert torch.equal(after[: 3 * scene_4], before[: 3 * scene_4])
    for block in range(scene_4, first.plan.new_blocks):
        assert not torch.equal(*(latents[3 * block : 3 * block + 3] for latents in (before, after)))
    now = blocks_on_disk(first)
    assert stored.items() <= now.items(), "the blocks of the first take are the same files"
    assert len(now) == len(stored) + first.plan.new_blocks - scene_4

    made = []
    for take, expected in ((first, before), (second, after)):  # going back costs nothing
        assert torch.equal(take.go(on_step=lambda block, step, latents: made.append(latents is not None)), expected)
        assert take.video.reused == take.plan.new_blocks and not any(made)
    assert blocks_on_disk(first) == now


def test_a_seed_holds_until_the_next_one_and_the_same_again_changes_nothing(backbone, tmp_path):
    plain, rolled = six(backbone, tmp_path), six(backbone, tmp_path, scene_3="[seed 7]", scene_5="[seed 3]")
    starts = [plain.plan.prompts.index(scene) for scene in (2, 4)]
    seeds = [rolled.plan.later_seeds(3), rolled.plan.later_seeds(7)]
    assert seeds == [{starts[0]: 7, starts[1]: 3}, {starts[1]: 3}]
    again = six(backbone, tmp_path, scene_1="[seed 3]", scene_3="[seed 7]", scene_4="[seed 7]", scene_5="[seed 3]")
    assert again.keys == rolled.keys != plain.keys
    assert six(backbone, tmp_path, scene_1="[seed 3]", scene_4="[seed 3]").keys == plain.keys


def test_a_seed_on_the_first_prompt_gives_the_noise_of_a_render_with_that_seed(backbone, tmp_path):
    rolled = six(backbone, tmp_path, scene_1="[seed 7]")
    assert rolled.setup == six(backbone, tmp_path).setup
    assert torch.equal(rolled.straight(), Render(backbone, tmp_path, story(), seed=7).straight())


SETTINGS = {
    "with a switch": {"text": STORY.replace("0:05 ", "0:05 [recache, seed 7] ")},
    "state restored": {"state_seconds": 1e-9},
    "roles found while sampling": {"profile": AutoProfile()},
    "one frame a block": {"family": "causal_forcing_framewise", "seconds": 6.0},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_take_that_was_stopped_goes_on_to_the_same_bytes(backbone, tmp_path, setting):
    options = {"text": STORY.replace("0:05 ", "0:05 [seed 7] "), **SETTINGS[setting]}
    take = Render(backbone, tmp_path, **options)
    scene_2 = take.plan.prompts.index(1)
    Render(backbone, tmp_path, **{**SETTINGS[setting], "text": STORY}).go()
    expected = take.straight()
    take.go(stop_after=scene_2 + 1)
    assert take.video.reused == scene_2
    assert torch.equal(take.go(), expected)
    assert take.video.reused == scene_2 + 1
    assert take.video.events == take.straight_events


def test_seeds_are_counted_from_the_end_of_the_start_frames(backbone, tmp_path):
    start = Render(backbone, tmp_path).straight()[:6]
    plain, take = (Render(backbone, tmp_path, story(scene_4=tag), start=start) for tag in ("", "[seed 7]"))
    scene_4 = plain.plan.timeline.segments[3].start_block
    assert take.plan.later_seeds(3) == {scene_4 + 2: 7}
    before, after = plain.go(), take.go()
    assert take.video.reused == scene_4
    assert not torch.equal(before[3 * scene_4 : 3 * scene_4 + 3], after[3 * scene_4 : 3 * scene_4 + 3])
    assert torch.equal(after, take.straight())
