"""A part of a video, or a draft of it: what the buttons of Head Forcing Sampler ask of one run.

They queue the graph with inputs of the sampler that no widget has, so that workflow and widgets stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import comfy.sd
import comfy.utils

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.model.latents import WAN21, LatentFormat
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.timeline.clock import TEMPORAL_STRIDE, format_time
from . import folders, queued_graph


@dataclass(frozen=True)
class Part:
    """A run of a sampler; without arguments all of the video.

    Attributes:
        from_seconds: where the file begins, in seconds of the story.
        until_seconds: where the render ends; 0: at the end of the story.
        draft: whether it is rendered smaller and decoded by a tiny decoder where ComfyUI has one.
    """

    from_seconds: float = 0.0
    until_seconds: float = 0.0
    draft: bool = False

    @classmethod
    def of(cls, hidden: Any) -> Part:
        """The part that the queued graph asks for."""
        asked = queued_graph.inputs_of(hidden, hidden.unique_id)
        return cls(asked.get("from_seconds", 0.0), asked.get("until_seconds", 0.0), asked.get("draft") is True)

    def until(self, plan: RenderPlan) -> int:
        """The number of blocks that are made, start blocks included; raises HeadForcingError for what is no time."""
        blocks = plan.start_blocks + plan.timeline.clock.blocks_for(self.until_seconds)
        return plan.blocks if self.until_seconds == 0 else min(blocks, plan.blocks)

    def first(self, plan: RenderPlan) -> int:
        """The block with which the file begins: the one before the part, since a decoder has to see what was before."""
        block = plan.start_blocks + plan.timeline.clock.block_at(self.from_seconds) - 1
        return 0 if self.from_seconds == 0 or plan.restart_frames else max(0, min(block, self.until(plan) - 1))

    def size(self, width: int, height: int, latents: LatentFormat) -> tuple[int, int]:
        """Width and height in pixels: of a draft half of both, in whole patches."""
        if not self.draft:
            return width, height
        multiple = latents.side_multiple
        return max(multiple, width // 2 // multiple * multiple), max(multiple, height // 2 // multiple * multiple)

    def check_start(self, start_frames: Any) -> None:
        """Refuse a draft of latents that have their size already."""
        if self.draft and start_frames is not None:
            raise HeadForcingError("a draft is smaller than start_frames, whose size a render takes; connect the video")

    def decoder(self, vae: Any, latents: LatentFormat) -> Any:
        """The VAE that decodes it, None where none is connected."""
        if not self.draft or vae is None:
            return vae
        names = tuple(f"{kind}{'2_1' if latents is WAN21 else '2_2'}." for kind in ("lighttaew", "taew"))
        path = folders.tiny_decoder_file(names)
        return vae if path is None else comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(path)))

    def describe(self, plan: RenderPlan) -> str:
        """Words before a status line; empty for all of the video."""
        clock, words = plan.timeline.clock, [f"draft, {plan.width}x{plan.height}"] if self.draft else []
        if (until := self.until(plan)) < plan.blocks:
            words.append(f"up to {format_time(clock.start_seconds(until - plan.start_blocks))}")
        return ", ".join(words)


WHOLE = Part()


def skipped_video_frames(plan: RenderPlan, first: int) -> int:
    """Number of video frames by which a file that begins with block `first` begins later than the video."""
    return first * plan.schedule.frames_per_block * TEMPORAL_STRIDE
