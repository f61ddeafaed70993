"""Time by stage, and memory, of whatever device does the work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from headforcing.tests.helpers import peak_memory
from torch import Tensor


class Stopwatch:
    """Milliseconds per named stage: CUDA events on a GPU, so that nothing waits for the clock;
    elsewhere by `clock`.
    """

    clock: Callable[[], float] = time.perf_counter  # in seconds

    def __init__(self, device: torch.device):
        self.device = device
        self._spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of this block of code, on the device, to a stage; or, as a decorator, that
        of every call.
        """
        start = self._now()
        yield
        self._spans.append((name, start, self._now()))

    def lap(self) -> dict[str, float]:
        """Milliseconds of every stage since the last lap; waits for the device."""
        synchronize(self.device)
        laps: dict[str, float] = {}
        for name, start, end in self._spans:
            span = start.elapsed_time(end) if self.device.type == "cuda" else 1000 * (end - start)
            laps[name] = laps.get(name, 0.0) + span
        self._spans.clear()
        return laps

    def _now(self) -> Any:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return Stopwatch.clock()


def fastest(
    device: torch.device, run: Callable[[], Any], repetitions: int = 10, warm_up: int = 3
) -> float:
    """Milliseconds of a call, the fastest of some after those that wake the device up."""
    watch = Stopwatch(device)
    times = []
    for _ in range(warm_up + repetitions):
        with watch.stage("call"):
            run()
        times.append(watch.lap()["call"])
    return min(times[warm_up:])


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    """Begin to look for the highest use of memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of this process alone


def peak_bytes(device: torch.device) -> int | None:
    """Most memory in use since `reset_peak`: of the GPU, or of the whole process; None where nobody
    counts.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_memory.peak_bytes() if sys.platform == "linux" else None


def tensor_bytes(root: object) -> int:
    """Bytes of all tensors that an object holds, each storage once."""
    storages = dict[int, int]()
    seen = set[int]()
    waiting = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        elif isinstance(item, (list, tuple, dict)):
            waiting += item.values() if isinstance(item, dict) else item
        elif hasattr(item, "__dict__") and not isinstance(item, type):
            waiting += vars(item).values()
    return sum(storages.values())
