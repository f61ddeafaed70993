"""Blocks are stored by a thread while the next ones are made: in order, and an error ends the render."""

import threading

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.render.render import Listener, make_video
from headforcing.headforcing_core.runs.folder import RunFolder, count_blocks
from toy_renders import Render


def stored_blocks(render: Render) -> int:
    return count_blocks(render.folder / render.setup[:16], render.keys)


class Heard(Listener):
    def __init__(self, of_block):
        self.add = lambda block: of_block(block.index)


def test_a_listener_hears_of_a_block_and_the_next_one_is_made_while_the_disk_is_busy(backbone, tmp_path, monkeypatch):
    render, disk_is_free, heard = Render(backbone, tmp_path, seconds=3.0), threading.Event(), []
    save = RunFolder.save_block

    def slow(self, *block):
        assert disk_is_free.wait(60)
        save(self, *block)

    def hear(block):
        heard.append((block, stored_blocks(render)))
        if block == 2:
            disk_is_free.set()

    monkeypatch.setattr(RunFolder, "save_block", slow)
    make_video(render.job, render.model(), listeners=[Heard(hear)])
    assert heard[:3] == [(0, 0), (1, 0), (2, 0)]
    assert stored_blocks(render) == len(render.keys) and torch.equal(render.go(), render.straight())


@pytest.mark.parametrize("fails_at", [2, 4], ids=["in the middle", "at the last block"])
def test_an_error_of_the_disk_ends_the_render_and_nothing_is_stored_after_it(backbone, tmp_path, monkeypatch, fails_at):
    render, tried, failed = Render(backbone, tmp_path, seconds=3.0), [], threading.Event()
    save = RunFolder.save_block

    def full(self, index, *rest):
        tried.append(index)
        if index == fails_at:
            failed.set()
            raise HeadForcingError("the disk is full")
        save(self, index, *rest)

    def hear(block):
        if block == fails_at < 4:
            assert failed.wait(60)

    monkeypatch.setattr(RunFolder, "save_block", full)
    with pytest.raises(HeadForcingError, match="the disk is full"):
        make_video(render.job, render.model(), listeners=[Heard(hear)])
    assert tried == [*range(fails_at + 1)] and stored_blocks(render) == fails_at
    monkeypatch.setattr(RunFolder, "save_block", save)
    assert torch.equal(render.go(), render.straight()) and render.reused == fails_at


def test_a_stored_cache_is_that_of_its_block_though_the_next_one_changes_it_meanwhile(backbone, tmp_path, monkeypatch):
    render, save = Render(backbone, tmp_path, seconds=3.0, state_seconds=1e-9), RunFolder.save_state
    changed = threading.Event()

    def late(self, index, key, state):
        if index == 1:
            assert changed.wait(60)
        save(self, index, key, state)

    def step(*now):
        if now[:2] == (2, 0):
            changed.set()
        if now[:2] == (2, 1):
            raise RuntimeError("stopped")

    monkeypatch.setattr(RunFolder, "save_state", late)
    with pytest.raises(RuntimeError, match="stopped"):
        render.go(on_step=step)
    assert torch.equal(render.go(), render.straight()) and render.reused == 2
