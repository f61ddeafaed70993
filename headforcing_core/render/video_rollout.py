"""The rollout of one video of a plan, with its cache, its noise and, if there is one, its run folder."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache.memory import MemoryEvent
from ..cache.method import RolloutInputs
from ..cache.scenes import Recall
from ..devices import upload
from ..drift.latents import RunMeter, RunReport
from ..errors import HeadForcingError
from ..head_profiles.profile import HeadProfile
from ..model.attention import AttentionFunction, sdpa
from ..rollout.loop import Block, JointModel, StepCallback, split_start_latents
from ..rollout.noise import SeededNoise
from ..runs.files import FOUND, OPENING, SECONDS
from ..runs.folder import RunFolder, StoredBlock
from .finished import Finished
from .finite_check import FiniteCheck
from .live_story import LiveNoise, LivePrompts
from .plan import RenderPlan

if TYPE_CHECKING:
    from ..parallel.peers import Peers

log = logging.getLogger(__name__)


class VideoRollout:
    """Rolls out one video of a plan; with a run folder it resumes an earlier render of the same video.

    Args:
        start_latents: `[frames, 16, h, w]`, normalised.
        keys: of every block, see `block_keys.video_keys`; needed with a run folder.
        state_seconds: seconds between two stored states of the cache; 0: never stored, it is rebuilt from the blocks.
        reencode: as in `cache.method.RolloutInputs`; needed if the plan has `restart_frames`, see
            `video.restarts.FrameCodec`.
        peers: the ranks that make the video together; only rank 0 has a run folder.

    Attributes:
        events: decisions of episodic memory so far, those of earlier renders included.
        reused: how many blocks come from the run folder.
        found_profile: the roles that were found while sampling, or None.
        found_now: whether they were found in this render, not in an earlier one of the same video.
    """

    def __init__(
        self,
        plan: RenderPlan,
        seed: int,
        video: int = 0,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
        start_latents: Tensor | None = None,
        run: RunFolder | None = None,
        keys: Sequence[str] = (),
        state_seconds: float = 0.0,
        reencode: Callable[[Tensor], Tensor] | None = None,
        peers: Peers | None = None,
    ):
        self.plan = plan
        self._prompts, self._switches = list(plan.prompts), dict(plan.switches)  # read block by block, see `retell`
        self._finished = 0  # blocks so far, start blocks included
        self._reencode = reencode
        plan.check_encoder(reencode is not None, "give `reencode`")
        if run is not None and start_latents is not None:
            run.save_start(start_latents)
            stored = run.load_start()  # those of an earlier render, which another device may have encoded
            start_latents = start_latents if stored is None else stored
        if peers is not None:
            start_latents = peers.from_first(start_latents)
        given = 0 if start_latents is None else len(start_latents)
        if given != plan.start_frames:
            raise ValueError(f"the plan begins with {plan.start_frames} latent frames, {given} are given")
        self.start_latents = None if start_latents is None else start_latents.to(device)
        self._seed, self._video = seed, video
        self.noise = LiveNoise(self._noise_of(plan))
        self.run, self.keys, self.peers = run, list(keys), peers
        # a state is that of a whole cache, which no rank has: ranks rebuild theirs from the blocks
        self.state_seconds = state_seconds if peers is None else 0.0
        self.events: list[MemoryEvent] = []
        self._opening: list[MemoryEvent] = []  # those of `events` after start blocks
        self._made: list[StoredBlock] = []
        self.found_profile: HeadProfile | None = None
        self.found_now = False
        self._meter, self._finite = RunMeter(), FiniteCheck(dtype)
        self._block_seconds: list[float] = []
        if run is not None:
            self._made = run.load_blocks(self.keys)
        if peers is not None:
            self._made = peers.from_first(self._made)
        self._recall_roles()
        self._ended = self._recall_end()
        self.method = plan.method(self.found_profile)
        self.cache: Any = plan.make_cache(dtype, device, attention, self.found_profile, peers)
        try:
            self._restore()
        except HeadForcingError as error:
            log.warning("Head Forcing: the cache is rebuilt from the finished blocks, %s", error)
            self.cache = plan.make_cache(dtype, device, attention, self.found_profile)
        self._drop_what_cannot_go_on()

    @property
    def reused(self) -> int:
        return len(self._made)

    @property
    def problems(self) -> list[str]:
        """Damaged files of the run folder, one sentence each."""
        return [] if self.run is None else list(self.run.problems)

    @property
    def recalls(self) -> Sequence[Recall]:
        """Scenes that were brought back so far, in earlier renders of the video, too."""
        return list(getattr(self.cache, "recalls", ()) if self._ended is None else self._ended.recalls)

    @property
    def guards(self) -> Sequence[str]:
        """One line for every guard that acted, see `cache.guards`."""
        return list(getattr(self.cache, "guard_report", ()) if self._ended is None else self._ended.guards)

    @property
    def seconds_per_block(self) -> float | None:
        """Median time per block made so far, without decoding and writing.

        If all blocks are reused, that of the render that made the last one; None if it is not known.
        """
        if self._block_seconds:
            return statistics.median(self._block_seconds)
        note = None if self.run is None else self.run.load_note(SECONDS, self.keys[-1:])
        return None if note is None else note["seconds"]

    @property
    def reused_steps(self) -> int:
        """Denoising steps of reused blocks, those of unfinished ones included."""
        start_blocks, window = self.plan.blocks - self.plan.new_blocks, self.plan.blocks_per_pass
        begun = len(self._made[-1].unfinished) if self._made else 0
        finished = sum(self.plan.steps_of(start_blocks + place) for place in range(self.reused))
        return finished + sum(window - behind for behind in range(1, begun + 1))

    def blocks(self, model: JointModel, on_step: StepCallback = lambda block, step, latents: None) -> Iterator[Block]:
        """Yield all blocks after the start blocks, reused ones first; each new one is stored before it is yielded.

        Those of a video that an earlier render has finished are read, and the model is not called.
        """
        start_blocks = self.plan.blocks - self.plan.new_blocks
        saved = time.monotonic()
        for latents in split_start_latents(self.start_latents, self.plan.schedule.frames_per_block):
            self._meter.add(latents)
        begun = time.perf_counter()
        for block in self._rollout(model, self._finite.following(on_step)):
            place = block.index - start_blocks
            self._meter.add(block.latents, self._occupied(block.index, place))
            if place == 0 and self._ended is None:
                self._note_opening()
            if place < len(self._made):
                block = replace(block, event=self._made[place].event)
            else:
                self._finite.check(block, self.plan.blocks, getattr(model, "backbone", None))
                self._notice_profile(place)
                self._store(place, block)
                if self.run is not None and self.state_seconds and time.monotonic() - saved > self.state_seconds:
                    self._store_state(place)
                    saved = time.monotonic()
            if block.event is not None:
                self.events.append(block.event)
            if place >= len(self._made):
                self._block_seconds.append(time.perf_counter() - begun)
            self._finished = block.index + 1
            yield block
            begun = time.perf_counter()
        if self._ended is None:
            self._note_end()

    @property
    def begun(self) -> int:
        """Number of blocks, start blocks included, whose prompt can no longer change: those made, reused or begun."""
        reused = self.plan.blocks - self.plan.new_blocks + self.reused if self.reused else 0
        done = max(self._finished, reused)
        return min(self.plan.blocks, done + self.plan.blocks_per_pass - 1) if done else 0

    def retell(self, plan: RenderPlan, numbers: Sequence[int], keys: Sequence[str]) -> None:
        """Go on with a plan that differs only in blocks that have not begun: their prompts, switches and number.

        Args:
            numbers: of the plan's prompts, in the embeddings that the model has.
        """
        begun = self.begun
        self._prompts[begun:] = [numbers[prompt] for prompt in plan.prompts[begun:]]
        self._switches.clear()
        self._switches.update(plan.switches)
        self.noise.source = self._noise_of(plan)
        self.plan, self.keys = plan, list(keys)

    def _noise_of(self, plan: RenderPlan) -> SeededNoise:
        return SeededNoise(self._seed, plan.block_shape, self._video, plan.later_seeds(self._seed))

    def report(self) -> RunReport:
        """Statistics of the latents and of episodic memory so far."""
        return self._meter.report(self.events)

    def _rollout(self, model: JointModel, on_step: StepCallback) -> Iterator[Block]:
        """All blocks after the start blocks, from the method's loop."""
        if self._ended is not None:
            return self._made_again(on_step)
        video = RolloutInputs(
            self.plan.schedule,
            self.noise,
            LivePrompts(self._prompts),
            self.start_latents,
            made=[block.latents for block in self._made],  # in the host's memory, since they may be many
            unfinished=self._made[-1].unfinished if self._made else (),
            switches=self._switches,
            reencode=self._reencode,
            on_step=on_step,
            on_start_event=self._add_opening,
        )
        return self.method.rollout(model, self.cache, video)

    def _made_again(self, on_step: StepCallback) -> Iterator[Block]:
        """The blocks of a finished video."""
        for index, stored in enumerate(self._made, self.plan.blocks - self.plan.new_blocks):
            on_step(index, 0, None)
            yield Block(index, self._prompts[index], upload(stored.latents, self.cache.device), None)

    def _occupied(self, index: int, place: int) -> int | None:
        """Frame slots in use after a block; None where the cache holds later blocks already."""
        if self._ended is not None:
            return self._ended.occupied[place]
        return self.cache.occupied if self.cache.block == index + 1 else None

    def _recall_end(self) -> Finished | None:
        """What was noted when an earlier render finished the video.

        None for a video that is not finished, and where something is missing that only a cache can tell: then the
        blocks are written to one.
        """
        if not self._made or len(self._made) < self.plan.new_blocks:
            return None
        end = None
        if self.run is not None:
            opening = self.events or self.run.load_events(OPENING, self.keys[:1])
            events = len(opening) + sum(block.event is not None for block in self._made)
            end = Finished.load(self.run, self.keys[-1])
            if end is not None and (end.events, len(end.occupied)) != (events, len(self._made)):
                end = None
            self.events = self.events if end is None else opening
        return end if self.peers is None else self.peers.from_first(end)

    def _note_end(self) -> None:
        if self.run is not None:
            occupied = self._meter.occupied[-self.plan.new_blocks :]
            end = Finished(self.seconds_per_block, len(self.events), self.guards, self.recalls, occupied)
            end.save(self.run, self.keys[-1])

    def _recall_roles(self) -> None:
        """Load the roles that an earlier render found. Without them its blocks are not reused, because finding roles
        needs the attention of every pass.
        """
        if self.run is None or self.plan.auto is None or not self._made:
            return
        found = self.run.load_note(FOUND, self.keys[: len(self._made)])
        if found is None:
            self._made = []
            return
        self.found_profile = HeadProfile.from_json(found["profile"])
        self.events = [MemoryEvent(**event) for event in found["events"]]

    def _drop_what_cannot_go_on(self) -> None:
        """Of an unfinished video, do not reuse blocks that the cache lacks and cannot be rebuilt from."""
        held = max(0, self.cache.block - (self.plan.blocks - self.plan.new_blocks))
        if not self.plan.policy.replays and held < len(self._made) < self.plan.new_blocks:
            log.warning(
                "Head Forcing: of %d finished blocks all after the first %d are made again; this cache cannot be "
                "rebuilt from blocks, and was last stored there",
                len(self._made),
                held,
            )
            self._made = self._made[:held]

    def _restore(self) -> None:
        if self.run is None or not self._made or self.peers is not None or self._ended is not None:
            return
        state = self.run.load_state(self.keys[: len(self._made)])
        if state is not None:
            self.method.restore(self.cache, state)
            self._check_scenes()
            if not self.events:  # a cache that is rebuilt makes these decisions again
                for event in self.run.load_events(OPENING, self.keys[:1]):
                    self._add_opening(event)

    def _check_scenes(self) -> None:
        """Refuse a restored cache of a story with other scenes: a prompt repeated in a new scene changes no key."""
        found = getattr(self.cache, "scene_starts", None)
        begun = (block for block in sorted(self.plan.switches) if block < self.cache.block)
        starts = [0, *(block * self.plan.schedule.frames_per_block for block in begun)]
        if found is not None and found != starts:
            raise HeadForcingError(
                f"the saved state is of a story whose scenes begin with latent frames {found}, those of this one "
                f"with {starts}"
            )

    def _add_opening(self, event: MemoryEvent) -> None:
        self._opening.append(event)
        self.events.append(event)

    def _note_opening(self) -> None:
        """Store the decisions of episodic memory after start blocks: a restored cache does not make them again."""
        if self.run is not None and self._opening:
            self.run.save_events(OPENING, self.keys[0], self._opening)

    def _store(self, place: int, block: Block) -> None:
        if self.run is not None:
            previous = self.keys[place - 1] if place else None
            self.run.save_block(place, self.keys[place], block.latents, block.event, block.unfinished, previous)

    def _store_state(self, place: int) -> None:
        state = self.method.state(self.cache)
        if self.run is not None and state is not None:
            try:
                self.run.save_state(place, self.keys[place], state)
            except HeadForcingError as error:  # not needed to resume: the cache can be rebuilt from the blocks
                log.warning("Head Forcing: rendering continues without a stored cache state, %s", error)

    def _notice_profile(self, place: int) -> None:
        """Store the roles with the block after which they were found."""
        if self.plan.auto is not None and self.cache.profile is not None and self.found_profile is None:
            self.found_profile, self.found_now = self.cache.profile, True
            self.events += self.cache.earlier_events
            if self.run is not None:
                events = [event.to_dict() for event in self.events]
                found = {"profile": self.found_profile.to_json(), "events": events}
                self.run.save_note(FOUND, self.keys[place], found)
