"""What can be known of a GPU without one: `on_stand_in_gpu.py`, in a process of its own, since it changes PyTorch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_in_gpu import missing

HERE = Path(__file__).resolve().parent
IMPORTED = [str(HERE.parent), str(HERE.parent / "helpers")]  # besides the pack


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_renders_and_commands_run_on_a_stand_in_for_a_gpu(tmp_path: Path):
    path = os.pathsep.join([*IMPORTED, *filter(None, [os.environ.get("PYTHONPATH")])])
    program = "import sys, pytest; sys.path.pop(0); sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "-q", "-p", "stand_in_gpu", "-p", "no:cacheprovider"]
    command += [str(HERE / "on_stand_in_gpu.py")]
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path)}  # times of its attention are none
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
