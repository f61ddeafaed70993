"""What can be known of a GPU without one: `on_stand_in_gpu.py`, in a process of its own, since it changes PyTorch."""

from pathlib import Path

import pytest
from own_process import run_tests
from stand_in_gpu import missing


@pytest.mark.slow
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_renders_and_commands_run_on_a_stand_in_for_a_gpu(tmp_path: Path):
    file = Path(__file__).with_name("on_stand_in_gpu.py")
    run_tests(file, "-p", "stand_in_gpu", XDG_CACHE_HOME=str(tmp_path))  # where no times of its attention are kept
