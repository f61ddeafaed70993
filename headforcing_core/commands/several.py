"""One video on several GPUs: `--gpus N` starts this command N times under torchrun, and each of them is one rank."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, suppress
from typing import NoReturn

import torch
import torch.distributed as dist

from ..distributed.division import check_division
from ..distributed.peers import PeersLost
from ..distributed.rank_outcome import Outcome, say, started_here
from ..distributed.ranks import check_roles
from ..distributed.start_ranks import ANSWER_SECONDS, joined, restarts, start
from ..errors import HeadForcingError
from . import render
from .source import Source

RANK = f"{__package__}.rank"  # the program of a rank
LEAST_RANKS = 2  # that may be tried on a CPU of any size
LEAST_SECONDS, MOST_SECONDS = 5, 86400  # of --rank-timeout


def run_on_several(
    args: argparse.Namespace, argv: Sequence[str], run: Callable[[argparse.Namespace], Outcome], under_torchrun: bool
) -> Outcome:
    """Run a command as one of several ranks, or start them; `run` runs it in this process."""
    try:
        for mistake in _mistakes(args, under_torchrun):
            raise HeadForcingError(mistake)
        if not under_torchrun:
            _check_before_start(args)
    except HeadForcingError as error:
        refused = 2, f"error: {error}"
        if not under_torchrun:
            return refused
        say(int(os.environ["RANK"]), refused)
        return 2, ""
    if under_torchrun:
        _as_rank(args, run)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // args.gpus)))
    code, text = start(args.gpus, RANK, argv)
    if (code, text) == (130, "interrupted"):  # no rank could say what is kept
        kept = "without --runs FOLDER no block is kept"
        if args.runs is not None:
            kept = f"finished blocks are kept in {args.runs}, repeat the command to go on"
        text = f"interrupted; {kept}"
    return code, text


def _as_rank(args: argparse.Namespace, run: Callable[[argparse.Namespace], Outcome]) -> NoReturn:
    """Run one rank of a render, report its outcome, and end this process; errors while it ends change nothing."""
    kind = _kind(args.device)
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    try:
        with joined(device, args.rank_timeout or ANSWER_SECONDS) as peers:
            args.peers, args.device, peers.speeds = peers, str(device), args.gpu_speeds
            if not peers.leads:
                args.run = render.follow
            elif restarts():
                sys.stderr.write("note: a rank has ended; all ranks were started again\n")
            with redirect_stderr(sys.stderr if peers.leads else open(os.devnull, "w")):
                code, text = run(args)
            if code == 0:
                with suppress(PeersLost):  # everything is made
                    peers.any(False)  # no rank leaves while another still writes files
            if peers.leads or code not in (0, 130):  # all stop at an interrupt, and rank 0 knows what is kept
                say(peers.rank, (code, text))
            if code == 130 and started_here():
                code = 0  # nothing to start again
            if code:
                _end(code)  # the others may be waiting for this rank: torchrun ends them
    except PeersLost as lost:
        sys.stderr.write(f"note: rank {os.environ['RANK']} lost another rank: {lost}\n")
        _end(1)
    _end(0)


def _end(code: int) -> NoReturn:
    """End this process without waiting for threads, which may wait for another rank."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _kind(device: str) -> str:
    """The value of `--device`, `auto` resolved without using a GPU: a process that starts ranks needs none."""
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def _mistakes(args: argparse.Namespace, under_torchrun: bool) -> Iterator[str]:
    """Sentences on what cannot be done on several GPUs and can be seen without a model."""
    world, kind = int(os.environ["WORLD_SIZE"]) if under_torchrun else args.gpus, _kind(args.device)
    speeds, seconds, sharded = args.gpu_speeds, args.rank_timeout, args.shard_weights
    if args.gpus not in (1, world):
        yield f"torchrun has started {world} ranks, got --gpus {args.gpus}; leave it out"
    if world == 1:
        yield "--shard-weights, --gpu-speeds and --rank-timeout are about several GPUs; give --gpus 2 or more"
    if speeds is not None and len(speeds) != world:
        yield f"--gpu-speeds must be {world} numbers, one for each rank, got {len(speeds)}"
    if seconds is not None and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        yield f"--rank-timeout must be from {LEAST_SECONDS} to {MOST_SECONDS} seconds, got {seconds:g}"
    if kind not in ("cpu", "cuda"):
        yield f"on several GPUs --device must be cuda or cpu, got {args.device}; each rank has its own"
    if kind == "cuda" and not under_torchrun and torch.cuda.device_count() < world:
        yield f"this machine has {torch.cuda.device_count()} GPUs, got --gpus {world}; choose fewer"
    if kind == "cpu" and not under_torchrun and world > max(LEAST_RANKS, cores := os.cpu_count() or 1):
        yield f"this machine has {cores} processor cores, got --gpus {world}; choose fewer"
    if kind == "cuda" and not dist.is_nccl_available():
        yield (
            "several GPUs exchange data by NCCL, which this PyTorch is built without, as on Windows; use --vae-device "
            "for the second GPU, or Linux"
        )
    why = {
        "--cuda-graph": args.cuda_graph and "a graph cannot hold the exchanges between ranks",
        "--follow": args.follow and "the ranks would read the file at different times",
        "--fp8-linears with --shard-weights": args.fp8_linears and sharded and "weights of one dtype are divided",
        "--compile with --shard-weights": args.compile and sharded and "weights move between passes",
    }
    for option, reason in why.items():
        if reason:
            yield f"{option} is not possible on several GPUs, {reason}; leave it out, or leave out --gpus"


def _check_before_start(args: argparse.Namespace) -> None:
    """Refuse what `demo` or `generate` would refuse as ranks of this machine, as far as it is seen without a GPU."""
    render.check_outputs(args)
    with redirect_stderr(io.StringIO()):  # rank 0 has the same notes
        source = Source.of(args, elsewhere=True)  # on a GPU this process would hold memory of the first one
    plan = source.request.plan()
    check_division(plan.shape, args.gpus, args.gpu_speeds)
    source.check_encoders(plan)
    job = source.job(plan, {}).with_request(runs=None)  # keys of blocks would need embeddings
    check_roles(job.with_found_roles().plan)
    source.check_needs(plan, args.out, elsewhere=True)
