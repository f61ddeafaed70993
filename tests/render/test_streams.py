"""Commands with standard streams that are closed, full or broken, in a shell as a user has one."""

import os
import subprocess
import sys
from pathlib import Path

import av
import pytest

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="streams are closed and full as in Linux")

COMMAND = f'"{sys.executable}" -m headforcing.headforcing_core'
SHORT = "demo --seconds 1 --scale 2 --sigmas 1 --device cpu --prompts 'a red ball bouncing in the teal plain room'"


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", f"{COMMAND} {command}"], cwd=folder, capture_output=True, text=True)


def frames(video: Path) -> int:
    with av.open(str(video)) as container:
        return sum(1 for _ in container.decode(video=0))


@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_a_video_is_made_without_a_place_to_talk_to(streams: str, tmp_path: Path) -> None:
    done = shell(f"{SHORT} --json {streams}", tmp_path)
    assert done.returncode == 0 and frames(tmp_path / "output" / "demo.mp4") == 16
    assert done.stdout == done.stderr == ""


def test_what_libraries_write_to_a_closed_stderr_reaches_no_file(tmp_path: Path) -> None:
    program = """
import os, sys
from headforcing.headforcing_core.commands.cli import usable_streams
with usable_streams(), open("file", "w") as file:
    os.write(2, b"of a library")
    print("lost", file=sys.stderr)
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(["bash", "-c", f'"{sys.executable}" program.py 2>&-'], cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "file").read_bytes() == b""


def test_a_video_whose_result_cannot_be_printed_is_made_and_says_so(tmp_path: Path) -> None:
    done = shell(f"{SHORT} --json >/dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: the result cannot be printed: No space left on device\n")
    assert frames(tmp_path / "output" / "demo.mp4") == 16


@pytest.mark.parametrize(("command", "code", "said"), [
    ("runs list . >/dev/full", 1, "error: the result cannot be printed: No space left on device\n"),
    ("runs list . >&-", 0, ""), ("runs list nowhere 2>/dev/full", 2, ""),
    ("budget | true; exit ${PIPESTATUS[0]}", 0, ""),
])  # fmt: skip
def test_a_short_command_never_ends_in_a_traceback(command: str, code: int, said: str, tmp_path: Path) -> None:
    done = shell(command, tmp_path)
    assert (done.returncode, done.stderr) == (code, said)
