"""Caches of rows and figures of the paper that no method has: heads without history, rows of Table
5 with one budget, another frame in the place of the first, other measures of novelty.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...headforcing_core.cache.head_cache import HeadCache
from ...headforcing_core.cache.memory import EpisodicMemory
from ...headforcing_core.cache.roles import HeadRole, RolePolicy, Roles
from ...headforcing_core.cache.shape import CacheShape, Shape
from ...headforcing_core.demo.rooms_autoencoder import load_rooms_autoencoder
from ...headforcing_core.methods.head_forcing import HeadForcing
from ...headforcing_core.methods.method import VideoFacts
from ...headforcing_core.methods.options import NO_OPTION
from ...headforcing_core.model.wan import KeyValueCache, PromptKV, WanConfig, WanModel
from ...headforcing_core.names import DEMO_AUTOENCODER
from ...headforcing_core.rollout.loop import MemoryEvent, WanVideoModel
from ...headforcing_core.timeline.clock import MAX_SECONDS, BlockClock
from ..ablations import EvenMemoryCache

ALL_FRAMES = RolePolicy(recent_frames=None)
WINDOW = 21  # latent frames of a head, sink and current block included, as when roles are measured
BLOCK = 3


@dataclass(frozen=True)
class PrunedHeads(HeadForcing):
    """Self Forcing with every frame, but for some heads, which see the current block alone.

    Attributes:
        pruned: `local`, the local heads, or `others`, as many of all others, drawn by the video's
            seed.
    """

    local: RolePolicy = RolePolicy(recent_frames=0)
    anchor: RolePolicy = ALL_FRAMES
    memory: RolePolicy = ALL_FRAMES
    rope: str = "absolute"
    pruned: str = field(default="local", metadata=NO_OPTION)
    seed: int = field(default=0, metadata=NO_OPTION)

    def for_video(self, video: VideoFacts) -> HeadForcing:
        fitted = super().for_video(video)
        return replace(self, seed=video.seed, kept_scenes=fitted.kept_scenes)

    def shape(
        self,
        config: WanConfig,
        roles: Roles,
        latent_height: int,
        latent_width: int,
        frames_per_block: int,
        total_frames: int,
    ) -> Shape:
        flat = list(chain(*roles))
        local = [place for place, role in enumerate(flat) if role == HeadRole.LOCAL]
        chosen = set(local)
        if self.pruned == "others":
            others = sorted(set(range(len(flat))) - chosen)
            chosen = set(random.Random(self.seed).sample(others, len(local)))
        given = _by_layer([place in chosen for place in range(len(flat))], config)
        names = {True: "local", False: "memory"}
        made = [[names[pruned] for pruned in layer] for layer in given]
        sizes = (latent_height, latent_width, frames_per_block, total_frames)
        return CacheShape.for_model(config, made, self, *sizes)


@dataclass(frozen=True)
class EqualMemory(HeadForcing):
    """Heads of one role or none as in Head Forcing, all others memory heads, with as many
    frame-slots together as Head Forcing has.

    Where the slots cannot be divided by the number of memory heads, some of them, spread evenly
    over the model, have one entry more; the two kinds admit and merge frames separately.

    Attributes:
        kept: the role that stays, `local` or `anchor`; empty: none.
    """

    kept: str = field(default="", metadata=NO_OPTION)

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
        paper = HeadForcing()
        sizes = (latent_height, latent_width, frames_per_block)
        endless = BlockClock(frames_per_block).blocks_for(MAX_SECONDS) * frames_per_block
        whole = paper.shape(config, roles, *sizes, endless)
        flat = list(chain(*roles))
        stays = [bool(self.kept) and role == self.kept for role in flat]
        kept_role = paper.of(self.kept or HeadRole.LOCAL)
        count = len(flat) - sum(stays)
        fast = paper.memory.recent_frames or 0
        budget = whole.frame_slots - sum(stays) * kept_role.capacity(frames_per_block, endless)
        entries, more = divmod(budget - count * (fast + frames_per_block), count)
        names = iter(_spread(count, more))
        made = ["local" if is_kept else next(names) for is_kept in stays]
        small = RolePolicy(recent_frames=fast, episodic_frames=entries)
        method = replace(
            self,
            local=kept_role,
            anchor=small,
            memory=replace(small, episodic_frames=entries + 1),
        )
        return CacheShape.for_model(config, _by_layer(made, config), method, *sizes, total_frames)

    def make_cache(self, *args: Any) -> HeadCache:
        return EvenMemoryCache(*args)


def _spread(count: int, more: int) -> list[str]:
    """Of so many heads, `more` ones with the larger memory, at equal distances."""
    large = [(head + 1) * more // count > head * more // count for head in range(count)]
    return ["memory" if is_large else "anchor" for is_large in large]


def _by_layer(flat: Sequence[Any], config: WanConfig) -> list[list[Any]]:
    heads = config.num_heads
    return [list(flat[first : first + heads]) for first in range(0, len(flat), heads)]


# ---------------------------------------------------------------------------------- the first frame


def with_first_frame(*without: str, rope: str = "contiguous") -> HeadForcing:
    """Self Forcing with the first frame and a window, `WINDOW` together; heads of the roles
    `without` have the window alone, one frame longer. `rope` as of `HeadForcing`.
    """
    sink = RolePolicy(sink_frames=1, recent_frames=WINDOW - BLOCK - 1)
    plain = RolePolicy(recent_frames=WINDOW - BLOCK)

    def of(role: str) -> RolePolicy:
        return plain if role in without else sink

    return HeadForcing(local=of("local"), anchor=of("anchor"), memory=of("memory"), rope=rope)


@dataclass(frozen=True)
class OtherFirstFrame(HeadForcing):
    """A cache whose sinks begin with the latent frame `first`, so that it has the first position in
    the place of frame 0.
    """

    first: int = field(default=0, metadata=NO_OPTION)

    def make_cache(self, *args: Any) -> HeadCache:
        cache = HeadCache(*args)
        cache.origin = self.first
        return cache


def with_other_frame(first: int) -> OtherFirstFrame:
    """`with_first_frame` of all heads, but for the frame."""
    plain = with_first_frame()
    return OtherFirstFrame(
        local=plain.local,
        anchor=plain.anchor,
        memory=plain.memory,
        rope=plain.rope,
        first=first,
    )


# ------------------------------------------------------------------------------ measures of novelty


@dataclass(frozen=True)
class NoveltyOf(HeadForcing):
    """Head Forcing whose candidates are compared with the entries by what frames show.

    Attributes:
        compared: `latents` of frames, or their `pictures`, decoded, for which the paper takes CLIP.
    """

    compared: str = field(default="latents", metadata=NO_OPTION)

    def make_cache(self, *args: Any) -> HeadCache:
        return SeeingCache(*args)


class SeeingCache(HeadCache):
    """The cache of `NoveltyOf`; `SeenBlocks` shows it the finished blocks."""

    def __init__(self, shape: CacheShape, *options: Any):
        super().__init__(shape, *options)
        method = shape.method
        assert isinstance(method, NoveltyOf)
        memory = self.memory
        self.memory = self.seen = SeenMemory(
            memory.capacity, method.episodic, memory.store, method.compared
        )

    def see(self, latents: Tensor) -> None:
        """Note the current block's clean latents `[frames, channels, h, w]`."""
        for place, frame in enumerate(latents):
            self.seen.note(self.frames_seen + place, frame)


