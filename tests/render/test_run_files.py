"""The files of a run folder: stored by a thread, named where damaged, the same for the same
contents; others stay.
"""

import json
import os
import shutil
import threading
from functools import cached_property
from pathlib import Path

import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.cache.state import State
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import lock, unlock
from headforcing.headforcing_core.hashing import digest, file_hash
from headforcing.headforcing_core.model.attention import explicit
from headforcing.headforcing_core.render.render import Listener, make_video
from headforcing.headforcing_core.render.sinks import KeptLatents
from headforcing.headforcing_core.rollout.loop import Block
from headforcing.headforcing_core.runs import files as run_files
from headforcing.headforcing_core.runs.files import FORMAT_VERSION, write_note
from headforcing.headforcing_core.runs.folder import RunFolder, count_blocks
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.runs.takes import prune, thumbnail
from safetensors.torch import save_file
from toy_renders import Render, files

KINDS = {  # of files, and the render that leaves all of them
    "plain": {"run", "video", "block", "state", "seconds"},
    "start": {"run", "video", "block", "state", "start", "seconds"},
}
DAMAGED = [("start", kind) for kind in sorted(KINDS["start"] - {"state"})]


@pytest.fixture(scope="module")
def finished(backbone, tmp_path_factory):
    """Two finished renders by name, and their latents."""
    start = Render(backbone, tmp_path_factory.mktemp("runs")).straight()[:6]
    made = {}
    for name, options in {
        "plain": {},
        "start": {"start": start, "seconds": 3.0},
    }.items():
        render = Render(backbone, tmp_path_factory.mktemp("runs"), state_seconds=1e-9, **options)
        made[name] = (render, render.go(), render.folder)
    return made


def copied(finished, name, tmp_path):
    """A copy of a finished render that a test may spoil, and its latents."""
    render, latents, folder = finished[name]
    render.folder = tmp_path / "runs"
    shutil.copytree(folder, render.folder)
    return render, latents


