"""Run folders: whatever stops a render, the next one goes on and ends with the same bytes."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import HeadForcing
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.render.render import Place, begin_render
from headforcing.headforcing_core.runs import files as run_files
from headforcing.headforcing_core.runs.folder import RunFolder, count_blocks
from headforcing.headforcing_core.runs.stored import stored_videos
from toy_renders import PICTURES, STORY, Render, picture, rendered

RED = STORY.split("\n")[0]
START = torch.randn(6, 16, 8, 8, generator=torch.Generator().manual_seed(0))
AUTO = replace(HeadForcing(), scenes="auto")
FRAMEWISE = {"family": "causal_forcing_framewise"}
STORED = {"state_seconds": 1e-9}
BACK = "0:00 a red ball\n0:02.3 a yellow cross\n0:05.3 {} a red ball"  # blocks 0, 3 and 7 of 10
# blocks 0, 3 and 6 of 9
SHOWN = "0:00 {} a red ball\n0:02.3 @hall a yellow cross\n0:04.5 a red ball again"


def tagged(tag: str, **options) -> dict:
    """The story with a tag before its second prompt, which begins with block 7 of 10."""
    return {"text": STORY.replace("0:05 ", f"0:05.06 {tag} "), "seconds": 7.0, **options}


RESUMED = {  # after how many blocks a render is stopped, and how it is made
    "rebuilt from the blocks": ((1, 9), {}),
    "restored from the cache's state": ((9,), STORED),
    "one frame a block": ((1, 9), FRAMEWISE | {"seconds": 3.0}),
    "absolute positions": ((9,), STORED | {"name": "no_rope_reencoding"}),
    "start frames, state restored, and a switch": (
        (1, 2),
        STORED
        | {
            "start": START,
            "seconds": 3.0,
            "text": f"{RED}\n0:00.75 [recache, re-anchor] a yellow cross",
        },
    ),
    "start frames behind a picture": (
        (2,),
        {"start": START, "seconds": 3.0, "text": "the @hall", "pictures": PICTURES},
    ),
    "a take, state restored": ((8,), tagged("[recache, seed 7]") | STORED),
    **{
        f"a recall, {name}": (
            (7, 8),
            {"text": BACK.format("[recall 1]"), "seconds": 7.0, **options},
        )
        for name, options in {
            "rebuilt": {},
            "restored": STORED,
        }.items()
    },
    **{
        f"a picture, {name}": (
            (3, 4),
            {"text": SHOWN.format("@hero"), "seconds": 4.5, "pictures": PICTURES, **options},
        )
        for name, options in {"rebuilt": {}, "restored": STORED}.items()
    },
    **{
        f"[{tag}], {name}": ((7, 8), tagged(f"[{tag}]", **options))
        for tag, name, options in (
            ("recache, re-anchor, blend 2", "rebuilt", {}),
            ("recache, re-anchor, blend 2", "restored", STORED),
        )
    },
}


@pytest.mark.parametrize("case", RESUMED)
def test_a_stopped_render_goes_on_to_the_same_bytes(backbone, tmp_path, case):
    stops, options = RESUMED[case]
    render = Render(backbone, tmp_path, **options)
    expected = render.straight()
    frames = render.plan.schedule.frames_per_block
    for stop_after in stops:
        shutil.rmtree(render.folder, ignore_errors=True)
        assert torch.equal(render.go(stop_after=stop_after), expected[: stop_after * frames])
        assert torch.equal(render.go(), expected)
        assert render.reused == stop_after
        assert render.events == render.straight_events
    calls = []
    assert torch.equal(
        render.go(on_step=lambda block, step, latents: calls.append(latents is not None)), expected
    )
    assert render.reused == render.plan.new_blocks and not any(calls), "nothing was left to denoise"


TOLD = {"text": BACK.format(""), "seconds": 7.0}
PLAIN = {"text": SHOWN.format("").replace("@", ""), "seconds": 6.0}
HELD = {"text": SHOWN.format(""), "seconds": 6.0, "pictures": PICTURES}
NO_SCENES = {"seconds": 6.0, "pictures": PICTURES, "method": replace(HeadForcing(), scenes="off")}
AGAIN = {
    "text": f"{BACK.format('')}\n0:06 a red ball\n0:06.8 a yellow cross\n0:07.5 a new place",
    "seconds": 8.5,
}
ONE = "a red ball bouncing in the teal plain room"
CHANGED = {  # a render, after how many blocks it stops, another one, and how many blocks it reuses
    "another prompt": ({}, None, {"text": STORY.replace("yellow cross", "pink star")}, 7),
    "another seed, after start frames": (
        tagged("", start=START),
        None,
        tagged("[seed 7]", start=START),
        7,
    ),
    "a longer video": ({"seconds": 6.0}, None, {"seconds": 10.0}, 9),
    **{
        f"a state of {first} s for {then} s": (
            {"text": ONE, "seconds": first, **STORED},
            1,
            {"text": ONE, "seconds": then, **STORED},
            1,
        )
        for first, then in ((0.5, 4.0), (4.0, 1.3))
    },
    "a recall": (TOLD | STORED, None, TOLD | {"text": BACK.format("[recall 1]")}, 7),
    "a return that is found": (TOLD, None, TOLD | STORED | {"method": AUTO}, 7),
    "a take of a return": (
        TOLD | {"method": AUTO},
        None,
        TOLD | {"text": BACK.format("[seed 9]"), "method": AUTO},
        7,
    ),
    **{
        f"more returns, {stop} blocks": (
            TOLD | STORED | {"method": AUTO},
            stop,
            AGAIN | STORED | {"method": AUTO},
            stop,
        )
        for stop in (4, 8)
    },
    "a picture": (PLAIN, None, HELD, 3),
    "a picture with other contents": (
        HELD,
        None,
        HELD | {"pictures": {"hall": picture(3), "hero": picture(2)}},
        3,
    ),
    "a picture that is not named": (
        HELD,
        None,
        HELD | {"pictures": {"hall": picture(1), "hero": picture(9)}},
        9,
    ),
    "a picture in a longer video": (
        HELD,
        None,
        HELD | {"text": f"{SHOWN.format('')}\n0:06 the @hero and the @hall", "seconds": 8.0},
        8,
    ),
    "the same words without the picture": (
        NO_SCENES | {"text": "0:00 a cross\n0:02.3 @hall"},
        None,
        NO_SCENES | {"text": "0:00 a cross\n0:02.3 @hall\n0:04.5 hall"},
        6,
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_changed_story_is_made_again_from_the_first_block_that_differs(backbone, tmp_path, case):
    before, stop_after, after, reused = CHANGED[case]
    first = Render(backbone, tmp_path, **before)
    second = Render(backbone, tmp_path, **after)
    old = first.go(stop_after=stop_after)
    new = second.go()
    assert torch.equal(new, second.straight()) and second.reused == reused
    assert second.events == second.straight_events
    assert torch.equal(new[: 3 * reused], old[: 3 * reused])
    same = 3 * min(first.plan.new_blocks, second.plan.new_blocks)
    if stop_after is None and 3 * reused < same:
        assert not torch.equal(new[3 * reused : same], old[3 * reused : same])
        first.go()
        assert first.reused == first.plan.new_blocks, "the first version is still there"


def test_blocks_beyond_the_stored_state_are_made_again_where_only_a_state_goes_on(
    backbone, tmp_path
):
    echo = {"method": method_named("echo_forcing"), "seconds": 4.0}
    Render(backbone, tmp_path, state_seconds=1e-9, **echo).go(stop_after=2)
    render = Render(backbone, tmp_path, state_seconds=3600.0, **echo)
    for stop_after in (4, None):
        latents = render.go(stop_after=stop_after)
        assert render.reused == 2
    assert torch.equal(latents, render.straight())


@pytest.mark.parametrize(
    "options",
    [{"start": START}, {"method": method_named("rolling_forcing")}],
    ids=["start", "rolling"],
)
def test_a_part_has_the_blocks_of_the_whole_video_and_is_read_again_without_the_model(
    backbone, tmp_path, options
):
    """Up to block 7 of 13, twice; then all; then the part of the finished video."""
    whole = Render(backbone, tmp_path, **options)
    made = []
    expected = whole.straight()

    def part():
        made.clear()
        job = whole.job.with_request(until_seconds=whole.plan.timeline.clock.start_seconds(7))
        blocks, run = rendered(
            job, whole.model(), on_step=lambda block, step, latents: made.append(latents)
        )
        assert torch.equal(torch.cat(blocks[whole.plan.layout.start_blocks :]), expected[:21])
        return len(run.stored), any(latents is not None for latents in made)

    assert (part(), part()) == ((0, True), (7, False))
    (take,) = stored_videos(tmp_path)
    assert take.length == ("0:06 of 0:10" if "start" in options else "0:05 of 0:09")
    assert torch.equal(whole.go(), expected) and whole.reused == 7
    assert not part()[1]
    assert torch.equal(whole.go(), expected) and whole.reused == whole.plan.new_blocks, (
        "it is still finished"
    )


def test_finished_blocks_wait_in_the_hosts_memory_and_a_restored_state_needs_no_pass_over_them(
    backbone, tmp_path
):
    render = Render(backbone, tmp_path, **STORED)
    render.go(stop_after=2)
    options = replace(render.job.request.options, state_seconds=0.0)
    with begin_render(
        render.job.with_request(options=options), render.model(), Place("meta")
    ) as again:
        again.run.resume(lambda: render.plan.make_cache(torch.float32, "meta"), again.script)
        assert again.run.cache.device.type == "meta"
        assert [latents.device.type for latents in again.run.ready_blocks()] == ["cpu"] * 2
    touched = []
    render.go(on_step=lambda block, step, latents: touched.append(block))
    assert min(touched) == 2
    assert len(list(tmp_path.glob("*/state-*"))) == 1, "older states are removed"


# --- damage


def test_two_renders_do_not_write_to_one_folder_and_one_that_cannot_be_written_is_refused(
    backbone, tmp_path
):
    render = Render(backbone, tmp_path)
    with RunFolder(tmp_path, render.setup, {}):
        with pytest.raises(HeadForcingError, match="another render is writing to"):
            render.go()
    render.go(stop_after=1)
    assert count_blocks(tmp_path / render.setup[:16], render.keys) == 1
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(HeadForcingError, match="cannot be written"):
        Render(backbone, tmp_path / "file").go(on_step=lambda *_: pytest.fail("work was begun"))


@pytest.mark.parametrize("block", [2, 4], ids=["in the middle", "at the last block"])
def test_a_full_disk_costs_the_cache_state_or_ends_in_one_sentence_and_loses_nothing(
    backbone, tmp_path, monkeypatch, caplog, block
):
    render = Render(backbone, tmp_path, seconds=3.0, state_seconds=1e-9)
    save = run_files.save_file

    def full(tensors, path, metadata):
        if "latents" not in tensors or len(list(render.folder.glob("*/block-*"))) == block:
            raise OSError(28, "No space left on device")
        save(tensors, path, metadata=metadata)

    monkeypatch.setattr(run_files, "save_file", full)
    with pytest.raises(
        HeadForcingError, match="No space left on device.*make room and queue the same render again"
    ):
        render.go()
    assert not list(render.folder.glob("*/.*.tmp"))
    assert "rendering continues without a stored cache state" in caplog.text
    monkeypatch.setattr(run_files, "save_file", save)
    assert torch.equal(render.go(), render.straight()) and render.reused == block


@pytest.mark.parametrize(
    ("block", "step", "kind"), [(0, 1, RuntimeError), (3, 0, KeyboardInterrupt)]
)
def test_an_interruption_anywhere_keeps_what_is_finished(backbone, tmp_path, block, step, kind):
    render = Render(backbone, tmp_path, seconds=3.0, state_seconds=1e-9)

    def interrupt(*now):
        if now[:2] == (block, step):
            raise kind

    with pytest.raises(kind):
        render.go(on_step=interrupt)
    assert torch.equal(render.go(), render.straight()) and render.reused == block


def killed(render: Render, seconds: float) -> bool:
    """Whether a process that renders was killed so long after it began; else it had come to the
    end.
    """
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
@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="kills a forked process, which this system does not have"
)
def test_twenty_kills_at_random_moments_lose_nothing(backbone, tmp_path, record_property):
    """SIGKILL while denoising, writing blocks or states; a video that is finished is followed by
    another one.
    """
    pick = random.Random(0)
    kills = 0
    for seed in range(100):
        render = Render(backbone, tmp_path, seconds=20.0, seed=seed, state_seconds=0.05)
        while kills < 20 and killed(render, pick.uniform(0.02, 0.2)):
            kills += 1
        assert (
            torch.equal(render.go(), render.straight()) and render.events == render.straight_events
        )
        assert render.problems == [] and not list(tmp_path.glob("*/.*.tmp"))
        if kills == 20:
            break
    assert kills == 20
    record_property("renders killed", kills)
