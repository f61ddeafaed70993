"""The command `live`, with lines that are typed while the video is made."""

import sys
import threading
import time

import av
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.cli.live import said_in
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.live.file import LowDelayFile, next_bytes
from headforcing.headforcing_core.live.story import Said

RED = "a red ball bouncing in the teal plain room"
CROSS = "a yellow cross circling in the navy room"
STAR = "a green star gliding in the maroon striped room"


def frames_of(path):
    with av.open(str(path)) as file:
        return [frame.to_ndarray() for frame in file.decode(video=0)]


class Typed:
    """Lines, each typed when the growing file can be read and has more frames than at the last
    one.
    """

    def __init__(self, path, lines):
        self.path = path
        self.lines = lines
        self.read = []

    def __iter__(self):
        for line in self.lines:
            self.wait()
            yield f"{line}\n"

    def wait(self):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            time.sleep(0.1)
            if not self.path.exists():
                continue
            try:
                count = len(frames_of(self.path))
            except (av.error.FFmpegError, IndexError):
                continue
            if count > (self.read or [0])[-1] + 12:
                self.read.append(count)
                return
        raise AssertionError("the file does not grow")


def test_what_is_typed_is_rendered_and_the_file_is_that_of_any_render(
    tmp_path, monkeypatch, capsys
):
    out = tmp_path / "live.mp4"
    lines = [CROSS, "", f"/cut {STAR}", "/jump", "/back 1", "/stop"]
    typed = Typed(tmp_path / "live.live.mp4", lines)
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["live", "--prompts", RED, "--out", str(out), "--lead", "0.5"]) == 0
    said = capsys.readouterr().err
    assert "'/jump' is no command" in said and f"[re-anchor] {STAR}" in said
    story = (tmp_path / "live.story.txt").read_text("utf-8")
    written = story.split("\n")
    assert written[0] == f"0:00 {RED}" and written[3].endswith(f"[recall 1] {RED}")
    assert not typed.path.exists(), "the finished file is there"
    again = tmp_path / "again"
    assert main(["demo", "--prompts", f"@{tmp_path / 'live.story.txt'}", "--out", str(again)]) == 0
    frames = frames_of(out)
    others = frames_of(again / "demo.mp4")
    assert len(frames) == len(others) > 60
    assert all((one == other).all() for one, other in zip(frames, others, strict=True))
    # but for the tags
    assert abs(out.stat().st_size - (again / "demo.mp4").stat().st_size) < 2000


def test_the_end_of_the_input_ends_the_video(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Typed(tmp_path / "v.live.mp4", [""]))
    assert main(["live", "--prompts", RED, "--out", str(tmp_path / "v.mp4"), "--json"]) == 0
    assert len(frames_of(tmp_path / "v.mp4")) < 16 * 20


@pytest.mark.parametrize("method", ["rolling_forcing", "causvid", "self_forcing"])
def test_a_method_that_needs_the_length_is_refused_before_anything_is_loaded(
    tmp_path, capsys, method
):
    words = ["live", "--prompts", RED, "--out", str(tmp_path / "v.mp4"), "--method", method]
    assert main(words) == 2
    assert "without a fixed end" in capsys.readouterr().err and not list(tmp_path.iterdir())


LINES = {
    "a fox": Said("a fox"),
    "[cut] a fox": Said("[cut] a fox"),
    "/cut a fox": Said("a fox", "cut"),
    "/dissolve a fox": Said("a fox", "dissolve 1.5s"),
    "/back 12": Said(recall=12),
    "/back 2 a fox": Said("a fox", recall=2),
    "/again": Said(),
    "/stop": None,
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_a_prompt_or_a_command(line):
    assert said_in(line) == LINES[line]


@pytest.mark.parametrize("line", ["/", "/cut", "/back", "/back two", "/stop now", "/exit"])
def test_another_command_is_refused_with_those_that_there_are(line):
    with pytest.raises(HeadForcingError, match="no command; write /cut"):
        said_in(line)


def test_each_frame_can_be_read_when_it_is_written(tmp_path):
    path = tmp_path / "live.mp4"
    frames = torch.randint(0, 255, (12, 48, 80, 3), dtype=torch.uint8)
    with LowDelayFile(path, 16) as file:
        for number in range(12):
            file.add(number, frames[number : number + 1])
            if number:
                assert len(frames_of(path)) >= number
    assert not path.exists()


def test_a_disk_that_fails_ends_the_shown_file_and_not_the_video(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    file = LowDelayFile(tmp_path / "file" / "live.mp4", 16)
    with file:
        file.add(0, torch.zeros(1, 16, 16, 3, dtype=torch.uint8))
        file.add(1, torch.zeros(1, 16, 16, 3, dtype=torch.uint8))
    assert caplog.text.count("not shown any more") == 1


def test_the_next_bytes_come_when_they_are_written(tmp_path):
    path = tmp_path / "grows"
    assert next_bytes(path, 0, 5.0) == b"", "a file that is gone is not waited for"
    path.write_bytes(b"abc")
    assert next_bytes(path, 1, 5.0) == b"bc"
    before = time.monotonic()
    assert next_bytes(path, 3, 0.2) == b"" and time.monotonic() - before >= 0.2
    writer = threading.Timer(0.1, lambda: path.write_bytes(b"abcd"))
    writer.start()
    assert next_bytes(path, 3, 5.0) == b"d" and time.monotonic() - before < 4.0
