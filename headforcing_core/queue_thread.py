"""A thread that takes items from a queue, so that the caller does not wait for what is done with
them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .devices import download

Item = TypeVar("Item")
# has arrived when the event has happened, None: now
HostCopy = tuple[Tensor, torch.cuda.Event | None]

_POLL_SECONDS = 0.1


class Abandoned(Exception):
    """Ends the work of a thread that was abandoned."""


class QueueThread(Generic[Item]):
    """Hands items to `work` in a thread of its own, in order; an error there is raised by the
    caller's next call.

    Leaving its `with` block waits until everything is worked off, also after an error elsewhere.

    Args:
        work: gets the items as they come.
        length: of the queue; `put` waits while it is full.
        while_waiting: called every 0.1 s while a call waits; may raise, for example to cancel.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Iterator[Item]], None],
        length: int,
        while_waiting: Callable[[], None] = lambda: None,
    ):
        self._while_waiting = while_waiting
        self._queue: queue.Queue[Item | None] = queue.Queue(length)
        self._error: BaseException | None = None
        self._abandoned = False
        # `work` as an argument, which a thread that has ended lets go of: it may hold what holds
        # this
        self._thread = threading.Thread(
            target=self._run, args=(work,), name=f"head forcing {name}", daemon=True
        )

    def __enter__(self) -> QueueThread[Item]:
        self._thread.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: Any) -> None:
        self._end()
        if error_type is None:
            self.check()

    def check(self) -> None:
        """Raise the error of the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def put(self, item: Item) -> None:
        """Queue an item."""
        self._put(item)
        self.check()

    def settle(self) -> None:
        """Wait until the queue is empty; more items may follow."""
        while self._thread.is_alive() and self._queue.unfinished_tasks:
            self._while_waiting()
            with self._queue.all_tasks_done:
                if self._queue.unfinished_tasks:
                    self._queue.all_tasks_done.wait(_POLL_SECONDS)
        self.check()

    def finish(self) -> None:
        """Wait until the queue is empty; no item may follow."""
        self._end()
        self.check()

    def abandon(self) -> None:
        """End the thread before the next item: `work` gets `Abandoned`."""
        self._abandoned = True
        if self._queue.empty():
            self._queue.put(None)
        self._thread.join()

    def _end(self) -> None:
        self._put(None)
        while self._thread.is_alive():
            self._while_waiting()
            self._thread.join(_POLL_SECONDS)

    def _put(self, item: Item | None) -> None:
        while self._thread.is_alive():
            try:
                return self._queue.put(item, timeout=_POLL_SECONDS)
            except queue.Full:
                self._while_waiting()

    def _items(self) -> Iterator[Item]:
        while (item := self._queue.get()) is not None and not self._abandoned:
            yield item
            self._queue.task_done()
        if self._abandoned:
            raise Abandoned

    def _run(self, work: Callable[[Iterator[Item]], None]) -> None:
        try:
            work(self._items())
        except BaseException as error:  # raised by the next call in the caller's thread
            self._error = error


def to_host(tensor: Tensor) -> HostCopy:
    """Begin to copy a tensor to pinned memory of the host, without waiting for a GPU."""
    if not tensor.is_cuda:
        return tensor.cpu(), None
    with torch.cuda.device(tensor.device):
        copy = download(tensor)
        copied = torch.cuda.Event()
        copied.record()
    return copy, copied


def arrived(copies: Iterable[HostCopy]) -> Iterator[Tensor]:
    """Yield the tensors of `to_host`, each when it has arrived."""
    for tensor, copied in copies:
        if copied is not None:
            copied.synchronize()
        yield tensor
