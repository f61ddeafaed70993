"""Commands with standard streams that are closed, full or broken, in a shell as a user has one."""

import os
import subprocess
import sys
from pathlib import Path

import av
import pytest

pytestmark = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="streams are closed and full as in Linux")

SHORT = "demo --seconds 1 --scale 2 --sigmas 1 --device cpu --json --prompts 'a red ball' --out ."
FULL = "error: the result cannot be printed: No space left on device\n"


@pytest.mark.parametrize(("command", "code", "said"), [
    (f"{SHORT} <&- >&- 2>&-", 0, ""), ("runs list . >/dev/full", 1, FULL), ("runs list nowhere 2>/dev/full", 2, ""),
    ("budget | true; exit ${PIPESTATUS[0]}", 0, ""),
])  # fmt: skip
def test_a_command_needs_no_place_to_talk_to(command: str, code: int, said: str, tmp_path: Path) -> None:
    program = f'"{sys.executable}" -m headforcing.headforcing_core {command}'
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)
    if "demo" in command:
        with av.open(str(tmp_path / "demo.mp4")) as container:
            assert sum(1 for _ in container.decode(video=0)) == 16


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
