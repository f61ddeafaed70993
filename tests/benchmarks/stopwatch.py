"""Time by stage, and memory, of whatever device does the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Stopwatch:
    """Milliseconds per named stage: CUDA events on a GPU, so that nothing waits for the clock; elsewhere by `clock`."""

    clock: Callable[[], float] = time.perf_counter  # in seconds

    def __init__(self, device: torch.device):
        self.device = device
        self._spans: list[tuple[str, Any, Any]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of this block of code, on the device, to a stage."""
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
        synchronize(self.device)
        return Stopwatch.clock()


def synchronize(device: torch.device) -> None:
    """Wait until the device has done everything it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def reset_peak(device: torch.device) -> None:
    """Begin to look for the highest use of memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak of this process alone


def peak_bytes(device: torch.device) -> int | None:
    """Most memory in use since `reset_peak`: of the GPU, or of the whole process; None where nobody counts."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if device.type != "cpu" or not status.exists():
        return None
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024 * int(lines["VmHWM"].split()[0])


def tensor_bytes(root: object) -> int:
    """Bytes of all tensors that an object holds, each storage once."""
    storages: dict[int, int] = {}
    seen: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            storages[item.untyped_storage().data_ptr()] = item.untyped_storage().nbytes()
        else:
            waiting += _parts(item)
    return sum(storages.values())


def _parts(item: object) -> Iterable[object]:
    if isinstance(item, dict):
        return item.values()
    if isinstance(item, (list, tuple)):
        return item
    return vars(item).values() if hasattr(item, "__dict__") and not isinstance(item, type) else ()
