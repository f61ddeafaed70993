"""Videos made at the same time have the bits of those made one after the other, whatever happens to
workers.
"""

import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from itertools import chain
from pathlib import Path

import pytest
from headforcing.cli import batch as batch_command
from headforcing.cli.cli import main
from headforcing.headforcing_core.distributed import ray_farm
from headforcing.headforcing_core.distributed.ray_farm import RayFarm
from headforcing.headforcing_core.files import claimed

# of the cluster that these tests start; Ray reads it when it is imported
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
ray = pytest.importorskip("ray", reason="the farm's tests need Ray: pip install ray")
pytestmark = pytest.mark.slow
linux = pytest.mark.skipif(
    not Path("/proc/self/environ").is_file(), reason="finds processes in /proc"
)

STORIES = (
    "a red ball bouncing in the teal plain room",
    "0:00 a yellow star gliding in the navy checkerboard room\n0:01 a cyan cross circling in the "
    "maroon striped room",
    "0:00 a pink square bouncing in the olive plain room\n0:01 [recache] a green star gliding in "
    "the slate plain room",
)
SHORT = {"demo": True, "scale": 1, "device": "cpu", "seconds": 1, "latents": True, "sigmas": "1"}
LONG = {**SHORT, "seconds": 8, "prompts": STORIES[1], "seed": 9, "sigmas": "1, 0.8, 0.5"}


@pytest.fixture(scope="module")
def head():
    """The address of a cluster of this machine alone."""
    with pytest.MonkeyPatch.context() as patch, socket.socket() as free:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        folder = tempfile.mkdtemp(prefix="ray")  # Ray's sockets need a short path
        options = [
            "--num-cpus",
            "2",
            "--include-dashboard",
            "false",
            "--object-store-memory",
            "100000000",
        ]
        options += ["--node-ip-address", "127.0.0.1", "--port", str(port), "--temp-dir", folder]
        start = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            *options,
        ]
        process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: answers(port), process)
            yield f"127.0.0.1:{port}"
        finally:
            ray.shutdown()
            process.terminate()
            process.wait(60)
            shutil.rmtree(folder, ignore_errors=True)


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition, process: subprocess.Popen | None = None) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until and (process is None or process.poll() is None), (
            "waited in vain"
        )
        time.sleep(0.05)


def connect(head: str) -> None:
    """Connect this process: `--farm local` uses a cluster that it is connected to."""
    if not ray.is_initialized():
        ray.init(address=head, log_to_driver=False)


