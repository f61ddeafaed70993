"""A farm of Ray: https://docs.ray.io, started on this machine or running on a cluster; imported
when it is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from typing import Any, cast

from ..errors import HeadForcingError, first_sentence
from ..files import Fields
from ..names import VERSION
from .workers import Job, Outcome, Shared, Value, Workers, log

RETRIES = 3  # of a job whose worker or machine died; its error is not tried again
_POLL_SECONDS = 0.5
_STOP_SECONDS = 15.0  # a cancelled job may store what it has
# of a local Ray: jobs share text embeddings, and Ray moves to disk what is more
_OBJECT_STORE_BYTES = 500_000_000
LOCAL = "local"  # name of a farm of Ray on this machine
INSTALL = 'pip install -e ".[farm]"'
_LOCAL_SETTINGS = {
    "RAY_worker_niceness": "0",  # 15 by default: on a machine with other work jobs would starve
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray would report its use to its makers
    # without a limit by default: a video too large for the machine never ends
    "RAY_task_oom_retries": str(RETRIES),
}


class RayFarm(Workers):
    """Runs each job as a task of Ray, which is retried where its worker dies.

    Args:
        address: `local` starts Ray on this machine and ends it; `auto` finds the cluster that this
            machine belongs to; `ray://HOST:PORT` reaches another one.
        gpus: of each job; None: one where the farm has any.
        workers: jobs at a time on this machine; None: as many as it has GPUs, without any as it has
            cores.
    """

    parallel = True

    def __init__(self, address: str, gpus: float | None = None, workers: int | None = None):
        self.address = address
        self.gpus = gpus
        self.workers = workers
        self.remote = address != LOCAL
        self._stack = ExitStack()

    def __enter__(self) -> RayFarm:
        # Ray prints there what happens to workers, between a command's JSON
        with ExitStack() as stack:
            stack.enter_context(redirect_stdout(sys.stderr))
            resources = self._connect(stack)
            gpus = resources.get("GPU", 0)
            if self.gpus is None:
                self.gpus = 1.0 if gpus else 0.0
            if self.gpus > gpus and not self.remote:  # Ray would wait for them for ever
                raise HeadForcingError(
                    f"--farm-gpus asks for {self.gpus:g} GPUs a video, this machine has {gpus:g}"
                )
            workers = resources.get("CPU", 1)
            if self.gpus:
                workers = min(workers, gpus / self.gpus)
            self.workers = int(workers)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _connect(self, stack: ExitStack) -> dict[str, float]:
        """Connect to Ray, which is started unless a program has done so for several commands;
        returns its resources.
        """
        ray = _ray()
        options: Fields = {"logging_level": "error", "log_to_driver": False}
        if not self.remote:
            for name, value in _LOCAL_SETTINGS.items():
                os.environ.setdefault(name, value)
            options |= {
                "num_cpus": self.workers,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
            }
        try:
            if not ray.is_initialized():
                stack.callback(ray.shutdown)
                ray.init(address=self.address, **options)
            return cast(dict[str, float], ray.cluster_resources())
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            raise HeadForcingError(
                f"--farm {self.address} cannot be used ({first_sentence(error)}): start Ray with "
                "`ray start --head`, check the address and its token (RAY_AUTH_MODE), or use "
                "--farm local"
            ) from error

    def share(self, value: Value) -> Shared[Value]:
        return partial(_ray().get, _ray().put(value))

    def run(
        self, function: Callable[[Job], Value], jobs: Mapping[str, Job]
    ) -> Iterator[Outcome[Value]]:
        ray = _ray()
        task = ray.remote(num_cpus=1, num_gpus=self.gpus, max_retries=RETRIES)(call)
        waiting = {
            task.options(name=name).remote(function, VERSION, job): name
            for name, job in jobs.items()
        }
        try:
            with _interrupts() as interrupted:
                while waiting:
                    # asked often: a task that failed at once says so only then, and Ctrl-C is seen
                    # in between
                    ready = ray.wait(list(waiting), timeout=_POLL_SECONDS)[0]
                    if interrupted.is_set():
                        raise KeyboardInterrupt
                    for done in ready:
                        yield _outcome(waiting.pop(done), done)
        finally:
            _cancel(list(waiting))

    def describe(self) -> str:
        each = f", {self.gpus:g} GPU a video" if self.gpus else ""
        return f"Ray, {self.address}: {self.workers} at a time{each}"


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Whether there was a Ctrl-C: as an exception, it could be lost in a callback of Ray's."""
    seen = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # which alone gets it
        yield seen
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.set())
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def call(function: Callable[[Job], Value], version: str, job: Job) -> Value:
    """Run a job in a worker; refuses to mix versions of the pack."""
    if version != VERSION:
        raise HeadForcingError(
            f"this worker has version {VERSION} of Head Forcing, the command {version}: update one"
        )
    return function(job)


def _outcome(name: str, task: Any) -> Outcome[Any]:
    ray = _ray()
    try:
        return Outcome(name, ray.get(task))
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if not isinstance(cause, (HeadForcingError, OSError)):
            log.error("Head Forcing: %s failed\n%s", name, error)
        if not isinstance(cause, Exception):
            cause = HeadForcingError(first_sentence(error))
        return Outcome(name, error=cause)
    except ray.exceptions.RayError as error:
        why = (
            f"its worker died {RETRIES + 1} times, or its machine ({type(error).__name__}): "
            f"{first_sentence(error)}"
        )
        return Outcome(name, error=HeadForcingError(why))


def _cancel(tasks: list[Any]) -> None:
    """Interrupt tasks as Ctrl-C would; end those that do not stop."""
    for force in (False, True):
        for task in tasks:
            _ray().cancel(task, force=force)
        if tasks:
            tasks = _ray().wait(tasks, num_returns=len(tasks), timeout=_STOP_SECONDS)[1]


def _ray() -> Any:
    return importlib.import_module("ray")


def farm_named(name: str | None, gpus: float | None = None, workers: int | None = None) -> Workers:
    """The farm of `--farm`: None is this process alone; else as for `RayFarm`.

    Without Ray `local` is this process, too, and says so; a cluster cannot be reached without it.
    """
    if name is None:
        if gpus is not None or workers is not None:
            raise HeadForcingError(
                "--farm-gpus and --farm-workers go with --farm: add --farm local"
            )
        return Workers()
    if name not in (LOCAL, "auto") and not re.fullmatch(r"ray://[^\s/]+:\d{1,5}", name):
        raise HeadForcingError(f"--farm must be local, auto or ray://HOST:PORT, got {name!r}")
    if (gpus is not None and not 0 <= gpus <= 64) or (
        workers is not None and not 1 <= workers <= 1024
    ):
        raise HeadForcingError(
            f"--farm-gpus is from 0 to 64, --farm-workers from 1 to 1024, got {gpus}, {workers}"
        )
    if workers is not None and name != LOCAL:
        raise HeadForcingError(
            "--farm-workers goes with --farm local: a cluster knows its own size"
        )
    if importlib.util.find_spec("ray") is not None:
        return RayFarm(name, gpus, workers)
    if name != LOCAL:
        raise HeadForcingError(f"--farm {name} needs Ray, which is not installed: {INSTALL}")
    log.warning(
        "Head Forcing: Ray is not installed (%s), so everything is made one after the other",
        INSTALL,
    )
    return Workers()
