"""One video on several GPUs, with processes on a CPU in their place: refused, begun, killed,
interrupted, continued.
"""

import io
import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stdout, suppress
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from headforcing.cli import render as render_command
from headforcing.cli import several
from headforcing.cli import source as source_command
from headforcing.cli.cli import _parser, main
from headforcing.cli.ranks import RankMachine
from headforcing.cli.roles import with_roles
from headforcing.cli.source import Source
from headforcing.headforcing_core.distributed.peers import PeersLost
from headforcing.headforcing_core.distributed.ranks import check_rank_memory, check_ranks
from headforcing.headforcing_core.distributed.start_ranks import joined_ranks
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import load_profile
from headforcing.headforcing_core.render import measured_roles
from safetensors.torch import load_file
from thread_peers import Meeting, ThreadPeers, together

SECONDS = 6  # 9 blocks
MODULE = "headforcing"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SMALL = "--device cpu --json --scale 1 --sigmas 1,0.5 --update-interval 1".split()
linux = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="looks for processes in /proc"
)


def demo(*options: object) -> list[str]:
    return [sys.executable, "-m", MODULE, "demo", *SMALL, *map(str, options)]


def rank_pids() -> dict[int, int]:
    """The processes of running ranks that this test process has started, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = dict(
                line.split("=", 1)
                for line in (folder / "environ").read_text().split("\0")
                if "=" in line
            )
            if (
                variables.get("STARTED_BY") == str(os.getpid())
                and "TORCHELASTIC_RUN_ID" in variables
            ):
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


def in_this_process(command: list[str]) -> dict:
    """The report of a demo that is not begun as a process of its own."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(command[command.index(MODULE) + 1 :]) == 0
    return json.loads(out.getvalue())


