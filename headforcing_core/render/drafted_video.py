"""A video that grows by a fast decoder, for a draft, while its blocks are made, and is decoded in
full when all of them are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..plan.plan import RenderPlan
from ..plan.request import RenderJob
from ..rollout.loop import Block
from ..video.stream import StreamingDecoder
from .render import Render
from .sinks import KeptLatents, VideoFile


@dataclass(eq=False)
class DraftedVideo(VideoFile):
    """A video file in two passes: the draft, which is finished with the last block, and then the
    final file from the same latents, which replaces it and has the bits of a render without a
    draft.

    A render all of whose blocks are stored makes no draft, so one that was stopped between the two
    passes goes on with the second.

    Args:
        draft_decoder: makes the draft's decoder of a plan, for what `target.to_decoder` returns.
        second_pass: yields the latents of the blocks, which are decoded as they come; it may show
            the progress, and raise to stop.

    Attributes:
        draft: the first pass; None where there is none.
    """

    draft_decoder: Callable[[RenderPlan], StreamingDecoder] = field(kw_only=True)
    second_pass: Callable[[list[Tensor]], Iterable[Tensor]] = field(default=iter, kw_only=True)
    draft: VideoFile | None = field(default=None, init=False)

    @property
    def job(self) -> RenderJob:
        """The job with the current story, once the render has begun."""
        return self._render.job

    @property
    def watched(self) -> VideoFile:
        """The draft until the final file is there."""
        return self if self.draft is None or self.info is not None else self.draft

    def begin(self, render: Render) -> None:
        job = render.job
        if job.finished_blocks >= len(job.keys):
            super().begin(render)
            return
        self._render = render
        self._kept = KeptLatents()
        self.draft = VideoFile(
            replace(self.target, decoder=self.draft_decoder),
            scale=self.scale,
            background=self.background,
            losable=True,
            while_waiting=self.while_waiting,
            cancels=self.cancels,
        )
        self.draft.begin(render)

    def add(self, block: Block) -> None:
        if self.draft is None:
            super().add(block)
            return
        self._kept.add(block)
        self.draft.add(block)

    def finish(self) -> None:
        if self.draft is not None:
            self._decode_again(self.draft)
        super().finish()

    def _decode_again(self, draft: VideoFile) -> None:
        """The second pass, up to the end of the file."""
        draft.finish()
        if draft.info is not None:
            path = draft.info.path
            self.target = replace(self.target, claim_last=lambda plan: nullcontext(path))
        super().begin(self._render)
        for index, latents in enumerate(self.second_pass(self._kept.blocks)):
            super().add(Block(index, latents))

    def __exit__(self, *error: Any) -> None:
        if self.draft is not None:
            self.draft.__exit__(*error)
        super().__exit__(*error)
