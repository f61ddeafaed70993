"""`headforcing decode RUN`: the video of a stored run, without the model."""

import json
import shutil
from pathlib import Path

import pytest
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.runs.stored import stored_videos

BALL = ["--prompts", "a red ball in the teal room", *"--device cpu --scale 1 --sigmas 1 --json".split()]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `demo.mp4` of 2 s and its `runs`, where a shorter video is the older one."""
    folder = tmp_path_factory.mktemp("made")
    for seconds in ("1", "2"):
        demo = ["demo", *BALL, "--seconds", seconds, "--out", str(folder), "--runs", str(folder / "runs")]
        assert main(demo) == 0
    return folder


def decoded(place: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> dict:
    capsys.readouterr()
    code = main(["decode", str(place), str(out), "--demo", "--scale", "1", "--device", "cpu", "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out)


def test_a_stored_run_is_decoded_to_the_video_of_its_render_as_far_as_it_goes(made: Path, tmp_path: Path, capsys):
    newest, older = stored_videos(made / "runs")
    found = decoded(newest.folder, tmp_path / "newest.mp4", capsys)
    assert (found["frames"], found["problems"]) == (32, [])
    assert (tmp_path / "newest.mp4").read_bytes() == (made / "demo.mp4").read_bytes()
    assert decoded(made / "runs" / older.name, tmp_path / "older.mp4", capsys)["frames"] == 16
    unfinished = shutil.copytree(newest.folder.parent, tmp_path / "runs") / newest.folder.name
    for block in sorted(unfinished.glob("block-*"))[2:]:
        block.unlink()
    assert decoded(unfinished, tmp_path / "part.mp4", capsys)["frames"] == 21


def test_what_is_no_run_is_refused_in_one_sentence(made: Path, tmp_path: Path, capsys):
    folder = stored_videos(made / "runs")[0].folder
    for given in (made, folder.parent, folder / "nowhere", made / "nowhere"):
        assert main(["decode", str(given), str(tmp_path / "video.mp4"), "--demo", "--device", "cpu"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "is no run folder, and no video in one; `runs list` names them" in said
    assert not list(tmp_path.iterdir())
