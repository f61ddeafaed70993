"""Blocks of a render, put into its run folder by a thread, so that the next block need not wait for the disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from ..cache.base import Cache, State
from ..errors import HeadForcingError
from ..rollout.loop import Block
from ..runs.folder import RunFolder
from ..video.queue_thread import QueueThread

log = logging.getLogger(__name__)

WAITING_TASKS = 8  # blocks and notes that may wait for the disk
Task = Callable[[], None]


class Storing:
    """Stores blocks, notes and states in order. An error is raised by the next call, and nothing is stored after it.

    Leaving its `with` block waits until everything is stored.

    Args:
        state_seconds: how often the cache is stored; 0: never, it is rebuilt from the blocks.
    """

    def __init__(self, folder: RunFolder, state_seconds: float):
        self.folder, self.state_seconds = folder, state_seconds
        self._state_stored = time.monotonic()
        self._thread: QueueThread[Task] = QueueThread("storing", _carry_out, WAITING_TASKS)

    def __enter__(self) -> Storing:
        self._thread.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.__exit__(*error)

    def note(self, kind: str, key: str, fields: dict[str, Any]) -> None:
        """Store fields that belong to a block."""
        self._thread.put(partial(self.folder.save_note, kind, key, fields))

    def block(self, place: int, keys: Sequence[str], block: Block) -> None:
        """Store the video's new block number `place`, whose latents are known to be there."""
        previous = keys[place - 1] if place else None
        latents, unfinished = block.latents.cpu(), [latents.cpu() for latents in block.unfinished]
        stored = (place, keys[place], latents, block.event, unfinished, previous)
        self._thread.put(partial(self.folder.save_block, *stored))

    def state(self, place: int, key: str, cache: Cache) -> None:
        """Store a copy of the cache after a block, if it is time: the next block changes the cache meanwhile."""
        if not self.state_seconds or time.monotonic() - self._state_stored <= self.state_seconds:
            return
        self._thread.settle()  # one copy at a time
        if (state := cache.state()) is not None:
            tensors, plain = state
            copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
            self._thread.put(partial(_save_state, self.folder, place, key, (copies, plain)))
        self._state_stored = time.monotonic()

    def finish(self) -> None:
        """Wait until everything is stored; nothing comes after it."""
        self._thread.finish()


def _carry_out(tasks: Iterator[Task]) -> None:
    for task in tasks:
        task()


def _save_state(folder: RunFolder, place: int, key: str, state: State) -> None:
    try:
        folder.save_state(place, key, state)
    except HeadForcingError as error:  # not needed to resume: the cache can be rebuilt from the blocks
        log.warning("Head Forcing: rendering continues without a stored cache state, %s", error)
    finally:
        state[0].clear()  # its memory is free at once, whoever still holds the task
