"""What a run folder holds: its list, the keys of blocks, parts of a video, and states that are taken up again."""

import json
from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.runs.stored import stored_videos
from toy_renders import STORY, Render, rendered


def test_a_renamed_folder_can_be_loaded_and_missing_start_frames_are_named(backbone, tmp_path):
    start = Render(backbone, tmp_path / "other").straight()[:6]
    render = Render(backbone, tmp_path, start=start, seconds=1.5)
    render.go()
    (video,) = stored_videos(tmp_path)
    expected = video.latents()
    video.folder.rename(tmp_path / "my favourite")
    (video,) = stored_videos(tmp_path)
    assert torch.equal(video.latents(), expected)
    next((tmp_path / "my favourite").glob("start-*")).unlink()
    with pytest.raises(HeadForcingError, match="start frames of this video"):
        video.latents()


def test_stored_videos_are_listed_with_what_is_finished(backbone, tmp_path):
    render = Render(backbone, tmp_path)
    render.go(stop_after=5)
    (video,) = stored_videos(tmp_path)
    assert video.finished == 5 and len(video.keys) == render.plan.new_blocks
    assert torch.equal(video.latents(), render.straight()[:15])
    assert video.about["prompts"] == [segment.text for segment in render.plan.timeline.segments]
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "video-x.json").write_text("{")
    assert len(stored_videos(tmp_path)) == 1


def test_a_block_key_depends_on_every_prompt_before_it(backbone, tmp_path):
    render = Render(backbone, tmp_path)
    first, *rest = render.plan.rows
    other = replace(render.plan, rows=(replace(first, prompt=rest[-1].prompt), *rest))
    keys = other.script(render.embeds).keys(render.setup)
    assert not set(keys) & set(render.keys)


@pytest.mark.parametrize("method", ["head_forcing", "rolling_forcing"])
def test_a_part_has_the_blocks_of_the_whole_video_and_is_read_again_without_the_model(backbone, tmp_path, method):
    """Up to block 7 of 12, twice; then all; then the part of the finished video."""
    start = None if method == "rolling_forcing" else Render(backbone, tmp_path / "other").straight()[:6]
    options = {"start": start} | ({"policy": method_policy(method)} if start is None else {})
    whole = Render(backbone, tmp_path, **options)
    until = whole.plan.start_blocks + 7
    made, expected = [], whole.straight()

    def part(take=whole):
        made.clear()
        job = replace(take.job, until=until)
        blocks, run = rendered(job, take.model(), on_step=lambda block, step, latents: made.append(latents is not None))
        return torch.cat(blocks[take.plan.start_blocks :]), len(run.stored)

    for reused in (0, 7):
        latents, stored = part()
        assert torch.equal(latents, expected[:21]) and stored == reused
        assert any(made) == (reused == 0)
    assert [entry.length for entry in stored_videos(tmp_path)] == [
        "0:06 of 0:10" if start is not None else "0:05 of 0:09"
    ]
    assert torch.equal(whole.go(), expected) and whole.reused == 7
    assert torch.equal(part()[0], expected[:21]) and not any(made)
    assert torch.equal(whole.go(), expected) and whole.run.ended is not None, "it is still finished"

    changed = Render(backbone, tmp_path, STORY.replace("0:05 a yellow", "0:04 a blue"), **options)
    latents, stored = part(changed)
    assert (start is None or 0 < stored) and stored < 7 and any(made) and torch.equal(latents, changed.straight()[:21])


def test_a_restored_state_needs_no_pass_over_finished_blocks(backbone, tmp_path):
    render = Render(backbone, tmp_path, state_seconds=1e-9)
    render.go(stop_after=8)
    touched = []
    render.go(on_step=lambda block, step, latents: touched.append(block))
    assert min(touched) == 8
    assert len(list(render.folder.glob("*/state-*"))) == 1, "older states are removed"


def test_the_command_line_lists_and_prunes_runs(backbone, tmp_path, capsys):
    Render(backbone, tmp_path).go(stop_after=2)
    assert main(["runs", "list", str(tmp_path)]) == 0
    assert " 2/13 blocks " in capsys.readouterr().out
    assert main(["runs", "prune", str(tmp_path), "--keep-gb", "0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["removed"]) == 1 and told["freed_bytes"] > 10_000 and not told["stayed"]
    assert main(["runs", "list", str(tmp_path)]) == 0
    assert "no runs" in capsys.readouterr().out
