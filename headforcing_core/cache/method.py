"""The interface of every method: settings that tell how large the cache is, make it, and choose the loop.

`cache.policy.CachePolicy` is Head Forcing and whatever keeps frames by head role. The methods of other papers are in
`methods/`, on top of `methods.base.MethodPolicy`. A member that a method does not define has the default given here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..model.attention import AttentionFunction, explicit
from ..model.wan import WanConfig
from ..rollout.events import MemoryEvent
from ..rollout.loop import Block, JointModel, StepCallback, rollout
from ..rollout.noise import NoiseSource
from ..rollout.overlap import Overlap
from ..rollout.schedule import Schedule
from ..timeline.switch import Switch
from .roles import Roles
from .shape import Shape

State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and plain JSON


@dataclass(frozen=True)
class RolloutInputs:
    """What one video is made from, besides model and cache.

    Attributes:
        prompts: for every block, start blocks included, the number of its prompt.
        start_latents: `[n * frames_per_block, channels, h, w]`, the video so far; None where there is none.
        made: blocks that were made before, the first ones after the start.
        unfinished: `Block.unfinished` of the last of them.
        switches: by block, what is done to the cache before it.
        reencode: the last picture of `[frames, channels, h, w]`, which begin a video, as the first frame of one; needed
            where a video is made of several rollouts.
        on_step, on_start_event: as in `rollout.loop.rollout`.
    """

    schedule: Schedule
    noise: NoiseSource
    prompts: Sequence[int]
    start_latents: Tensor | None = None
    made: Sequence[Tensor] = ()
    unfinished: Sequence[Tensor] = ()
    switches: Mapping[int, Switch] = field(default_factory=dict)
    reencode: Callable[[Tensor], Tensor] | None = None
    on_step: StepCallback = lambda block, step, latents: None
    on_start_event: Callable[[MemoryEvent], None] = lambda event: None


@dataclass(frozen=True)
class Method:
    """The settings of a method, and all that a render asks of it.

    Attributes:
        switch: what a new prompt does to the cache, a kind of `timeline.switch.Switch`, where it is always the same.
        own_schedule: noise levels that take the place of a model family's; None where the family's are right.
        stores_state: whether the cache's state can be stored (`state`, `restore`); else finished blocks rebuild it.
    """

    switch: ClassVar[str] = "reset"
    own_schedule: ClassVar[Schedule | None] = None
    stores_state: ClassVar[bool] = False

    # --- the cache

    def shape(self, config: WanConfig, roles: Roles, *sizes: int) -> Shape:
        """The size of the cache; `sizes` are the last four arguments of `Shape.for_model`."""
        raise NotImplementedError

    def make_cache(
        self, shape: Any, dtype: torch.dtype, device: torch.device | str, attention: AttentionFunction
    ) -> Any:
        """An empty cache for a shape that `shape` made: a `KeyValueStore` that `rollout` can drive."""
        raise NotImplementedError

    def reference_cache(self, shape: Any, dtype: torch.dtype, device: torch.device | str) -> Any:
        """The same in the plainest form there is, to compare with."""
        return self.make_cache(shape, dtype, device, explicit)

    def cache_bytes(self, shape: Any, dtype: torch.dtype, switches: bool) -> int:
        """The most that the cache holds at any time; `switches` says whether a prompt switch changes it."""
        return shape.bytes(dtype)

    def state(self, cache: Any) -> State | None:
        """What is stored of a cache between two blocks; None where there is nothing to store."""
        return None

    def restore(self, cache: Any, state: State) -> None:
        """Bring a new cache into a stored state."""

    @property
    def replays(self) -> bool:
        """Whether clean passes over finished blocks bring the cache into the state it had after they were made."""
        return True

    # --- the loop

    def rollout(self, model: JointModel, cache: Any, video: RolloutInputs) -> Iterator[Block]:
        """Yield the finished blocks of one video in order: one block after another unless a method says otherwise."""
        return rollout(
            model,
            cache,
            video.schedule,
            video.noise,
            video.prompts,
            video.start_latents,
            video.made,
            video.on_step,
            video.on_start_event,
            video.switches,
        )

    def blocks_per_pass(self, schedule: Schedule) -> int:
        """How many blocks are denoised together, each with those that follow it."""
        return 1

    def overlap(self, frames_per_block: int) -> Overlap | None:
        """How a video is made of several rollouts; None where it is one."""
        return None

    # --- prompts

    def own_switch(self, switch: Switch) -> Switch:
        """What is done to the cache where a user asks for `switch`, or an error."""
        raise NotImplementedError

    def recached_frames(self) -> int:
        """How many of the last frames a prompt switch passes through the model, all in one call."""
        return 0

    # --- settings

    @property
    def needs_profile(self) -> bool:
        """Whether the roles of the heads make a difference."""
        return False

    @property
    def rope(self) -> str:
        """Whether keys stand at their frame's index in the video (`absolute`) or in the window (`contiguous`)."""
        return "absolute"

    @property
    def novelty_threshold(self) -> float | None:
        """Below which similarity a frame is remembered; None where there is no episodic memory."""
        return None

    @property
    def key_parts(self) -> list[Any]:
        """What stored blocks depend on besides the fields."""
        return [type(self).__name__]

    def check_roles(self, arrangement: str, measured: bool) -> None:
        """Refuse head roles in an `arrangement` (`roles.arrange_roles`), or such as are not `measured` yet."""
        if arrangement != "profile" and not self.needs_profile:
            raise HeadForcingError(f"roles = {arrangement!r} rearranges a head profile, and this method uses none")
        if self.needs_profile and not measured:
            raise HeadForcingError("this method needs the roles of its heads at once; load or measure a head profile")

    def check_video(self, schedule: Schedule, blocks: int, start_frames: int) -> None:
        """Refuse noise levels, lengths in blocks, and start frames that the method cannot work with."""

    def for_video(self, seed: int, prompts: int) -> Method:
        """The settings for a video of this seed and so many prompts."""
        return self

    def with_memory(
        self, episodic_frames: int, recent_frames: int, novelty_threshold: float, update_interval: int
    ) -> Method:
        """The settings with other numbers for memory heads; unchanged where there is no episodic memory."""
        return self

    def with_rope(self, rope: str) -> Method | None:
        """The settings with other rotary positions; None where the method has its own."""
        return None

    def smaller(self) -> list[tuple[str, Method]]:
        """Settings that take less and less memory, each with the words that a report has for its change."""
        return []
