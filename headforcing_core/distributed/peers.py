"""The processes (ranks) that make one video together, and all messages between them."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import HeadForcingError

T = TypeVar("T")


class PeersLost(Exception):
    """Another rank has ended, or has not answered in time."""


class Peers:
    """The ranks of one video in torch.distributed, as one of them sees them; all make the same
    calls in one order.

    Attributes:
        rank: of this process; rank 0 reads and writes files.
        speeds: of all ranks, relative to each other; None if they are equal.
        sent: bytes that this rank sent to others, by kind.
        stopping: set, at any time and by any rank, to end the render on all ranks after the same
            pass.
    """

    def __init__(self, rank: int, world: int):
        self.rank = rank
        self.world = world
        self.speeds: Sequence[float] | None = None
        self.sent: Counter[str] = Counter()
        self.stopping = False
        self._waited = 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def exchange(self, parts: Sequence[Tensor], sizes: Sequence[int], kind: str) -> list[Tensor]:
        """Send `parts[p]` to rank p and receive `sizes[p]` numbers of the same dtype from it, flat,
        for every p.
        """
        with self._timed(parts[0].device):
            got = self._exchange([part.reshape(-1) for part in parts], sizes)
        self.sent[kind] += sum(part.nbytes for rank, part in enumerate(parts) if rank != self.rank)
        return got

    def gather(self, own: Tensor, shapes: Sequence[Sequence[int]], kind: str) -> list[Tensor]:
        """Every rank's tensor, of these shapes."""
        got = self.exchange([own] * self.world, [math.prod(shape) for shape in shapes], kind)
        return [part.view(*shape) for part, shape in zip(got, shapes, strict=True)]

    def agree(self, **values: str) -> None:
        """Raise HeadForcingError on every rank if the values are not the same on all of them."""
        everyone = self.share(values)
        for name in values:
            expected = everyone[0][name]
            for rank, theirs in enumerate(everyone):
                if theirs[name] != expected:
                    raise HeadForcingError(
                        f"rank {rank} of {self.world} has another {name} than rank 0 "
                        f"({theirs[name]}, not {expected}); give every machine the same command, "
                        "files and versions"
                    )

    @property
    def waited(self) -> float:
        """Seconds spent in exchanges so far: the transfer, and waiting for the slowest rank."""
        self._settle()
        return self._waited

    def _settle(self) -> None:
        """Add up the exchanges that the GPU has finished."""
        while self._pending and self._pending[0][1].query():
            begun, ended = self._pending.popleft()
            self._waited += begun.elapsed_time(ended) / 1000

    @contextmanager
    def _timed(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            begun = time.perf_counter()
            yield
            self._waited += time.perf_counter() - begun
            return
        # the host does not wait for an exchange on a GPU, so events in its stream measure it
        before = torch.cuda.Event(enable_timing=True)
        before.record()
        yield
        after = torch.cuda.Event(enable_timing=True)
        after.record()
        self._pending.append((before, after))
        self._settle()

    # --- how the data is carried

    def _exchange(self, parts: Sequence[Tensor], sizes: Sequence[int]) -> list[Tensor]:
        got = parts[0].new_empty(sum(sizes))
        with losing_peers():
            dist.all_to_all_single(
                got, torch.cat(list(parts)), list(sizes), [part.numel() for part in parts]
            )
        return list(got.split(list(sizes)))

    def share(self, value: T) -> list[T]:
        """Every rank's value, any Python object."""
        values = [value] * self.world  # placeholders, which the call replaces
        with losing_peers():
            dist.all_gather_object(values, value)
        return values

    def from_first(self, value: T) -> T:
        """Rank 0's value, any Python object; the other ranks' are ignored."""
        box: list[T] = [value]
        with losing_peers():
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        # on the host, where asking for it does not wait for the GPU
        found = torch.tensor(int(flag))
        with losing_peers():
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)


@contextmanager
def losing_peers() -> Iterator[None]:
    """Raise what a collective raises when another rank is gone as PeersLost."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise PeersLost(str(error).splitlines()[0]) from error
