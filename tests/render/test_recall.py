"""A render whose story brings scenes back: resumed, changed while it runs, and what its report says."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.cache.guards import Guards
from headforcing.headforcing_core.cache.policy import CachePolicy
from headforcing.headforcing_core.render.describe import describe
from headforcing.headforcing_core.render.live_story import LiveEdits, Story
from headforcing.headforcing_core.render.render import Place, make_video
from headforcing.headforcing_core.render.result import report_stored
from headforcing.headforcing_core.render.sinks import KeptLatents
from headforcing.headforcing_core.runs.stored import stored_videos
from toy_renders import Render, Told

SECONDS = 7.0
BALL, CROSS = "a red ball in the teal room", "a yellow cross in the navy room"
TOLD = f"0:00 {BALL}\n0:02.3 {CROSS}\n0:05.3 {{}} the red ball again"  # blocks 0, 3 and 7 of 10


def render_of(backbone, folder: Path, tag: str, **options) -> Render:
    return Render(backbone, folder, TOLD.format(tag), SECONDS, **options)


AUTO = replace(CachePolicy(), scenes="auto")
BACK = f"0:00 {BALL}\n0:02.3 {CROSS}\n0:05.3 {BALL}"


def test_a_prompt_that_returns_brings_its_scene_back_as_a_tag_does(backbone, tmp_path):
    tagged, plain, overruled, found = (
        Render(backbone, tmp_path, BACK.replace("3 " + BALL, f"3 {tag} {BALL}"), SECONDS, **options)
        for tag, options in (("[recall 1]", {}), ("", {}), ("[new scene]", {"policy": AUTO}), ("", {"policy": AUTO}))
    )
    assert torch.equal(found.go(), tagged.straight()) and torch.equal(overruled.straight(), plain.straight())
    (recall,) = found.run.recalls
    assert (recall.block, recall.scene, recall.frames) == (7, 1, (0, 1, 2, 3, 6))
    assert "recall 1" in describe(found.plan, torch.float32) and "recall" not in describe(plain.plan, torch.float32)
    longer = Render(backbone, tmp_path, f"{BACK}\n0:06 {BALL}\n0:06.8 {CROSS}\n0:07.5 a new place", 8.5, policy=AUTO)
    longer.go()
    assert [recall.scene for recall in longer.run.recalls] == [1, 2], "a prompt said again goes on with its scene"


@pytest.mark.parametrize(("first", "then"), [("", "0:02.3 {}\n"), ("0:02.3 {}\n", "")], ids=["more", "fewer"])
def test_a_state_of_a_story_with_other_scenes_is_not_used(backbone, tmp_path, caplog, first, then):
    """A prompt that is repeated begins a scene, and changes the key of no block before a recall."""
    stories = (f"0:00 {BALL}\n{more.format(BALL)}0:05.3 [recall 1] {CROSS}" for more in (first, then))
    one, other = (Render(backbone, tmp_path, text, SECONDS, state_seconds=1e-9) for text in stories)
    one.go(stop_after=5)
    touched = []
    one.go(stop_after=6, on_step=lambda block, step, latents: touched.append(block))
    assert min(touched) == 5 and not caplog.text  # its own state is used
    assert torch.equal(other.go(), other.straight())
    assert other.reused == 6 and "a story whose scenes begin with latent frames" in caplog.text


def test_decisions_after_start_frames_are_counted_once_where_a_stored_state_does_not_fit(backbone, tmp_path):
    start = Render(backbone, tmp_path).straight()[:6]
    render_of(backbone, tmp_path, "", state_seconds=1e-9, start=start).go(stop_after=5)  # its state has no scenes
    render = render_of(backbone, tmp_path, "[recall 1]", state_seconds=1e-9, start=start)
    render.straight()
    events = render.straight_events
    assert sum(event.after_block < 2 for event in events) == 1  # start blocks made one of them
    for reused in (5, render.plan.new_blocks):  # the cache is rebuilt, then restored
        render.go()
        assert (render.reused, render.events) == (reused, events)
    assert report_stored(stored_videos(tmp_path)[0]).events == events


def test_a_finished_video_that_is_made_again_needs_no_model_and_has_the_same_report(backbone, tmp_path):
    start = torch.randn(6, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    policy = replace(CachePolicy(), guards=Guards(sink_gate=0.5))
    render = render_of(backbone, tmp_path / "runs", "[recall 1]", start=start, policy=policy)

    def told():
        run = render.run
        report = run.meter.report(run.events).to_dict()
        return run.events, run.recalls, report, run.guards, run.seconds_per_block

    latents, steps = render.go(), []
    first, no_model = told(), SimpleNamespace(backbone=None)
    assert all(first)
    assert torch.equal(render.go(model=no_model, on_step=lambda *step: steps.append(step)), latents)
    assert told() == first and render.reused == render.plan.new_blocks and len(steps) == render.plan.blocks
    next(render.folder.rglob("opening-*")).unlink()  # what only a cache can tell is missing
    with pytest.raises(AttributeError):
        render.go(model=no_model)
    assert torch.equal(render.go(), latents) and told()[:2] == first[:2]
    assert torch.equal(render.go(model=no_model), latents) and told()[:2] == first[:2]
    next(render.folder.rglob("seconds-*")).unlink()
    with pytest.raises(AttributeError):
        render.go(model=no_model)


def run(backbone, render: Render, story: Story | None = None):
    job, kept = replace(render.job, runs=render.folder if story else None), KeptLatents()
    result = make_video(job, render.model(), Place(), [kept] if story is None else [kept, LiveEdits(story)])
    return torch.cat(kept.blocks), result


def test_a_story_changed_while_it_renders_recalls_what_it_would_have_from_the_beginning(backbone, tmp_path):
    story = Told({5: TOLD.format("[recall 2]")}, SECONDS)
    latents, result = run(backbone, render_of(backbone, tmp_path / "runs", "[recall]"), story)
    changed = render_of(backbone, tmp_path / "unused", "[recall 2]")
    assert not story.refusals and torch.equal(latents, run(backbone, changed)[0])
    assert "before block 7: recalled scene 2: frames" in result.describe()
    assert result.to_dict()["recalls"][0]["scene"] == 2
    again, _ = run(backbone, changed, Told({}, SECONDS))
    assert torch.equal(again, latents)


@pytest.mark.parametrize("mode", ["auto", "tagged"])
def test_a_return_that_is_told_while_it_renders_finds_the_frames_kept(backbone, tmp_path, mode):
    policy, tag = replace(AUTO, scenes=mode), "[recall 1] " if mode == "tagged" else ""
    story = Told({4: BACK.replace("3 " + BALL, f"3 {tag}{BALL}")}, SECONDS)
    latents, result = run(
        backbone, Render(backbone, tmp_path / "runs", BACK.split("\n0:05")[0], SECONDS, policy=policy), story
    )
    changed = Render(backbone, tmp_path / "unused", story.texts[4], SECONDS, policy=policy)
    assert not story.refusals and torch.equal(latents, run(backbone, changed)[0])
    assert [recall.scene for recall in result.recalls] == [1]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (TOLD.format(""), TOLD.format("[recall 1]"), "this video began without a [recall]"),
        (
            # with "red" in three of four prompts the third one is most like the second by what is left of it
            "0:00 red ball\n0:00.8 yellow cross\n0:01.5 [recall] red red cross\n0:06 {} a blue cube",
            "0:00 red ball\n0:00.8 yellow cross\n0:01.5 [recall] red red cross\n0:06 {} a red cube",
            "an earlier [recall] would mean another scene",
        ),
    ],
)
def test_a_change_that_needs_scenes_that_were_not_kept_or_changes_a_recall_is_refused(
    backbone, tmp_path, before, after, why
):
    story = Told({6: after.format("[recache]")}, SECONDS)
    planned = Render(backbone, tmp_path, before.format(""), SECONDS)
    latents, _ = run(backbone, planned, story)
    assert len(story.refusals) == 1 and why in story.refusals[0]
    assert torch.equal(latents, run(backbone, planned)[0])


def test_likeness_is_that_of_the_words_that_tell_scenes_apart(backbone, tmp_path):
    _, result = run(backbone, render_of(backbone, tmp_path, "[recall]"))
    assert [recall.scene for recall in result.recalls] == [1]
    render = render_of(backbone, tmp_path, "[recall 1]")
    assert render.timeline.texts[3:] == ["red ball teal room", "yellow cross navy room", "red ball again"]
    assert list(render.plan.alike.values()) == render.timeline.texts[3:] and len(render.embeds) == 6
    assert not render_of(backbone, tmp_path, "").plan.alike
