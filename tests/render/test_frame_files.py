"""Frames that scenes keep are stored once each: states name them, and are not used without them."""

from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.state import KeptFrame, State
from headforcing.headforcing_core.hashing import digest, file_hash
from headforcing.headforcing_core.runs import files as run_files
from headforcing.headforcing_core.runs.files import read_fields
from headforcing.headforcing_core.runs.folder import RunFolder
from toy_renders import Render, files

TOLD = (
    "0:00 a red ball in the teal room\n0:02.3 a yellow cross in the navy room\n"
    "0:05.3 [recall 1] the red ball again"  # blocks 0, 3 and 7 of 10
)


@pytest.fixture
def render(backbone, tmp_path) -> Render:
    """A story with a recall, whose cache is stored after every block."""
    return Render(backbone, tmp_path, TOLD, 7.0, state_seconds=1e-9)


def of_kind(render: Render, kind: str) -> list[Path]:
    return [path for path in files(render) if path.name.startswith(f"{kind}-")]


def named(render: Render) -> set[str]:
    """The files that the stored state names."""
    (state,) = of_kind(render, "state")
    return set(read_fields(state)["frames"])


@pytest.fixture
def written(monkeypatch) -> list[dict[str, torch.Tensor]]:
    """The tensors of every file that is written, in order."""
    saved = []
    save = run_files.save_file

    def noted(tensors, path, metadata):
        saved.append({name: tensor.clone() for name, tensor in tensors.items()})
        save(tensors, path, metadata=metadata)

    monkeypatch.setattr(run_files, "save_file", noted)
    return saved


def frames_among(written: list[dict[str, torch.Tensor]]) -> list[str]:
    """A hash of every frame that was written."""
    return [digest(*tensors.values()) for tensors in written if "state.k.0" in tensors]


def test_every_frame_is_written_once(render, written):
    assert torch.equal(render.go(), render.straight())
    frames = frames_among(written)
    assert len(frames) == len(set(frames)) > 12
    slots = render.plan.shape.bytes_of(render.plan.shape.frame_slots, torch.float32)
    states = [tensors for tensors in written if not {"latents", "state.k.0"} & tensors.keys()]
    assert len(states) == 10
    for tensors in states:  # the cache and pooled keys
        assert sum(tensor.nbytes for tensor in tensors.values()) < 1.01 * slots
    assert {path.name for path in of_kind(render, "frame")} == named(render)
    assert all(file_hash(path) == path.stem.rpartition("-")[2] for path in files(render))


@pytest.mark.parametrize("block", [5, 8], ids=["before the recall", "after it"])
def test_a_resumed_render_finds_the_frames_and_writes_none_again(render, written, block):
    render.go(stop_after=block)
    before = set(frames_among(written))
    names = named(render)
    assert names
    written.clear()
    assert torch.equal(render.go(), render.straight()) and render.reused == block
    assert not before & set(frames_among(written)) and render.problems == []
    if block == 8:  # scenes that ended keep what they have
        assert len(names & named(render)) > 4


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_state_whose_frame_is_missing_or_damaged_is_not_used(render, how, caplog):
    render.go(stop_after=8)
    (state,) = of_kind(render, "state")
    path = of_kind(render, "frame")[0]
    if how == "missing":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    assert torch.equal(render.go(), render.straight()) and render.reused == 8
    (problem,) = render.problems
    assert problem.startswith(f"{state.name} is not used, because its {path.name} is {how}; it was")
    assert problem in caplog.text
    assert {path.name for path in of_kind(render, "frame")} == named(render)
    assert all(file_hash(path) == path.stem.rpartition("-")[2] for path in files(render))


class Killed(BaseException):
    """Ends the thread that stores, as a kill does: nothing more is written."""


@pytest.mark.parametrize("moved", [False, True], ids=["before the state", "before old ones go"])
def test_a_render_killed_between_its_frames_and_its_state_goes_on(render, monkeypatch, moved):
    render.go(stop_after=2)
    before = named(render)
    write = RunFolder._write_tensors

    def killing(self, kind, index, *rest, **fields):
        if (kind, index) == ("state", 3) and not moved:
            raise Killed
        path = write(self, kind, index, *rest, **fields)
        if (kind, index) == ("state", 3):
            raise Killed
        return path

    monkeypatch.setattr(RunFolder, "_write_tensors", killing)
    with pytest.raises(Killed):
        render.go()
    monkeypatch.setattr(RunFolder, "_write_tensors", write)
    assert len(of_kind(render, "state")) == 1 + moved
    stored = {path.name for path in of_kind(render, "frame")}
    assert before < stored
    # a render that stores no state removes them
    with RunFolder(render.folder, render.setup, render.job.about):
        left = {path.name for path in of_kind(render, "frame")}
    assert left < stored or moved
    assert torch.equal(render.go(), render.straight()) and render.reused == 4
    assert render.problems == []
    assert {path.name for path in of_kind(render, "frame")} == named(render)


def test_frames_that_share_a_piece_of_memory_are_stored_and_a_file_that_is_gone_is_written_anew(
    tmp_path,
):
    """Copies from a GPU are views of a few large pieces."""
    piece = torch.arange(24.0)
    frame = KeptFrame(7, 2, k=[piece[:6].view(1, 6)], v=[piece[6:12].view(2, 3)])
    key = digest("a block")
    state = State({"own": torch.ones(1)}, {"value": {"frame": 0}}, [frame])
    with RunFolder(tmp_path, digest("a setup"), {}) as folder:
        folder.save_block(0, key, torch.zeros(3, 16, 8, 8), None)
        folder.save_state(0, key, state)
        path = folder.folder / frame.file
        first = path.stat()
        folder.save_state(0, key, state)
        assert path.stat().st_mtime_ns == first.st_mtime_ns
        path.unlink()
        folder.save_state(0, key, state)
        (found,) = folder.load_state([key]).frames
        assert (found.frame, found.index, found.file) == (7, 2, path.name)
        assert torch.equal(found.k[0], frame.k[0]) and torch.equal(found.v[0], frame.v[0])
        other = KeptFrame(8, 2, k=[piece[12:18].view(1, 6)], v=[piece[18:].view(2, 3)])
        folder.save_state(0, key, State({}, {"value": {"frame": 0}}, [other]))
        assert not path.exists() and (folder.folder / other.file).exists(), "no state names it"