def command(folder: Path, lines: list, *more: str) -> list[str]:
    (folder / "jobs.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return ["batch", str(folder / "jobs.jsonl"), "--out", str(folder / "out"), "--json", *more]


def run(folder: Path, lines: list, *more: str, code: int = 0) -> dict:
    output = folder / "said.json"
    with open(output, "w", encoding="utf-8") as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", file)
        assert main(command(folder, lines, *more)) == code
    return json.loads(output.read_text("utf-8") or "{}")


def rows(found: dict) -> dict:
    return {video["name"]: video for video in found["videos"]}


def blocks(folder: Path, name: str) -> int:
    return len(list((folder / "out" / "runs" / name).glob("*/block-*.safetensors")))


def worker_of(task: str) -> int | None:
    """The process that runs a task of this name, which Ray writes into its title."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if entry.read_bytes().rstrip(b"\0").decode() == f"ray::{task}":
                return int(entry.parent.name)
    return None


def test_videos_at_the_same_time_have_the_hashes_of_one_after_the_other_and_one_that_fails_says_why(
    head, tmp_path, monkeypatch
):
    monkeypatch.setenv("RAY_ADDRESS", head)
    videos = {**SHORT, "seconds": 2, "seeds": [1, 2]}
    lines = [{**videos, "name": f"story{i}", "prompts": story} for i, story in enumerate(STORIES)]
    (tmp_path / "farm").mkdir()
    in_turn = run(tmp_path, lines)
    with claimed(tmp_path / "farm" / "out" / "wrong.mp4"), monkeypatch.context() as patch:
        patch.setattr(batch_command, "PATIENCE_SECONDS", 0.0)
        wrong = {**SHORT, "name": "wrong", "prompts": STORIES[0]}
        farmed = run(tmp_path / "farm", [*lines, wrong], "--farm", "auto", code=1)
    assert (
        farmed["farm"].startswith("Ray, auto: 2 at a time")
        and in_turn["farm"] == "one after the other"
    )
    found = rows(farmed)
    assert "another process is writing" in found.pop("wrong")["why"] and not ray.is_initialized()
    files = {name: row["files"] for name, row in found.items()}
    assert files == {name: row["files"] for name, row in rows(in_turn).items()}
    assert len(set(chain(*(hashes.values() for hashes in files.values())))) == 12


@pytest.mark.thorough
@linux
def test_a_worker_that_is_killed_is_replaced_and_its_video_goes_on_with_the_same_bits(
    head, tmp_path
):
    """`kill -9` at a random moment."""
    connect(head)
    seed = random.randrange(10**6)
    sys.stdout.write(f"seed {seed}\n")
    chooser = random.Random(seed)
    lines = [{**LONG, "name": "long"}]
    after = chooser.randint(2, 5)
    wait = chooser.uniform(0, 0.2)

    def kill():
        wait_for(lambda: blocks(tmp_path, "long") >= after and worker_of("long"))
        time.sleep(wait)
        os.kill(worker_of("long"), signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    made = rows(run(tmp_path, lines, "--farm", "local"))["long"]
    killer.join()
    assert made["reused_blocks"] >= after
    (tmp_path / "straight").mkdir()
    assert made["files"] == rows(run(tmp_path / "straight", lines))["long"]["files"]


def test_an_interrupt_that_ray_swallows_is_seen(monkeypatch):
    def wait(tasks: list, **options: object) -> tuple[list, list]:
        # as in a callback, where Python only prints it
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return tasks, []

    task = types.SimpleNamespace(options=lambda **options: task, remote=lambda *given: "task")
    ray = types.SimpleNamespace(
        remote=lambda **options: lambda function: task, wait=wait, cancel=lambda *a, **b: None
    )
    monkeypatch.setattr(ray_farm, "_ray", lambda: ray)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(RayFarm("local").run(print, {"one": 1}))
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.thorough
@linux
def test_ctrl_c_in_a_terminal_ends_a_farm_and_the_same_command_goes_on(tmp_path):
    """A terminal sends it to the whole process group, so to what Ray has started, too."""
    lines = [{**LONG, "name": "long", "seconds": 12}]
    program = [
        sys.executable,
        "-m",
        "headforcing",
        *command(tmp_path, lines),
        "--farm",
        "local",
    ]
    # what its children are found by
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "STARTED_FOR": str(tmp_path)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(program, env=environment, start_new_session=True, **streams)
    wait_for(lambda: blocks(tmp_path, "long") >= 2, process)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "") and "Traceback" not in errors
    assert errors.splitlines()[-1].startswith(
        "interrupted; 0 of 1 videos are finished, what is made of the others is"
    )
    wait_for(lambda: not running_with(f"STARTED_FOR={tmp_path}"))
    stored = blocks(tmp_path, "long")
    assert stored >= 2
    assert rows(run(tmp_path, lines))["long"]["reused_blocks"] == stored


def running_with(variable: str) -> list[str]:
    """The processes that were started with this variable in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable in (folder / "environ").read_text().split("\0"):
                found.append((folder / "cmdline").read_text())
    # Ray's own agents, without a model, look for their node at times
    return [name for name in found if not re.match(r"ray::\w+Agent\0", name)]


@pytest.mark.thorough
def test_a_comparison_has_the_same_table_on_a_farm(head, tmp_path):
    connect(head)
    tables = []
    for farm in ([], ["--farm", "local"]):
        options = (
            "--demo --seconds 1 --scale 1 --device cpu --sigmas 1 --methods head_forcing "
            "self_forcing"
        ).split()
        assert main(["compare", *options, "--out", str(tmp_path), *farm]) == 0
        tables.append(json.loads((tmp_path / "comparison.json").read_text("utf-8"))["rows"])
    for row in chain(*tables):
        assert row.pop("seconds_per_block") > 0
    assert tables[0] == tables[1] and len(tables[0]) == 2
