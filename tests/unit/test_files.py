"""Writing of files: one process at a time, nothing left behind, and never over a file that is
read.
"""

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree

import pytest
import torch
from headforcing.cli import cli, report
from headforcing.cli.parser import named_files
from headforcing.headforcing_core import files
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import (
    TargetInUse,
    check_kept,
    check_writable,
    claimed,
    claimed_first,
    replacing,
)
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from path_arguments import commands, naming, pairs, undeclared


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_claim_holds_against_another_one_of_the_same_process_and_leaves_nothing(tmp_path):
    path = tmp_path / "v.mp4"
    with claimed(path, None, tmp_path / "v.safetensors"):
        for taken in (path, tmp_path / "v.safetensors"):
            with pytest.raises(TargetInUse), claimed(taken):
                pass
        with claimed(tmp_path / "w.mp4"):
            pass
    with claimed(path), pytest.raises(RuntimeError), files.claimed_folder(tmp_path / "new"):
        with pytest.raises(TargetInUse), files.claimed_folder(tmp_path / "new"):
            pass
        raise RuntimeError
    assert names(tmp_path) == ["new"] and names(tmp_path / "new") == []


def test_of_many_that_number_their_files_at_once_each_gets_a_number_of_its_own(tmp_path):
    def write(_: int) -> str:
        with claimed_first(tmp_path / f"v_{number:05}_.mp4" for number in range(1, 100)) as path:
            with replacing(path) as temporary:
                temporary.write_text("video")
            return path.name

    (tmp_path / "v_00001_.mp4").write_text("of an earlier render")
    with ThreadPoolExecutor(8) as threads:
        written = list(threads.map(write, range(24)))
    assert len(set(written)) == 24 and names(tmp_path) == sorted(["v_00001_.mp4", *written])
    assert (tmp_path / "v_00001_.mp4").read_text() == "of an earlier render"
    with (
        claimed_first([tmp_path / "a", tmp_path / "b"]) as first,
        claimed_first([first, tmp_path / "b"]) as second,
    ):
        assert (first.name, second.name) == ("a", "b")
    with pytest.raises(HeadForcingError, match="taken"), claimed_first([tmp_path / "v_00001_.mp4"]):
        pass


def test_what_dead_writers_of_the_same_file_left_is_removed_by_a_claim_and_after_an_hour_by_a_write(
    tmp_path,
):
    ours = ".v.0123abcd.mp4"
    others = (
        ".v.0123abcd.png .w.0123abcd.mp4 .v.notes.mp4 .v.0123abcd.mp4.txt v.0123abcd.mp4 v.part.mp4"
    ).split()
    for name in (ours, *others):
        (tmp_path / name).write_text("x")
    check_writable(tmp_path / "v.mp4")
    assert names(tmp_path) == sorted([ours, *others]), (
        "an hour has not gone by: somebody may be writing it"
    )
    with claimed(tmp_path / "v.mp4"):
        assert names(tmp_path) == sorted([".v.mp4.lock", *others])
    (tmp_path / ".v.89abcdef.png").write_text("x")
    os.utime(tmp_path / others[0], (time.time() - files.ABANDONED_SECONDS - 60,) * 2)
    os.utime(tmp_path / ".v.89abcdef.png", (time.time() - files.ABANDONED_SECONDS + 60,) * 2)
    with replacing(tmp_path / "v.png") as temporary:
        temporary.write_text("x")
    assert names(tmp_path) == sorted([".v.89abcdef.png", "v.png", *others[1:]])
    one = tmp_path / f"{'長' * 70}1.mp4"  # whose name is cut, as that of the other
    other = tmp_path / f"{'長' * 70}2.mp4"
    (left := files.temporary_path(one)).write_text("x")
    with claimed(other), replacing(other) as temporary:
        temporary.write_text("x")
        assert left.exists()


def test_an_error_that_no_sentence_was_written_for_is_one_on_the_command_line(monkeypatch, capsys):
    def refuse(_):
        raise OSError(5, "Input/output error", "somewhere")

    monkeypatch.setattr(report, "survey", refuse)
    assert cli.main(["runs", "list", "."]) == 2
    assert capsys.readouterr().err == "error: somewhere: Input/output error\n"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_file_can_be_read_by_whom_the_system_lets_read_new_files(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "made") as temporary:
        temporary.unlink()
        temporary.touch(mode=0o600)  # as some libraries create files
    assert (tmp_path / "made").stat().st_mode == (tmp_path / "plain").stat().st_mode


COMMANDS = dict(commands(cli._parser()))


def same(written: Path, read: Path) -> None:
    written.hardlink_to(read)


