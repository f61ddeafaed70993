"""Letters that the output cannot show, and files that the user may not read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from headforcing.cli.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import check_regular
from headforcing.headforcing_core.video import reader
from headforcing.headforcing_core.weights import containers
from PIL import Image

FOX = "\u72d0 \u2192 \u5c71 \U0001f98a"


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "cp932", "utf-8"])
@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("demo", "--prompts", FOX, "--seconds", "1", "--out", "\u30d5\u30a9"), 0),
        (("inspect", "\u30e2\u30c7\u30eb.safetensors"), 2),
        (("demo", "--prompts", FOX, "--seconds", "1", "--out", "out", "--json"), 0),
    ],
)
def test_letters_that_the_output_cannot_show_do_not_fail_a_command(
    tmp_path: Path, encoding: str, command: tuple[str, ...], code: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headforcing", *command],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    said = (done.stdout + done.stderr).decode(encoding)
    assert done.returncode == code, said
    assert "cannot be printed" not in said and said.strip()
    if "--json" not in command:
        shown = command[-1]
        assert shown.encode(encoding, "backslashreplace").decode(encoding) in said


def _closed(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_file_that_may_not_be_read_is_neither_missing_nor_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wan.safetensors"
    path.write_bytes(bytes(100))
    monkeypatch.setattr(containers, "open", _closed, raising=False)
    with pytest.raises(HeadForcingError, match=r"cannot be read \(Permission denied\)") as told:
        containers.read_weights(path)
    assert "download" not in str(told.value)
    monkeypatch.undo()
    monkeypatch.setattr(os.path, "isfile", lambda path: False)
    monkeypatch.setattr(os, "stat", _closed)
    with pytest.raises(HeadForcingError, match=r"Permission denied") as told:
        check_regular("closed/wan.safetensors")
    assert "not found" not in str(told.value)


def test_a_picture_and_a_video_that_may_not_be_read_are_not_called_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hero.png"
    path.write_bytes(bytes(100))
    monkeypatch.setattr(Image, "open", _closed)
    monkeypatch.setattr(reader, "open_container", _closed)
    for read in (reader.read_image, reader.open_video):
        with pytest.raises(HeadForcingError, match=r"cannot be read \(Permission denied\)"):
            read(path)


def test_pruning_that_could_remove_nothing_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    words = ["demo", "--prompts", "a red ball", "--seconds", "1", "--out", str(tmp_path / "v.mp4")]
    assert main([*words, "--runs", str(folder)]) == 0
    (run,) = [path for path in folder.iterdir() if path.is_dir()]
    for path in run.glob("run-*.json"):
        path.unlink()
    assert main(["runs", "prune", str(folder), "--keep-gb", "0"]) == 1
    assert "stayed" in capsys.readouterr().out