class SeenMemory(EpisodicMemory):
    """Episodic memory that admits by the cosine of `features` of frames; a summary is as like a
    candidate as the most similar of the frames that it was made of. Merges still go by keys.
    """

    def __init__(self, capacity: int, policy: Any, store: Any, compared: str):
        super().__init__(capacity, policy, store)
        self.features: dict[int, Tensor] = {}
        self._autoencoder = None
        if compared == "pictures":
            self._autoencoder = load_rooms_autoencoder(DEMO_AUTOENCODER)

    def note(self, frame: int, latents: Tensor) -> None:
        """Keep the features of a frame, from its latents `[channels, h, w]`."""
        seen = latents
        if self._autoencoder is not None:
            seen = self._autoencoder.decode(latents[None]) - 0.5  # of 0 to 1
        self.features[frame] = functional.normalize(seen.float().flatten(), dim=0)

    def consider(self, block: int, frame: int, prompt: PromptKV) -> MemoryEvent:
        seen = self.features[frame]
        likeness = []
        for sources in self.sources:
            likeness.append(max(float(seen @ self.features[source]) for source in sources))
        self._likeness = torch.tensor(likeness)
        return super().consider(block, frame, prompt)

    def compared(self, pooled_keys: Sequence[Tensor]) -> Tensor:
        """With the similarities of the candidate's features in the place of those of its keys."""
        found = super().compared(pooled_keys)
        found[1, -1, :-1] = self._likeness
        return found


class SeenBlocks(WanVideoModel):
    """A model that shows its blocks to a `SeeingCache`."""

    def __init__(self, backbone: WanModel):
        super().__init__(backbone, torch.float32)

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        if isinstance(cache, SeeingCache):
            cache.see(latents)
        super().write_clean(latents, cache)
