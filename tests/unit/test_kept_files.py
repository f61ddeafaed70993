"""No command writes over a file that it reads: every argument that names files says so, and is looked at first."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest
import torch
from headforcing.headforcing_core.commands import cli
from headforcing.headforcing_core.commands.parser import named_files
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import check_kept
from headforcing.headforcing_core.video.writer import VideoWriter
from path_arguments import commands, pairs, undeclared

COMMANDS = dict(commands(cli._parser()))


def same(written: Path, read: Path) -> None:
    written.hardlink_to(read)


def linked(written: Path, read: Path) -> None:
    written.symlink_to(read)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_takes_for_output_what_it_reads(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each argument that names files says whether they are read or written, and each pair is looked at."""
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


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is read, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "input.safetensors"
    path.write_bytes(b"kept")
    return path


@pytest.mark.parametrize(("words", "said"), [
    ("demo --start-video made/demo.part.mp4 --out made", "over made/demo.part.mp4, which is read (--start-video)"),
    ("demo --latents {model}", "(the embedded model)"),
    ("demo --follow made/demo.story.txt --out made", "would write over made/demo.story.txt"),
    # without --follow no story is written there
    ("demo --prompts @made/demo.story.txt --out made --seconds -1", "error: seconds must be"),
    ("generate --weights a.pt --prompts cat --vae b.pt --out v.mp4 --latents {here}/v.mp4", "would both write"),
])  # fmt: skip
def test_other_files_that_are_read_are_not_written_over(words: str, said: str, file: Path, capsys) -> None:
    Path("made").mkdir()
    for name in ("demo.part.mp4", "demo.story.txt"):
        Path("made", name).write_text("a red ball", encoding="utf-8")
    size = assets.model_path().stat().st_size
    assert cli.main(words.format(model=assets.model_path(), here=f"../{file.parent.name}").split()) == 2
    assert said in capsys.readouterr().err and assets.model_path().stat().st_size == size
    assert {path.read_text(encoding="utf-8") for path in Path("made").iterdir()} == {"a red ball"}


@pytest.mark.parametrize("link", [same, linked])
def test_a_growing_video_is_not_written_into_another_file(link: Callable[[Path, Path], None], file: Path) -> None:
    """The nodes' growing video has a name of its own, which may be there already."""
    link(partial := Path("video_v0123abcd.part.mp4"), file)
    with VideoWriter("video.mp4", 16, 16, partial=partial) as writer:
        writer.write(torch.zeros(1, 16, 16, 3))
    assert file.read_bytes() == b"kept" and Path("video.mp4").stat().st_size


def test_a_batch_reads_no_video_that_it_writes_and_writes_none_over_a_folder(file: Path, capsys) -> None:
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
