"""Run folders: whatever stops a render, the next one goes on and ends with the same bytes."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.hashing import SHORT
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.render.render import Place, begin_render
from headforcing.headforcing_core.render.result import report_stored
from headforcing.headforcing_core.runs import files as run_files
from headforcing.headforcing_core.runs.folder import RunFolder, count_blocks
from headforcing.headforcing_core.runs.stored import stored_videos
from toy_renders import STORY, Render

OTHER = STORY.replace("yellow cross", "pink star")


class Stopped(Exception):
    pass


SETTINGS = {
    "rebuilt from the blocks": {},
    "restored from the cache's state": {"state_seconds": 1e-9},
    "roles found while sampling": {"profile": AutoProfile()},
    "roles found, state restored": {"profile": AutoProfile(), "state_seconds": 1e-9},
    "one frame a block": {"family": "causal_forcing_framewise", "seconds": 3.0},
    "absolute positions": {"method": "no_rope_reencoding", "state_seconds": 1e-9},
    "everything kept": {"method": "self_forcing"},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("stop_after", [1, 9])
def test_a_stopped_render_goes_on_to_the_same_bytes(backbone, tmp_path, setting, stop_after):
    render = Render(backbone, tmp_path, **SETTINGS[setting])
    expected = render.straight()
    first = render.go(stop_after=stop_after)
    assert torch.equal(first, expected[: len(first)])
    assert torch.equal(render.go(), expected)
    found_early = "found" in setting and stop_after == 1  # measuring needs every pass: nothing can be reused
    assert render.reused == (0 if found_early else stop_after)
    assert render.events == render.straight_events
    calls = []
    assert torch.equal(render.go(on_step=lambda block, step, latents: calls.append(latents is not None)), expected)
    assert render.reused == render.plan.new_blocks and not any(calls), "nothing was left to denoise"


SWITCHED = {
    "flush": {}, "flush, re-anchor": {}, "recache": {}, "recache, re-anchor, blend 2": {}, "blend 3": {},
    "recache, everything kept": {"method": "self_forcing"},
    "recache, absolute positions": {"method": "no_rope_reencoding"}, "flush, roles found": {"profile": AutoProfile()},
    "recache, roles found": {"profile": AutoProfile()},
    "recache, one frame a block": {"family": "causal_forcing_framewise", "seconds": 6.0},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("setting", SWITCHED)
@pytest.mark.parametrize("state_seconds", [0.0, 1e-9], ids=["rebuilt", "state restored"])
@pytest.mark.repeat(
    "flush]", "one frame a block", "rebuilt-recache, everything kept", "rebuilt-blend 3",
    "rebuilt-flush, re-anchor", "rebuilt-recache, absolute", "rebuilt-recache, roles", "restored-flush, roles",
)  # fmt: skip
def test_a_render_with_a_switch_goes_on_to_the_same_bytes_right_before_and_after_it(
    backbone, tmp_path, setting, state_seconds
):
    words = ", ".join(w for w in setting.split(", ") if w.split()[0] in ("flush", "recache", "re-anchor", "blend"))
    text = STORY.replace("0:05 ", f"0:05.06 [{words}] ")
    options = {"seconds": 7.0} | SWITCHED[setting]
    render = Render(backbone, tmp_path, text, state_seconds=state_seconds, **options)
    expected = render.straight()
    at = render.plan.timeline.segments[1].start_block
    assert expected.shape[0] > (at + 2) * render.plan.schedule.frames_per_block
    for stop_after in (at, at + 1):
        shutil.rmtree(tmp_path)
        first = render.go(stop_after=stop_after)
        assert torch.equal(first, expected[: len(first)])
        assert torch.equal(render.go(), expected)
        assert render.reused == stop_after
        assert render.events == render.straight_events
    plain = Render(backbone, tmp_path, STORY.replace("0:05 ", "0:05.06 "), **options)
    made = plain.go()
    assert plain.reused == at, "what comes before the switch is the same video"
    assert not torch.equal(made[-3:], expected[-3:])


def test_an_extension_with_a_switch_goes_on_to_the_same_bytes(backbone, tmp_path):
    start = Render(backbone, tmp_path).straight()[:6]
    text = STORY.replace("0:05 ", "0:00.75 [recache, re-anchor] ")
    render = Render(backbone, tmp_path, text, start=start, seconds=3.0)
    expected = render.straight()
    for stop_after in (1, 2):
        shutil.rmtree(tmp_path)
        render.go(stop_after=stop_after)
        assert torch.equal(render.go(), expected)


def test_blocks_beyond_the_stored_state_are_made_again_where_only_a_state_goes_on(backbone, tmp_path):
    echo = method_policy("echo_forcing")
    Render(backbone, tmp_path, policy=echo, state_seconds=1e-9).go(stop_after=3)
    render = Render(backbone, tmp_path, policy=echo, state_seconds=3600.0)
    expected = render.straight()
    render.go(stop_after=6)
    assert render.reused == 3
    assert torch.equal(render.go(), expected) and render.reused == 3


def test_extending_equals_rendering_at_once(backbone, tmp_path):
    short, long = (Render(backbone, tmp_path, seconds=seconds) for seconds in (6.0, 10.0))
    short.go()
    extended = long.go()
    assert long.reused == short.plan.new_blocks
    assert torch.equal(extended, long.straight())


@pytest.mark.parametrize(("first", "then"), [(0.5, 4.0), (1.3, 4.0), (4.0, 1.3), (4.0, 0.5)])
def test_a_state_fits_longer_and_shorter_versions_of_the_video(backbone, tmp_path, first, then):
    text = "a red ball bouncing in the teal plain room"
    one, other = (Render(backbone, tmp_path, text, seconds, state_seconds=1e-9) for seconds in (first, then))
    one.go(stop_after=1)
    assert torch.equal(other.go(), other.straight())
    assert other.reused == 1


def test_a_state_that_does_not_fit_is_made_again_from_the_blocks(backbone, tmp_path, monkeypatch, caplog):
    render = Render(backbone, tmp_path, state_seconds=1e-9)
    monkeypatch.setattr(HeadCache, "state", lambda cache: ({}, {"groups": []}))
    render.go(stop_after=5)
    assert torch.equal(render.go(), render.straight())
    assert "rebuilt from the finished blocks" in caplog.text


def test_a_changed_prompt_renders_again_only_from_its_first_block(backbone, tmp_path):
    first, second = Render(backbone, tmp_path), Render(backbone, tmp_path, text=OTHER)
    before = first.go()
    switch = first.plan.timeline.segments[1].start_block
    after = second.go()
    assert second.reused == switch
    assert torch.equal(after[: 3 * switch], before[: 3 * switch])
    assert torch.equal(after, second.straight())
    assert not torch.equal(after[3 * switch :], before[3 * switch :])
    first.go()
    assert first.reused == first.plan.new_blocks, "the first version is still there"


def test_start_frames_are_part_of_the_setup(backbone, tmp_path):
    start = Render(backbone, tmp_path).straight()[:6]
    render = Render(backbone, tmp_path, start=start, seconds=4.5)
    render.go(stop_after=2)
    assert torch.equal(render.go(), render.straight())
    assert Render(backbone, tmp_path, start=start + 1, seconds=4.5).setup != render.setup
    (video,) = stored_videos(tmp_path)
    assert torch.equal(video.latents(), torch.cat([start, render.straight()]))


def test_decisions_of_a_warm_up_after_start_frames_are_counted_once(backbone, tmp_path):
    start = Render(backbone, tmp_path).straight()[:6]
    render = Render(backbone, tmp_path / "runs", start=start, seconds=6.0, profile=AutoProfile())
    render.straight()
    for stop_after in (6, None):
        render.go(stop_after=stop_after)
    (video,) = stored_videos(tmp_path / "runs")
    assert render.reused == 6 and render.straight_events
    assert render.events == report_stored(video).events == render.straight_events


@pytest.mark.parametrize(
    "change",
    [{"seed": 4}, {"method": "fifo_eviction"}, {"method": "no_rope_reencoding"}, {"profile": AutoProfile()}],
    ids=str,
)
def test_another_setup_shares_nothing(backbone, tmp_path, change):
    assert Render(backbone, tmp_path, **change).setup != Render(backbone, tmp_path).setup


# --- damage


def test_two_renders_do_not_write_to_one_folder(backbone, tmp_path):
    render = Render(backbone, tmp_path)
    with RunFolder(tmp_path, render.setup, {}):
        with pytest.raises(HeadForcingError, match="another render is writing to"):
            render.go()
    render.go(stop_after=1)


def test_a_full_disk_ends_with_one_sentence_and_loses_nothing(backbone, tmp_path, monkeypatch):
    render = Render(backbone, tmp_path)
    save = run_files.save_file

    def full(tensors, path, metadata):
        if len(list(render.folder.glob("*/block-*"))) == 4:
            raise OSError(28, "No space left on device")
        save(tensors, path, metadata)

    monkeypatch.setattr(run_files, "save_file", full)
    with pytest.raises(HeadForcingError, match="No space left on device.*make room and queue the same render again"):
        render.go()
    monkeypatch.setattr(run_files, "save_file", save)
    assert not list(render.folder.glob("*/.*.tmp"))
    assert torch.equal(render.go(), render.straight())
    assert render.reused == 4


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(backbone, tmp_path):
    (tmp_path / "file").write_text("in the way")
    render = Render(backbone, tmp_path / "file")
    with pytest.raises(HeadForcingError, match="cannot be written"):
        render.go(on_step=lambda *_: pytest.fail("work was begun"))


BASE = type("BaseStopped", (BaseException,), {})


@pytest.mark.parametrize(("block", "step", "kind"), [(0, 0, BASE), (0, 1, Stopped), (3, 0, BASE), (5, 2, Stopped)])
def test_an_interruption_anywhere_keeps_what_is_finished(backbone, tmp_path, block, step, kind):
    render = Render(backbone, tmp_path, state_seconds=1e-9)

    def interrupt(*now):
        if now[:2] == (block, step):
            raise kind

    with pytest.raises(kind):
        render.go(on_step=interrupt)
    assert torch.equal(render.go(), render.straight())
    assert render.reused == block


def killed(render: Render, seconds: float) -> bool:
    """Whether a process that renders was killed so long after it began; else it had come to the end."""
    child = os.fork()
    if child == 0:
        try:
            render.go()
            os._exit(0)
        finally:
            os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process, which this system does not have")
def test_twenty_kills_at_random_moments_lose_nothing(backbone, tmp_path, record_property):
    """SIGKILL while denoising, writing blocks or states; a video that is finished is followed by another one."""
    pick, kills = random.Random(0), 0
    for seed in range(100):
        render = Render(backbone, tmp_path, seconds=20.0, seed=seed, state_seconds=0.05)
        while kills < 20 and killed(render, pick.uniform(0.02, 0.2)):
            kills += 1
        assert torch.equal(render.go(), render.straight()) and render.events == render.straight_events
        assert render.problems == [] and not list(tmp_path.glob("*/.*.tmp"))
        if kills == 20:
            break
    assert kills == 20
    record_property("renders killed", kills)


def test_a_disk_too_full_for_the_state_does_not_end_the_render(backbone, tmp_path, monkeypatch, caplog):
    render, save = Render(backbone, tmp_path, state_seconds=1e-9), run_files.save_file

    def full(tensors, path, metadata):
        if "latents" not in tensors:
            raise OSError(28, "No space left on device")
        save(tensors, path, metadata=metadata)

    monkeypatch.setattr(run_files, "save_file", full)
    assert torch.equal(render.go(), render.straight())
    assert "rendering continues without a stored cache state" in caplog.text


def test_a_note_that_cannot_be_written_leaves_the_old_one(backbone, tmp_path, monkeypatch):
    render = Render(backbone, tmp_path)
    render.go(stop_after=3)

    def full(path, text, encoding):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(HeadForcingError, match="make room"):
            render.go()
    (video,) = stored_videos(tmp_path)
    assert video.finished == 3


# --- looking after runs


def test_only_a_video_that_was_begun_counts_as_begun(backbone, tmp_path):
    begun, other = Render(backbone, tmp_path), Render(backbone, tmp_path, "a pink star gliding in the slate plain room")
    assert begun.setup == other.setup and count_blocks(tmp_path / begun.setup[:SHORT], begun.keys) == 0
    begun.go(stop_after=1)
    assert count_blocks(tmp_path / begun.setup[:SHORT], begun.keys) > 0
    assert count_blocks(tmp_path / other.setup[:SHORT], other.keys) == 0


def test_finished_blocks_wait_in_the_hosts_memory(backbone, tmp_path):
    render = Render(backbone, tmp_path)
    render.go(stop_after=2)
    with begin_render(render.job, render.model(), Place("meta")) as again:
        again.run.resume(lambda known: render.plan.make_cache(torch.float32, "meta"), again.script)
        assert again.run.cache.device.type == "meta"
        assert [latents.device.type for latents in again.run.given()] == ["cpu"] * 2


def test_roles_are_found_in_one_render_and_recalled_in_the_next(backbone, tmp_path):
    render = Render(backbone, tmp_path, profile=AutoProfile())
    render.go(stop_after=9)
    assert render.run.found_now
    render.go()
    assert render.run.found_profile is not None and not render.run.found_now
