"""Writing of files: one process at a time, nothing left behind, and one sentence where the file system refuses."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from headforcing.headforcing_core import files
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import (
    TargetInUse,
    check_writable,
    claimed,
    claimed_first,
    lock,
    replacing,
    unlock,
)


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
    with claimed_first([tmp_path / "a", tmp_path / "b"]) as first, claimed_first([first, tmp_path / "b"]) as second:
        assert (first.name, second.name) == ("a", "b")
    with pytest.raises(HeadForcingError, match="taken"), claimed_first([tmp_path / "v_00001_.mp4"]):
        pass


def test_what_dead_writers_of_the_same_file_left_is_removed_by_a_claim_and_after_an_hour_by_a_write(tmp_path):
    ours = ".v.0123abcd.mp4"
    others = ".v.0123abcd.png .w.0123abcd.mp4 .v.notes.mp4 .v.0123abcd.mp4.txt v.0123abcd.mp4 v.part.mp4".split()
    for name in (ours, *others):
        (tmp_path / name).write_text("x")
    check_writable(tmp_path / "v.mp4")
    assert names(tmp_path) == sorted([ours, *others]), "an hour has not gone by: somebody may be writing it"
    with claimed(tmp_path / "v.mp4"):
        assert names(tmp_path) == sorted([".v.mp4.lock", *others])
    (tmp_path / ".v.89abcdef.png").write_text("x")
    os.utime(tmp_path / others[0], (time.time() - files.ABANDONED_SECONDS - 60,) * 2)
    os.utime(tmp_path / ".v.89abcdef.png", (time.time() - files.ABANDONED_SECONDS + 60,) * 2)
    with replacing(tmp_path / "v.png") as temporary:
        temporary.write_text("x")
    assert names(tmp_path) == sorted([".v.89abcdef.png", "v.png", *others[1:]])


def test_a_lock_that_is_let_go_in_time_is_taken_over(tmp_path):
    held = lock(tmp_path / "lock")
    assert lock(tmp_path / "lock") is None
    release = threading.Timer(0.05, unlock, [held])
    release.start()
    taken = lock(tmp_path / "lock", patience=30)
    release.join()
    assert taken is not None and taken.is_locked
    unlock(taken)


def test_an_error_that_no_sentence_was_written_for_is_one_on_the_command_line(monkeypatch, capsys):
    from headforcing.headforcing_core.commands import cli, report

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
