"""One video on several GPUs, with processes on a CPU in their place: started, killed, interrupted, continued."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.commands.cli import _parser, main
from headforcing.headforcing_core.commands.ranks import check_rank_memory, check_ranks
from headforcing.headforcing_core.commands.source import Source
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.parallel.cache import parallel_forward
from headforcing.headforcing_core.parallel.start import start
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.video_rollout import VideoRollout
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from headforcing.headforcing_core.runs.folder import RunFolder
from safetensors.torch import load_file
from thread_peers import Meeting, ThreadPeers, together
from toy_renders import Render

SECONDS, BLOCKS = 12, 17
MODULE = "headforcing.headforcing_core"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")


def demo(*options: object) -> list[str]:
    return [sys.executable, "-m", MODULE, "demo", "--device", "cpu", "--json", *map(str, options)]


def rank_pids() -> dict[int, int]:
    """The processes of running ranks that this test process has started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = dict(line.split("=", 1) for line in (folder / "environ").read_text().split("\0") if "=" in line)
        except OSError:
            continue
        if variables.get("STARTED_BY") == str(os.getpid()) and "TORCHELASTIC_RUN_ID" in variables:
            found[int(variables["RANK"])] = int(folder.name)
    return found


def begun(*options: object) -> subprocess.Popen:
    environment = {**ENVIRONMENT, "STARTED_BY": str(os.getpid())}
    return subprocess.Popen(demo(*options), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_blocks(process: subprocess.Popen, runs: Path, count: int) -> None:
    until = time.monotonic() + 120
    while len(list(runs.glob("*/block-*"))) < count:
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.02)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """The video of one process, with what it has imported."""
    folder = tmp_path_factory.mktemp("alone")
    program = f"from {MODULE}.commands.cli import main\nimport sys\ncode = main(sys.argv[1:])\n" + (
        "sys.stderr.write('\\n' + ' '.join(sys.modules))\nsys.exit(code)"
    )
    options = ["--seconds", SECONDS, "--out", folder, "--latents", folder / "latents.safetensors", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", program, "demo", "--json", *map(str, options)],
        env=ENVIRONMENT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    imported = done.stderr.splitlines()[-1].split()
    return {
        **json.loads(done.stdout),
        "modules": imported,
        "made": load_file(folder / "latents.safetensors")["latents"],
    }


@pytest.mark.slow
def test_a_video_on_one_gpu_imports_nothing_of_this(alone):
    ours = [name for name in alone["modules"] if name.startswith(MODULE)]
    assert len(ours) > 50
    assert not [name for name in ours if ".parallel" in name or name.endswith((".several", ".ranks", ".rank"))]


@linux
@pytest.mark.slow
def test_a_video_on_two_ranks_is_that_of_one_although_a_rank_is_killed(alone, tmp_path):
    runs, latents = tmp_path / "runs", tmp_path / "latents.safetensors"
    options = ("--seconds", SECONDS, "--out", tmp_path, "--latents", latents, "--runs", runs)
    process = begun("--gpus", 2, "--shard-weights", *options)
    blocks, rank = random.randint(1, 12), random.randint(0, 1)
    wait_for_blocks(process, runs, blocks)
    os.kill(rank_pids()[rank], signal.SIGKILL)
    out, errors = process.communicate(timeout=180)
    assert process.returncode == 0, f"rank {rank} killed after {blocks} blocks: {errors}"
    assert "all ranks were started again" in errors and "Traceback" not in errors
    found = json.loads(out)
    assert found["reused_blocks"] >= blocks
    assert (load_file(latents)["latents"] - alone["made"]).abs().max() <= 1e-5
    decisions = [[{**event, "delta": 0} for event in made["memory_events"]] for made in (found, alone)]
    assert decisions[0] == decisions[1] and len(decisions[0]) > 4
    report = found["ranks"]
    assert len(report["ranks"]) == 2 and 1 <= report["worst_over_mean"] < 1.2 and report["slowest_rank"] in (0, 1)
    assert sum(len(layer) for rank in report["ranks"] for layer in rank["heads"]) == 48
    assert sum(rank["cache_bytes"] for rank in report["ranks"]) == alone["cache_bytes"]
    assert all(rank["sent_bytes"]["tokens"] > 1e6 for rank in report["ranks"])
    assert all(rank["weight_bytes"] <= 0.55 * alone["needs"]["weights"] for rank in report["ranks"])
    assert (tmp_path / "demo.mp4").is_file() and not (tmp_path / "demo.part.mp4").exists()


@linux
@pytest.mark.slow
def test_an_interrupt_stops_all_ranks_and_one_goes_on_from_their_blocks(alone, tmp_path, capsys):
    runs, latents = tmp_path / "runs", tmp_path / "latents.safetensors"
    process = begun("--gpus", 2, "--seconds", 60, "--out", tmp_path, "--runs", runs)
    wait_for_blocks(process, runs, 2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "") and "Traceback" not in errors
    assert "interrupted" in errors and "blocks are kept" in errors and "command to go on" in errors
    assert not rank_pids()
    options = ["--seconds", SECONDS, "--out", tmp_path, "--latents", latents, "--runs", runs, "--device", "cpu"]
    assert main(["demo", "--json", *map(str, options)]) == 0
    assert json.loads(capsys.readouterr().out)["reused_blocks"] >= 2
    assert (load_file(latents)["latents"] - alone["made"]).abs().max() <= 1e-5, "blocks of two, then of one"


@linux
@pytest.mark.slow
def test_a_rank_that_breaks_when_all_is_done_changes_nothing(monkeypatch, capfd):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    assert start(2, "breaking_rank", []) == (0, "made")
    assert capfd.readouterr().out == "", "printed once, by the process that started the ranks"


@pytest.mark.slow
def test_what_all_ranks_refuse_is_said_once(tmp_path):
    options = ("--gpus", 2, "--method", "rolling_forcing", "--seconds", 3, "--out", tmp_path)
    done = subprocess.run(demo(*options), env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr.count("error: ") == done.stderr.count("has a cache of its own") == 1
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpus", "0"), "--gpus must be 1 or more, got 0"),
        (("--shard-weights",), "give --gpus 2 or more"),
        (("--gpus", "2", "--device", "mps"), "--device must be cuda or cpu, got mps"),
        (("--gpus", "2", "--device", "cuda"), "this machine has 0 GPUs, got --gpus 2"),
        (("--gpus", "2", "--device", "cpu", "--cuda-graph"), "--cuda-graph is not possible on several GPUs"),
        (("--gpus", "2", "--device", "cpu", "--follow", "story.txt"), "--follow is not possible on several GPUs"),
        (("--gpus", "2", "--device", "cpu", "--shard-weights", "--compile"), "--compile with --shard-weights"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(options, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["demo", "--out", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


def test_ranks_of_another_torchrun_must_be_as_many_as_asked_for(capsys, monkeypatch, tmp_path):
    for name, value in (("TORCHELASTIC_RUN_ID", "mine"), ("WORLD_SIZE", "4"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert main(["demo", "--out", str(tmp_path), "--gpus", "2", "--device", "cpu"]) == 2
    assert "torchrun has started 4 ranks, got --gpus 2" in capsys.readouterr().err


def planned(peers, options=()):
    """The arguments of a demo as one rank has them."""
    args = _parser().parse_args(["demo", "--device", "cpu", "--seconds", "3", *options])
    args.peers = peers
    return args


def test_a_rank_whose_device_is_too_small_is_named_before_weights_are_loaded():
    source = Source.demo(planned(ThreadPeers(1, 2, Meeting(2)), ["--shard-weights"]))
    plan = source.plan()
    needs, alone = source.check_needs(plan, None), replace(source.machine, peers=None)
    whole = replace(source, machine=alone).check_needs(plan, None)
    assert needs.cache + check_rank_memory(
        whole, plan, ThreadPeers(0, 2, Meeting(2)), False, None
    ).cache == pytest.approx(whole.cache, abs=1)
    assert needs.weights < whole.weights and needs.activations == whole.activations // 2
    with pytest.raises(HeadForcingError, match="rank 1 of 2: not enough memory"):
        check_rank_memory(whole, plan, source.machine.peers, True, needs.memory - 1)


def test_out_of_memory_names_the_rank(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError

    source = Source.demo(planned(ThreadPeers(1, 2, Meeting(2))))
    monkeypatch.setattr(RenderJob, "run", full)
    plan = source.plan()
    with pytest.raises(HeadForcingError, match=r"^rank 1 of 2 \(cpu\): out of memory: choose [^;]*$"):
        source.load(decodes=False).render(source.job(plan, source.encode()), None)


def test_ranks_with_other_settings_are_refused():
    def rank(peers):
        source = Source.demo(planned(peers, ["--seed", str(peers.rank)]))
        check_ranks(source.job(source.plan(), source.encode()), peers)

    with pytest.raises(HeadForcingError, match="rank 1 of 2 has another plan than rank 0"):
        together(2, rank)


def test_roles_cannot_be_found_on_several_ranks():
    source = Source.demo(planned(ThreadPeers(0, 2, Meeting(2)), ["--profile", "auto"]))
    with pytest.raises(HeadForcingError, match="head roles cannot be found on several GPUs"):
        check_ranks(source.job(source.plan(), source.encode()), source.machine.peers)


def test_a_run_folder_goes_from_one_rank_to_two_and_back(backbone, tmp_path):
    render = Render(backbone, tmp_path, seconds=6.0, state_seconds=1e-9)
    straight = render.straight()
    render.go(stop_after=3)

    def rank(peers):
        run = RunFolder(render.folder, render.setup, {}).__enter__() if peers.leads else None
        video = VideoRollout(
            render.plan, render.seed, dtype=torch.float32, run=run, keys=render.keys, peers=peers, state_seconds=1e-9
        )
        model = WanVideoModel(render.backbone, render.embeds, torch.float32, forward=parallel_forward)
        made = [next(blocks).latents for blocks in [video.blocks(model)] for _ in range(6)]
        if run is not None:
            run.__exit__(None, None, None)
        return video.reused, torch.cat(made)

    for reused, latents in together(2, rank):
        assert reused == 3 and (latents - straight[: len(latents)]).abs().max() <= 1e-5
    latents = render.go()
    assert render.video.reused == 6 and (latents - straight).abs().max() <= 1e-5