def decisions(found: dict) -> list[dict]:
    """Those of episodic memory, without similarities, which may be rounded differently."""
    return [{**event, "delta": 0} for event in found["memory_events"]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """The video of one process."""
    folder = tmp_path_factory.mktemp("alone")
    command = demo(
        "--seconds", SECONDS, "--out", folder, "--latents", folder / "latents.safetensors"
    )
    made = in_this_process(command)
    return {**made, "made": load_file(folder / "latents.safetensors")["latents"]}


@linux
@pytest.mark.slow
def test_a_video_on_two_ranks_is_that_of_one_although_a_rank_is_killed(alone, tmp_path):
    """At a random moment; all ranks start again."""
    seed = random.randrange(10**6)
    sys.stdout.write(f"seed {seed}\n")
    chooser = random.Random(seed)
    runs = tmp_path / "runs"
    latents = tmp_path / "latents.safetensors"
    after = chooser.randint(1, 4)
    process = begun(
        "--gpus", 2, "--seconds", SECONDS, "--out", tmp_path, "--latents", latents, "--runs", runs
    )
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
    assert sum(map(len, chain(*(rank["heads"] for rank in ranks)))) == 48
    assert sum(rank["cache_bytes"] for rank in ranks) == alone["cache_bytes"]
    assert all(rank["sent_bytes"]["tokens"] > 1e5 for rank in ranks)
    assert (tmp_path / "demo.mp4").is_file() and not (tmp_path / "demo.part.mp4").exists()


@pytest.mark.thorough
@pytest.mark.slow
def test_three_unequal_ranks_of_another_torchrun_make_the_video_of_one_and_print_it_once(
    alone, tmp_path
):
    """The second has twice the speed of the others: more heads and half of each frame, but a third
    of the weights.
    """
    latents = tmp_path / "latents.safetensors"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    options = [
        "--gpu-speeds",
        "1,2,1",
        "--shard-weights",
        "--seconds",
        3,
        "--out",
        tmp_path,
        "--latents",
        latents,
    ]
    done = subprocess.run(
        [*torchrun, *demo(*options)[1:]],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    found = json.loads(done.stdout)
    heads = [sum(map(len, rank["heads"])) for rank in found["ranks"]["ranks"]]
    assert sum(heads) == 48 and heads[1] > 1.5 * heads[0] and heads[1] > 1.5 * heads[2]
    assert all(
        rank["weight_bytes"] <= 0.4 * alone["needs"]["weights"] for rank in found["ranks"]["ranks"]
    )
    made = load_file(latents)["latents"]
    # sums in another order
    assert len(made) >= 12 and (made - alone["made"][: len(made)]).abs().max() <= 5e-4
    assert decisions(found) == decisions(alone)[: len(decisions(found))] and decisions(found)


def stopped_rank(variables: dict[str, str]) -> None:
    os.environ.update(variables)
    with joined_ranks(torch.device("cpu")):
        os.kill(os.getpid(), signal.SIGSTOP)


@linux
def test_a_rank_that_does_not_answer_is_lost_after_the_time_that_was_asked_for(monkeypatch):
    handler = signal.getsignal(signal.SIGINT)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        variables = {
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free.getsockname()[1]),
        }
    other = multiprocessing.get_context("fork").Process(
        target=stopped_rank, args=({**variables, "RANK": "1"},)
    )
    other.start()
    for name, value in {**variables, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    try:
        with pytest.raises(PeersLost), joined_ranks(torch.device("cpu"), 1.5) as peers:
            begun = time.monotonic()
            peers.any(False)
        assert 1 < time.monotonic() - begun < 30
    finally:
        other.kill()
        other.join()
        signal.signal(signal.SIGINT, handler)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@pytest.mark.thorough
@linux
@pytest.mark.slow
def test_an_interrupt_stops_all_ranks_and_one_goes_on_from_their_blocks(alone, tmp_path, capsys):
    runs = tmp_path / "runs"
    latents = tmp_path / "latents.safetensors"
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
    assert (load_file(latents)["latents"] - alone["made"]).abs().max() <= 1e-5, (
        "blocks of two, then of one"
    )


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


WRONG = {  # options of a demo, and what is said of them
    "--shard-weights": "give --gpus 2 or more",
    "--gpus 2 --gpu-speeds 2,1,1": "--gpu-speeds must be 2 numbers, one for each rank, got 3",
    "--gpus 2 --rank-timeout 1": "--rank-timeout must be from 5 to 86400 seconds, got 1",
    "--gpus 2 --device mps": "--device must be cuda or cpu, got mps",
    "--gpus 3 --device cuda": "this machine has 2 GPUs, got --gpus 3",
    "--gpus 2 --device cuda": (
        "which this PyTorch is built without, as on Windows; use --vae-device"
    ),
    "--gpus 2 --follow story.txt": "--follow is not possible on several GPUs",
    "--gpus 2 --shard-weights --compile": "--compile with --shard-weights",
    "--gpus 7": "7 GPUs leave one without a head",
    "--gpus 2 --method rolling_forcing": "has a cache of its own",
    "--gpus 2 --prompts @missing.txt": "missing.txt",
}


@pytest.mark.parametrize("options", WRONG)
def test_what_cannot_be_done_is_refused_before_anything_starts(
    options, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(several, "start", lambda *_: pytest.fail("ranks were started"))
    words = [
        "demo",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
        *options.format(tmp=tmp_path).split(),
    ]
    assert main(words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert WRONG[options] in said


def test_ranks_of_another_torchrun_must_be_as_many_as_asked_for(capsys, monkeypatch, tmp_path):
    for name, value in (
        ("TORCHELASTIC_RUN_ID", "mine"),
        ("WORLD_SIZE", "4"),
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
    ):
        monkeypatch.setenv(name, value)
    assert main(["demo", "--out", str(tmp_path), "--gpus", "2", "--device", "cpu"]) == 2
    assert (
        capsys.readouterr().err
        == "rank 0: error: torchrun has started 4 ranks, got --gpus 2; leave it out\n"
    )


ALONE = ["demo", "--device", "cpu", "--seconds", "3"]


def planned(peers, options=()):
    """The arguments of a demo as one rank has them."""
    args = _parser().parse_args([*ALONE, *options])
    args.machine = partial(RankMachine.of_rank, peers)
    return args


def test_a_rank_whose_device_is_too_small_is_named_before_weights_are_loaded(monkeypatch):
    source = Source.of(planned(ThreadPeers(1, 2, Meeting(2)), ["--shard-weights"]))
    plan = source.request.plan()
    needs = source.check_needs(plan, None)
    whole = Source.of(_parser().parse_args(ALONE)).check_needs(plan, None)
    assert needs.cache + check_rank_memory(
        whole, plan, ThreadPeers(0, 2, Meeting(2)), sharded=False, room=None
    ).cache == pytest.approx(whole.cache, abs=1)
    assert needs.weights < whole.weights and needs.activations == whole.activations // 2
    fast = ThreadPeers(1, 2, Meeting(2))
    fast.speeds = (1.0, 3.0)
    assert (
        check_rank_memory(whole, plan, fast, sharded=False, room=None).activations
        == whole.activations * 3 // 4
    )
    # of both on one CPU
    monkeypatch.setattr(source_command, "room_on", lambda device: 2 * needs.memory - 1)
    monkeypatch.setattr(Source, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(HeadForcingError, match="rank 1 of 2: not enough memory"):
        render_command.follow(planned(source.machine.peers, ["--shard-weights"]))


def test_ranks_with_other_settings_are_refused():
    def rank(peers):
        source = Source.of(planned(peers, ["--seed", str(peers.rank // 2)]))
        check_ranks(source.job(source.request.plan(), source.encode()), peers)

    with pytest.raises(
        HeadForcingError, match=r"rank 2 of 3 has another plan than rank 0 \(\w+, not \w+\)"
    ):
        together(3, rank)


def test_ranks_measure_roles_together_and_the_first_one_keeps_them(tmp_path, monkeypatch):
    monkeypatch.setattr(measured_roles, "VIDEOS", 1)
    options = ["--profile", "auto", "--measure-seconds", "900", "--found-profiles", str(tmp_path)]

    def rank(peers):
        source = Source.of(planned(peers, options))
        job = source.job(source.request.plan(), source.encode())
        needs = source.check_needs(job.plan, None)
        job, line = with_roles(job, source.load(decodes=False), needs, source.roles_folders)
        return job.plan.shape.roles, line

    (roles, line), (others, other_line) = together(2, rank)
    (kept,) = tmp_path.iterdir()
    assert roles == others == load_profile(kept).roles
    assert kept.name in line and kept.name not in other_line


def test_speeds_that_leave_a_rank_without_work_are_refused_before_anything_is_encoded(monkeypatch):
    peers = ThreadPeers(0, 2, Meeting(2))
    peers.speeds = (1.0, 99.0)
    for step in ("check_needs", "with_start", "encode", "load"):
        monkeypatch.setattr(Source, step, lambda *_, **__: pytest.fail("something was prepared"))
    with pytest.raises(
        HeadForcingError, match="--gpu-speeds 1,99 leave one GPU without a part of the frame"
    ):
        render_command.follow(planned(peers))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.repeat("whole")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--gpus", 2), id="whole"),
        pytest.param(("--gpus", 2, "--shard-weights"), id="sharded"),
    ],
)
def test_ranks_measure_the_roles_together_and_keep_them_for_one_process(options, tmp_path, capsys):
    # a busy machine must not take the bundled list instead
    known = ("--profile", "auto", "--measure-seconds", 900, "--seconds", 1.5)
    known += ("--found-profiles", tmp_path / "found")
    command = demo(*options, *known, "--out", tmp_path / "ranks")
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    (kept,) = (tmp_path / "found").glob("*.json")
    assert load_profile(kept).counts()["memory"] == 26
    stored = kept.read_bytes()
    alone = demo(*known, "--out", tmp_path / "alone", "--runs", tmp_path / "runs")
    again = in_this_process(alone)
    assert "measuring heads" not in capsys.readouterr().err
    assert kept.read_bytes() == stored
    assert decisions(again) == decisions(json.loads(done.stdout))
