"""A video that grows by a fast decoder, for a draft, while its blocks are made, and is decoded in
full when all of them are there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..plan.plan import RenderPlan
from ..rollout.loop import Block
from ..video.stream import StreamingDecoder
from ..video.writer import VideoInfo
from .render import Listener, Render
from .sinks import KeptLatents, VideoFile


class DraftedVideo(Listener):
    """A video file in two passes: the draft, which is finished with the last block, and then the
    `final` file from the same latents, which replaces it and has the bits of a render without a
    draft.

    A render all of whose blocks are stored makes no draft, so one that was stopped between the two
    passes goes on with the second.

    Args:
        draft: makes the draft's decoder of a plan.
    """

    def __init__(self, final: VideoFile, draft: Callable[[RenderPlan], StreamingDecoder]):
        self.final = final
        self._draft = VideoFile(
            replace(final.target, decoder=draft),
            scale=final.scale,
            background=final.background,
            losable=True,
            while_waiting=final.while_waiting,
            cancels=final.cancels,
        )
        self._kept = KeptLatents()
        self._is_drafted = False

    @property
    def info(self) -> VideoInfo | None:
        """The final file; None before."""
        return self.final.info

    @property
    def failure(self) -> str | None:
        """Why there is no final file, in a sentence."""
        return self.final.failure

    def begin(self, render: Render) -> None:
        self._render = render
        job = render.job
        self._is_drafted = job.finished_blocks < len(job.keys)
        if self._is_drafted:
            self._draft.begin(render)

    def add(self, block: Block) -> None:
        self._kept.add(block)
        if self._is_drafted:
            self._draft.add(block)

    def finish(self) -> None:
        if self._is_drafted:
            self._draft.finish()
        self.final.begin(self._render)
        for index, latents in enumerate(self._kept.blocks):
            self.final.add(Block(index, latents))
        self.final.finish()

    def __exit__(self, *error: Any) -> None:
        self._draft.__exit__(*error)
        self.final.__exit__(*error)
