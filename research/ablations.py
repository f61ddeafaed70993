"""Caches and rules of roles that answer a question about Head Forcing and that nobody would render
with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ..headforcing_core.cache.head_cache import HeadCache
from ..headforcing_core.cache.memory import EpisodicMemory
from ..headforcing_core.cache.roles import EpisodicPolicy, HeadRole, RolePolicy, Roles
from ..headforcing_core.cache.shape import CacheShape, Shape
from ..headforcing_core.cache.state import KeptFrame
from ..headforcing_core.head_profiles.profile import SINK, HeadProfile, by_head, classify
from ..headforcing_core.head_profiles.rules import classify_by_function
from ..headforcing_core.methods.head_forcing import HeadForcing
from ..headforcing_core.methods.method import VideoFacts
from ..headforcing_core.methods.options import NO_OPTION
from ..headforcing_core.model.wan import PromptKV, WanConfig
from ..headforcing_core.rollout.loop import MemoryEvent
from ..headforcing_core.timeline.clock import MAX_SECONDS, BlockClock

EVEN_SHARES = 2.0  # of the measured window, the least that an anchor gave the first frame

RULES: dict[str, Callable[..., tuple[tuple[HeadRole, ...], ...]]] = {
    "quota": classify,
    "function": classify_by_function,
}
"""Roles `[layer][head]` from shares `[layer][head]` = (sink, middle, current) and the fractions of
anchors, locals.
"""


def with_rule(profile: HeadProfile, rule: str) -> HeadProfile:
    """The same measurement, with shares, with the roles that a rule of `RULES` gives, and as many
    of each.
    """
    made = RULES[rule](profile.shares, profile.anchor_fraction, profile.local_fraction)
    return replace(profile, roles=made)


def function_with_floor(profile: HeadProfile) -> HeadProfile:
    """The roles by function with an earlier rule of anchors: one that gives the first frame less
    than `EVEN_SHARES` even shares of the measured window is local.

    The second and third pre-registration measured it. The profile has shares, and its
    `window_frames` in `measured`.
    """
    by_function = with_rule(profile, "function")
    floor = EVEN_SHARES / profile.measured["window_frames"]
    shares = by_head(profile.shares)
    roles = [list(row) for row in by_function.roles]
    for (layer, head), role in by_head(by_function.roles).items():
        if role == HeadRole.ANCHOR and shares[layer, head][SINK] < floor:
            roles[layer][head] = HeadRole.LOCAL
    return replace(by_function, roles=tuple(map(tuple, roles)))


@dataclass(frozen=True)
class GivenFrames(HeadForcing):
    """Head Forcing whose memory heads are given frames: the ceiling of any rule of admission.

    `given` are for every block the earlier latent frames that are the entries of episodic memory
    while it is made; where there are none, the memory is what it would be without.
    """

    given: tuple[tuple[int, ...], ...] = field(default=(), metadata=NO_OPTION)

    @property
    def key(self) -> dict[str, Any]:
        return super().key | {"given": self.given}

    def make_cache(self, *args: Any) -> HeadCache:
        return GivenFramesCache(*args)


class GivenFramesCache(HeadCache):
    """The cache of `GivenFrames`; frames that will be given are copied when they are made."""

    def __init__(self, shape: CacheShape, *options: Any):
        super().__init__(shape, *options)
        assert isinstance(shape.method, GivenFrames)
        self.given: Sequence[tuple[int, ...]] = shape.method.given
        self._copies: dict[int, KeptFrame] = {}

    def begin_block(self) -> None:
        frames = self._given(self.block)
        store = self.memory.store
        if self.memory.capacity and frames and frames != self._given(self.block - 1):
            self.memory.replace(store.put_entries([self._copies[frame] for frame in frames]))
        super().begin_block()

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        first = self.block * self.shape.frames_per_block
        wanted = set(chain(*self.given[self.block :]))
        for frame in wanted.intersection(range(first, first + self.shape.frames_per_block)):
            if self.memory.capacity:
                self._copies[frame] = self.memory.store.keep_frame(frame)
        if self._given(self.block):
            self.close()
            return None
        return super().commit(prompt)

    def _given(self, block: int) -> tuple[int, ...]:
        return self.given[block] if 0 <= block < len(self.given) else ()


@dataclass(frozen=True)
class EvenMemory(HeadForcing):
    """Every head is a memory head, with as many frame-slots together as Head Forcing has.

    Where these slots cannot be divided by the number of heads, some heads, spread evenly over the
    model, have one entry more than the others; the two kinds admit and merge frames separately.
    """

    def __post_init__(self) -> None:
        """Leave out the check of `HeadForcing`, which allows episodic memory of one size alone."""

    def shape(
        self,
        config: WanConfig,
        roles: Roles,
        latent_height: int,
        latent_width: int,
        frames_per_block: int,
        total_frames: int,
    ) -> Shape:
        count = config.num_layers * config.num_heads
        sizes = (latent_height, latent_width, frames_per_block)
        endless = BlockClock(frames_per_block).blocks_for(MAX_SECONDS) * frames_per_block
        budget = HeadForcing().shape(config, roles, *sizes, endless).frame_slots
        fast = HeadForcing().memory.recent_frames or 0
        entries, more = divmod(budget - count * (fast + frames_per_block), count)
        large = [(head + 1) * more // count > head * more // count for head in range(count)]
        roles_of_heads = ["memory" if is_large else "local" for is_large in large]
        spread = []
        for first in range(0, count, config.num_heads):
            spread.append(roles_of_heads[first : first + config.num_heads])
        small = RolePolicy(recent_frames=fast, episodic_frames=entries)
        memory = replace(small, episodic_frames=entries + 1)
        method = replace(self, local=small, anchor=small, memory=memory)
        return CacheShape.for_model(config, spread, method, *sizes, total_frames)

    def make_cache(self, *args: Any) -> HeadCache:
        return EvenMemoryCache(*args)


class EvenMemoryCache(HeadCache):
    """A cache with an episodic memory for each size of it."""

    def __init__(self, shape: CacheShape, *options: Any):
        super().__init__(shape, *options)
        self.others = [
            (group, EpisodicMemory(group.policy.episodic_frames, shape.method.episodic, group))
            for group in self.groups
            if group.policy.episodic_frames and group is not self.memory.store
        ]

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        for group, memory in self.others:
            fast = group.policy.recent_frames or 0
            frame = self.shape.method.episodic.candidate_frame(
                self.block, self.shape.frames_per_block, fast
            )
            if frame is not None and frame not in chain(*memory.sources):
                memory.consider(self.block, frame, prompt)
        return super().commit(prompt)


@dataclass(frozen=True)
class RandomAdmission(HeadForcing):
    """Head Forcing that admits every second candidate, on average, whatever it shows."""

    episodic: EpisodicPolicy = EpisodicPolicy(admission="uniform")
    seed: int = field(default=0, metadata=NO_OPTION)

    def for_video(self, video: VideoFacts) -> HeadForcing:
        return replace(self, seed=video.seed, kept_scenes=super().for_video(video).kept_scenes)

    def make_cache(self, *args: Any) -> HeadCache:
        cache = HeadCache(*args)
        own = cache.memory
        cache.memory = _RandomMemory(own.capacity, self.episodic, own.store, seed=self.seed)
        return cache


class _RandomMemory(EpisodicMemory):
    def __init__(self, capacity: int, policy: EpisodicPolicy, store: Any, *, seed: int):
        super().__init__(capacity, policy, store)
        self._draw = random.Random(seed)

    def consider(self, block: int, frame: int, prompt: PromptKV) -> MemoryEvent:
        if self._draw.random() < 0.5:
            return MemoryEvent(block, frame, delta=-1.0, admitted=False, merged=None, dropped=None)
        return super().consider(block, frame, prompt)
