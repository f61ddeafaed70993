"""Prompts that change while a video is made: blocks that have begun stay, all others take the new
story.

Blocks have the keys, and so the latents, of a render that had the new story from the beginning.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ..errors import HeadForcingError
from ..files import Fields
from ..plan.plan import RenderPlan
from ..plan.request import RenderJob
from ..plan.resources import needs_of
from ..rollout.loop import Block
from ..rollout.rows import Embeddings, HasBegunError, KnownKeys, first_difference, keep_windows
from ..timeline.clock import format_time
from ..timeline.timeline import Timeline
from .render import Listener, Render


class StoryEdits:
    """Source of changes of the story of a running render, which calls everything in its thread,
    between two blocks. A HeadForcingError is given to `refused`."""

    seconds: float = 0.0  # as for `layout.lay_out`

    def ask(self) -> Timeline | None:
        """The story to go on with, None for the one that is rendered already; must not wait for
        anything.
        """
        return None

    def check(self, plan: RenderPlan, more: int) -> None:
        """Refuse a plan that takes `more` bytes of memory beside the one that is rendered: a story
        may bring the first switch that writes blocks again, and prompts to encode. See
        `resources.check_growth`."""

    def encode(self, texts: list[str]) -> Embeddings:
        """Text embeddings `[tokens, text_dim]` of prompts that are new, by text."""
        raise NotImplementedError

    def taken(self, plan: RenderPlan, block: int) -> None:
        """The render goes on with this plan; block `block`, start blocks included, is the first
        with another prompt.
        """

    def refused(self, error: HeadForcingError) -> None:
        """The render goes on with the story that it had, for this reason."""

    def about(self) -> Fields:
        """Notes on the story, besides its prompts and times, for the run folder and files."""
        return {}


class LiveEdits(Listener):
    """Puts the changes of a `StoryEdits` into a running render."""

    def __init__(self, edits: StoryEdits):
        self._edits = edits

    def begin(self, render: Render) -> None:
        self.render = render
        self.ask()

    def add(self, block: Block) -> None:
        if block.index >= self.render.job.plan.layout.start_blocks:
            self.ask()

    def ask(self) -> None:
        """Take the latest story of the edits, or refuse it."""
        try:
            timeline = self._edits.ask()
            if timeline is None:
                return
            block = self._take(timeline)
        except HeadForcingError as error:
            self._edits.refused(error)
            return
        self._edits.taken(self.render.job.plan, block)

    def _take(self, timeline: Timeline) -> int:
        """Go on with this story; the first block with another prompt. A HeadForcingError leaves
        everything as it was.
        """
        render = self.render
        before = render.job
        plan = before.plan.with_timeline(timeline, self._edits.seconds)
        request = before.request
        request.check_conditions(plan)
        begun = render.script.begun
        plan = replace(plan, rows=keep_windows(plan.rows, before.plan.rows[:begun]))
        block = first_change(before.plan, plan, begun)
        new = [text for text in plan.timeline.texts if text not in request.embeds]
        more = (
            needs_of(plan, request.dtype, 0).rendering
            - needs_of(before.plan, request.dtype, 0).rendering
        )
        any_embedding = next(iter(request.embeds.values()))
        if any_embedding.device.type == torch.device(render.place.device).type:
            longest = plan.config.text_len * plan.config.text_dim * any_embedding.element_size()
            more += len(new) * longest
        self._edits.check(plan, more)
        job = self._with(plan, timeline, new)
        if first_difference(job.script.rows, render.script.rows) < min(
            render.script.begun, len(render.script)
        ):
            raise HeadForcingError(
                "with these words an earlier [recall] would mean another scene, which has begun; "
                "choose other words"
            )
        self.store_story(job, before)
        render.script.replace(job.script)
        render.job = job
        return block

    def store_story(self, job: RenderJob, before: RenderJob) -> None:
        """Put the notes on the new story into the run folder, in place of those on the video that
        will not be finished.
        """
        run = self.render.run
        if run.folder is not None:
            in_place_of = () if run.was_known else before.keys
            run.was_known = run.folder.save_video(job.keys, job.about, in_place_of)

    def _with(self, plan: RenderPlan, timeline: Timeline, new: list[str]) -> RenderJob:
        """The job of another plan, with the embeddings of its prompts and no others; only `new`
        texts are encoded.
        """
        job = self.render.job
        request = job.request
        encoded = self._edits.encode(new) if new else {}
        request = replace(
            request,
            options=replace(request.options, seconds=plan.timeline.seconds),
            timeline=timeline,
            embeds=encoded,
            about={**request.about, **self._edits.about()},
        )
        request.check_finite()
        known = {**job.request.embeds, **encoded}
        # others would stay until the render ends
        request = replace(request, embeds={text: known[text] for text in plan.timeline.texts})
        return replace(job, request=request, plan=plan, known=KnownKeys(job.script.rows, job.keys))


def first_change(plan: RenderPlan, changed: RenderPlan, begun: int) -> int:
    """The first block that is made in another way in `changed`, start blocks counted.

    Raises HeadForcingError if there is none, and if it is one of the first `begun` blocks. Where
    the length is another the last block of the shorter video counts as changed, since the file is
    trimmed in it.
    """
    first = first_difference(plan.rows, changed.rows)
    both = min(plan.blocks, changed.blocks)
    same_length = plan.video_frames == changed.video_frames
    if first == both and same_length:
        raise HeadForcingError(
            "this story is being rendered already; the text changes nothing in the video"
        )
    if first >= begun and (same_length or both > begun):
        return min(first, changed.blocks - 1)
    if begun >= plan.blocks:
        raise HasBegunError(
            "all blocks have begun, nothing is left to change; queue the new story as a render"
        )
    start = plan.start_seconds(begun)
    if first >= begun:
        raise HasBegunError(
            f"the blocks before {format_time(start)} have begun and stay (block {begun + 1} of "
            f"{plan.blocks}): end the story after that"
        )
    raise HasBegunError(
        f"prompt {plan.segment_index(first) + 1} has begun and its finished blocks stay: leave "
        f"everything before {format_time(start)} (block {begun + 1} of {plan.blocks}) as it was, "
        "and change what comes after"
    )
