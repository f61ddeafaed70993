"""Prompts that change while a video is made: blocks that have begun stay, all others take the new story.

The result is the video of the new story: its blocks have the keys, and so the latents, of a render that had that story
from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from torch import Tensor

from ..errors import HeadForcingError
from ..rollout.noise import NoiseSource
from ..timeline.clock import format_time
from ..timeline.timeline import Timeline
from .plan import RenderPlan


class HasBegunError(HeadForcingError):
    """A story that would change what has begun already."""


class Story:
    """Where a running render asks for other prompts; everything is called in its thread, between two blocks.

    Attributes:
        seconds: as for `RenderPlan.make`; 0 takes the length of the timeline.
    """

    seconds: float = 0.0

    def ask(self) -> Timeline | None:
        """The story to go on with, None for the one that is told already.

        Must not wait for anything. A HeadForcingError is given to `refused`.
        """
        return None

    def check(self, plan: RenderPlan, more: int) -> None:
        """Refuse a plan with a HeadForcingError.

        Args:
            more: bytes of memory that it takes beside the plan that is rendered: a story may bring the first switch
                that writes blocks again. See `resources.check_growth`.
        """

    def encode(self, texts: list[str]) -> Sequence[Tensor]:
        """Text embeddings `[tokens, text_dim]` of prompts that are new; a HeadForcingError is given to `refused`."""
        raise NotImplementedError

    def taken(self, plan: RenderPlan, block: int) -> None:
        """The render goes on with this plan; block `block`, start blocks included, is the first with another prompt."""

    def refused(self, error: HeadForcingError) -> None:
        """The render goes on with the story that it had, for this reason."""

    def about(self) -> dict[str, Any]:
        """What to note about the story, besides its prompts and times, in the run folder and in files."""
        return {}


def first_change(plan: RenderPlan, changed: RenderPlan, begun: int, seed: int | None = None) -> int:
    """The first block that is made in another way in `changed`, start blocks counted; `seed` is the render's.

    Raises HeadForcingError if there is none, and if it is one of the first `begun` blocks. Where the length is another
    the last block of the shorter video counts as changed, since the file is trimmed in it.
    """
    pairs = zip(_told(plan, seed), _told(changed, seed), strict=False)
    both = min(plan.blocks, changed.blocks)
    first = next((block for block, (old, new) in enumerate(pairs) if old != new), both)
    same_length = plan.video_frames == changed.video_frames
    if first == both and same_length:
        raise HeadForcingError("this is the story that is rendered already; nothing in it would be made in another way")
    if first >= begun and (same_length or both > begun):
        return min(first, changed.blocks - 1)
    if begun >= plan.blocks:
        raise HasBegunError("all blocks have begun, nothing is left to change; queue the new story as a render")
    clock, start_blocks = plan.timeline.clock, plan.blocks - plan.new_blocks
    start = clock.start_seconds(max(0, begun - start_blocks))
    if first >= begun:
        raise HasBegunError(
            f"the blocks before {format_time(start)} have begun and stay (block {begun + 1} of {plan.blocks}): end the "
            "story after that"
        )
    raise HasBegunError(
        f"prompt {plan.segment_index(first) + 1} has begun and its finished blocks stay: leave everything before "
        f"{format_time(start)} (block {begun + 1} of {plan.blocks}) as it was, and change what comes after"
    )


def _told(plan: RenderPlan, seed: int | None) -> list[Any]:
    """For every block what `block_keys.video_keys` knows of the story, with texts in place of embeddings."""
    texts = [segment.text for segment in plan.timeline.segments]
    entries = [*texts, *((texts[blend.before], texts[blend.after], blend.weight) for blend in plan.blends)]
    seeds = plan.later_seeds(seed)
    return [(entries[number], plan.switches.get(block), seeds.get(block)) for block, number in enumerate(plan.prompts)]


class LiveNoise:
    """The noise of the story that is told now; `source` may be replaced between two blocks."""

    def __init__(self, source: NoiseSource):
        self.source = source

    def initial(self, block: int) -> Tensor:
        return self.source.initial(block)

    def renoise(self, block: int, step: int) -> Tensor:
        return self.source.renoise(block, step)

    def ahead(self, block: int) -> None:
        self.source.ahead(block)


class LivePrompts(Sequence[int]):
    """The prompt number of every block, which may change until it is read, as may the number of blocks; a slice is a
    view of the same numbers.
    """

    def __init__(self, numbers: list[int], part: range | None = None):
        self._numbers, self._part = numbers, part

    @property
    def _places(self) -> range:
        return range(len(self._numbers)) if self._part is None else self._part

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[int]:
        place = 0
        while place < len(self._places):
            yield self._numbers[self._places[place]]
            place += 1

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> LivePrompts: ...

    def __getitem__(self, index: int | slice) -> int | LivePrompts:
        if isinstance(index, slice):
            return LivePrompts(self._numbers, self._places[index])
        return self._numbers[self._places[index]]
