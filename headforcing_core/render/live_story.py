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


class Story:
    """Where a running render asks for other prompts; everything is called in its thread, between two blocks.

    Attributes:
        seconds: as for `RenderPlan.make`; 0 takes the length of the timeline, which must be that of the video.
    """

    seconds: float = 0.0

    def ask(self) -> Timeline | None:
        """The story to go on with, None for the one that is told already.

        Must not wait for anything. A HeadForcingError is given to `refused`.
        """
        return None

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

    Raises HeadForcingError if there is none, and if it is one of the first `begun` blocks.
    """
    pairs = zip(_told(plan, seed), _told(changed, seed), strict=True)
    first = next((block for block, (old, new) in enumerate(pairs) if old != new), None)
    if first is None:
        raise HeadForcingError("this is the story that is rendered already; nothing in it would be made in another way")
    if first >= begun:
        return first
    if begun >= plan.blocks:
        raise HeadForcingError("all blocks have begun, nothing is left to change; queue the new story as a render")
    start = plan.timeline.clock.start_seconds(max(0, begun - (plan.blocks - plan.new_blocks)))
    raise HeadForcingError(
        f"prompt {plan.segment_index(first) + 1} has begun and its finished blocks stay: leave everything before "
        f"{format_time(start)} (block {begun + 1} of {plan.blocks}) as it was, and change what comes after"
    )


def _told(plan: RenderPlan, seed: int | None) -> list[Any]:
    """For every block what `block_keys.video_keys` knows of the story, with texts in place of embeddings."""
    texts = [segment.text for segment in plan.timeline.segments]
    entries = [*texts, *((texts[blend.before], texts[blend.after], blend.weight) for blend in plan.blends)]
    switches = {block: switch for block, switch in plan.switches.items() if switch.changes_cache}
    seeds = plan.later_seeds(seed)
    return [(entries[number], switches.get(block), seeds.get(block)) for block, number in enumerate(plan.prompts)]


class LiveNoise:
    """The noise of the story that is told now; `source` may be replaced between two blocks."""

    def __init__(self, source: NoiseSource):
        self.source = source

    def initial(self, block: int) -> Tensor:
        return self.source.initial(block)

    def renoise(self, block: int, step: int) -> Tensor:
        return self.source.renoise(block, step)


class LivePrompts(Sequence[int]):
    """The prompt number of every block, which may change until it is read; a slice is a view of the same numbers."""

    def __init__(self, numbers: list[int], places: range | None = None):
        self._numbers, self._places = numbers, range(len(numbers)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[int]:
        return (self._numbers[place] for place in self._places)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> LivePrompts: ...

    def __getitem__(self, index: int | slice) -> int | LivePrompts:
        if isinstance(index, slice):
            return LivePrompts(self._numbers, self._places[index])
        return self._numbers[self._places[index]]
