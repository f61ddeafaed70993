"""One video on several GPUs: `--gpus N` starts this command N times under torchrun, and each of
them is one rank.
"""

from __future__ import annotations

import io
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
from functools import partial
from typing import NoReturn

import torch
import torch.distributed as dist

from ..headforcing_core.distributed.division import check_division
from ..headforcing_core.distributed.peers import PeersLost
from ..headforcing_core.distributed.rank_outcome import Outcome, say, started_here
from ..headforcing_core.distributed.start_ranks import ANSWER_SECONDS, joined_ranks, restarts, start
from ..headforcing_core.errors import HeadForcingError
from . import render
from .ranks import RankMachine
from .source import Source
from .values import weight_change_of

RANK = f"{__package__}.rank"  # the program of a rank
LEAST_RANKS = 2  # that may be tried on a CPU of any size
LEAST_SECONDS = 5  # of --rank-timeout
MOST_SECONDS = 86400


def run_on_several(
    args: Namespace,
    argv: Sequence[str],
    run: Callable[[Namespace], Outcome],
    under_torchrun: bool,
) -> Outcome:
    """Run a command as one of several ranks, or start them; `run` runs it in this process."""
    if under_torchrun:
        try:
            _check_arguments(args, int(os.environ["WORLD_SIZE"]))
        except HeadForcingError as error:
            say(int(os.environ["RANK"]), (2, f"error: {error}"))
            return 2, ""
        _as_rank(args, run)
    try:
        _check_machine(args)
        _check_arguments(args, args.gpus)
        _check_render(args)
    except HeadForcingError as error:
        return 2, f"error: {error}"
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // args.gpus)))
    code, text = start(args.gpus, RANK, argv)
    if (code, text) == (130, "interrupted"):  # no rank could say what is kept
        kept = "without --runs FOLDER no block is kept"
        if args.runs is not None:
            kept = f"finished blocks are kept in {args.runs}, repeat the command to go on"
        text = f"interrupted; {kept}"
    return code, text


def _as_rank(args: Namespace, run: Callable[[Namespace], Outcome]) -> NoReturn:
    """Run one rank of a render, report its outcome, and end this process; errors while it ends
    change nothing.
    """
    device = torch.device(_kind(args.device))
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    try:
        with joined_ranks(device, args.rank_timeout or ANSWER_SECONDS) as peers:
            peers.speeds = args.gpu_speeds
            args.machine = partial(RankMachine.of_rank, peers)
            args.device = str(device)
            if not peers.leads:
                args.run = render.follow
            elif restarts():
                sys.stderr.write("note: a rank has ended; all ranks were started again\n")
            with redirect_stderr(sys.stderr if peers.leads else open(os.devnull, "w")):
                code, text = run(args)
            if code == 0:
                with suppress(PeersLost):  # everything is made
                    peers.any(False)  # no rank leaves while another still writes files
            # all stop at an interrupt, and rank 0 knows what is kept
            if peers.leads or code not in (0, 130):
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
    """The value of `--device`, `auto` resolved without using a GPU: a process that starts ranks
    needs none.
    """
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check_arguments(args: Namespace, world: int) -> None:
    """Refuse what cannot be done on so many GPUs and is seen without a model."""
    kind = _kind(args.device)
    speeds = args.gpu_speeds
    seconds = args.rank_timeout
    if args.gpus not in (1, world):
        raise HeadForcingError(
            f"torchrun has started {world} ranks, got --gpus {args.gpus}; leave it out"
        )
    if world == 1:
        raise HeadForcingError(
            "--shard-weights, --gpu-speeds and --rank-timeout are about several GPUs; give --gpus "
            "2 or more"
        )
    if speeds is not None and len(speeds) != world:
        raise HeadForcingError(
            f"--gpu-speeds must be {world} numbers, one for each rank, got {len(speeds)}"
        )
    if seconds is not None and not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise HeadForcingError(
            f"--rank-timeout must be from {LEAST_SECONDS} to {MOST_SECONDS} seconds, got "
            f"{seconds:g}"
        )
    if kind not in ("cpu", "cuda"):
        raise HeadForcingError(
            f"on several GPUs --device must be cuda or cpu, got {args.device}; each rank has its "
            "own"
        )
    if kind == "cuda" and not dist.is_nccl_available():
        raise HeadForcingError(
            "several GPUs exchange data by NCCL, which this PyTorch is built without, as on "
            "Windows; use --vae-device for the second GPU, or Linux"
        )
    impossible = {
        "--follow": (args.follow, "the ranks would read the file at different times"),
        "--fp8-linears with --shard-weights": (
            weight_change_of(args) is not None and args.shard_weights,
            "weights of one dtype are divided",
        ),
        "--compile with --shard-weights": (
            args.compile and args.shard_weights,
            "weights move between passes",
        ),
    }
    for option, (given, reason) in impossible.items():
        if given:
            raise HeadForcingError(
                f"{option} is not possible on several GPUs, {reason}; leave it out, or leave out "
                "--gpus"
            )


def _check_machine(args: Namespace) -> None:
    """Refuse more ranks than this machine has room for."""
    if _kind(args.device) == "cuda":
        gpus = torch.cuda.device_count()
        if gpus < args.gpus:
            raise HeadForcingError(
                f"this machine has {gpus} GPUs, got --gpus {args.gpus}; choose fewer"
            )
        return
    cores = os.cpu_count() or 1
    if args.gpus > max(LEAST_RANKS, cores):
        raise HeadForcingError(
            f"this machine has {cores} processor cores, got --gpus {args.gpus}; choose fewer"
        )


def _check_render(args: Namespace) -> None:
    """Refuse what `demo` or `generate` would refuse as ranks of this machine, as far as it is seen
    without a GPU.
    """
    render.check_outputs(args)
    with redirect_stderr(io.StringIO()):  # rank 0 has the same notes
        # on a GPU this process would hold memory of the first one
        source = Source.of(args, elsewhere=True)
    plan = source.request.plan()
    check_division(plan.shape, args.gpus, args.gpu_speeds)
    source.check_encoders(plan)
    source.check_needs(plan, args.out, elsewhere=True)
