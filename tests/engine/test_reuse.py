"""Stored blocks and caches are used where they belong to the video, and nowhere else."""

import shutil

import pytest
import torch
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.runs.folder import RunFolder
from toy_renders import Render, toy_model

TWO = "0:00 a red ball\n0:01.2 {}a yellow cross"
THREE = "0:00 a {} ball\n0:00.7 a yellow cross\n0:01.2 a pink star"
START = torch.randn(3, 16, 8, 8, generator=torch.Generator().manual_seed(0))
CHANGES = {
    "the seed": ({}, {"seed": 4}),
    "the number of the video in its batch": ({}, {"video": 1}),
    "the first of three prompts": ({"text": THREE.format("red")}, {"text": THREE.format("blue")}),
    "a recache": ({"text": TWO.format("")}, {"text": TWO.format("[recache] ")}),
    "a scene cut": ({"text": TWO.format("[flush] ")}, {"text": TWO.format("[flush, re-anchor] ")}),
    "a blend": ({"text": TWO.format("")}, {"text": TWO.format("[blend 1] ")}),
    "another seed before a prompt": (
        {"text": TWO.format("[seed 8] ")},
        {"text": TWO.format("[seed 7] ")},
    ),
    "other start frames": ({"start": START}, {"start": START + 0.01}),
    "the roles of heads": ({}, {"roles": "shuffled"}),
    "the positions in the cache": ({}, {"method": "no_rope_reencoding"}),
    "the method": ({}, {"method": "self_forcing_sink"}),
}


@pytest.fixture(scope="module")
def backbone():
    return toy_model(layers=2)


def rounded_otherwise(q, k, v):
    """Attention that differs from `sdpa` by little more than rounding."""
    return sdpa(q, k, v) * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_blocks_are_reused_as_far_as_two_videos_are_the_same_and_no_further(
    backbone, tmp_path, change
):
    same_for_both = {"text": TWO.format(""), "seconds": 2.4}
    options, changed = CHANGES[change]
    one = Render(backbone, tmp_path, **(same_for_both | options))
    other = Render(backbone, tmp_path, **(same_for_both | changed))
    before = one.go().split(3)
    expected = other.straight().split(3)
    same = [torch.equal(old, new) for old, new in zip(before, expected, strict=False)]
    assert torch.equal(other.go(), torch.cat(expected))
    assert other.reused == (same.index(False) if one.setup == other.setup else 0)


def test_a_stored_cache_is_not_used_after_a_block_that_another_machine_rounded_otherwise(
    backbone, tmp_path
):
    """Blocks of both machines have the same keys, so only the hash of its block tells whose cache a
    state is.
    """
    one = Render(backbone, tmp_path / "one", state_seconds=1e-9, seconds=5.0)
    other = Render(backbone, tmp_path / "other", state_seconds=1e-9, seconds=5.0)
    one.go(stop_after=4)
    other.attention = rounded_otherwise
    made = other.go(stop_after=6)
    assert one.keys == other.keys
    for file in other.folder.rglob("state-*"):
        file.unlink()
    for file in one.folder.rglob("state-*"):
        shutil.move(file, other.folder / other.setup[:16])
    other.attention = sdpa
    shutil.copytree(other.folder, tmp_path / "without")
    next((tmp_path / "without").glob("*/state-*")).unlink()
    without = Render(backbone, tmp_path / "without", seconds=5.0)  # makes the cache from the blocks
    again = other.go()
    assert other.reused == 6 and torch.equal(again[:18], made)
    assert torch.equal(again, without.go())


@pytest.mark.slow
@pytest.mark.parametrize("state_seconds", [0.0, 1e-9], ids=["rebuilt", "restored"])
@pytest.mark.parametrize("tag", ["recache", "flush, re-anchor", "recall 1"])
def test_a_render_stopped_around_a_prompt_switch_goes_on_to_the_same_bytes(
    backbone, tmp_path, tag, state_seconds
):
    render = Render(backbone, tmp_path, TWO.format(f"[{tag}] "), 3.0, state_seconds=state_seconds)
    stop_after = render.plan.timeline.segments[1].start_block + bool(state_seconds)
    render.go(stop_after=stop_after)
    assert torch.equal(render.go(), render.straight()) and render.reused == stop_after


def test_damaged_and_foreign_blocks_are_made_again(backbone, tmp_path):
    """A changed byte, a block that does not follow the one before it, and a second file with the
    key of the first.
    """
    one = Render(backbone, tmp_path / "one", TWO.format(""), 3.0)
    other = Render(backbone, tmp_path / "other", TWO.format(""), 3.0)
    expected = one.go()
    other.attention = rounded_otherwise
    other.go()
    blocks = sorted(one.folder.rglob("block-*"))
    blocks[3].write_bytes(blocks[3].read_bytes()[:-1] + b"\x55")
    assert torch.equal(one.go(), expected) and one.reused == 3 and "is damaged" in one.problems[0]
    # written later than this render's own block
    shutil.copy(*other.folder.rglob("block-00002*"), blocks[0].parent)
    assert torch.equal(one.go(), expected) and one.reused == 2
    assert "does not continue the block before it" in one.problems[0]


def test_a_block_whose_name_has_the_beginning_of_the_key_is_not_taken_for_another(tmp_path):
    key = "ab" * 32
    other = "ab" * 31 + "cd"
    with RunFolder(tmp_path, "0" * 64, {}) as folder:
        folder.save_block(0, key, START, None)
        assert torch.equal(folder.load_blocks([key])[0].latents, START)
        assert not folder.load_blocks([other])


def test_decisions_after_the_start_frames_are_told_once_by_a_render_that_goes_on(
    backbone, tmp_path
):
    start = torch.cat([START, START + 0.5])
    render = Render(backbone, tmp_path, TWO.format(""), 3.0, start=start)
    expected = render.straight()
    assert render.straight_events[0].after_block == 2, "not of the two start blocks"
    render.go(stop_after=2)
    assert (
        torch.equal(render.go(), expected)
        and render.run.events == render.straight_events
        and render.reused == 2
    )
