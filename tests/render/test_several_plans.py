"""What several ranks refuse before anything starts, and what each of them needs; without starting any."""

import os
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

WRONG = {  # options of a demo, and what is said of them
    "--shard-weights": "give --gpus 2 or more",
    "--gpus 2 --gpu-speeds 2,1,1": "--gpu-speeds must be 2 numbers, one for each rank, got 3",
    "--gpus 2 --rank-timeout 1": "--rank-timeout must be from 5 to 86400 seconds, got 1",
    "--gpus 2 --device mps": "--device must be cuda or cpu, got mps",
    "--gpus 3 --device cuda": "this machine has 2 GPUs, got --gpus 3",
    "--gpus 2 --device cuda": "which this PyTorch is built without, as on Windows; use --vae-device",
    "--gpus 2 --cuda-graph": "--cuda-graph is not possible on several GPUs",
    "--gpus 2 --follow story.txt": "--follow is not possible on several GPUs",
    "--gpus 2 --shard-weights --compile": "--compile with --shard-weights",
    "--gpus 7": "7 GPUs leave one without a head", "--gpus 2 --method rolling_forcing": "has a cache of its own",
    "--gpus 2 --profile auto --found-profiles {tmp}": "head roles cannot be found on several GPUs",
    "--gpus 2 --prompts @missing.txt": "missing.txt",
}  # fmt: skip


@pytest.mark.parametrize("options", WRONG)
def test_what_cannot_be_done_is_refused_before_anything_starts(options, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(several, "start", lambda *_: pytest.fail("ranks were started"))
    words = ["demo", "--device", "cpu", "--out", str(tmp_path), *options.format(tmp=tmp_path).split()]
    assert main(words) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert WRONG[options] in said


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
    monkeypatch.setattr(source_command, "room_on", lambda device: 2 * needs.memory - 1)  # of both on one CPU
    monkeypatch.setattr(Source, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(HeadForcingError, match="rank 1 of 2: not enough memory"):
        render_command.follow(planned(source.machine.peers, ["--shard-weights"]))


def test_speeds_closer_to_each_other_are_a_remedy_where_a_smaller_part_fits():
    source, unequal = Source.of(planned(None)), (1.0, 3.0)
    plan = source.plan()
    needs = source.check_needs(plan, None)

    def part(rank, speeds, room=None):
        peers = ThreadPeers(rank, 2, Meeting(2))
        peers.speeds = speeds
        return check_rank_memory(needs, plan, peers, False, room).memory

    slow, equal, fast = part(0, unequal), part(1, None), part(1, unequal)
    assert slow < equal < fast
    for rank, room, helps in ((1, equal, True), (1, equal - 1, False), (0, slow - 1, False)):
        with pytest.raises(HeadForcingError, match="not enough memory") as refused:
            part(rank, unequal, room)
        assert ("choose --gpu-speeds closer to each other or more --gpus" in str(refused.value)) == helps


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
        source = Source.of(planned(peers, ["--seed", str(peers.rank // 2)]))
        check_ranks(source.job(source.plan(), source.encode()), peers)

    with pytest.raises(HeadForcingError, match=r"rank 2 of 3 has another plan than rank 0 \(\w+, not \w+\)"):
        together(3, rank)


def test_speeds_that_leave_a_rank_without_work_are_refused_before_anything_is_encoded(monkeypatch):
    peers = ThreadPeers(0, 2, Meeting(2))
    peers.speeds = (1.0, 99.0)
    for step in ("check_needs", "with_start", "encode", "load"):
        monkeypatch.setattr(Source, step, lambda *_, **__: pytest.fail("something was prepared"))
    with pytest.raises(HeadForcingError, match="--gpu-speeds 1,99 leave one GPU without a part of the frame"):
        render_command.follow(planned(peers))
