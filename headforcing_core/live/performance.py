"""A video without a fixed end: it is made longer while it is rendered, the prompts are given
meanwhile, and the render stays a little ahead of those who watch.

What was performed is an ordinary story: rendered again it has the same bits.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from ..errors import HeadForcingError
from ..files import Fields
from ..methods.method import Method, VideoFacts
from ..methods.options import options_of
from ..plan.options import RenderOptions
from ..plan.plan import RenderPlan
from ..plan.request import RenderJob, RenderRequest
from ..plan.resources import Needs, check_disk, needs_of
from ..render.live_story import LiveEdits, StoryEdits
from ..render.render import Render
from ..rollout.loop import Block
from ..rollout.rows import Embeddings
from ..timeline.clock import MAX_SECONDS, plain_time
from ..timeline.timeline import Timeline
from .audience import LEAD_SECONDS, Audience, Lead, Player
from .story import Beats, GrowingStory, Read, Said

_LEFT_SECONDS = 10.0  # before its end the story is made longer
MORE_SECONDS = 30.0  # by which it is made longer, and with which it begins at least
_LONG_SECONDS = 3600.0  # a method that can make this can go on
_POLL_SECONDS = 0.015

log = logging.getLogger(__name__)

Change = Callable[[GrowingStory], GrowingStory]  # returns the same object if it changes nothing


@dataclass(frozen=True)
class Placed:
    """The place of a change that was taken: the first block that is another one, start blocks
    included, and its second of the story. The end of the video for a change that returned the story
    as it was.
    """

    block: int
    seconds: float


class Performance(LiveEdits):
    """Lets a video go on without a fixed end, and takes the prompts that are given meanwhile: a
    listener of the render. It must be the last one, since `add` may wait.

    `perform`, `expect`, `replace_story` and `stop` may be called from any thread, and return at
    once. The result of a `Future` is a `Placed`, or the HeadForcingError that refuses the change.

    Args:
        text: the story that the video begins with, in the written form. Prompts for later stay.
        read: reads a text with the arguments of the story, as `story.Read`.
        host: `check`, `encode` (if texts are new), `about` and `taken` are called for a change, the
            first three while `performance.taking` is the new story. `encode` is also called for
            words that are expected; `taking` is None then. `refused` gets the reason if the video
            cannot be made longer and so ends; it is not called for changes that are refused, nor
            where the audience leaves. `ask` is not called.
        audience: those who watch.
        lead: seconds that the render is ahead of them at least.
        while_waiting: is called while the render waits; may raise to stop it.
        video_folder: of the video, whose disk must have room for it; None if none is written.
        scale: of its pixels, as in `needs_of`.

    Attributes:
        has_begun: whether the render has; before it there are no `render` and no `story`.
        story: the story that is rendered.
        taking: the story that is being taken; None between two changes.
        ends: whether the end is fixed.
        why: why the video ends by itself; empty while it does not.
    """

    def __init__(
        self,
        text: str,
        read: Read,
        host: StoryEdits,
        *,
        audience: Audience | None = None,
        lead: float = LEAD_SECONDS,
        while_waiting: Callable[[], None] = lambda: None,
        video_folder: Path | None = None,
        scale: int = 1,
    ):
        self._changes = _Changes(host, self)
        super().__init__(self._changes)
        self._text = text
        self._read = read
        self._host = host
        self.audience = audience or Player()
        self.lead = Lead(lead)
        self._while_waiting = while_waiting
        self._video_folder = video_folder
        self._scale = scale
        self.has_begun = False
        self.story: GrowingStory
        self.taking: GrowingStory | None = None
        self.ends = False
        self.why = ""
        self._timed_block = -1  # whose time is taken, with what is written again before it
        self._block_began = 0.0
        self._expected = ""
        self._unstored: RenderJob | None = None  # whose story the run folder lacks
        self._lock = threading.Lock()  # guards `_unstored`

    # ----------------------------------------------------------------------------- from any thread

    def perform(
        self,
        words: str = "",
        tag: str = "",
        recall: int | None = None,
        beats: Beats | None = None,
    ) -> Future[Placed]:
        """Let a prompt begin with the next block that has not begun; arguments as of `Said`."""
        said = Said(words, tag, recall, beats)
        return self._changes.put(lambda story: self._with_prompt(story, said))

    def expect(self, words: str) -> None:
        """Encode these words, which may be given soon, if the render has the time meanwhile."""
        self._expected = words

    def replace_story(self, text: str) -> Future[Placed]:
        """Go on with another text in the written form, which begins as the story does."""

        def changed(story: GrowingStory) -> GrowingStory:
            self._check_goes_on()
            timeline = story.timeline
            whole = story.read(text, None)
            return GrowingStory.of(
                text, whole, story.read, clock=timeline.clock, seconds=timeline.seconds
            )

        return self._changes.put(changed)

    def stop(self) -> Future[Placed]:
        """End the video with the next block at which a prompt can begin: the one after the block
        that has begun, or behind a dissolve that has begun. The video is at least as long as the
        shortest one whose caches have the same size, since that depends on the length.
        """
        return self._changes.put(self._cut, self._end_if_taken)

    # ------------------------------------------------------------------------------ as a listener

    def begin(self, render: Render) -> None:
        plan = render.job.plan
        check_endless(render.job.request, plan)
        timeline = plan.timeline
        self.story = GrowingStory.of(
            self._text,
            render.job.request.timeline,
            self._read,
            clock=timeline.clock,
            seconds=timeline.seconds,
        )
        check_scenes_stay(plan.method, self.story)
        super().begin(render)
        self.has_begun = True

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        if latents is None and block != self._timed_block:
            self._timed_block = block
            self._block_began = time.monotonic()

    def add(self, block: Block) -> None:
        if block.index == 0:
            self.audience.begin()
        is_made = self.render.run.is_made(block.index)
        if is_made:
            self.lead.add(time.monotonic() - self._block_began)
        self._take_changes()
        self._lengthen()
        self._see_audience()
        if is_made:
            self._wait_for_audience(self._plan.start_seconds(block.index + 1))

    def finish(self) -> None:
        self._changes.close()

    def __exit__(self, *error: object) -> None:
        self._changes.close()

    def store_story(self, job: RenderJob, before: RenderJob) -> None:
        # by the thread that stores, and the latest only: the notes are as long as the story
        with self._lock:
            waits = self._unstored is not None
            self._unstored = job
        if not waits:
            self.render.run.later(lambda: self._store_latest(before))

    def _store_latest(self, before: RenderJob) -> None:
        with self._lock:
            job = self._unstored
            self._unstored = None
        assert job is not None
        try:
            super().store_story(job, before)
        except HeadForcingError as error:  # the story has been taken
            log.warning("Head Forcing: the run folder does not have the new story: %s", error)

    # ---------------------------------------------------------------------- in the render's thread

    @property
    def _plan(self) -> RenderPlan:
        return self.render.job.plan

    @property
    def _begun(self) -> int:
        """Number of blocks of the story that have begun."""
        return max(0, self.render.script.begun - self._plan.layout.start_blocks)

    def _wait_for_audience(self, end: float) -> None:
        """Wait until the next block is needed, if the video is finished up to this second."""
        while not self.ends and (spare := self._spare_seconds(end)) > 0:
            self._while_waiting()
            self._encode_expected(spare)
            self._changes.wait(_POLL_SECONDS)
            self._see_audience()
            self._take_changes()

    def _spare_seconds(self, end: float) -> float:
        """Seconds for which the render can wait if the video is finished up to this second."""
        position = self.audience.position(end)
        return 0.0 if position is None else end - position - self.lead.seconds

    def _encode_expected(self, spare: float) -> None:
        """Encode the words that are expected, if that took less than these seconds before."""
        words = self._expected
        if not words or self._changes.encode_seconds > spare:
            return
        self._expected = ""
        try:
            story = self._with_prompt(self.story, Said(words))
            known = self.render.job.request.embeds
            self._changes.encode_ahead([text for text in story.timeline.texts if text not in known])
        except HeadForcingError:
            pass  # it is told when the words are given

    def _take_changes(self) -> None:
        while self._changes.waits:
            self.ask()

    def _check_goes_on(self) -> None:
        if self.ends:
            raise HeadForcingError("the video is ending; begin another one")

    def _with_prompt(self, story: GrowingStory, said: Said) -> GrowingStory:
        self._check_goes_on()
        block = story.free_block(self._begun)
        if said.beats is not None:
            block = said.beats.nearest_block(block, story.timeline.clock)
        return story.with_prompt(said, block)

    def _cut(self, story: GrowingStory) -> GrowingStory:
        plan = self._plan
        least = _least_blocks(plan) - plan.layout.start_blocks
        end = max(least, story.free_block(self._begun) + 1)
        return story if end >= story.timeline.blocks else story.cut(end)

    def _end_if_taken(self, stopped: Future[Placed]) -> None:
        self.ends = self.ends or stopped.exception() is None

    def _see_audience(self) -> None:
        """End the video if nobody watches any more."""
        why = self.audience.leaving
        if why and not self.ends:
            self.why = why
            log.info("Head Forcing: the video ends: %s", why)
            self.stop()
            self._take_changes()

    def _lengthen(self) -> None:
        """Make the story longer if its end is near and there is room on the disk."""
        plan = self._plan
        now = plan.start_seconds(self.render.script.begun)
        length = self.story.timeline.seconds
        if self.ends or length - now > _LEFT_SECONDS:
            return
        if length >= MAX_SECONDS:
            self._end_here(f"a video lasts {MAX_SECONDS / 3600:g} hours at most")
            return
        seconds = min(MAX_SECONDS, math.ceil(length) + MORE_SECONDS)

        def changed(story: GrowingStory) -> GrowingStory:
            # a `stop` that came just before is taken first
            return story if self.ends else story.lengthened(seconds)

        longer = self._changes.put(changed)
        self._take_changes()
        refusal = longer.exception()
        if refusal is not None:
            self._end_here(str(refusal))

    def _end_here(self, why: str) -> None:
        """Let the video end where the story does, for a reason that is told."""
        self.ends = True
        self.why = why
        end = plain_time(self.story.timeline.seconds)
        self._host.refused(HeadForcingError(f"the video ends at {end}: {why}"))

    def check_disk(self, plan: RenderPlan) -> None:
        """Refuse a longer plan whose new part does not fit on the disks."""
        if plan.blocks <= self._plan.blocks:
            return
        before = self._needs_of(self._plan)
        after = self._needs_of(plan)
        more = replace(
            after,
            run_folder=after.run_folder - before.run_folder,
            video=after.video - before.video,
        )
        check_disk([more], self.render.job.request.runs, self._video_folder)

    def _needs_of(self, plan: RenderPlan) -> Needs:
        request = self.render.job.request
        return needs_of(
            plan,
            request.dtype,
            0,
            kept=request.runs is not None,
            writes_video=self._video_folder is not None,
            scale=self._scale,
        )


class _Changes(StoryEdits):
    """Changes from other threads that wait for the render, in order."""

    def __init__(self, host: StoryEdits, performance: Performance):
        self._host = host
        self._performance = performance
        self.encode_seconds = 0.0  # that the last encoding took
        self._ahead: Embeddings = {}
        self._waiting: deque[tuple[Change, Future[Placed]]] = deque()
        self._came = threading.Event()
        self._lock = threading.Lock()  # guards `_waiting` and `_is_closed`
        self._is_closed = False
        self._future: Future[Placed] | None = None  # of the change that was taken last

    def put(
        self, change: Change, done: Callable[[Future[Placed]], None] = lambda placed: None
    ) -> Future[Placed]:
        """Let the render take a change. `done` gets the future when it is taken or refused, in the
        thread that does it and before callbacks that are added later.
        """
        future: Future[Placed] = Future()
        future.add_done_callback(done)
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                self._waiting.append((change, future))
        if is_closed:
            future.set_exception(HeadForcingError("the video has ended; begin another one"))
        self._came.set()
        return future

    def close(self) -> None:
        """Refuse what waits and what comes."""
        with self._lock:
            self._is_closed = True
            futures = [future for _, future in self._waiting]
            self._waiting.clear()
        if self._future is not None and not self._future.done():
            futures.insert(0, self._future)
        for future in futures:
            future.set_exception(HeadForcingError("the video has ended; begin another one"))

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def wait(self, seconds: float) -> None:
        """Wait for a change, so many seconds at most."""
        self._came.wait(seconds)
        self._came.clear()

    def ask(self) -> Timeline | None:
        with self._lock:
            if not self._waiting:
                return None
            change, future = self._waiting.popleft()
        self._future = future
        performance = self._performance
        try:
            new = change(performance.story)
            check_scenes_stay(performance.render.job.plan.method, new)
        except HeadForcingError as error:
            future.set_exception(error)
            return None
        if new is performance.story:
            plan = performance.render.job.plan
            future.set_result(Placed(plan.blocks, plan.timeline.seconds))
            return None
        performance.taking = new
        return new.timeline

    def check(self, plan: RenderPlan, more: int) -> None:
        self._host.check(plan, more)
        self._performance.check_disk(plan)

    def encode(self, texts: list[str]) -> Embeddings:
        embeds = {text: self._ahead[text] for text in texts if text in self._ahead}
        new = [text for text in texts if text not in embeds]
        return {**embeds, **self._encode(new)} if new else embeds

    def encode_ahead(self, texts: list[str]) -> None:
        """Encode texts and keep their embeddings until others are encoded ahead."""
        self._ahead = self.encode(texts)

    def _encode(self, texts: list[str]) -> Embeddings:
        began = time.monotonic()
        embeds = self._host.encode(texts)
        self.encode_seconds = time.monotonic() - began
        return embeds

    def about(self) -> Fields:
        return self._host.about()

    def taken(self, plan: RenderPlan, block: int) -> None:
        performance = self._performance
        assert performance.taking is not None and self._future is not None
        performance.story = performance.taking
        performance.taking = None
        self._host.taken(plan, block)
        self._future.set_result(Placed(block, plan.start_seconds(block)))

    def refused(self, error: HeadForcingError) -> None:
        assert self._future is not None
        self._performance.taking = None
        self._future.set_exception(error)


def _least_blocks(plan: RenderPlan) -> int:
    """The smallest number of blocks, start blocks included, with the caches of the plan."""
    shape = plan.shape
    frames = plan.schedule.frames_per_block
    for blocks in range(1, plan.blocks):
        if replace(shape, total_frames=blocks * frames).frame_slots == shape.frame_slots:
            return blocks
    return plan.blocks


def with_kept_scenes(options: RenderOptions) -> RenderOptions:
    """The options with `scenes=tagged`, if the method has that option and it is not set, so that
    later prompts can recall scenes. No block changes by it.
    """
    is_chosen = any(name == "scenes" for name, _ in options.method_options)
    if is_chosen or "scenes" not in options_of(options.method):
        return options
    kept = (*options.method_options, ("scenes", "tagged"))
    try:
        kept_options = replace(options, method_options=kept)
        facts = VideoFacts(options.schedule, blocks=1)
        kept_options.method.for_video(facts)
    except HeadForcingError:  # a preset without memory heads
        return options
    return kept_options


def check_scenes_stay(method: Method, story: GrowingStory) -> None:
    """Refuse a story whose scenes that come back would be others with more prompts."""
    if method.recalls_by_likeness and story.timeline.recalls:
        raise HeadForcingError(
            "with this method a scene that comes back depends on all prompts of a story, and "
            "more will follow; choose head_forcing"
        )


def check_endless(request: RenderRequest, plan: RenderPlan) -> None:
    """Refuse a video that cannot go on without a fixed end: its passes, caches or conditions depend
    on the length, or it ends early.
    """
    if request.until_seconds:
        raise HeadForcingError(
            "a video without a fixed end has no part to stop at; render all of it"
        )
    timeline = plan.timeline
    longer = replace(timeline, seconds=max(_LONG_SECONDS, timeline.seconds + MORE_SECONDS))
    try:
        request.check_conditions(plan.with_timeline(longer))
    except HeadForcingError as error:
        raise HeadForcingError(
            "this video cannot go on without a fixed end: the passes or caches of its method, or "
            "the sound that drives it, depend on its length; choose head_forcing or another method "
            "whose caches do not grow"
        ) from error
