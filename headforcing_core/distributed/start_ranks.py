"""Start the ranks of a render under torchrun, and join them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # not in __all__
from torch.distributed.rendezvous import rendezvous

from ..files import claimed_folder
from .peers import Peers, losing_peers
from .rank_outcome import FOLDER, Outcome, said

RESTARTS = 3
# a rank that says nothing for so long is taken for dead; loading may differ by minutes
ANSWER_SECONDS = 600.0


def start(ranks: int, module: str, arguments: Sequence[str]) -> Outcome:
    """Run `python -m module arguments` as `ranks` processes of this machine under torchrun; returns
    when they are done.

    When a rank ends without an outcome (`rank_outcome.say`), all of them are started again, at most
    `RESTARTS` times.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _interrupted_once()
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):  # what a user needs to know is said here
            logging.getLogger(name).setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="headforcing-") as folder, claimed_folder(Path(folder)):
        os.environ[FOLDER] = folder
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=RESTARTS,
            logs_specs=DefaultLogsSpecs(log_dir=folder),
        )
        ended: Outcome = (0, "")
        try:
            elastic_launch(config, sys.executable)("-m", module, *arguments)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            sys.stderr.write(
                f"error: rank {rank} of {ranks} ended {RESTARTS + 1} times, at last with exit code "
                f"{failure.exitcode}; its messages stand above, and with --runs the same command "
                "goes on\n"
            )
            # what is printed with exit code 1 is a result, as of a batch in which one video failed
            ended = 1, ""
        except (SignalException, KeyboardInterrupt):
            ended = 130, "interrupted"
        finally:
            del os.environ[FOLDER]
        return said(Path(folder)) or ended


def _interrupted_once() -> None:
    """Take the first Ctrl-C only: another one would cut off how torchrun ends the ranks, and what
    they say.
    """
    from torch.distributed.elastic.multiprocessing import api

    def stop(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise api.SignalException(f"signal {signum}", signal.Signals(signum))

    if threading.current_thread() is threading.main_thread():  # which alone gets signals
        api._terminate_process_handler = stop  # registered by torchrun whenever it starts the ranks
        signal.signal(signal.SIGINT, stop)


def restarts() -> int:
    """Number of times that the ranks have been started again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def joined_ranks(device: torch.device, answer_seconds: float = ANSWER_SECONDS) -> Iterator[Peers]:
    """The ranks of this render, joined by NCCL on CUDA devices and by gloo on CPUs; an interrupt
    stops all of them.

    A rank whose exchange is not answered for `answer_seconds`, or while it ends, raises PeersLost.
    """
    # processes do not start at the same time
    begins = timedelta(seconds=max(answer_seconds, ANSWER_SECONDS))
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    with losing_peers():
        store, rank, world = next(rendezvous("env://", timeout=begins))
        # the store outlives the ranks: those that are started again must not find the addresses of
        # those that ended
        store = PrefixStore(f"start {restarts()}", store)
        store.set(f"here {rank}", "")
        store.wait([f"here {other}" for other in range(world)], begins)
        timeout = timedelta(seconds=answer_seconds)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    peers = Peers(rank, world)

    def stop(number: int, frame: object) -> None:
        peers.stopping = True

    signal.signal(signal.SIGINT, stop)
    yield peers
    # not after an error: it would wait for the others
    with suppress(RuntimeError):  # of ranks that are gone already
        dist.destroy_process_group()
