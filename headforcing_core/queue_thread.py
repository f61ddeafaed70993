"""A thread that runs tasks in order, so that the caller does not wait for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from queue import SimpleQueue
from threading import Event, Semaphore, Thread

import torch
from torch import Tensor

from .devices import download

Task = Callable[[], None]
# has arrived when the event has happened, None: now
HostCopy = tuple[Tensor, torch.cuda.Event | None]

_POLL_SECONDS = 0.1


class QueueThread:
    """Runs tasks in a thread of its own, in order. After an error it runs no more of them; the
    caller's next call raises it.

    Leaving its `with` block waits until all are done, also after an error elsewhere.

    Args:
        length: tasks that may wait; `put` waits while there are more.
        while_waiting: called every 0.1 s while a call waits; may raise, for example to cancel.
    """

    def __init__(self, name: str, length: int, while_waiting: Callable[[], None] = lambda: None):
        self._places = Semaphore(length + 1)  # of tasks that wait, and the one that runs
        self._while_waiting = while_waiting
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._error: BaseException | None = None
        # as a daemon, so that a program that ends does not wait for the tasks
        self._thread = Thread(target=self._run, name=f"head forcing {name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> QueueThread:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._end()
        if error_type is None:
            self.check()

    def check(self) -> None:
        """Raise the error of a task, if there is one."""
        if self._error is not None:
            raise self._error

    def put(self, task: Task) -> None:
        """Queue a task."""
        self._wait(self._places.acquire)
        self._tasks.put(task)

    def settle(self) -> None:
        """Wait until all tasks are done; more may follow."""
        done = Event()
        self.put(done.set)
        self._wait(done.wait)

    def abandon(self) -> None:
        """End the thread before the next task."""
        self._error = CancelledError()
        self._end()

    def _end(self) -> None:
        self._tasks.put(None)
        while self._thread.is_alive():
            self._thread.join(_POLL_SECONDS)  # Windows hears Ctrl+C only between two waits

    def _wait(self, happened: Callable[..., bool]) -> None:
        while self._error is None and not happened(timeout=_POLL_SECONDS):
            self._while_waiting()
        self.check()

    def _run(self) -> None:
        for task in iter(self._tasks.get, None):
            if self._error is None:
                try:
                    task()
                except BaseException as error:  # raised by the next call in the caller's thread
                    self._error = error
            del task  # and its tensors, while the next one is awaited
            self._places.release()


def to_host(tensor: Tensor) -> HostCopy:
    """Begin to copy a tensor to pinned memory of the host, without waiting for a GPU."""
    if not tensor.is_cuda:
        return tensor.cpu(), None
    with torch.cuda.device(tensor.device):
        copy = download(tensor)
        copied = torch.cuda.Event()
        copied.record()
    return copy, copied


def arrived(copy: HostCopy) -> Tensor:
    """The tensor of `to_host`, when it has arrived."""
    tensor, copied = copy
    if copied is not None:
        copied.synchronize()
    return tensor
