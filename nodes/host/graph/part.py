"""A part or a draft of a video, which the sampler's buttons ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.model.latents import LatentFormat
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.timeline.clock import plain_time
from ..sentences import Sentence, joined
from .queued_graph import inputs_of


@dataclass(frozen=True)
class Part:
    """A part of a video, or a draft of it: a run of a sampler, without arguments all of the video.

    The sampler's buttons queue the graph with inputs that no widget has, so that workflow and
    widgets stay as they are.
    """

    from_seconds: float = 0.0  # where the file begins, in seconds of the story
    until_seconds: float = 0.0  # where the render ends; 0: at the end of the story
    # whether it is rendered smaller and decoded by a tiny decoder where ComfyUI has one
    draft: bool = False

    @classmethod
    def of(cls, hidden: Any) -> Part:
        """The part that the queued graph asks for."""
        asked = inputs_of(hidden, hidden.unique_id)
        return cls(
            _seconds(asked, "from_seconds"),
            _seconds(asked, "until_seconds"),
            asked.get("draft") is True,
        )

    def first(self, plan: RenderPlan) -> int:
        """The block with which the file begins: the one before the part, since a decoder has to see
        what was before.
        """
        if self.from_seconds == 0 or plan.vae_use is not None:
            return 0
        block = plan.layout.start_blocks + plan.timeline.clock.block_at(self.from_seconds) - 1
        return max(0, min(block, plan.blocks_until(self.until_seconds) - 1))

    def size(self, width: int, height: int, latents: LatentFormat) -> tuple[int, int]:
        """Width and height in pixels: of a draft half of both, in whole patches."""
        if not self.draft:
            return width, height
        patch = latents.side_multiple
        half_width = width // 2 // patch * patch
        half_height = height // 2 // patch * patch
        return max(patch, half_width), max(patch, half_height)

    def prefix(self, filename_prefix: str) -> str:
        """The beginning of the file's name."""
        return f"{filename_prefix}_draft" if self.draft else filename_prefix

    def describe(self, plan: RenderPlan) -> Sentence:
        """Words before a status line; empty for all of the video."""
        words = []
        if self.draft:
            words.append(Sentence("draft, %1x%2", plan.width, plan.height))
        end_block = plan.blocks_until(self.until_seconds)
        if end_block < plan.blocks:
            words.append(Sentence("up to %1", plain_time(plan.start_seconds(end_block))))
        return joined(words, ", ")


WHOLE = Part()


def _seconds(asked: Fields, name: str) -> Any:
    """A value of the queued graph, 0 if it has none, which the options check; refuses a link."""
    value = asked.get(name, 0.0)
    if isinstance(value, list):
        raise HeadForcingError(f"{name} cannot be connected: write the number into the node")
    return value
