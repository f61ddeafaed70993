"""The blocks of one video in its run folder: those of earlier renders, and those that this render
adds.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any, Protocol

from torch import Tensor

from ..cache.base import Cache
from ..cache.scenes import Recall, visit_starts
from ..cache.state import State
from ..errors import HeadForcingError
from ..files import Fields
from ..plan.plan import RenderPlan
from ..plan.request import RenderJob
from ..queue_thread import QueueThread
from ..report.latents import RunMeter
from ..rollout.loop import Block, MemoryEvent, split_start_latents
from ..rollout.rows import Script
from ..runs.files import FINISHED
from ..runs.folder import RunFolder, StoredBlock

log = logging.getLogger(__name__)

MAX_WAITING_TASKS = 8  # blocks and cache states that may wait for the disk


class JobHolder(Protocol):
    """The render. Its story may change while it runs: `job` has the current one."""

    job: RenderJob


class Run:
    """The blocks of one video in a run folder: reads those of earlier renders, stores new ones,
    collects what a report needs.

    A thread stores, in order, so that the next block need not wait for the disk. An error there is
    raised by the next call, and nothing is stored after it. `job.keys` has a key for each block
    after the start blocks: the hash of everything that this block and all before it depend on.

    Args:
        folder: None stores nothing, and needs no `thread`.
        share: gives every process of a render on several GPUs the value of the first one.

    Attributes:
        was_known: whether the folder knew the video before this render.
        start: `[frames, channels, h, w]`, latents that the video begins with.
        first_new: number of the first block after the start blocks, stored or not.
        stored: blocks of earlier renders, the first ones after the start blocks.
        cache: set by `resume`.
        events: decisions of episodic memory after the blocks that were added, in order; those
            about start blocks are left out.
    """

    def __init__(
        self,
        render: JobHolder,
        folder: RunFolder | None,
        thread: QueueThread | None,
        share: Callable[[Any], Any],
    ):
        self._render = render
        self.folder = folder
        self._thread = thread
        self._share = share
        job = self.job
        self.first_new = job.plan.layout.start_blocks
        self.state_seconds = job.request.options.state_seconds
        self._state_stored_at = time.monotonic()
        self.was_known = False
        self.start: Tensor | None = None
        self.stored: list[StoredBlock] = []
        self.cache: Cache
        self.events: list[MemoryEvent] = []
        # the note of the render that finished the video, see `finish`; empty without one
        self._finished: Fields = {}
        self._block_seconds: list[float] = []

    @cached_property
    def meter(self) -> RunMeter:
        """Statistics of the blocks so far."""
        return RunMeter()

    @property
    def job(self) -> RenderJob:
        """The job with the current story."""
        return self._render.job

    @property
    def plan(self) -> RenderPlan:
        """The plan of the current story."""
        return self.job.plan

    @property
    def _wanted_blocks(self) -> int:
        """Number of blocks after the start blocks that the render makes or reads."""
        return max(0, self.job.end_block - self.first_new)

    # ------------------------------------------------------------------------------------- resuming

    def resume(self, make_cache: Callable[[], Cache], script: Script) -> None:
        """Read what earlier renders have finished, and make the cache.

        Start latents of an earlier render are taken in place of the job's: another device may have
        encoded them, with other last bits and so other blocks.

        Args:
            make_cache: gives an empty cache.
            script: `begun` is set, the number of its rows that cannot change any more.
        """
        self.start, self.stored, self._finished = self._share(self._read())
        self.cache = make_cache()
        if not self.needs_no_model:
            try:
                if self.folder is not None and self.stored and self.state_seconds:
                    self._restore(self.folder, script)
            except HeadForcingError as error:
                log.warning(
                    "Head Forcing: the cache is rebuilt from the finished blocks, %s", error
                )
                self.cache = make_cache()
            self._drop_blocks_not_in_cache()
        if self.stored:
            # blocks on which the last finished one depends have begun, so that their rows cannot
            # change any more
            finished = self.first_new + len(self.stored)
            script.begun = min(len(script), finished + self.plan.blocks_ahead)

    def _read(self) -> tuple[Tensor | None, list[StoredBlock], Fields]:
        """Note the video in its folder, and read the start latents, the stored blocks, and the note
        of the render that finished the video, empty without one.
        """
        job = self.job
        start = job.start_latents
        folder = self.folder
        if folder is None:
            return start, [], {}
        self.was_known = folder.save_video(job.keys, job.about)
        if start is not None:
            start = folder.save_start(start)
        stored = folder.load_blocks(job.keys[: self._wanted_blocks])
        if len(stored) == job.plan.new_blocks:
            note = folder.load_note(FINISHED, job.keys[-1])
            if note is not None and len(note["occupied"]) == len(stored):
                return start, stored, note
        return start, stored, {}

    def _restore(self, folder: RunFolder, script: Script) -> None:
        """Set the cache to the latest stored state. A state of a story with other scenes is
        refused: a block's key depends on scenes only from the first block on that recalls one, so
        before it blocks of both stories have the same keys.
        """
        state = folder.load_state(self.job.keys[: len(self.stored)])
        if state is None:
            return
        self.cache.restore(state)
        saved_starts = self.cache.scene_starts
        frames = self.plan.schedule.frames_per_block
        starts = [start * frames for start in visit_starts(script.rows[: self.cache.block])]
        if saved_starts is not None and saved_starts != starts:
            raise HeadForcingError(
                f"the saved state is of a story whose scenes begin with latent frames "
                f"{saved_starts}, those of this one with {starts}"
            )

    def _drop_blocks_not_in_cache(self) -> None:
        """Leave out stored blocks of an unfinished video that the restored cache has not seen, if
        the method cannot rebuild its cache from blocks.
        """
        in_cache = max(0, self.cache.block - self.first_new)
        needs_cache = len(self.stored) < self.plan.new_blocks and not self.plan.rebuilds_cache
        if needs_cache and in_cache < len(self.stored):
            log.warning(
                "Head Forcing: of %d finished blocks all after the first %d are made again; this "
                "cache cannot be rebuilt from blocks, and was last stored there",
                len(self.stored),
                in_cache,
            )
            self.stored = self.stored[:in_cache]

    # --------------------------------------------------------------------------------------- blocks

    def ready_blocks(self) -> list[Tensor]:
        """The blocks that this render does not make: start blocks, then stored ones, which are in
        main memory.
        """
        # start frames that the model holds fixed inside its first block are no blocks themselves
        before = None if self.plan.held_frames else self.start
        start = split_start_latents(before, self.plan.schedule.frames_per_block)
        return [*start, *(block.latents for block in self.stored)]

    @property
    def needs_no_model(self) -> bool:
        """Whether earlier renders have made all that is asked for."""
        return len(self.stored) == self._wanted_blocks

    def is_made(self, index: int) -> bool:
        """Whether this render makes the block of that number, and does not read it."""
        return index >= self.first_new + len(self.stored)

    def add(self, block: Block, seconds: float) -> Block:
        """Take the next block, made in so many seconds, and store it if it is new; returns it with
        its decision of episodic memory: of a stored block the one it was made with.
        """
        index = block.index - self.first_new
        if index < 0:
            return block
        if index < len(self.stored):
            block = replace(block, event=self.stored[index].event)
        else:
            self._block_seconds.append(seconds)
            self._store(index, block)
        if block.event is not None:
            self.events.append(block.event)
        return block

    def measure(self, block: Block) -> None:
        """Take the statistics of a block that was added, for the report."""
        index = block.index - self.first_new
        occupied = None
        if index >= 0:
            if self._finished:
                occupied = self._finished["occupied"][index]
            # a restored cache holds later blocks, too: how full it was after this one is not known
            elif self.cache.block == block.index + 1:
                occupied = self.cache.occupied
        self.meter.add(block.in_main_memory, occupied)

    def finish(self, whole: bool) -> None:
        """Wait until all is stored. Of a `whole` video also store what only its render can tell a
        later report, under the key of its last block.
        """
        if self.folder is None or self._thread is None:
            return
        self._thread.settle()
        if whole and not self.needs_no_model:
            note = {
                "seconds": self.seconds_per_block,
                "events": len(self.events),
                "recalls": [asdict(recall) for recall in self.recalls],
                "occupied": self.meter.occupied[-self.plan.new_blocks :],
            }
            # without the note a later report lacks these
            with suppress(HeadForcingError):
                self.folder.save_note(FINISHED, self.job.keys[-1], note)

    def later(self, task: Callable[[], None]) -> None:
        """Run a task in the thread that stores, behind what waits there; without one, now."""
        if self._thread is None:
            task()
        else:
            self._thread.put(task)

    def _store(self, index: int, block: Block) -> None:
        """Store a new block, and after it the cache if the last state is older than
        `state_seconds`.
        """
        if self.folder is None or self._thread is None:
            return
        keys = self.job.keys
        save = partial(
            self.folder.save_block,
            index,
            keys[index],
            block.in_main_memory,
            event=block.event,
            extra={name: tensor.cpu() for name, tensor in block.extra.items()},
            previous=keys[index - 1] if index else None,
        )
        self._thread.put(save)
        if "state" not in self.plan.method.resumes_from or not self.state_seconds:
            return
        if time.monotonic() - self._state_stored_at <= self.state_seconds:
            return
        self._thread.settle()  # so that main memory holds one copy at a time
        state = self.cache.state()
        if state is not None:
            # a copy, since the next block changes these tensors; `state.frames` never change
            state.tensors = {
                name: tensor.to("cpu", copy=True) for name, tensor in state.tensors.items()
            }
            self._thread.put(partial(_save_state, self.folder, index, keys[index], state=state))
        self._state_stored_at = time.monotonic()

    # -------------------------------------------------------------------------------------- reports

    @property
    def problems(self) -> list[str]:
        """Damaged files of the run folder, one sentence each."""
        return [] if self.folder is None else list(self.folder.problems)

    @property
    def recalls(self) -> Sequence[Recall]:
        """Scenes that were brought back so far, in earlier renders of the video, too."""
        finished = [Recall(**recall) for recall in self._finished.get("recalls", ())]
        return finished or self.cache.recalls

    @property
    def seconds_per_block(self) -> float | None:
        """Median time without decoding per block made so far, else that of the render that finished
        the video.
        """
        if self._block_seconds:
            return statistics.median(self._block_seconds)
        return self._finished.get("seconds")

    @property
    def stored_steps(self) -> int:
        """Denoising steps of stored blocks, and those of the next ones that are stored with the
        last.
        """
        plan = self.plan
        start = self.first_new
        finished = sum(len(row.sigmas) for row in plan.rows[start : start + len(self.stored)])
        extra = self.stored[-1].extra if self.stored else {}
        return finished + plan.method.steps_ahead(extra, plan.schedule)


def _save_state(folder: RunFolder, index: int, key: str, state: State) -> None:
    """Store the cache after a block. An error is a warning: resuming takes longer without."""
    try:
        folder.save_state(index, key, state)
    except HeadForcingError as error:
        log.warning("Head Forcing: rendering continues without a stored cache state, %s", error)
    finally:
        # frees the copy although the queue may still refer to this task
        state.tensors.clear()
        state.frames.clear()
