"""The stored part of one video: what earlier renders have finished, and what this one adds."""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..cache.base import Cache
from ..cache.memory import MemoryEvent
from ..cache.scenes import Recall, visit_starts
from ..errors import HeadForcingError
from ..head_profiles.profile import HeadProfile
from ..report.latents import RunMeter
from ..rollout.loop import Block, split_start_latents
from ..rollout.rows import Script
from ..runs.files import FOUND, OPENING, SECONDS
from ..runs.folder import RunFolder, StoredBlock
from .finished import Finished
from .plan import RenderPlan
from .storing import Storing

log = logging.getLogger(__name__)


class Run:
    """The blocks of one video: reads those of earlier renders, stores new ones, collects what a report needs.

    Args:
        folder: None stores nothing.
        keys: of every block that is made, see `block_keys.video_keys`.
        state_seconds: how often the cache is stored; 0: never, it is rebuilt from the blocks.
        share: gives what one process has read to all that make the video together.

    Attributes:
        known: whether the folder knew the video before this render.
        start: `[frames, 16, h, w]`, latents that the video begins with; None for none.
        first_made: number of the first block that is made; those before it are given.
        stored: blocks of earlier renders, the first ones after the start.
        storing: puts what is new into the folder; None without one.
        cache: of the render, with the blocks that a stored state holds.
        events: decisions of episodic memory so far, those of earlier renders included.
        found_profile: the roles that were found while sampling, or None.
        found_now: whether they were found in this render, not in an earlier one of the same video.
        ended: what an earlier render noted when it finished the video; None for one that is not finished.
    """

    def __init__(
        self,
        plan: RenderPlan,
        folder: RunFolder | None = None,
        keys: Sequence[str] = (),
        state_seconds: float = 0.0,
        share: Callable[[Any], Any] = lambda read: read,
    ):
        self.plan, self.folder, self.keys, self._share = plan, folder, keys, share
        self.first_made = plan.start_blocks
        self.storing = None if folder is None else Storing(folder, state_seconds)
        self.known = False
        self.start: Tensor | None = None
        self.stored: list[StoredBlock] = []
        self.cache: Cache
        self.events: list[MemoryEvent] = []
        self.found_profile: HeadProfile | None = None
        self.found_now = False
        self.ended: Finished | None = None
        self._opening: list[MemoryEvent] = []  # those of `events` after start blocks
        self.meter = RunMeter()
        self._block_seconds: list[float] = []

    # ------------------------------------------------------------------------------------------------ resuming

    def resume(self, start: Tensor | None, make_cache: Callable[[HeadProfile | None], Cache], script: Script) -> None:
        """Read what earlier renders have finished, and make the cache.

        Args:
            start: the start latents as this render has them; those of an earlier render, which another device may have
                encoded, are taken in their place.
            make_cache: an empty cache with the roles that an earlier render found, None for none.
        """
        self.start = self._share(self._read_start(start))
        given = 0 if self.start is None else len(self.start)
        expected = self.plan.start_frames + self.plan.held_frames
        if given != expected:
            raise ValueError(f"the plan begins with {expected} latent frames, {given} are given")
        self.stored = self._share([] if self.folder is None else self.folder.load_blocks(self.keys))
        self._read_roles()
        self.ended = self._share(self._read_end())
        self.cache = make_cache(self.found_profile)
        if self.ended is None:
            try:
                self._restore(script)
            except HeadForcingError as error:
                log.warning("Head Forcing: the cache is rebuilt from the finished blocks, %s", error)
                self.cache = make_cache(self.found_profile)
        self._drop_what_cannot_go_on()
        if self.stored:
            begun = self.first_made + len(self.stored) + self.plan.blocks_per_pass - 1
            script.begun = min(len(script), begun)

    def _read_start(self, start: Tensor | None) -> Tensor | None:
        if self.folder is None or start is None:
            return start
        self.folder.save_start(start)
        stored = self.folder.load_start()
        return start if stored is None else stored

    def _read_roles(self) -> None:
        """Load the roles that an earlier render found. Without them its blocks are not reused, because finding roles
        needs the attention of every pass.
        """
        if self.folder is None or self.plan.auto is None or not self.stored:
            return
        found = self.folder.load_note(FOUND, self.keys[: len(self.stored)])
        if found is None:
            self.stored = []
            return
        self.found_profile = HeadProfile.from_json(found["profile"])
        self.events = [MemoryEvent(**event) for event in found["events"]]

    def _read_end(self) -> Finished | None:
        """The note of the render that finished the video.

        None for a video that is not finished, and where something is missing that only a cache can tell: then the
        blocks are written to one.
        """
        if self.folder is None or not self.stored or len(self.stored) < self.plan.new_blocks:
            return None
        opening = self.events or self.folder.load_events(OPENING, self.keys[:1])
        events = len(opening) + sum(block.event is not None for block in self.stored)
        end = Finished.load(self.folder, self.keys[-1])
        if end is None or (end.events, len(end.occupied)) != (events, len(self.stored)):
            return None
        self.events = opening
        return end

    def _restore(self, script: Script) -> None:
        """Set the cache to the latest stored state."""
        if self.folder is None or self.storing is None or not self.stored or not self.storing.state_seconds:
            return
        state = self.folder.load_state(self.keys[: len(self.stored)])
        if state is None:
            return
        self.cache.restore(state)
        self._check_scenes(script)
        if not self.events:  # a cache that is rebuilt makes these decisions again
            for event in self.folder.load_events(OPENING, self.keys[:1]):
                self._add_opening(event)

    def _check_scenes(self, script: Script) -> None:
        """Refuse a restored cache of a story with other scenes: a prompt repeated in a new scene changes no key."""
        found = self.cache.scene_starts
        frames = self.plan.schedule.frames_per_block
        starts = [start * frames for start in visit_starts(script.rows[: self.cache.block])]
        if found is not None and found != starts:
            raise HeadForcingError(
                f"the saved state is of a story whose scenes begin with latent frames {found}, those of this one "
                f"with {starts}"
            )

    def _drop_what_cannot_go_on(self) -> None:
        """Of an unfinished video, do not reuse blocks that the cache lacks and cannot be rebuilt from."""
        held = max(0, self.cache.block - self.first_made)
        if "blocks" not in self.plan.policy.resumes_from and held < len(self.stored) < self.plan.new_blocks:
            log.warning(
                "Head Forcing: of %d finished blocks all after the first %d are made again; this cache cannot be "
                "rebuilt from blocks, and was last stored there",
                len(self.stored),
                held,
            )
            self.stored = self.stored[:held]

    # ------------------------------------------------------------------------------------------------ blocks

    def given(self) -> list[Tensor]:
        """The blocks that are not made: start blocks, then stored ones, in the host's memory where they are many."""
        held = self.plan.held_frames > 0  # then the start is a part of the first block
        start = split_start_latents(None if held else self.start, self.plan.schedule.frames_per_block)
        return [*start, *(block.latents for block in self.stored)]

    def is_made(self, index: int) -> bool:
        """Whether this render makes the block of that number."""
        return index >= self.first_made + len(self.stored)

    def complete(self, block: Block) -> Block:
        """The block with the decision of episodic memory that was stored with it."""
        place = block.index - self.first_made
        if not 0 <= place < len(self.stored):
            return block
        return Block(block.index, block.latents, self.stored[place].event, block.unfinished)

    def add(self, block: Block, seconds: float) -> None:
        """Take the next block, which took so long; a new one is stored."""
        place = block.index - self.first_made
        if place < 0:
            if block.event is not None and self.ended is None:
                self._add_opening(block.event)
            return
        if place == 0 and self.ended is None:
            self._store_opening()
        if self.is_made(block.index):
            self._block_seconds.append(seconds)
            self._store_profile(place)
            if self.storing is not None:
                self.storing.block(place, self.keys, block)
                self.storing.state(place, self.keys[place], self.cache)
        if block.event is not None:
            self.events.append(block.event)

    def measure(self, block: Block) -> None:
        """Take the statistics of a block that was added, for the report."""
        self.meter.add(block.latents, self._occupied(block.index, block.index - self.first_made))

    def finish(self) -> None:
        """Wait until all is stored, and note what a report says of the finished video, with its last block."""
        if self.storing is not None:
            self.storing.finish()
        if self.folder is not None and self.ended is None:
            occupied = self.meter.occupied[-self.plan.new_blocks :]
            end = Finished(self.seconds_per_block, len(self.events), self.guards, self.recalls, occupied)
            end.save(self.folder, self.keys[-1])

    def _occupied(self, index: int, place: int) -> int | None:
        """Frame slots in use after a block; None where the cache holds later blocks already."""
        if self.ended is not None:
            return None if place < 0 else self.ended.occupied[place]
        return self.cache.occupied if self.cache.block == index + 1 and place >= 0 else None

    def _add_opening(self, event: MemoryEvent) -> None:
        self._opening.append(event)
        self.events.append(event)

    def _store_opening(self) -> None:
        """Store the decisions of episodic memory after start blocks: a restored cache does not make them again."""
        if self.storing is not None and self._opening:
            events = [event.to_dict() for event in self._opening]
            self.storing.note(OPENING, self.keys[0], {"events": events})

    def _store_profile(self, place: int) -> None:
        """Store the roles with the block after which they were found."""
        if self.plan.auto is None or self.cache.profile is None or self.found_profile is not None:
            return
        self.found_profile, self.found_now = self.cache.profile, True
        self.events += self.cache.earlier_events
        if self.storing is not None:
            events = [event.to_dict() for event in self.events]
            self.storing.note(FOUND, self.keys[place], {"profile": self.found_profile.to_json(), "events": events})

    # ------------------------------------------------------------------------------------------------ reports

    @property
    def problems(self) -> list[str]:
        """Damaged files of the run folder, one sentence each."""
        return [] if self.folder is None else list(self.folder.problems)

    @property
    def recalls(self) -> Sequence[Recall]:
        """Scenes that were brought back so far, in earlier renders of the video, too."""
        return self.cache.recalls if self.ended is None else self.ended.recalls

    @property
    def guards(self) -> Sequence[str]:
        """One line for every guard that acted, see `cache.guards`."""
        return self.cache.report if self.ended is None else self.ended.guards

    @property
    def seconds_per_block(self) -> float | None:
        """Median time per block made so far, without decoding and writing.

        If all blocks are stored, that of the render that made the last one; None if it is not known.
        """
        if self._block_seconds:
            return statistics.median(self._block_seconds)
        note = None if self.folder is None else self.folder.load_note(SECONDS, self.keys[-1:])
        return None if note is None else note["seconds"]

    @property
    def stored_steps(self) -> int:
        """Denoising steps of stored blocks, those of unfinished ones included."""
        window, start = self.plan.blocks_per_pass, self.first_made
        begun = len(self.stored[-1].unfinished) if self.stored else 0
        finished = sum(len(row.sigmas) for row in self.plan.rows[start : start + len(self.stored)])
        return finished + sum(window - behind for behind in range(1, begun + 1))
