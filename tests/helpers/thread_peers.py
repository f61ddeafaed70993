"""Ranks as threads of one process: what `distributed.peers.Peers` carries between processes, by a
barrier.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headforcing.headforcing_core.distributed.peers import Peers


class Meeting:
    """Where `world` threads put their values and read everybody's."""

    def __init__(self, world: int):
        self.values: list[Any] = [None] * world
        self.barrier = threading.Barrier(world, timeout=60)

    def all_of(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()  # nobody puts the next value before everybody has read
        return found


class ThreadPeers(Peers):
    def __init__(self, rank: int, world: int, meeting: Meeting):
        super().__init__(rank, world)
        self._meeting = meeting

    def _exchange(self, parts, sizes):
        got = [theirs[self.rank].clone() for theirs in self._meeting.all_of(self.rank, list(parts))]
        assert [part.numel() for part in got] == list(sizes)
        self._meeting.barrier.wait()  # parts are views that their senders may overwrite
        return got

    def share(self, value):
        return self._meeting.all_of(self.rank, value)

    def from_first(self, value):
        return self._meeting.all_of(self.rank, value)[0]

    def any(self, flag):
        return any(self.share(flag))


def together(world: int, work: Callable[[ThreadPeers], Any]) -> list[Any]:
    """What `work` returns on every rank; the first error of any."""
    meeting = Meeting(world)

    def rank(number: int) -> Any:
        try:
            return work(ThreadPeers(number, world, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(rank, number) for number in range(world)]
    errors = [future.exception() for future in futures]
    first = next(
        (e for e in errors if e is not None and not isinstance(e, threading.BrokenBarrierError)),
        None,
    )
    if first is not None:
        raise first
    return [future.result() for future in futures]
