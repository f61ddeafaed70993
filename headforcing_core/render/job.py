"""One video from a plan to finished blocks: the one render path of the command line, the comparisons and the nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...kernels.dispatch import kernels_put_aside
from ..errors import HeadForcingError
from ..files import check_writable
from ..head_profiles.auto import recall, remember
from ..head_profiles.profile import HeadProfile
from ..model.attention import AttentionFunction
from ..rollout.loop import Block, JointModel, split_start_latents
from ..runs.folder import RunFolder
from ..timeline.switch import BlendedEmbeddings
from ..timeline.timeline import Timeline
from ..video.restarts import FrameCodec
from . import block_keys
from .finite_check import check_inputs
from .live_story import Story, first_change
from .plan import RenderPlan
from .provenance import about_story, attention_name
from .remedies import Host, check_memory
from .resources import Needs, needs_of
from .result import RenderResult
from .sinks import Sink
from .video_rollout import VideoRollout

if TYPE_CHECKING:
    from ..parallel.peers import Peers


class Watcher:
    """Somebody who follows a render; any of these may raise to stop it."""

    def begin(self, rollout: VideoRollout, sinks: Sequence[Sink]) -> None:
        """Called before the first block, with what is reused and where blocks go."""

    def __call__(self, block: int, step: int, latents: Tensor | None) -> None:
        """Called as `rollout.StepCallback`."""

    def finished(self, block: Block) -> None:
        """Called after each block."""

    def retold(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        """Called when the render goes on with another story, see `live_story`."""


@dataclass(frozen=True)
class RenderJob:
    """One video of a plan, ready to be made by any `JointModel`.

    Attributes:
        embeds: the plan's text embeddings, see `RenderPlan.embeddings`; those of a `Story`'s new prompts are added.
        weights: the fingerprint of the model's.
        video: number of the video in a batch; each has noise of its own.
        start_latents: `[frames, 16, h, w]`, normalised.
        start_key: in block keys in place of them, see `start.Start.key`.
        codec: encodes a video frame between rollouts; needed where the plan has `restart_frames`.
        runs: folder for finished blocks; None keeps nothing.
        patience: seconds to wait for another process that writes there.
        state_seconds: how often the cache is stored there; 0 never.
        found_profiles: folder for roles that were found; None keeps none.
        about: what to note in the run folder, see `provenance.about_video`.
    """

    plan: RenderPlan
    embeds: BlendedEmbeddings
    weights: str
    seed: int
    dtype: torch.dtype
    video: int = 0
    start_latents: Tensor | None = None
    start_key: str = ""
    codec: FrameCodec | None = None
    runs: Path | None = None
    patience: float = 0.0
    state_seconds: float = 0.0
    found_profiles: Path | None = None
    about: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def setup(self) -> str:
        """The hash of everything a block depends on but prompts and length."""
        start = self.start_latents, self.start_key
        return block_keys.setup_hash(self.plan, self.weights, self.seed, self.video, self.dtype, *start)

    @cached_property
    def keys(self) -> list[str]:
        """The key of each block."""
        codec = self.codec.fingerprint() if self.codec is not None and self.plan.restart_frames else ""
        return block_keys.video_keys(self.plan, self.setup, self.embeds, codec, self.seed)

    @property
    def finished_blocks(self) -> int:
        """How many blocks of this video are stored."""
        return 0 if self.runs is None else block_keys.finished_blocks(self.runs, self.setup, self.keys)

    def recall_roles(self, plan_with: Callable[[HeadProfile], RenderPlan]) -> RenderPlan:
        """The plan with the roles that were found for this model earlier, where the plan would find them.

        A video that began by finding them goes on so.
        """
        plan = self.plan
        if plan.auto is None or self.found_profiles is None or self.finished_blocks:
            return plan
        found = recall(self.found_profiles, self.weights, plan.auto)
        return plan if found is None else plan_with(found)

    def check_needs(
        self, weights: int, room: int | None, host: Host, *, encodes: bool, remedy: str, **sizes: Any
    ) -> Needs:
        """What the render will take; refuses what cannot be rendered or does not fit on the device.

        Disks are `check_disk`'s: one of several renders says nothing about all of them.

        Args:
            weights: bytes of the model's.
            room, host: as for `check_memory`; None where the device's memory is not known.
            encodes, remedy: as for `RenderPlan.check_encoder`.
            sizes: the other arguments of `needs_of`.
        """
        self.plan.check_warm_up()
        if self.plan.auto is not None and self.found_profiles is not None:  # written when the video is finished
            check_writable(self.found_profiles / "probe")
        self.plan.check_encoder(encodes, remedy)
        kept, state = self.runs is not None, self.state_seconds > 0
        needs = needs_of(self.plan, self.dtype, weights, kept=kept, state=state, **sizes)
        if room is not None:
            check_memory(needs, self.plan, self.dtype, room, host)
        return needs

    def run(
        self,
        model: JointModel,
        device: torch.device,
        attention: AttentionFunction,
        sinks: Sequence[Sink] = (),
        watcher: Watcher | None = None,
        attention_choice: str = "auto",
        story: Story | None = None,
        peers: Peers | None = None,
    ) -> RenderResult:
        """Make the video. Each block is stored, then given to the sinks, before the next one is begun.

        Args:
            attention_choice: what the user calls `attention`, for reports.
            story: asked before each block for other prompts; None keeps those of the plan.
            peers: the ranks that make the video together, each with its own job, of which only rank 0's has `runs`.
        """
        begun, watcher = time.perf_counter(), watcher or Watcher()
        check_inputs(self.embeds, self.start_latents)
        name = attention_name(attention, attention_choice, device, self.dtype, self.plan.config.head_dim)
        job = replace(self, about={**self.about, "attention": name})
        with ExitStack() as stack:
            rollout, known = job._rollout(stack, device=device, attention=attention, peers=peers)
            for sink in sinks:
                stack.enter_context(sink)
            watcher.begin(rollout, sinks)
            teller = StoryTeller(job, rollout, story or Story(), [*sinks, watcher], known)
            for latents in self._blocks(rollout, model, watcher, teller):
                for sink in sinks:
                    sink.add(latents)
            for sink in sinks:
                sink.finish()
            seconds_per_block, problems = rollout.seconds_per_block, rollout.problems
        return RenderResult(
            rollout.events,
            rollout.report(),
            rollout.cache.bytes,
            time.perf_counter() - begun,
            seconds_per_block,
            rollout.reused,
            rollout.found_profile,
            rollout.found_now,
            self._remember_roles(rollout),
            problems,
            name,
            rollout.guards,
            teller.job.plan,
            teller.job.embeds,
            teller.job.about,
            recalls=rollout.recalls,
            kernels=kernels_put_aside(device),
        )

    def _rollout(self, stack: ExitStack, **options: Any) -> tuple[VideoRollout, bool]:
        """The rollout, with its run folder open where there is one, and whether that knew the video already."""
        known = False
        if self.runs is not None:
            run = stack.enter_context(RunFolder(self.runs, self.setup, self.about, self.patience))
            known = run.save_video(self.keys, self.about)
            options |= {"run": run, "keys": self.keys, "state_seconds": self.state_seconds}
        reencode = None if self.codec is None else self.codec.reencode
        start = self.start_latents
        rollout = VideoRollout(
            self.plan, self.seed, self.video, dtype=self.dtype, start_latents=start, reencode=reencode, **options
        )
        return rollout, known

    def _blocks(
        self, rollout: VideoRollout, model: JointModel, watcher: Watcher, teller: StoryTeller
    ) -> Iterator[Tensor]:
        """The latents of all blocks, start frames included."""
        yield from split_start_latents(rollout.start_latents, self.plan.schedule.frames_per_block)
        teller.ask()
        for block in rollout.blocks(model, watcher):
            watcher.finished(block)
            yield block.latents
            teller.ask()

    def _remember_roles(self, rollout: VideoRollout) -> Path | None:
        if self.found_profiles is None or rollout.found_profile is None or not rollout.found_now:
            return None
        return remember(self.found_profiles, self.weights, rollout.found_profile)


class StoryTeller:
    """Puts the changes of a `Story` into a running render.

    Args:
        job: its embeddings are those that the model was given; those of new prompts are added to them.
        known: whether the run folder knew this video before the render.

    Attributes:
        job: the render with the story that is told now.
    """

    def __init__(
        self,
        job: RenderJob,
        rollout: VideoRollout,
        story: Story,
        listeners: Sequence[Sink | Watcher],
        known: bool = False,
    ):
        self.job, self._rollout, self._story = job, rollout, story
        self._listeners, self._known_video, self._embeds = listeners, known, job.embeds
        # not the texts that tell scenes apart, which may be those of a longer timeline
        texts = [segment.text for segment in job.plan.timeline.segments]
        self._encoded = dict(zip(texts, job.embeds.texts, strict=False))

    def ask(self) -> None:
        """Take the story's latest text, or refuse it; to be called between two blocks."""
        try:
            timeline = self._story.ask()
            if timeline is None:
                return
            block = self._take(timeline)
        except HeadForcingError as error:
            self._story.refused(error)
            return
        self._story.taken(self.job.plan, block)
        for listener in self._listeners:
            listener.retold(self.job.plan, self.job.about)

    def _take(self, timeline: Timeline) -> int:
        """Go on with this story; the first block with another prompt. An error leaves everything as it was."""
        plan = self.job.plan.with_timeline(timeline, self._story.seconds)
        block = first_change(self.job.plan, plan, self._rollout.begun, self.job.seed)
        needs = (needs_of(plan, self.job.dtype, 0).rendering for plan in (plan, self.job.plan))
        self._story.check(plan, next(needs) - next(needs))
        job = self._with(plan)
        finished = self._rollout.begun - (plan.blocks - plan.new_blocks) - (plan.blocks_per_pass - 1)
        if finished > 0 and job.keys[:finished] != self.job.keys[:finished]:
            raise HeadForcingError(
                "with these words an earlier [recall] would mean another scene, which has begun; choose other words"
            )
        self._note(job)
        self._rollout.retell(plan, self._embeds.add(job.embeds), job.keys)
        self.job = job
        return block

    def _with(self, plan: RenderPlan) -> RenderJob:
        """The job of another plan; only prompts that were never there are encoded."""
        texts = plan.timeline.texts
        new = [text for text in dict.fromkeys(texts) if text not in self._encoded]
        if new:
            embeds = self._story.encode(new)
            check_inputs(embeds, None)
            self._encoded |= dict(zip(new, embeds, strict=True))
        about = {**self.job.about, **about_story(plan), **self._story.about()}
        return replace(
            self.job, plan=plan, embeds=plan.embeddings([self._encoded[text] for text in texts]), about=about
        )

    def _note(self, job: RenderJob) -> None:
        """Note the video of the new story in place of the one that will not be finished."""
        run = self._rollout.run
        if run is not None:
            known = run.save_video(job.keys, job.about, () if self._known_video else self.job.keys)
            if not self._known_video and job.keys[-1] != self.job.keys[-1]:
                run.forget_video(self.job.keys)
            self._known_video = known
