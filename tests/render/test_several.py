"""One video on several GPUs, with processes on a CPU in their place: started, killed, interrupted, continued."""

import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.distributed.cache import parallel_forward
from headforcing.headforcing_core.distributed.peers import PeersLost
from headforcing.headforcing_core.distributed.ranks import rank_place
from headforcing.headforcing_core.distributed.start_ranks import joined
from headforcing.headforcing_core.model.attention import sdpa
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from safetensors.torch import load_file
from thread_peers import together
from toy_renders import Render, rendered

SECONDS = 6  # 9 blocks
MODULE = "headforcing.headforcing_core"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SMALL = "--device cpu --json --scale 1 --sigmas 1,0.5 --update-interval 1".split()
linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


def demo(*options: object) -> list[str]:
    return [sys.executable, "-m", MODULE, "demo", *SMALL, *map(str, options)]


def rank_pids() -> dict[int, int]:
    """The processes of running ranks that this test process has started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = dict(line.split("=", 1) for line in (folder / "environ").read_text().split("\0") if "=" in line)
            if variables.get("STARTED_BY") == str(os.getpid()) and "TORCHELASTIC_RUN_ID" in variables:
                found[int(variables["RANK"])] = int(folder.name)
    return found


def wait_for(condition, process: subprocess.Popen) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.02)


def begun(*options: object) -> subprocess.Popen:
    environment = {**ENVIRONMENT, "STARTED_BY": str(os.getpid())}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(demo(*options), env=environment, start_new_session=True, **streams)


def decisions(found: dict) -> list[dict]:
    """Those of episodic memory, without similarities, which may be rounded differently."""
    return [{**event, "delta": 0} for event in found["memory_events"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """The video of one process."""
    folder = tmp_path_factory.mktemp("alone")
    command = demo("--seconds", SECONDS, "--out", folder, "--latents", folder / "latents.safetensors")
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "made": load_file(folder / "latents.safetensors")["latents"]}


@linux
@pytest.mark.slow
def test_a_video_on_two_ranks_is_that_of_one_although_a_rank_is_killed(alone, tmp_path):
    """At a random moment; all ranks start again."""
    seed = random.randrange(10**6)
    sys.stdout.write(f"seed {seed}\n")
    chooser = random.Random(seed)
    runs, latents, after = tmp_path / "runs", tmp_path / "latents.safetensors", chooser.randint(1, 4)
    process = begun("--gpus", 2, "--seconds", SECONDS, "--out", tmp_path, "--latents", latents, "--runs", runs)
    wait_for(lambda: len(list(runs.glob("*/block-*"))) >= after, process)
    time.sleep(chooser.uniform(0, 0.3))
    os.kill(rank_pids()[chooser.randint(0, 1)], signal.SIGKILL)
    out, errors = process.communicate(timeout=240)
    assert process.returncode == 0 and "Traceback" not in errors, errors
    assert "all ranks were started again" in errors
    found = json.loads(out)
    assert found["reused_blocks"] >= after
    assert (load_file(latents)["latents"] - alone["made"]).abs().max() <= 1e-5
    assert decisions(found) == decisions(alone) and len(decisions(found)) > 2
    ranks = found["ranks"]["ranks"]
    assert len(ranks) == 2 and 1 <= found["ranks"]["worst_over_mean"] < 1.2
    assert sum(len(layer) for rank in ranks for layer in rank["heads"]) == 48
    assert sum(rank["cache_bytes"] for rank in ranks) == alone["cache_bytes"]
    assert all(rank["sent_bytes"]["tokens"] > 1e5 for rank in ranks)
    assert (tmp_path / "demo.mp4").is_file() and not (tmp_path / "demo.part.mp4").exists()


@pytest.mark.slow
def test_three_unequal_ranks_of_another_torchrun_make_the_video_of_one_and_print_it_once(alone, tmp_path):
    """The second has twice the speed of the others: more heads and half of each frame, but a third of the weights."""
    latents = tmp_path / "latents.safetensors"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    options = ["--gpu-speeds", "1,2,1", "--shard-weights", "--seconds", 3, "--out", tmp_path, "--latents", latents]
    done = subprocess.run(
        [*torchrun, *demo(*options)[1:]], env=ENVIRONMENT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    found = json.loads(done.stdout)
    heads = [sum(map(len, rank["heads"])) for rank in found["ranks"]["ranks"]]
    assert sum(heads) == 48 and heads[1] > 1.5 * heads[0] and heads[1] > 1.5 * heads[2]
    assert all(rank["weight_bytes"] <= 0.4 * alone["needs"]["weights"] for rank in found["ranks"]["ranks"])
    made = load_file(latents)["latents"]
    assert len(made) >= 12 and (made - alone["made"][: len(made)]).abs().max() <= 5e-4  # sums in another order
    assert decisions(found) == decisions(alone)[: len(decisions(found))] and decisions(found)


def stopped_rank(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    with joined(torch.device("cpu")):
        os.kill(os.getpid(), signal.SIGSTOP)


@linux
def test_a_rank_that_does_not_answer_is_lost_after_the_time_that_was_asked_for(monkeypatch):
    handler = signal.getsignal(signal.SIGINT)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1])}
    other = multiprocessing.get_context("fork").Process(target=stopped_rank, args=({**variables, "RANK": "1"},))
    other.start()
    for name, value in {**variables, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    try:
        with pytest.raises(PeersLost), joined(torch.device("cpu"), 1.5) as peers:
            begun = time.monotonic()
            peers.any(False)
        assert 1 < time.monotonic() - begun < 30
    finally:
        other.kill()
        other.join()
        signal.signal(signal.SIGINT, handler)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@linux
@pytest.mark.slow
def test_an_interrupt_stops_all_ranks_and_one_goes_on_from_their_blocks(alone, tmp_path, capsys):
    runs, latents = tmp_path / "runs", tmp_path / "latents.safetensors"
    process = begun("--gpus", 2, "--seconds", 120, "--out", tmp_path, "--runs", runs)
    wait_for(lambda: len(list(runs.glob("*/block-*"))) >= 2, process)
    while process.poll() is None:  # another Ctrl-C changes nothing
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(0.05)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, len(errors.splitlines())) == (130, "", 1), errors
    assert "interrupted" in errors and "blocks are kept" in errors and "command to go on" in errors
    assert not rank_pids()
    options = ["--seconds", SECONDS, "--out", tmp_path, "--latents", latents, "--runs", runs]
    assert main(["demo", *SMALL, *map(str, options)]) == 0
    assert json.loads(capsys.readouterr().out)["reused_blocks"] >= 2
    assert (load_file(latents)["latents"] - alone["made"]).abs().max() <= 1e-5, "blocks of two, then of one"


@linux
@pytest.mark.slow
def test_ranks_end_within_seconds_of_the_process_that_started_them(tmp_path):
    process = begun("--gpus", 2, "--seconds", 120, "--out", tmp_path, "--runs", tmp_path / "runs")
    wait_for(lambda: len(rank_pids()) == 2 and list(tmp_path.glob("runs/*/block-*")), process)
    process.kill()
    process.wait()
    until = time.monotonic() + 10
    while (left := rank_pids()) and time.monotonic() < until:
        time.sleep(0.1)
    process.stdout.close(), process.stderr.close()
    for pid in left.values():
        os.kill(pid, signal.SIGKILL)
    assert not left, "still rendering"


def test_a_run_folder_goes_from_one_rank_to_two_and_back(backbone, tmp_path):
    render = Render(backbone, tmp_path, seconds=4.0, state_seconds=1e-9)
    straight = render.straight()
    render.go(stop_after=2)

    def rank(peers, model=None, stop_after=None):
        job = render.job if peers.leads else replace(render.job, runs=None)
        model = model or WanVideoModel(render.backbone, torch.float32, forward=parallel_forward)
        made, run = rendered(job, model, rank_place(peers, torch.device("cpu"), sdpa, "sdpa"), stop_after)
        return len(run.stored), torch.cat(made)

    for reused, latents in together(2, partial(rank, stop_after=4)):
        assert reused == 2 and (latents - straight[: len(latents)]).abs().max() <= 1e-5
    latents = render.go()
    assert render.reused == 4 and (latents - straight).abs().max() <= 1e-5
    for _, again in together(2, partial(rank, model=SimpleNamespace(backbone=None))):
        assert torch.equal(again, latents), "no rank calls the model"
