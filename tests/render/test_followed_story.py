"""A story in a file that is followed while it is rendered."""

import json
import os
import sys
import time

import av
import pytest
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.commands.values import FollowedFile
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.render.sinks import ProgressBar

RED, CROSS, CUBE = "a red ball", "a yellow cross", "a blue cube"
PLANNED = f"0:00 {RED}\n0:03 {CROSS}\n0:06 {CUBE}"  # blocks 0, 4 and 8 of 10
CHANGED = f"0:00 {RED}\n0:03 {CROSS}\n0:04.5 [blend 1] {CUBE}\n0:06 {RED}"  # 0, 4, 6 and 8


@pytest.fixture
def written(tmp_path):
    """Writes a file so that it seems to rest since."""

    def write(text: str, name="story.txt", age=10.0):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        os.utime(path, (time.time() - age, time.time() - age))
        return path

    return write


@pytest.mark.slow
def test_a_followed_file_is_taken_when_it_changes_and_the_final_story_lies_beside_the_video(
    written, tmp_path, monkeypatch, capsys
):
    def follow(text, actions):
        """Call functions after the blocks of their numbers; the result, and what was said of the file."""
        path = written(text)
        monkeypatch.setattr(ProgressBar, "add", lambda self, block: actions.get(block.index, lambda: None)())
        options = f"--out {tmp_path / 'out'} --runs {tmp_path / 'runs'} --seconds 7 --scale 1 --device cpu --json"
        assert main(["demo", "--follow", str(path), "--sigmas", "1", *options.split()]) == 0
        captured = capsys.readouterr()
        said = [line.removeprefix(str(path)) for line in captured.err.splitlines() if line.startswith(str(path))]
        return json.loads(captured.out), said

    path, out = tmp_path / "story.txt", tmp_path / "out"
    wrong, begun = "0:00 a\n0:00 b", PLANNED.replace(RED, CROSS)
    result, said = follow(
        PLANNED,
        {1: lambda: written(wrong), 2: lambda: written(begun), 3: lambda: written(CHANGED), 5: lambda: os.utime(path)},
    )
    assert said == [
        " is not taken: line 2: 0:00 does not come after 0:00 of the prompt above",
        " is not taken: prompt 1 has begun and its finished blocks stay: leave everything before 0:02.062 "
        "(block 4 of 10) as it was, and change what comes after",
        " is taken from 0:04.312 on (block 7 of 10)",
    ]
    assert sorted(file.name for file in out.iterdir()) == ["demo.mp4", "demo.png", "demo.story.txt"]
    assert (out / "demo.story.txt").read_text(encoding="utf-8") == CHANGED == result["story"]
    with av.open(str(out / "demo.mp4")) as container:
        tags = json.loads(container.metadata["head_forcing"])
    assert tags["story"] == CHANGED and tags["prompts"] == [RED, CROSS, CUBE, RED]
    again, said = follow(CHANGED, {})
    assert again["reused_blocks"] == 10 and said == []


def test_a_file_is_read_once_for_each_change_and_only_when_it_rests(written):
    file, seen = FollowedFile(written("one")), []
    for text, age in (("one", 10.0), ("two", 10.0), ("two", 10.0), ("three", 0.0), ("three", 1.0), ("one", 10.0)):
        written(text, age=age)
        seen.append(file.changed())
    assert seen == [None, "two", None, None, "three", None], "an editor may be writing still; the story that is told"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
def test_a_pipe_a_large_and_a_missing_file_are_refused_once_and_never_waited_for(written):
    path = written("one")
    file = FollowedFile(path)

    def pipe():
        os.mkfifo(path)
        os.utime(path, (1, 1))

    for put, said in (
        (lambda: None, "was not found"), (pipe, "is a pipe or a device, not a file"),
        (lambda: written("a" * ((1 << 20) + 1)), "larger than 1 MB"),
    ):  # fmt: skip
        path.unlink()
        put()
        with pytest.raises(HeadForcingError, match=said):
            file.changed()
        assert file.changed() is None
        path.touch()
    written("two")
    assert file.changed() == "two"
