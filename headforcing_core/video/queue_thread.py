"""A thread that takes tensors from a queue, so that the caller does not wait for what is done with them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

_POLL_SECONDS = 0.1


class Abandoned(Exception):
    """Ends the work of a thread that was abandoned."""


class QueueThread:
    """Hands tensors to `work` in a thread of its own, in order; an error there is raised by the caller's next call.

    Leaving its `with` block waits until everything is worked off, also after an error elsewhere.

    Args:
        work: gets the tensors, in the host's memory, as they come.
        length: of the queue; `put` waits while it is full.
        while_waiting: called every 0.1 s while a call waits; may raise, for example to cancel.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Iterator[Tensor]], None],
        length: int,
        while_waiting: Callable[[], None] = lambda: None,
    ):
        self._while_waiting = while_waiting
        self._queue: queue.Queue[tuple[Tensor, torch.cuda.Event | None] | None] = queue.Queue(length)
        self._error: BaseException | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"head forcing {name}", daemon=True)

    def __enter__(self) -> QueueThread:
        self._thread.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._wait()
        if error_type is None:
            self.check()

    def put(self, tensor: Tensor) -> None:
        """Queue a tensor, on any device, without waiting for a GPU."""
        self.check()
        self._put(to_host(tensor))
        self.check()

    def finish(self) -> None:
        """Wait until everything is worked off."""
        self._wait()
        self.check()

    def abandon(self) -> None:
        """End the thread before the next tensor: `work` gets `Abandoned`."""
        self._abandoned = True
        if self._queue.empty():
            self._queue.put(None)
        self._thread.join()

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        self._put(None)
        while self._thread.is_alive():
            self._while_waiting()
            self._thread.join(_POLL_SECONDS)

    def _put(self, item: tuple[Tensor, torch.cuda.Event | None] | None) -> None:
        while self._thread.is_alive():
            try:
                return self._queue.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                self._while_waiting()

    def _tensors(self) -> Iterator[Tensor]:
        while (item := self._queue.get()) is not None:
            if self._abandoned:
                break
            tensor, copied = item
            if copied is not None:
                copied.synchronize()
            yield tensor
        if self._abandoned:
            raise Abandoned

    def _run(self, work: Callable[[Iterator[Tensor]], None]) -> None:
        try:
            work(self._tensors())
        except BaseException as error:  # raised by the next call in the caller's thread
            self._error = error


def to_host(tensor: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Begin to copy a tensor to pinned memory of the host; it has arrived when the event has happened, None: now."""
    if not tensor.is_cuda:
        return tensor.cpu(), None
    with torch.cuda.device(tensor.device):
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copy.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
    return copy, copied
