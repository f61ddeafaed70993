"""Videos of the embedded model for the paper's tables and figures, and the numbers of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...headforcing_core.cache.head_cache import HeadCache
from ...headforcing_core.demo.words import Look
from ...headforcing_core.head_profiles.profile import HeadProfile, classify
from ...headforcing_core.plan.plan import RenderPlan
from ...headforcing_core.render.render import Place, make_blocks
from ..rooms.detector import sightings
from ..rooms.judge import STORIES, STRIDE, job_of, story_numbers, timeline_of
from ..rooms.measurements import embedded_judge
from ..rooms.pairs import pair_numbers
from ..rooms.scenes import CLOCK
from ..rows import MethodRow
from ..statistics import Numbers, mean
from .ablations import SeenBlocks

FIRST = 120_000  # numbers of stories that no other measurement has
ONE_PROMPT = 23  # blocks
LONGEST = 300.0  # seconds
SCORE = ("background", "pattern", "shape", "single", "outline")
"""The judge's numbers whose mean is the score: what the prompts say, and is to be seen."""


def one_prompt(number: int, blocks: int = ONE_PROMPT) -> tuple[Look, ...]:
    """A story of one prompt."""
    return (Look.draw(np.random.default_rng(number)),) * blocks


DEMO_STORIES: Mapping[str, Callable[[int], tuple[Look, ...]]] = {
    **STORIES,
    "one_prompt": one_prompt,
    "five_minutes": lambda number: one_prompt(number, CLOCK.blocks_for(LONGEST)),
}


@dataclass(frozen=True)
class Made:
    """A video: the prompts of its blocks, its plan, and its video frames `[n, 64, 64, 3]`."""

    looks: tuple[Look, ...]
    number: int
    plan: RenderPlan
    latents: Tensor
    video_frames: Tensor


class Demo:
    """Makes and measures videos of the embedded model, on the CPU, in one thread."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.judge = embedded_judge()
        self._made: dict[tuple[str, str, int], Made] = {}

    def with_fractions(self, anchor: float, local: float) -> Demo:
        """The same with these fractions of anchor and of local heads."""
        profile = self.judge.profile
        assert profile.shares is not None
        return self.with_profile(
            HeadProfile(
                profile.name,
                profile.num_layers,
                profile.num_heads,
                roles=classify(profile.shares, anchor, local),
                shares=profile.shares,
                anchor_fraction=anchor,
                local_fraction=local,
            )
        )

    def with_profile(self, profile: HeadProfile) -> Demo:
        """The same with another head profile."""
        other = copy(self)
        other.judge = copy(self.judge)
        other.judge.profile = profile
        other._made = {}
        return other

    def plan(self, entry: MethodRow, looks: Sequence[Look], number: int) -> RenderPlan:
        """The plan of a video; a row of shuffled roles has another shuffle for each number."""
        shuffle = number if entry.roles == "shuffled" else entry.shuffle
        return self.judge.plan(entry.method, entry.roles, timeline_of(looks), number, shuffle)

    def make(
        self,
        entry: MethodRow,
        story: str,
        number: int,
        watch: Callable[[HeadCache], None] | None = None,
    ) -> Made:
        """Make the video of a row, or take it as it was made; `watch` gets the cache before the
        first block of one that is made for it.
        """
        key = (entry.key, story, number)
        if watch is None and key in self._made:
            return self._made[key]
        looks = DEMO_STORIES[story](number)
        made = self.video(self.plan(entry, looks, number), looks, number, watch)
        if watch is None:
            self._made[key] = made
        return made

    def video(
        self,
        plan: RenderPlan,
        looks: tuple[Look, ...],
        number: int,
        watch: Callable[[HeadCache], None] | None = None,
    ) -> Made:
        """Make the video of a plan."""
        cache = plan.make_cache(torch.float32, "cpu")
        if watch is not None:
            assert isinstance(cache, HeadCache)
            watch(cache)
        place = Place(make_cache=lambda job: cache)
        blocks = make_blocks(job_of(plan), SeenBlocks(self.judge.backbone), place)
        latents = torch.cat([block.latents for block in blocks])
        return Made(looks, number, plan, latents, self.judge.autoencoder.decode(latents))

    def numbers(self, made: Made) -> Numbers:
        """All that the judge says of a video, with pairs of frames and the mean of `SCORE`."""
        found = story_numbers(made.video_frames, made.looks, made.number)
        heads = made.plan.config.num_layers * made.plan.config.num_heads
        found["frames_a_head"] = made.plan.shape.frame_slots / heads
        found["score"] = mean([found[name] for name in SCORE], decides=False)
        return found | pair_numbers(made.video_frames, made.looks, self.judge.autoencoder)


def scores_of(made: Made, frames: Sequence[int]) -> list[float | None]:
    """The score of each of these latent frames."""
    seen = sightings(made.video_frames[[STRIDE * frame for frame in frames]])
    found = []
    for frame, sighting in zip(frames, seen, strict=True):
        look = made.looks[frame // CLOCK.frames_per_block]
        parts = [
            float(sighting.background == look.background),
            float(sighting.pattern == look.pattern),
            float(sighting.shape == look.shape),
            float(sighting.count == 1),
            sighting.overlaps.get(look.shape, 0.0),
        ]
        found.append(mean(parts))
    return found
