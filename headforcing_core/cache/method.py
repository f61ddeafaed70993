"""The interface of every method: its settings, the size of its cache, the cache itself, and the rollout loop.

`cache.policy.CachePolicy` implements it for Head Forcing and its ablations, whose heads keep frames by role. The
methods of other papers are in `methods/`, based on `methods.base.MethodPolicy`. Members that a method does not define
keep the defaults given here.
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
from .guards import Guards
from .query_score import QueryStatistics
from .roles import Roles
from .shape import Shape

State = tuple[dict[str, Tensor], dict[str, Any]]  # tensors by name, and plain JSON


@dataclass(frozen=True)
class RolloutInputs:
    """The inputs of one video's rollout, besides model and cache.

    Attributes:
        prompts: for every block, start blocks included, the number of its prompt.
        start_latents: `[n * frames_per_block, channels, h, w]`, latents that the video begins with; None for none.
        made: finished blocks of an earlier render, the first ones after the start; on any device.
        unfinished: `Block.unfinished` of the last of them.
        switches: by block number, the prompt switch before it.
        reencode: decodes latents `[frames, channels, h, w]` from the beginning of a video and encodes the last video
            frame as the first latent frame of a new one; needed where a video is made of several rollouts.
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
    """The settings of a method, and everything a render calls on it.

    Attributes:
        switch: the kind of `timeline.switch.Switch` that every new prompt causes, for methods with only one kind.
        own_schedule: noise levels that replace those of the model family; None keeps the family's.
        uses_labels: whether the heads are told apart by the labels of a head profile instead of its roles.
        stores_state: whether the cache's state can be stored (`state`, `restore`); otherwise the cache is rebuilt by
            clean passes over the finished blocks.
    """

    switch: ClassVar[str] = "reset"
    own_schedule: ClassVar[Schedule | None] = None
    uses_labels: ClassVar[bool] = False
    stores_state: ClassVar[bool] = False

    # --- the cache

    def shape(self, config: WanConfig, roles: Roles, *sizes: int) -> Shape:
        """The size of the cache; `sizes` are the last four arguments of `Shape.for_model`."""
        raise NotImplementedError

    def make_cache(
        self, shape: Any, dtype: torch.dtype, device: torch.device | str, attention: AttentionFunction
    ) -> Any:
        """An empty cache of the given shape: a `rollout.loop.KeyValueStore` for this method's `rollout`."""
        raise NotImplementedError

    def reference_cache(self, shape: Any, dtype: torch.dtype, device: torch.device | str) -> Any:
        """A simple, slow cache with the same results, to compare with."""
        return self.make_cache(shape, dtype, device, explicit)

    def cache_bytes(self, shape: Any, dtype: torch.dtype, switches: bool) -> int:
        """Peak size of the cache in bytes; `switches` tells whether the video has prompt switches that change it."""
        return shape.bytes(dtype)

    def state(self, cache: Any) -> State | None:
        """The state of a cache between two blocks, to store it; None if the method stores none."""
        return None

    def restore(self, cache: Any, state: State) -> None:
        """Set a new cache to a stored state."""

    @property
    def replays(self) -> bool:
        """Whether clean passes over finished blocks rebuild the cache exactly, so that a render can be resumed."""
        return True

    # --- the loop

    def rollout(self, model: JointModel, cache: Any, video: RolloutInputs) -> Iterator[Block]:
        """Yield the finished blocks of one video in order; by default each block is denoised alone."""
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
        """How many consecutive blocks one model call denoises together."""
        return 1

    def overlap(self, frames_per_block: int) -> Overlap | None:
        """The lengths of overlapping rollouts that make up a video; None if one rollout makes the whole video."""
        return None

    # --- prompts

    def own_switch(self, switch: Switch) -> Switch:
        """The switch that is applied where a user asks for `switch`; raises HeadForcingError if it is not possible."""
        raise NotImplementedError

    def recalled(
        self, embeds: Sequence[Tensor], prompts: Sequence[int], switches: Mapping[int, Switch]
    ) -> dict[int, list[int]]:
        """By block, for the switches that bring a scene back, what the block depends on because of that."""
        return {}

    def check_switches(self, switches: Sequence[Switch]) -> None:
        """Refuse a switch to prompt 2, 3 ... that the method cannot do."""
        for prompt, switch in enumerate(switches, 2):
            self.own_switch(switch)
            self.check_recall(switch, prompt)

    def check_recall(self, switch: Switch, prompt: int) -> None:
        """Refuse a recall by prompt number `prompt`, from 1, of a scene that the method no longer has."""

    def recached_frames(self) -> int:
        """How many of the last latent frames a prompt switch writes again in one clean pass."""
        return 0

    # --- settings

    @property
    def needs_profile(self) -> bool:
        """Whether the cache depends on head roles."""
        return False

    @property
    def rope(self) -> str:
        """Temporal index of a key: its frame's index in the video (`absolute`) or in the context (`contiguous`)."""
        return "absolute"

    @property
    def novelty_threshold(self) -> float | None:
        """Similarity below which a candidate is admitted to episodic memory; None without episodic memory."""
        return None

    @property
    def keeps_scenes(self) -> bool:
        """Whether the cache must be told of every new prompt, because each begins a scene."""
        return False

    @property
    def key_parts(self) -> list[Any]:
        """What the keys of stored blocks include besides the fields of the settings."""
        return [type(self).__name__]

    def check_roles(self, arrangement: str, measured: bool) -> None:
        """Refuse an `arrangement` of head roles (`roles.arrange_roles`), or roles that are not `measured` yet."""
        if arrangement != "profile" and not self.needs_profile:
            raise HeadForcingError(f"roles = {arrangement!r} rearranges a head profile, and this method uses none")
        if arrangement != "profile" and self.uses_labels:
            raise HeadForcingError(f"roles = {arrangement!r} rearranges head roles, and this method uses labels")
        if self.needs_profile and not measured:
            raise HeadForcingError(
                "this method needs the head roles from the first block on; load or measure a head profile"
            )

    def check_video(self, schedule: Schedule, blocks: int, start_frames: int) -> None:
        """Refuse noise levels, a length in blocks, or start frames that the method does not support."""

    def for_video(self, seed: int, prompts: int, recalls: bool = False) -> Method:
        """The settings for a video with this seed and number of prompts; `recalls` if one brings a scene back."""
        return self

    def allows_prompts(self, before: int, after: int) -> bool:
        """Whether a video that began with so many prompts may go on with another number: `for_video` has the same."""
        return True

    def with_memory(
        self, episodic_frames: int, recent_frames: int, novelty_threshold: float, update_interval: int
    ) -> Method:
        """The settings with these values for memory heads; unchanged if the method has no episodic memory."""
        return self

    def with_guards(self, guards: Guards, compression: str) -> Method:
        """The settings with these guards and this criterion for the tokens of a merge (`guards.COMPRESSIONS`)."""
        if guards or compression != "prompt":
            raise HeadForcingError(
                "sink_gate, rope_jitter and compression are for methods that keep frames by head role, such as "
                "head_forcing; leave them at 0, 0 and prompt for this method"
            )
        return self

    def with_queries(self, queries: QueryStatistics | None, profile: str) -> Method:
        """The settings with the query statistics of the head profile of that name, for methods that use them."""
        return self

    def with_rope(self, rope: str) -> Method | None:
        """The settings with this RoPE mode (see `rope`); None if the method has a fixed one."""
        return None

    def smaller(self) -> list[tuple[str, Method]]:
        """Alternative settings that need less and less memory, each with a description for error messages."""
        return []


def refuse_recall(switch: Switch) -> None:
    """Raise HeadForcingError for a switch that recalls a scene, where the method has no memory of scenes."""
    raise HeadForcingError(
        "this method keeps nothing of earlier scenes and cannot bring one back; remove the tag, or choose head_forcing "
        f"or echo_forcing, got [{switch}]"
    )
