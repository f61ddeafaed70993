"""Head Forcing as a `Method`: one cache policy per head role, and the named settings `PRESETS`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..model.attention import AttentionFunction
from ..model.wan import WanConfig
from ..rollout.loop import Block, JointModel
from ..timeline.switch import Switch
from .guards import COMPRESSIONS, Guards
from .head_cache import HeadCache
from .method import Method, RolloutInputs, State, refuse_recall
from .query_score import QueryStatistics
from .reference import ReferenceCache
from .roles import (  # noqa: F401  all names of policies can be imported from here
    ROLE_ARRANGEMENTS,
    EpisodicPolicy,
    HeadRole,
    RolePolicies,
    RolePolicy,
    Roles,
    arrange_roles,
    check_choice,
)
from .scenes import MAX_SCENES, NumberedRecalls, check_recall
from .shape import CacheShape
from .state import cache_state, restore_cache


@dataclass(frozen=True)
class CachePolicy(RolePolicies, Method):
    """`RolePolicies` as a `Method`: Head Forcing, its ablations, and methods with one window for all heads."""

    stores_state: ClassVar[bool] = True

    def shape(self, config: WanConfig, roles: Roles, *sizes: int) -> CacheShape:
        return CacheShape.for_model(config, roles, self, *sizes)

    def make_cache(
        self, shape: CacheShape, dtype: torch.dtype, device: torch.device | str, attention: AttentionFunction
    ) -> Any:
        return HeadCache(shape, dtype, device, attention)

    def reference_cache(self, shape: CacheShape, dtype: torch.dtype, device: torch.device | str) -> Any:
        return ReferenceCache(shape, dtype, device)

    def cache_bytes(self, shape: CacheShape, dtype: torch.dtype, switches: bool) -> int:
        if not self.guards.sink_gate:
            return shape.bytes(dtype)
        # where the gate leaves frames out, attention reads a copy of one group's context in one layer
        copied = [
            shape.slots(role) * max(map(len, heads))
            for role, heads in shape.groups().items()
            if role.sink_frames or role.episodic_frames
        ]
        return shape.bytes(dtype) + shape.bytes_of(max(copied, default=0), dtype)

    def state(self, cache: Any) -> State | None:
        return cache_state(cache)

    def restore(self, cache: Any, state: State) -> None:
        restore_cache(cache, state)

    def check_roles(self, arrangement: str, measured: bool) -> None:
        """Accepts everything: roles may be measured while sampling, and do not matter where all policies are equal."""

    def own_switch(self, switch: Switch) -> Switch:
        if switch.recall is not None and not self.memory.episodic_frames:
            refuse_recall(switch)
        if switch.recall is not None and not self.kept_scenes:
            raise HeadForcingError(
                f"this video began without a [recall], so no frames of its scenes are kept; remove [{switch}], or "
                "render the new story by itself"
            )
        return switch

    def recalled(
        self, embeds: Sequence[Tensor], prompts: Sequence[int], switches: Mapping[int, Switch]
    ) -> dict[int, list[int]]:
        numbered = NumberedRecalls(switches, embeds, prompts)
        return {block: [recall] for block, switch in numbered.items() if (recall := switch.recall) is not None}

    def check_recall(self, switch: Switch, prompt: int) -> None:
        check_recall(switch, prompt)

    def for_video(self, seed: int, prompts: int, recalls: bool = False) -> CachePolicy:
        keeps = recalls and self.memory.episodic_frames
        return replace(self, kept_scenes=min(prompts - 1, MAX_SCENES) if keeps else 0)

    def rollout(self, model: JointModel, cache: Any, video: RolloutInputs) -> Iterator[Block]:
        if self.kept_scenes:
            video = replace(video, switches=NumberedRecalls(video.switches, model.embeds, video.prompts))
        return super().rollout(model, cache, video)

    @property
    def keeps_scenes(self) -> bool:
        return self.kept_scenes > 0

    @property
    def key_parts(self) -> list[Any]:
        # the keys of run folders have never included the name of this class, nor guards that are off
        guards = [asdict(self.guards)] if self.guards else []
        return guards + ([self.queries.key] if self.queries is not None else [])

    @property
    def novelty_threshold(self) -> float | None:
        return self.episodic.novelty_threshold if self.memory.episodic_frames else None

    def with_memory(
        self, episodic_frames: int, recent_frames: int, novelty_threshold: float, update_interval: int
    ) -> CachePolicy:
        """The same policy with these values for memory heads; unchanged if it has no episodic memory.

        A uniform policy keeps its numbers of frames, because its total size is what an ablation compares.
        """
        if not self.memory.episodic_frames:
            return self
        memory = self.memory
        if self.needs_profile:
            memory = replace(memory, recent_frames=recent_frames, episodic_frames=episodic_frames)
        return replace(
            self,
            memory=memory,
            episodic=replace(self.episodic, novelty_threshold=novelty_threshold, update_interval=update_interval),
        )

    def with_guards(self, guards: Guards, compression: str) -> CachePolicy:
        check_choice("compression", compression, COMPRESSIONS)
        episodic = self.episodic
        if compression != "prompt":  # the default leaves an ablation's own criterion as it is
            if not self.memory.episodic_frames or episodic.eviction != "summary":
                raise HeadForcingError(
                    f"compression {compression!r} chooses tokens where episodic memory merges entries, which this "
                    "method or setting does not; choose compression 'prompt'"
                )
            episodic = replace(episodic, token_selection=compression)
        return replace(self, guards=guards, episodic=episodic)

    def with_queries(self, queries: QueryStatistics | None, profile: str) -> CachePolicy:
        if self.episodic.token_selection != "trigonometric":
            return self
        if queries is None:
            raise HeadForcingError(
                f"compression 'trigonometric' needs the query statistics of a measured head profile, and {profile} has "
                "none; measure one with this version (headforcing profile, or Profile Heads), or choose 'prompt'"
            )
        return replace(self, queries=queries)

    def with_rope(self, rope: str) -> CachePolicy:
        return replace(self, rope=rope)

    def smaller(self) -> list[tuple[str, Method]]:
        if not (self.needs_profile and self.memory.episodic_frames):
            return []
        episodic = replace(self.memory, episodic_frames=min(2, self.memory.episodic_frames))
        return [
            ("episodic_frames 2", replace(self, memory=episodic)),
            ("episodic_frames 2, recent_frames 0", replace(self, memory=replace(episodic, recent_frames=0))),
        ]

    @classmethod
    def uniform(cls, policy: RolePolicy, rope: str) -> CachePolicy:
        """The same cache for every head."""
        return cls(local=policy, anchor=policy, memory=policy, rope=rope)


_HEAD_FORCING = CachePolicy()

PRESETS: dict[str, CachePolicy] = {
    "head_forcing": _HEAD_FORCING,
    # the paper's ablations
    "no_rope_reencoding": replace(_HEAD_FORCING, rope="absolute"),
    "uniform_admission": replace(_HEAD_FORCING, episodic=EpisodicPolicy(admission="uniform")),
    "fifo_eviction": replace(_HEAD_FORCING, episodic=EpisodicPolicy(eviction="fifo")),
    "random_tokens": replace(_HEAD_FORCING, episodic=EpisodicPolicy(token_selection="random")),
    "centered_keys": replace(_HEAD_FORCING, episodic=EpisodicPolicy(center_keys=True)),
    "pinned_first_entry": replace(_HEAD_FORCING, episodic=EpisodicPolicy(pin_first=True)),
    "no_episodic_memory": replace(_HEAD_FORCING, memory=RolePolicy(recent_frames=8)),
    # every head is a memory head with 9 frame-slots, about the paper's mean of 8.6 per head
    "uniform_memory": CachePolicy.uniform(RolePolicy(recent_frames=3, episodic_frames=3), "contiguous"),
    # one cache for all heads; windows count the current block of three frames
    "self_forcing": CachePolicy.uniform(RolePolicy(recent_frames=None), "absolute"),
    "self_forcing_window_21": CachePolicy.uniform(RolePolicy(recent_frames=18), "absolute"),
    "self_forcing_sink": CachePolicy.uniform(RolePolicy(sink_frames=1, recent_frames=17), "absolute"),
}


def preset(name: str) -> CachePolicy:
    """The policy of that name, or an error that lists the names."""
    check_choice("method", name, tuple(PRESETS))
    return PRESETS[name]
