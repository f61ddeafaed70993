"""A render whose story brings scenes back: resumed, changed while it runs, and what its report
says.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.plan.describe import describe
from headforcing.headforcing_core.render.live_story import LiveEdits, StoryEdits
from headforcing.headforcing_core.render.render import Place, make_video
from headforcing.headforcing_core.render.sinks import KeptLatents
from toy_renders import LiveTexts, Render

SECONDS = 7.0
BALL = "a red ball in the teal room"
CROSS = "a yellow cross in the navy room"
TOLD = f"0:00 {BALL}\n0:02.3 {CROSS}\n0:05.3 {{}} the red ball again"  # blocks 0, 3 and 7 of 10
AUTO = replace(HeadForcing(), scenes="auto")
BACK = f"0:00 {BALL}\n0:02.3 {CROSS}\n0:05.3 {BALL}"


def test_a_prompt_that_returns_brings_its_scene_back_as_a_tag_does(backbone, tmp_path):

    def story(tag, method=None):
        text = BACK.replace("3 " + BALL, f"3 {tag} {BALL}")
        return Render(backbone, tmp_path, text, SECONDS, method=method)

    tagged = story("[recall 1]")
    plain = story("")
    overruled = story("[new scene]", AUTO)
    found = story("", AUTO)
    assert torch.equal(found.go(), tagged.straight())
    assert torch.equal(overruled.straight(), plain.straight())
    (recall,) = found.run.recalls
    assert (recall.block, recall.scene, recall.frames) == (7, 1, [0, 1, 2, 3, 6])
    assert "recall 1" in describe(found.plan, torch.float32) and "recall" not in describe(
        plain.plan, torch.float32
    )
    longer = Render(
        backbone,
        tmp_path,
        f"{BACK}\n0:06 {BALL}\n0:06.8 {CROSS}\n0:07.5 a new place",
        8.5,
        method=AUTO,
    )
    longer.go()
    assert [recall.scene for recall in longer.run.recalls] == [1, 2], (
        "a prompt said again goes on with its scene"
    )


@pytest.mark.parametrize(
    ("first", "then"), [("", "0:02.3 {}\n"), ("0:02.3 {}\n", "")], ids=["more", "fewer"]
)
def test_a_state_of_a_story_with_other_scenes_is_not_used(backbone, tmp_path, caplog, first, then):
    """A prompt that is repeated begins a scene, and changes the key of no block before a recall."""
    story = "0:00 {0}\n{1}0:05.3 [recall 1] {2}"
    before = story.format(BALL, first.format(BALL), CROSS)
    after = story.format(BALL, then.format(BALL), CROSS)
    one = Render(backbone, tmp_path, before, SECONDS, state_seconds=1e-9)
    other = Render(backbone, tmp_path, after, SECONDS, state_seconds=1e-9)
    one.go(stop_after=6)
    assert torch.equal(other.go(), other.straight())
    assert other.reused == 6 and "a story whose scenes begin with latent frames" in caplog.text


def test_a_finished_video_that_is_made_again_needs_no_model_and_has_the_same_report(
    backbone, tmp_path
):
    start = torch.randn(6, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    render = Render(backbone, tmp_path / "runs", TOLD.format("[recall 1]"), SECONDS, start=start)

    def report():
        run = render.run
        about = run.meter.report(run.events).to_dict()
        return run.events, run.recalls, about, run.seconds_per_block

    latents = render.go()
    steps = []
    first = report()
    no_model = SimpleNamespace(backbone=None)
    assert all(first)
    assert torch.equal(render.go(model=no_model, on_step=lambda *step: steps.append(step)), latents)
    assert report() == first
    assert render.reused == render.plan.new_blocks
    assert len(steps) == render.plan.blocks
    next(render.folder.rglob("seconds-*")).unlink()  # what only the render could tell is not known
    assert torch.equal(render.go(model=no_model), latents)
    assert report()[0] == first[0] and render.run.seconds_per_block is None


def run(render: Render, story: StoryEdits):
    kept = KeptLatents()
    result = make_video(render.job, render.model(), Place(), [kept, LiveEdits(story)])
    return torch.cat(kept.blocks), result


RETURN = BACK.replace("3 " + BALL, "3 [recall 1] " + BALL)
CHANGES = {  # a story, what is told instead of it before block 4, and the method's scenes
    "another scene comes back": (
        TOLD.format("[recall]"),
        TOLD.format("[recall 2]"),
        HeadForcing(),
        2,
    ),
    "a return is told": (BACK.split("\n0:05")[0], BACK, AUTO, 1),
    "a tag is told": (BACK.split("\n0:05")[0], RETURN, replace(AUTO, scenes="tagged"), 1),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_story_changed_while_it_renders_recalls_what_it_would_have_from_the_beginning(
    backbone, tmp_path, case
):
    before, after, method, scene = CHANGES[case]
    story = LiveTexts({4: after}, SECONDS)
    latents, result = run(Render(backbone, tmp_path, before, SECONDS, method=method), story)
    assert not story.refusals and [recall.scene for recall in result.recalls] == [scene]
    assert torch.equal(
        latents, Render(backbone, tmp_path, after, SECONDS, method=method).straight()
    )
    assert f"before block 7: recalled scene {scene}: frames" in "\n".join(result.lines())
    assert result.to_dict()["recalls"][0]["scene"] == scene


# with "red" in three of four prompts the third one is most like the second by what is left of it
LIKE = "0:00 red ball\n0:00.8 yellow cross\n0:01.5 [recall] red red cross\n0:06 {} a {} cube"
REFUSED = {
    "this video began without a [recall]": (TOLD.format(""), TOLD.format("[recall 1]")),
    "an earlier [recall] would mean another scene": (
        LIKE.format("", "blue"),
        LIKE.format("[recache]", "red"),
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_change_that_needs_scenes_that_were_not_kept_or_changes_a_recall_is_refused(
    backbone, tmp_path, why
):
    before, after = REFUSED[why]
    story = LiveTexts({6: after}, SECONDS)
    planned = Render(backbone, tmp_path, before, SECONDS)
    latents, _ = run(planned, story)
    assert len(story.refusals) == 1 and why in story.refusals[0]
    assert torch.equal(latents, planned.straight())
