"""A thread that runs tasks in order, so that the caller does not wait for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

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
        self._executor = ThreadPoolExecutor(1, f"head forcing {name}")
        self._length = length
        self._while_waiting = while_waiting
        self._tasks: deque[Future[None]] = deque()
        self._error: BaseException | None = None

    def __enter__(self) -> QueueThread:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        self._executor.shutdown()
        if error_type is None:
            self.check()

    def check(self) -> None:
        """Raise the error of a task, if there is one."""
        if self._error is not None:
            raise self._error

    def put(self, task: Task) -> None:
        """Queue a task."""
        self._wait(self._length)
        self._tasks.append(self._executor.submit(self._run, task))

    def settle(self) -> None:
        """Wait until all tasks are done; more may follow."""
        self._wait(0)

    def abandon(self) -> None:
        """End the thread before the next task."""
        self._executor.shutdown(cancel_futures=True)

    def _wait(self, most: int) -> None:
        """Wait until at most so many tasks are not done."""
        while len(self._tasks) > most:
            if wait([self._tasks[0]], _POLL_SECONDS).done:
                self._tasks.popleft()
            else:
                self._while_waiting()
        self.check()

    def _run(self, task: Task) -> None:
        if self._error is None:
            try:
                task()
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


def arrived(copy: HostCopy) -> Tensor:
    """The tensor of `to_host`, when it has arrived."""
    tensor, copied = copy
    if copied is not None:
        copied.synchronize()
    return tensor