def damage(path, cut=False):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data[: len(data) // 2] if cut else data)


def of_kind(render, kind):
    return [path for path in files(render) if path.name.startswith(f"{kind}-")]


@pytest.mark.parametrize(("name", "kind"), DAMAGED)
def test_a_damaged_file_is_named_and_made_again(finished, tmp_path, name, kind, caplog):
    render, expected = copied(finished, name, tmp_path)
    assert {path.name.split("-")[0] for path in files(render)} == KINDS[name]
    assert all(file_hash(path) == path.stem.rpartition("-")[2] for path in files(render))
    path = of_kind(render, kind)[-1]
    damage(path, cut=name == "start")
    assert torch.equal(render.go(), expected)
    assert render.run.seconds_per_block is None or kind != "seconds"
    assert [problem for problem in render.run.problems if f"{path.name} is damaged" in problem]
    assert path.name in caplog.text
    assert all(file_hash(found) == found.stem.rpartition("-")[2] for found in files(render))


def test_a_damaged_state_is_named_and_a_longer_video_goes_on_without_it(backbone, tmp_path, caplog):
    short = Render(backbone, tmp_path, seconds=3.0, state_seconds=1e-9)
    longer = Render(backbone, tmp_path, seconds=4.5, state_seconds=1e-9)
    short.go()
    (path,) = of_kind(short, "state")
    damage(path)
    assert torch.equal(longer.go(), longer.straight()) and longer.reused == short.plan.new_blocks
    assert [problem for problem in longer.problems if f"{path.name} is damaged" in problem]
    assert path.name in caplog.text


@pytest.mark.parametrize("kind", ["video", "block"])
def test_looking_at_a_run_names_what_is_damaged_and_changes_nothing(
    finished, tmp_path, kind, capsys
):
    render, latents = copied(finished, "plain", tmp_path)
    path = of_kind(render, kind)[-1]
    damage(path, cut=True)
    before = {path.name: path.read_bytes() for path in files(render)}
    assert main(["runs", "list", str(render.folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    shown = main(["runs", "show", str(render.folder)])
    assert f"{path.name} is damaged" in "".join(capsys.readouterr())
    if kind == "video":
        named = f"{path.parent.name}: {path.name} is damaged; repeating the same render restores it"
        assert (listed["runs"], listed["problems"], shown) == ([], [named], 2)
    else:
        assert (listed["problems"], shown) == ([], 0)
        assert len(stored_videos(render.folder)[0].latents()) == len(latents) - 3
    assert {path.name: path.read_bytes() for path in files(render)} == before


def test_another_format_is_refused_politely(finished, tmp_path, capsys):
    render, _ = copied(finished, "plain", tmp_path)
    (path,) = of_kind(render, "run")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    path.rename(path.with_name(f"run-{file_hash(path)}.json"))
    refusal = f"format version 99, this version of Head Forcing reads {FORMAT_VERSION}; update"
    left = files(render)
    with pytest.raises(HeadForcingError, match=refusal):
        render.go()
    assert main(["runs", "show", str(render.folder)]) == 2
    assert refusal in capsys.readouterr().err
    assert stored_videos(render.folder) == []
    assert files(render) == left, "nothing was thrown away"


def names(render):
    return [path.name for path in files(render) if not path.name.startswith("seconds")]


def test_the_same_render_again_leaves_the_same_files(finished, tmp_path):
    render, expected = copied(finished, "start", tmp_path)
    before = names(render)
    for path in of_kind(render, "block")[2:] + of_kind(render, "state"):
        path.unlink()
    assert torch.equal(render.go(), expected) and render.reused == 2 and names(render) == before
    of_kind(render, "block")[0].unlink()
    render.go(stop_after=1)
    assert torch.equal(render.go(), expected) and render.reused == len(expected) // 3
    assert render.problems == [], "what goes on from equal bytes is as good as it was"


def test_blocks_of_two_renders_are_never_joined(backbone, tmp_path):
    """The keys are the same, the rounding is not: with other attention, or on another machine."""
    render = Render(backbone, tmp_path, seconds=4.5)
    first = render.go()
    of_kind(render, "block")[2].unlink()
    usual = render.attention
    render.attention = explicit
    render.go(stop_after=4)
    render.attention = usual
    again = render.go()
    assert (
        render.reused == 4
        and len(of_kind(render, "block")) == len(again) // 3 == render.plan.new_blocks
    )
    assert torch.equal(again[:6], first[:6]) and not torch.equal(again[6:], first[6:])
    assert [
        line
        for line in render.problems
        if "block-00004" in line and "does not continue the block before" in line
    ]
    (video,) = stored_videos(tmp_path)
    assert torch.equal(video.latents(), again) and video.reader.problems == []


def test_of_two_files_that_a_kill_left_the_later_one_counts(backbone, tmp_path):
    render = Render(backbone, tmp_path, seconds=3.0)
    render.go()
    old = of_kind(render, "block")[1:]
    kept = [(path.name, path.read_bytes()) for path in old]
    for path in old:
        path.unlink()
    render.attention = explicit
    expected = render.go()
    for name, data in kept:
        path = old[0].with_name(name)
        path.write_bytes(data)
        os.utime(path, (1_000_000, 1_000_000))
    assert torch.equal(render.go(), expected)


def test_a_state_that_was_stored_after_another_file_of_its_block_is_not_loaded(tmp_path):
    """Made again, a block has the same key and may be rounded otherwise: the state does not
    continue it.
    """
    key = digest("a block")
    latents = torch.zeros(3, 16, 8, 8)
    with RunFolder(tmp_path, digest("a setup"), {}) as folder:
        folder.save_block(0, key, latents, None)
        folder.save_state(0, key, State({"k": latents}, {"block": 1}))
        assert folder.load_state([key]) is not None
        folder.save_block(0, key, latents + 1e-6, None)
        assert folder.load_state([key]) is None


@pytest.fixture
def three(backbone, tmp_path):
    """Runs that were written one after another, the second longer than the others."""
    renders = [Render(backbone, tmp_path, seconds=3.0, seed=seed) for seed in (1, 2, 3)]
    for age, render in enumerate(renders):
        render.go(stop_after=3 if age == 1 else 1)
        for path in (render.folder / render.setup[:16]).iterdir():
            os.utime(path, (1_000_000 + age, 1_000_000 + age))
    return [tmp_path / render.setup[:16] for render in renders]


def size(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def setup_of(folder):
    return json.loads(next(folder.glob("run-*")).read_text())["setup"]


def test_the_oldest_runs_are_pruned_but_not_one_in_use_also_after_they_were_looked_at_and_were_small(
    three, tmp_path
):
    assert thumbnail(stored_videos(tmp_path)[-1], 0, lambda latents: b"a picture") == b"a picture"
    wanted = size(three[1]) + size(three[0])
    done = prune(tmp_path, keep_bytes=size(three[2]) + size(three[0]) + 10)
    assert (done.removed, done.freed, done.stayed) == ([three[1], three[0]], wanted, {})
    with RunFolder(tmp_path, setup_of(three[2]), {}):
        done = prune(tmp_path, keep_bytes=0)
    assert (done.removed, done.freed, done.stayed) == (
        [],
        0,
        {three[2].name: "it is being rendered"},
    )
    assert three[2].exists() and not three[1].exists()


def test_what_cannot_be_removed_or_is_not_ours_stays_and_is_named(three, tmp_path, monkeypatch):
    unlink = Path.unlink
    block = next(three[1].glob("block-*")).name
    (three[0] / "notes.txt").write_text("mine")

    def refuse(self, missing_ok=False):
        if self.name == block:
            raise OSError(30, "Read-only file system")
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    done = prune(tmp_path, keep_bytes=0)
    assert done.removed == [three[2]] and [path.name for path in three[0].iterdir()] == [
        "notes.txt"
    ]
    assert done.stayed == {
        three[1].name: f"{block} cannot be removed (Read-only file system)",
        three[0].name: "what was ours in it is removed, other files are left",
    }
    assert done.failed


def test_a_prune_that_the_file_system_refuses_ends_with_1_and_one_beside_a_render_with_0(
    three, tmp_path, monkeypatch, capsys
):
    command = ["runs", "prune", str(tmp_path), "--keep-gb", "0"]

    def refuse(self, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as read_only:
        read_only.setattr(Path, "unlink", refuse)
        assert main(command) == 1
    assert "Permission denied" in capsys.readouterr().out
    held = lock(three[0] / "lock")
    assert main(command) == 0 and three[0].is_dir() and not three[1].exists()
    unlock(held)


def test_folders_that_are_no_runs_are_left_alone(three, tmp_path):
    for name, others in {
        "project": ["thesis.txt", "block-diagram.svg", "run-1.json", "video-x.json"],
        "figures": ["block-00001-aaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb.safetensors"],
        "forged": ["run-0123456789abcdef.json"],
    }.items():
        (tmp_path / name / "chapters").mkdir(parents=True)
        for other in others:
            (tmp_path / name / other).write_text("{}")
    damage(next(three[0].glob("run-*")))
    (tmp_path / "link").symlink_to(three[2])
    before = {path for path in tmp_path.rglob("*") if not {*path.parents, path} & {*three[1:]}}
    done = prune(tmp_path, keep_bytes=0)
    assert done.removed == [three[2], three[1]] and set(tmp_path.rglob("*")) == before
    assert done.stayed.keys() == {three[0].name, "figures", "forged"}
    assert "is damaged" in done.stayed[three[0].name] and "no run-*.json" in done.stayed["figures"]


def test_what_killed_processes_left_is_removed_by_the_next_run_and_by_prune(three, tmp_path):
    for folder in three[:2]:
        for name in (f".{'0' * 32}.tmp", ".tmpa1B2c3", ".run.0123abcd.json"):
            (folder / name).write_bytes(bytes(1000))
    with RunFolder(tmp_path, setup_of(three[0]), {}):
        assert not [path for path in three[0].iterdir() if path.name.startswith(".")]
    before = sum(map(size, three))
    done = prune(tmp_path, keep_bytes=0)
    assert done.freed == before and not done.stayed and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.unlink not in os.supports_dir_fd, reason="needs handles of folders")
@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_nothing_temporary_stays_in_a_run_folder_that_is_renamed_while_a_block_is_written(
    tmp_path, monkeypatch, when
):
    folder = tmp_path / "run"
    moved = tmp_path / "moved"

    def save(tensors, path, metadata):
        if when == "before":
            folder.rename(moved)
        if when == "while":  # safetensors writes a temporary file of its own
            path.with_name(".tmpAbC123").write_bytes(b"part")
            folder.rename(moved)
        save_file(tensors, path, metadata)
        folder.rename(moved)

    monkeypatch.setattr(run_files, "save_file", save)
    with RunFolder(tmp_path, "run", {}) as run:
        (run.folder / "note.txt").write_text("of a person")
        before = {path.name for path in run.folder.iterdir()}
        with pytest.raises(HeadForcingError, match="the folder is gone; queue the same render"):
            run.save_block(0, "0123456789abcdef", torch.zeros(3, 16, 2, 2), None)
    assert {path.name for path in moved.iterdir()} == before and not folder.exists()


def test_a_note_with_the_right_hash_and_other_content_is_named_and_all_others_are_listed(
    three, tmp_path, capsys
):
    path = next(three[1].glob("video-*.json"))
    path.unlink()
    path = write_note(three[1], path.stem.rpartition("-")[0], {"keys": []})
    assert main(["runs", "list", str(tmp_path), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {found["name"].partition("/")[0] for found in listed["runs"]} == {
        three[0].name,
        three[2].name,
    }
    assert (
        len(listed["problems"]) == 1
        and f"{path.name} is not a file of a run" in listed["problems"][0]
    )


def stored_blocks(render: Render) -> int:
    return count_blocks(render.folder / render.setup[:16], render.keys)


class Heard(Listener):
    def __init__(self, of_block):
        self.add = lambda block: of_block(block.index)


def test_a_listener_hears_of_a_block_and_the_next_one_is_made_while_the_disk_is_busy(
    backbone, tmp_path, monkeypatch
):
    render = Render(backbone, tmp_path, seconds=3.0)
    disk_is_free = threading.Event()
    heard = []
    save = RunFolder.save_block

    def slow(self, *block, **facts):
        assert disk_is_free.wait(60)
        save(self, *block, **facts)

    def hear(block):
        heard.append((block, stored_blocks(render)))
        if block == 2:
            disk_is_free.set()

    monkeypatch.setattr(RunFolder, "save_block", slow)
    make_video(render.job, render.model(), listeners=[Heard(hear)])
    assert heard[:3] == [(0, 0), (1, 0), (2, 0)]
    assert stored_blocks(render) == len(render.keys) and torch.equal(render.go(), render.straight())


def test_the_latents_of_a_block_are_copied_to_main_memory_once_and_before_listeners_hear_of_it(
    backbone, tmp_path, monkeypatch
):
    """For the test for NaN, the run folder, the statistics and whoever keeps them."""
    render = Render(backbone, tmp_path, seconds=3.0)
    copied = []
    copy = Block.in_main_memory.func

    def counting(self):
        copied.append("copy")
        return copy(self)

    once = cached_property(counting)
    once.__set_name__(Block, "in_main_memory")
    monkeypatch.setattr(Block, "in_main_memory", once)
    kept = KeptLatents()
    make_video(
        render.job, render.model(), listeners=[Heard(lambda block: copied.append("heard")), kept]
    )
    assert copied == ["copy", "heard"] * len(kept.blocks) and len(kept.blocks) == len(render.keys)


def test_a_stored_cache_is_that_of_its_block_though_the_next_one_changes_it_meanwhile(
    backbone, tmp_path, monkeypatch
):
    render = Render(backbone, tmp_path, seconds=3.0, state_seconds=1e-9)
    save = RunFolder.save_state
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