def linked(written: Path, read: Path) -> None:
    written.symlink_to(read)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_for_output_what_it_reads(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each argument that names files says whether they are read or written, and each pair is looked
    at.
    """
    monkeypatch.chdir(tmp_path)
    assert undeclared(COMMANDS[name]) == []
    found = set()
    for pair, args, read, written in pairs(COMMANDS[name], tmp_path):
        found.add(pair)
        rmtree(tmp_path / "made", ignore_errors=True)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text("of an earlier time")
        check_kept(*named_files(COMMANDS[name], args))
        for link in (same, linked):
            written.unlink()
            link(written, read)
            with pytest.raises(HeadForcingError, match="would write over"):
                check_kept(*named_files(COMMANDS[name], args))
                pytest.fail(pair)
        written.unlink()
    if name == "generate":
        assert found >= {"weights latents", "prompts latents", "profile latents", "start_video out"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("file", ["pipe.png", "link.mp4", "/dev/zero"])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_waits_for_a_pipe_or_a_device_in_place_of_a_file(
    name: str, file: str, tmp_path: Path, monkeypatch
) -> None:
    """Every option that names a file that is read, with a pipe that nobody writes to, and a device
    without end.
    """
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.png")
    Path("link.mp4").symlink_to("pipe.png")
    for option, args in naming(COMMANDS[name], file):
        with pytest.raises(HeadForcingError, match=f"{file} is a pipe or a device"):
            COMMANDS[name].check_files(args)
            pytest.fail(option)
    if name == "generate":
        options = {option for option, _ in naming(COMMANDS[name], file)}
        assert options >= {"reference", "start_image", "start_video", "weights", "vae", "prompts"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is read, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "input.safetensors"
    path.write_bytes(b"kept")
    return path


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "demo --start-video made/demo.part.mp4 --out made",
            "over made/demo.part.mp4, which is read (--start-video)",
        ),
        ("demo --latents {model}", "(the embedded model)"),
        ("demo --follow made/demo.story.txt --out made", "would write over made/demo.story.txt"),
        # without --follow no story is written there
        ("demo --prompts @made/demo.story.txt --out made --seconds -1", "error: seconds must be"),
        (
            "generate --weights a.pt --prompts cat --vae b.pt --out v.mp4 --latents {here}/v.mp4",
            "would both write",
        ),
    ],
)
def test_other_files_that_are_read_are_not_written_over(
    words: str, said: str, file: Path, capsys
) -> None:
    Path("made").mkdir()
    for name in ("demo.part.mp4", "demo.story.txt"):
        Path("made", name).write_text("a red ball", encoding="utf-8")
    size = assets.model_path().stat().st_size
    assert (
        cli.main(words.format(model=assets.model_path(), here=f"../{file.parent.name}").split())
        == 2
    )
    assert said in capsys.readouterr().err and assets.model_path().stat().st_size == size
    assert {path.read_text(encoding="utf-8") for path in Path("made").iterdir()} == {"a red ball"}


@pytest.mark.parametrize("link", [same, linked])
def test_a_growing_video_is_not_written_into_another_file(
    link: Callable[[Path, Path], None], file: Path
) -> None:
    """The nodes' growing video has a name of its own, which may be there already."""
    link(partial := Path("video_v0123abcd.part.mp4"), file)
    with VideoWriter(VideoSettings(Path("video.mp4"), partial=partial), 16, 16) as writer:
        writer.write(torch.zeros(1, 16, 16, 3))
    assert file.read_bytes() == b"kept" and Path("video.mp4").stat().st_size


def test_a_batch_reads_no_video_that_it_writes_and_writes_none_over_a_folder(
    file: Path, capsys
) -> None:
    Path("out/second.mp4").mkdir(parents=True)
    Path("out/first.mp4").write_bytes(b"kept")
    first = {"demo": True, "name": "first"}
    for then, told in (
        ({"demo": True, "name": "then", "start_video": "out/first.mp4"}, "first would write over"),
        ({"demo": True, "name": "second"}, "out/second.mp4 is a folder"),
    ):
        Path("jobs.jsonl").write_text("\n".join(map(json.dumps, (first, then))), encoding="utf-8")
        assert cli.main(["batch", "jobs.jsonl", "--out", "out"]) == 2
        assert told in capsys.readouterr().err and Path("out/first.mp4").read_bytes() == b"kept"


@pytest.mark.skipif(os.unlink not in os.supports_dir_fd, reason="needs handles of folders")
def test_nothing_temporary_stays_in_a_folder_that_is_renamed_while_a_file_is_written(tmp_path):
    folder = tmp_path / "out"
    with pytest.raises(HeadForcingError, match="cannot be written"):
        with replacing(folder / "v.mp4") as temporary:
            temporary.write_bytes(b"part")
            folder.rename(tmp_path / "moved")
    assert list((tmp_path / "moved").iterdir()) == []


@pytest.mark.parametrize("name", ["con.mp4", "NUL", "lpt\u00b2.json", "video.mp4."])
def test_a_device_of_windows_is_no_file_there(tmp_path, monkeypatch, name):
    files.check_writable(tmp_path / name)
    monkeypatch.setattr(files, "_WINDOWS", True)
    with pytest.raises(HeadForcingError, match="choose another name"):
        files.check_writable(tmp_path / name)
    files.check_writable(tmp_path / "console.mp4")
