"""Two renders into one target at the same time: it plays, or one of them refuses in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import av
import pytest

WAIT_SECONDS = 300


def demo(folder: Path, seed: int) -> subprocess.Popen:
    arguments = ["demo", "--seconds", "2", "--scale", "1", "--out", str(folder), "--seed", str(seed)]
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "headforcing.headforcing_core", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(3))
@pytest.mark.repeat("1", "2")
def test_two_renders_with_one_target_never_mix(tmp_path, attempt):
    renders = [demo(tmp_path, seed) for seed in (1, 2)]
    told = [render.communicate(timeout=WAIT_SECONDS)[1] for render in renders]
    codes = sorted(render.returncode for render in renders)
    assert codes in ([0, 2], [0, 0]), told  # the second may begin when the first has finished
    for render, text in zip(renders, told, strict=True):
        if render.returncode == 2:
            assert text.splitlines()[-1].startswith("error: another process is writing ") and "demo.mp4" in text
    with av.open(str(tmp_path / "demo.mp4")) as video:
        assert len(list(video.decode(video=0))) == 32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo.mp4", "demo.png"]
