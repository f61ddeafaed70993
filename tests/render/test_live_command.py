"""The command `live`, with lines that are typed while the video is made."""

import _thread
import json
import signal
import sys
import threading
import time

import av
import numpy as np
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.cli.live import said_in
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.live.file import LowDelayFile, next_bytes
from headforcing.headforcing_core.live.story import Said
from headforcing.headforcing_core.video import writer as video_writer
from sound_files import RATE, write_wave

RED = "a red ball bouncing in the teal plain room"
CROSS = "a yellow cross circling in the navy room"
STAR = "a green star gliding in the maroon striped room"


def frames_of(path):
    with av.open(str(path)) as file:
        return [frame.to_ndarray() for frame in file.decode(video=0)]


def first_heard(path):
    """The second of a file at which its sound is loud first."""
    with av.open(str(path)) as file:
        for frame in file.decode(audio=0):
            loud = np.flatnonzero(np.abs(frame.to_ndarray()[0]) > 0.1)
            if len(loud):
                return frame.time + loud[0] / frame.sample_rate
    return None


class Typed:
    """Lines, each typed when the growing file can be read and has more frames than at the last
    one. The input ends if it does not grow.
    """

    def __init__(self, path, lines):
        self.path = path
        self.lines = lines
        self.read = []
        self.has_failed = False

    def __iter__(self):
        for line in self.lines:
            if not self.wait():
                self.has_failed = True
                return
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
                return True
        return False


def test_what_is_typed_is_rendered_and_the_file_is_that_of_any_render(
    tmp_path, monkeypatch, capsys
):
    out = tmp_path / "live.mp4"
    lines = [CROSS, "", f"/cut {STAR}", "/jump", "/back 1", "/stop"]
    typed = Typed(tmp_path / "live.live.mp4", lines)
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["live", "--prompts", RED, "--out", str(out), "--lead", "0.5"]) == 0
    assert not typed.has_failed, "the file grows"
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
    typed = Typed(tmp_path / "v.live.mp4", [""])
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["live", "--prompts", RED, "--out", str(tmp_path / "v.mp4"), "--json"]) == 0
    assert len(frames_of(tmp_path / "v.mp4")) < 16 * 20 and not typed.has_failed


class Breaking(Typed):
    """Lines, and then what ends the command, or the input."""

    def __init__(self, path, lines, end):
        super().__init__(path, lines)
        self.end = end

    def __iter__(self):
        yield from super().__iter__()
        self.wait()
        self.end()


def test_an_interrupted_video_leaves_its_story_from_which_it_goes_on(tmp_path, monkeypatch, capsys):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # some shells have it ignored
    typed = Breaking(tmp_path / "v.live.mp4", [CROSS], _thread.interrupt_main)
    monkeypatch.setattr(sys, "stdin", typed)
    runs = ["--runs", str(tmp_path / "runs")]
    assert main(["live", "--prompts", RED, "--out", str(tmp_path / "v.mp4"), *runs]) == 130
    story = tmp_path / "v.story.txt"
    said = capsys.readouterr().err
    assert f"render the story {story} with `headforcing demo` to go on" in said
    assert CROSS in story.read_text("utf-8") and not typed.has_failed
    out = tmp_path / "again"
    again = ["demo", "--prompts", f"@{story}", "--out", str(out), "--json", *runs]
    assert main(again) == 0
    assert json.loads(capsys.readouterr().out)["reused_blocks"] > 1


def test_an_input_that_is_no_text_ends_the_video(tmp_path, monkeypatch, capsys):
    def fail():
        b"\xff".decode()

    typed = Breaking(tmp_path / "v.live.mp4", [CROSS], fail)
    monkeypatch.setattr(sys, "stdin", typed)
    assert main(["live", "--prompts", RED, "--out", str(tmp_path / "v.mp4")]) == 0
    assert "it is no text in utf-8" in capsys.readouterr().err and not typed.has_failed


class Copying(Typed):
    """Lines; keeps a copy of the file as it is when the last one is typed."""

    def wait(self):
        grows = super().wait()
        if grows:
            self.path.with_name("copy.mp4").write_bytes(self.path.read_bytes())
        return grows


def test_the_growing_file_has_size_and_sound_of_the_finished_one(tmp_path, monkeypatch):
    """The sound stands behind the start frames."""
    begins = tmp_path / "begins"
    assert main(["demo", "--prompts", RED, "--seconds", "1.3", "--out", str(begins)]) == 0
    noise = 0.5 * np.random.default_rng(1).uniform(-1, 1, 8 * RATE)
    write_wave(tmp_path / "noise.wav", noise)
    typed = Copying(tmp_path / "v.live.mp4", ["", "/stop"])
    monkeypatch.setattr(sys, "stdin", typed)
    words = ["live", "--prompts", RED, "--out", str(tmp_path / "v.mp4"), "--scale", "2"]
    starts = ["--start-video", str(begins / "demo.mp4"), "--audio", str(tmp_path / "noise.wav")]
    assert main([*words, *starts]) == 0
    assert not typed.has_failed
    copy = tmp_path / "copy.mp4"
    assert frames_of(copy)[0].shape == frames_of(tmp_path / "v.mp4")[0].shape == (768, 512)
    begin = 21 / 16
    assert abs(first_heard(tmp_path / "v.mp4") - begin) < 0.01
    assert abs(first_heard(copy) - begin) < 0.05


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


def test_a_file_that_a_player_has_open_is_told_with_the_one_in_its_place(
    tmp_path, monkeypatch, caplog
):
    """As on Windows, where an open file cannot be written again."""
    path = tmp_path / "live.mp4"
    opened = av.open

    def open_others(file, mode="r", **options):
        if (str(file), mode) == (str(path), "w"):
            raise PermissionError(13, "used by another process")
        return opened(file, mode, **options)

    monkeypatch.setattr(video_writer.av, "open", open_others)
    with LowDelayFile(path, 16) as file:
        file.add(0, torch.zeros(2, 16, 16, 3, dtype=torch.uint8))
        assert file.path != path and file.path.is_file()
        assert f"{path} open, so {file.path} grows" in caplog.text
    assert not list(tmp_path.iterdir())


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
