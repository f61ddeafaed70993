"""The interface of every method: its options, the size of its cache, the cache itself, and the
rollout loop.

`head_forcing.HeadForcing` implements it for heads that keep frames by role; for other papers
`base.py` has `BaseMethod` and the cache that goes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..cache.base import Cache
from ..cache.roles import Roles
from ..cache.scenes import RecalledScenes
from ..cache.shape import Shape
from ..errors import HeadForcingError
from ..files import Fields
from ..model.attention import AttentionFunction
from ..model.wan import WanConfig
from ..rollout.loop import Block, RolloutInputs, VideoModel, rollout
from ..rollout.rows import BlockRow, Script
from ..rollout.schedule import Schedule
from ..timeline.switch import Switch
from ..timeline.timeline import Timeline
from .options import options_of


@dataclass(frozen=True)
class VideoFacts:
    """Facts about a video that is not made yet, which a method may depend on."""

    schedule: Schedule
    blocks: int  # start blocks included
    start_frames: int = 0
    # number of its prompts; `recalls` tells whether one of them brings a scene back
    prompts: int = 1
    recalls: bool = False
    pictures: bool = False  # whether there are any that prompts could name
    seed: int = 0  # of the noise


@dataclass(frozen=True)
class VaeUse:
    """The use that a method makes of the VAE while blocks are made.

    Attributes:
        does: in a sentence that begins with the method.
        first_block: the first block that depends on it.
        notes: on the video, stored with it, by which `video.restarts` decodes it.
        report: a line for the report.
    """

    does: str
    first_block: int
    notes: Fields
    report: str


@dataclass(frozen=True)
class Method:
    """The settings of a method, and everything that a render asks of it. The fields are its options
    (`options.py`); a subclass changes another attribute by assigning it without a
    type or as a ClassVar.

    Attributes:
        shape_class: computes the size of the cache.
        cache_class: makes the cache.
        own_schedule: noise levels that replace those of the model family; None keeps the family's.
        heads_by: what of a head profile the cache depends on: nothing (empty), `roles` or `labels`.
        resumes_from: what rebuilds the cache of an interrupted render exactly: clean passes over
            its finished `blocks`, the stored `state` of the cache, or either.
        repeats_image: a start image is shown for a whole first block.
        rope: temporal index of a key: its frame's index in the video (`absolute`) or in the context
            (`contiguous`).
        needs_shots: the model must have been trained with shots (`Schedule.shot_prefix`).
        fixed_length: the number of blocks must be known when the first is made.
        recalls_by_likeness: a recalled scene depends on how alike all prompts are, also where its
            number is given.
        most_pictures: how many pictures of a scene its caches can hold.
        version: a change of the code that makes other blocks raises it; part of their keys.
    """

    shape_class: ClassVar[type[Shape]]
    cache_class: ClassVar[Callable[..., Cache]]
    own_schedule: ClassVar[Schedule | None] = None
    repeats_image: ClassVar[bool] = False
    needs_shots: ClassVar[bool] = False
    fixed_length: ClassVar[bool] = False
    recalls_by_likeness: ClassVar[bool] = False
    version: ClassVar[int] = 0

    @property
    def heads_by(self) -> str:
        return ""

    @property
    def resumes_from(self) -> tuple[str, ...]:
        return ("blocks",)

    @property
    def rope(self) -> str:
        return "absolute"

    @property
    def most_pictures(self) -> int:
        return 0

    @property
    def memory_options(self) -> tuple[str, ...]:
        """The names of the options of episodic memory that commands and nodes have inputs for, see
        `MEMORY_INPUTS`.
        """
        return ()

    @property
    def key(self) -> dict[str, Any]:
        """The identity of the settings, for the keys of stored blocks: JSON values."""
        kind = type(self)
        key: dict[str, Any] = {"method": kind.__name__}
        if not kind.__module__.startswith(f"{__package__}."):  # another may have the same name
            key["module"] = kind.__module__
        if self.version:
            key["version"] = self.version
        return {**key, **{name: option.value for name, option in options_of(self).items()}}

    def for_video(self, video: VideoFacts) -> Method:
        """The settings for a video, or for a changed one, with the fields that are no options;
        raises HeadForcingError for one that the method cannot make."""
        return self

    def shape(
        self,
        config: WanConfig,
        roles: Roles,
        latent_height: int,
        latent_width: int,
        frames_per_block: int,
        total_frames: int,
    ) -> Shape:
        """The size of the cache, see `Shape.for_model`."""
        sizes = (latent_height, latent_width, frames_per_block, total_frames)
        return self.shape_class.for_model(config, roles, self, *sizes)

    def make_cache(
        self,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device | str,
        attention: AttentionFunction,
    ) -> Cache:
        """An empty cache of the given shape, for this method's `rollout`."""
        return self.cache_class(shape, dtype, device, attention)

    def rollout(self, model: VideoModel, cache: Cache, video: RolloutInputs) -> Iterator[Block]:
        """Yield the finished blocks of one video in order; by default each block is denoised alone.

        `cache` is one that `make_cache` made, so methods may name its class.
        """
        return rollout(model, cache, video)

    def blocks_ahead(self, schedule: Schedule) -> int:
        """Number of next blocks that a finished block depends on, besides those before it; they
        are part of the largest pass, and what has been made of them is `Block.extra`.
        """
        return 0

    def steps_ahead(self, extra: Mapping[str, Tensor], schedule: Schedule) -> int:
        """Denoising steps of the next blocks that are done in the `extra` of a block."""
        return 0

    @property
    def recached_frames(self) -> int:
        """Number of last latent frames that a prompt switch writes again in one clean pass."""
        return 0

    def vae_use(self, frames_per_block: int, blocks: int) -> VaeUse | None:
        """The method's use of the VAE in a video of so many blocks; None if it does not use it."""
        return None

    def with_scenes(self, timeline: Timeline) -> Timeline:
        """The timeline with a tag for every scene that the method brings back, by default those of
        the user; raises HeadForcingError for one that it cannot bring back."""
        return timeline

    def own_rows(self, rows: Sequence[BlockRow], frames_per_block: int) -> Sequence[BlockRow]:
        """The rows of a video with their `window_frames`, where the method decides these."""
        return rows

    def own_switch(self, switch: Switch) -> Switch | None:
        """The prompt switch for the cache where a user asks for `switch`; None where the cache need
        not know of the prompt. Raises HeadForcingError if it is not possible."""
        raise NotImplementedError

    def recalled(self, script: Script) -> RecalledScenes:
        """The scenes that the switches of a story bring back."""
        return {}


def refuse_recall(switch: Switch) -> None:
    """Raise HeadForcingError for a switch that recalls a scene, where the method has no memory of
    scenes.
    """
    raise HeadForcingError(
        "this method keeps nothing of earlier scenes and cannot bring one back; remove the tag, "
        f"or choose head_forcing or echo_forcing, got [{switch}]"
    )
