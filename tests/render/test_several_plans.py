"""What several ranks refuse before anything starts, and what each of them needs; without starting any."""

import os
import re
from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.commands import loaded as loaded_command
from headforcing.headforcing_core.commands import render as render_command
from headforcing.headforcing_core.commands import several
from headforcing.headforcing_core.commands import source as source_command
from headforcing.headforcing_core.commands.cli import _parser, main
from headforcing.headforcing_core.commands.source import Source
from headforcing.headforcing_core.distributed.ranks import check_rank_memory, check_ranks
from headforcing.headforcing_core.errors import HeadForcingError
from thread_peers import Meeting, ThreadPeers, together


@pytest.mark.parametrize(("options", "message"), [
    (("--shard-weights",), "give --gpus 2 or more"),
    (("--gpu-speeds", "2,1"), "give --gpus 2 or more"),
    (("--gpus", "2", "--gpu-speeds", "2,1,1"), "--gpu-speeds must be 2 numbers, one for each rank, got 3"),
    (("--gpus", "2", "--rank-timeout", "1"), "--rank-timeout must be from 5 to 86400 seconds, got 1"),
    (("--gpus", "2", "--device", "mps"), "--device must be cuda or cpu, got mps"),
    (("--gpus", "2", "--device", "cuda"), "this machine has 0 GPUs, got --gpus 2"),
    (("--gpus", "2", "--device", "cpu", "--cuda-graph"), "--cuda-graph is not possible on several GPUs"),
    (("--gpus", "2", "--device", "cpu", "--follow", "story.txt"), "--follow is not possible on several GPUs"),
    (("--gpus", "2", "--device", "cpu", "--shard-weights", "--compile"), "--compile with --shard-weights"),
    (("--gpus", "2", "--device", "cpu", "--shard-weights", "--fp8-linears"), "--fp8-linears with --shard-weights"),
    (("--gpus", "100000", "--device", "cpu"), "this machine has 8 processor cores, got --gpus 100000"),
    (("--gpus", "7", "--device", "cpu"), "7 GPUs leave one without a head"),
    (("--gpus", "2", "--device", "cpu", "--method", "rolling_forcing"), "has a cache of its own"),
    (("--gpus", "2", "--device", "cpu", "--profile", "auto"), "head roles cannot be found on several GPUs"),
    (("--gpus", "2", "--device", "cpu", "--prompts", "@missing.txt"), "missing.txt"),
    (("--gpus", "2", "--device", "cpu", "--prompts", "0:02 a\n0:01 b"), "0:01"),
    (("--gpus", "2", "--device", "cpu", "--sigmas", "2"), "sigmas"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused_before_anything_starts(options, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(several, "start", lambda *_: pytest.fail("ranks were started"))
    found = [] if "--profile" not in options else ["--found-profiles", str(tmp_path)]
    assert main(["demo", "--out", str(tmp_path), *found, *options]) == 2
    said = capsys.readouterr().err
    assert message in said and len(said.splitlines()) == 1


def test_a_pytorch_without_nccl_is_refused(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert main(["demo", "--out", str(tmp_path), "--gpus", "2", "--device", "cuda"]) == 2
    assert "which this PyTorch is built without, as on Windows; use --vae-device" in capsys.readouterr().err


def test_ranks_of_another_torchrun_must_be_as_many_as_asked_for(capsys, monkeypatch, tmp_path):
    for name, value in (("TORCHELASTIC_RUN_ID", "mine"), ("WORLD_SIZE", "4"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    assert main(["demo", "--out", str(tmp_path), "--gpus", "2", "--device", "cpu"]) == 2
    assert capsys.readouterr().err == "rank 0: error: torchrun has started 4 ranks, got --gpus 2; leave it out\n"


def planned(peers, options=()):
    """The arguments of a demo as one rank has them."""
    args = _parser().parse_args(["demo", "--device", "cpu", "--seconds", "3", *options])
    args.peers = peers
    return args


def test_a_rank_whose_device_is_too_small_is_named_before_weights_are_loaded(monkeypatch):
    source = Source.of(planned(ThreadPeers(1, 2, Meeting(2)), ["--shard-weights"]))
    plan = source.plan()
    needs, alone = source.check_needs(plan, None), replace(source.machine, peers=None)
    whole = replace(source, machine=alone).check_needs(plan, None)
    assert needs.cache + check_rank_memory(
        whole, plan, ThreadPeers(0, 2, Meeting(2)), False, None
    ).cache == pytest.approx(whole.cache, abs=1)
    assert needs.weights < whole.weights and needs.activations == whole.activations // 2
    fast = ThreadPeers(1, 2, Meeting(2))
    fast.speeds = (1.0, 3.0)
    assert check_rank_memory(whole, plan, fast, False, None).activations == whole.activations * 3 // 4
    monkeypatch.setattr(source_command, "room_on", lambda device: needs.memory - 1)
    monkeypatch.setattr(Source, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(HeadForcingError, match="rank 1 of 2: not enough memory"):
        render_command.follow(planned(source.machine.peers, ["--shard-weights"]))


def test_speeds_closer_to_each_other_are_a_remedy_where_a_smaller_part_fits():
    plan = Source.of(planned(None)).plan()
    needs = Source.of(planned(None)).check_needs(plan, None)
    unequal, parts = (1.0, 3.0), {}
    for rank in (0, 1):
        for speeds in (None, unequal):
            peers = ThreadPeers(rank, 2, Meeting(2))
            peers.speeds = speeds
            parts[rank, speeds] = peers, check_rank_memory(needs, plan, peers, False, None).memory
    slow, equal, fast = (parts[case][1] for case in ((0, unequal), (1, None), (1, unequal)))
    assert slow < equal < fast
    closer = re.compile(r"choose --gpu-speeds closer to each other or more --gpus")
    rooms = [((1, unequal), equal, True), ((1, unequal), equal - 1, False), ((0, unequal), slow - 1, False)]
    for case, room, helps in [*rooms, ((1, None), equal - 1, False)]:
        with pytest.raises(HeadForcingError, match="not enough memory") as refused:
            check_rank_memory(needs, plan, parts[case][0], False, room)
        assert bool(closer.search(str(refused.value))) == helps


def test_out_of_memory_names_the_rank(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError

    source = Source.of(planned(ThreadPeers(1, 2, Meeting(2))))
    monkeypatch.setattr(loaded_command, "make_video", full)
    plan = source.plan()
    with pytest.raises(HeadForcingError, match=r"^rank 1 of 2 \(cpu\): out of memory: choose [^;]*$"):
        source.load(decodes=False).render(source.job(plan, source.encode()), None)


def test_ranks_with_other_settings_are_refused():
    def rank(peers):
        source = Source.of(planned(peers, ["--seed", str(peers.rank)]))
        check_ranks(source.job(source.plan(), source.encode()), peers)

    with pytest.raises(HeadForcingError, match="rank 1 of 2 has another plan than rank 0"):
        together(2, rank)


def test_speeds_that_leave_a_rank_without_work_are_refused_before_anything_is_encoded(monkeypatch):
    peers = ThreadPeers(0, 2, Meeting(2))
    peers.speeds = (1.0, 99.0)
    for step in ("check_needs", "with_start", "encode", "load"):
        monkeypatch.setattr(Source, step, lambda *_, **__: pytest.fail("something was prepared"))
    with pytest.raises(HeadForcingError, match="--gpu-speeds 1,99 leave one GPU without a part of the frame"):
        render_command.follow(planned(peers))
