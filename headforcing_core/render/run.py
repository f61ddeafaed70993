"""The stored part of one video: what earlier renders have finished, and what this one adds."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
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
from ..runs.files import FINISHED, START_EVENTS
from ..runs.folder import RunFolder, StoredBlock

log = logging.getLogger(__name__)

WAITING_TASKS = 8  # blocks and notes that may wait for the disk
Task = Callable[[], None]


class JobHolder(Protocol):
    """The render. Its job changes with the story, so it is asked each time."""

    job: RenderJob


class Run:
    """The blocks of one video in a run folder: reads those of earlier renders, stores new ones,
    collects what a report needs.

    A thread stores, in order, so that the next block need not wait for the disk. An error there is
    raised by the next call, and nothing is stored after it. `job.keys` has a key for each block
    after the start blocks, which depends on all blocks before it.

    Args:
        folder: None stores nothing, and needs no `thread`.
        share: gives all processes of a render the value of the first one.

    Attributes:
        known: whether the folder knew the video before this render.
        start: `[frames, 16, h, w]`, latents that the video begins with.
        first_made: number of the first block that is made; those before it are given.
        stored: blocks of earlier renders, the first ones after the start.
        cache: there from `resume` on.
        events: decisions of episodic memory, in order: those of start blocks, and of every block
            that was added.
        ended: the note of an earlier render that finished the video, see `finish`.
    """

    def __init__(
        self,
        render: JobHolder,
        folder: RunFolder | None,
        thread: QueueThread[Task] | None,
        share: Callable[[Any], Any],
    ):
        self._render = render
        self.folder = folder
        self._thread = thread
        self._share = share
        job = self.job
        self.first_made = job.plan.start_blocks
        self.state_seconds = job.request.options.state_seconds
        self._state_stored = time.monotonic()
        self.known = False
        self.start: Tensor | None = None
        self.stored: list[StoredBlock] = []
        self.cache: Cache
        self.events: list[MemoryEvent] = []
        self.ended: Fields | None = None
        self._start_events: list[MemoryEvent] = []  # decisions when start blocks were closed
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
    def _asked_for(self) -> int:
        """Number of blocks that the render makes or reads, without start blocks."""
        return max(0, self.job.until - self.first_made)

    # ---------------------------------------------------------------------------------------------
    # resuming

    def resume(self, make_cache: Callable[[], Cache], script: Script) -> None:
        """Read what earlier renders have finished, and make the cache.

        Start latents of an earlier render, which another device may have encoded, are taken in
        place of the job's.

        Args:
            make_cache: gives an empty cache.
        """
        start = self.job.start_latents
        folder = self.folder
        if folder is not None:
            self.known = folder.save_video(self.job.keys, self.job.about)
            if start is not None:
                start = folder.save_start(start)
        self.start = self._share(start)
        given = 0 if self.start is None else len(self.start)
        expected = self.plan.start_frames + self.plan.held_frames
        if given != expected:
            raise ValueError(f"the plan begins with {expected} latent frames, {given} are given")
        self.stored = self._share(
            [] if folder is None else folder.load_blocks(self.job.keys[: self._asked_for])
        )
        self.ended = self._share(None if folder is None else self._read_end(folder))
        self.cache = make_cache()
        if not self.is_stored:
            try:
                if folder is not None and self.stored and self.state_seconds:
                    self._restore(folder, script)
            except HeadForcingError as error:
                log.warning(
                    "Head Forcing: the cache is rebuilt from the finished blocks, %s", error
                )
                self.cache = make_cache()
            self._drop_what_cannot_go_on()
        if self.stored:
            # a rolling window denoises several blocks at once: those after the last finished one
            # are partly denoised already, so their rows cannot change any more
            begun = self.first_made + len(self.stored) + self.plan.blocks_per_pass - 1
            script.begun = min(len(script), begun)

    def _read_end(self, folder: RunFolder) -> Fields | None:
        """The note of the render that finished the video. None if it is missing or does not fit the
        stored blocks: the blocks are then written to a cache again, to report on it."""
        if not self.stored or len(self.stored) < self.plan.new_blocks:
            return None
        # decisions that no stored block holds; `add` takes those of blocks
        start_events = folder.start_events(self.job.keys[0])
        events = len(start_events) + sum(block.event is not None for block in self.stored)
        note = folder.load_note(FINISHED, self.job.keys[-1])
        if note is None or note["events"] != events or len(note["occupied"]) != len(self.stored):
            return None
        self.events = start_events
        return {**note, "recalls": [Recall(**saved) for saved in note["recalls"]]}

    def _restore(self, folder: RunFolder, script: Script) -> None:
        """Set the cache to the latest stored state. A state of a story with other scenes is
        refused: keys do not tell it, as the same prompt in a new scene gives the same key."""
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
        # a restored cache does not decide again about start blocks
        self._start_events = folder.start_events(self.job.keys[0])
        self.events += self._start_events

    def _drop_what_cannot_go_on(self) -> None:
        """Leave out stored blocks of an unfinished video that the restored cache has not seen, if
        the method cannot rebuild its cache from blocks.
        """
        in_cache = max(0, self.cache.block - self.first_made)
        if not self.plan.rebuilds_cache and in_cache < len(self.stored) < self.plan.new_blocks:
            log.warning(
                "Head Forcing: of %d finished blocks all after the first %d are made again; this "
                "cache cannot be rebuilt from blocks, and was last stored there",
                len(self.stored),
                in_cache,
            )
            self.stored = self.stored[:in_cache]

    # ---------------------------------------------------------------------------------------------
    # blocks

    def given(self) -> list[Tensor]:
        """The blocks that this render does not make: start blocks, then stored ones, which are in
        main memory.
        """
        # frames that are held are a part of the first block
        before = None if self.plan.held_frames else self.start
        start = split_start_latents(before, self.plan.schedule.frames_per_block)
        return [*start, *(block.latents for block in self.stored)]

    @property
    def is_stored(self) -> bool:
        """Whether earlier renders have made all that is asked for, so that the model is not called:
        all blocks of a part of a video, or a whole video with the note of its end.
        """
        if self._asked_for < self.plan.new_blocks and len(self.stored) == self._asked_for:
            return True
        return self.ended is not None

    def is_made(self, index: int) -> bool:
        """Whether this render makes the block of that number."""
        return index >= self.first_made + len(self.stored)

    def add(self, block: Block, seconds: float) -> Block:
        """Take the next block, which is stored if it is new; returns it with its decision of
        episodic memory.
        """
        place = block.index - self.first_made
        if place < 0:
            if block.event is not None and self.ended is None:
                self._start_events.append(block.event)
                self.events.append(block.event)
            return block
        if place < len(self.stored):
            block = replace(block, event=self.stored[place].event)
        if place == 0 and self._start_events and self.ended is None and self.folder is not None:
            note = {"events": [event.to_dict() for event in self._start_events]}
            self.folder.save_note(START_EVENTS, self.job.keys[0], note)
        if self.is_made(block.index):
            self._block_seconds.append(seconds)
            self._store(place, block)
        if block.event is not None:
            self.events.append(block.event)
        return block

    def measure(self, block: Block) -> None:
        """Take the statistics of a block that was added, for the report."""
        place = block.index - self.first_made
        occupied = None
        if place >= 0 and self.ended is not None:
            occupied = self.ended["occupied"][place]
        elif place >= 0 and self.cache.block == block.index + 1:  # no later block is in it yet
            occupied = self.cache.occupied
        self.meter.add(block.in_main_memory, occupied)

    def finish(self, whole: bool) -> None:
        """Wait until all is stored. Of a `whole` video also store what a later report needs, under
        the key of its last block.
        """
        if self.folder is None or self._thread is None:
            return
        self._thread.finish()
        if whole and self.ended is None:
            note = {
                "seconds": self.seconds_per_block,
                "events": len(self.events),
                "recalls": [asdict(recall) for recall in self.recalls],
                "occupied": self.meter.occupied[-self.plan.new_blocks :],
            }
            # without it a later render takes longer, and no block is lost
            with suppress(HeadForcingError):
                self.folder.save_note(FINISHED, self.job.keys[-1], note)

    def _store(self, place: int, block: Block) -> None:
        """Store a new block, after it a copy of the cache if it is time."""
        if self.folder is None or self._thread is None:
            return
        keys = self.job.keys
        save = partial(
            self.folder.save_block,
            place,
            keys[place],
            block.in_main_memory,
            event=block.event,
            unfinished=[latents.cpu() for latents in block.unfinished],
            previous=keys[place - 1] if place else None,
        )
        self._thread.put(save)
        if "state" not in self.plan.policy.resumes_from or not self.state_seconds:
            return
        if time.monotonic() - self._state_stored <= self.state_seconds:
            return
        self._thread.settle()  # one copy at a time
        state = self.cache.state()
        if state is not None:
            # the next block changes the cache meanwhile, but not the frames that scenes keep
            state.tensors = {
                name: tensor.to("cpu", copy=True) for name, tensor in state.tensors.items()
            }
            self._thread.put(partial(_save_state, self.folder, place, keys[place], state=state))
        self._state_stored = time.monotonic()

    # ---------------------------------------------------------------------------------------------
    # reports

    @property
    def problems(self) -> list[str]:
        """Damaged files of the run folder, one sentence each."""
        return [] if self.folder is None else list(self.folder.problems)

    @property
    def recalls(self) -> Sequence[Recall]:
        """Scenes that were brought back so far, in earlier renders of the video, too."""
        return self.cache.recalls if self.ended is None else self.ended["recalls"]

    @property
    def seconds_per_block(self) -> float | None:
        """Median time per block made so far, else that of the render that finished the video,
        without decoding.
        """
        if self._block_seconds:
            return statistics.median(self._block_seconds)
        return None if self.ended is None else self.ended["seconds"]

    @property
    def stored_steps(self) -> int:
        """Denoising steps of stored blocks, those of unfinished ones included: in a rolling window
        of n blocks the first one after the last finished has n - 1 steps, the next n - 2.
        """
        window = self.plan.blocks_per_pass
        start = self.first_made
        begun = len(self.stored[-1].unfinished) if self.stored else 0
        finished = sum(len(row.sigmas) for row in self.plan.rows[start : start + len(self.stored)])
        return finished + sum(window - behind for behind in range(1, begun + 1))


def carry_out(tasks: Iterator[Task]) -> None:
    """The work of the thread that stores."""
    for task in tasks:
        task()


def _save_state(folder: RunFolder, place: int, key: str, state: State) -> None:
    try:
        folder.save_state(place, key, state)
    # not needed to resume: the cache can be rebuilt from the blocks
    except HeadForcingError as error:
        log.warning("Head Forcing: rendering continues without a stored cache state, %s", error)
    finally:
        # their memory is free at once, whoever still holds the task
        state.tensors.clear()
        state.frames.clear()
