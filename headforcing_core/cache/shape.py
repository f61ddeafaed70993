"""The size of a cache, computed before anything is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch

from ..errors import HeadForcingError
from ..model.attention import LayerSizes
from ..model.wan import WanConfig
from .roles import RolePolicies, RolePolicy, Roles

S = TypeVar("S", bound="Shape")


@dataclass(frozen=True)
class Shape:
    """Everything the size of a cache depends on; subclasses define `frame_slots`.

    Attributes:
        roles: per layer and head; methods without head roles use only their number.
        method: the method's settings, as `Method.for_video` fits them to the blocks: a `Method`,
            whose module imports this one. Subclasses declare of which class.
        rows, columns: of tokens in one latent frame, `latent height / 2` and `latent width / 2`.
        total_frames: length of the video in latent frames; the upper bound of what a head keeps.
        rope_axes: as in `WanConfig`.
    """

    roles: Roles
    method: object
    rows: int
    columns: int
    head_dim: int
    frames_per_block: int
    total_frames: int
    rope_axes: tuple[int, int, int] | None = None

    @property
    def frame_tokens(self) -> int:
        return self.rows * self.columns

    @property
    def layers(self) -> int:
        return len(self.roles)

    @property
    def heads(self) -> int:
        return len(self.roles[0])

    @property
    def frame_slots(self) -> int:
        """Frame-slots of all heads together, the current block included."""
        raise NotImplementedError

    @property
    def layer_sizes(self) -> LayerSizes | None:
        """Sizes that the self-attention of a typical layer reads; None where they are not known."""
        return None

    def bytes(self, dtype: torch.dtype) -> int:
        """Size of all keys and values."""
        return self.bytes_of(self.frame_slots, dtype)

    def peak_bytes(self, dtype: torch.dtype, switches: bool) -> int:
        """Peak size of the cache; `switches` tells whether the video has prompt switches that
        change it.
        """
        return self.bytes(dtype)

    def bytes_of(self, frame_slots: int, dtype: torch.dtype) -> int:
        """Size of the keys and values of this many frame-slots."""
        return 2 * frame_slots * self.frame_tokens * self.head_dim * dtype.itemsize

    @classmethod
    def for_model(
        cls: type[S],
        config: WanConfig,
        roles: Roles,
        method: object,
        latent_height: int,
        latent_width: int,
        frames_per_block: int,
        total_frames: int,
    ) -> S:
        """The shape for latents of `latent_height x latent_width`; checks the roles against the
        model.
        """
        given = {(len(roles), len(layer)) for layer in roles}
        if given != {(config.num_layers, config.num_heads)}:
            raise HeadForcingError(
                f"the head roles must be given for {config.num_layers} layers x {config.num_heads} "
                f"heads, got {sorted(given)}"
            )
        _, ph, pw = config.patch_size
        rows = latent_height // ph
        columns = latent_width // pw
        return cls(
            roles,
            method,
            rows,
            columns,
            config.head_dim,
            frames_per_block,
            total_frames,
            config.rope_axes,
        )


@dataclass(frozen=True)
class CacheShape(Shape):
    """The shape of a `HeadCache`, whose heads keep frames by role."""

    method: RolePolicies

    def __post_init__(self) -> None:
        memory = self.method.memory
        if memory.episodic_frames and memory.recent_frames is None:
            raise HeadForcingError(
                "memory heads that keep every recent frame have none for episodic memory; set "
                "recent_frames to a number, or episodic_frames to 0"
            )

    @cached_property
    def policies(self) -> list[RolePolicy]:
        """The different policies of the heads, that with most frames first."""

        # must not depend on the length of the video, because saved states refer to groups by number
        def order(policy: RolePolicy) -> tuple[bool, int, int, int]:
            frames = policy.sink_frames + (policy.recent_frames or 0) + policy.episodic_frames
            return policy.recent_frames is None, frames, policy.sink_frames, policy.episodic_frames

        roles = {role for layer in self.roles for role in layer}
        return sorted({self.method.of(role) for role in roles}, key=order, reverse=True)

    @cached_property
    def groups(self) -> dict[RolePolicy, list[list[int]]]:
        """Heads by policy, in the order of `policies`: per layer, the indices of the heads that
        share it.
        """
        groups: dict[RolePolicy, list[list[int]]] = {policy: [] for policy in self.policies}
        for layer in self.roles:
            for heads in groups.values():
                heads.append([])
            for head, role in enumerate(layer):
                groups[self.method.of(role)][-1].append(head)
        return groups

    @cached_property
    def slots(self) -> dict[RolePolicy, int]:
        """By policy, the frame-slots of one head with it, the current block included."""
        frames = self.total_frames + self.method.picture_frames
        return {policy: policy.capacity(self.frames_per_block, frames) for policy in self.policies}

    def _count(self, policy: RolePolicy) -> int:
        return sum(map(len, self.groups[policy]))

    @property
    def frame_slots(self) -> int:
        """Frame-slots of all heads together, the current block included: 3,096 at the paper's
        setting.
        """
        return sum(slots * self._count(policy) for policy, slots in self.slots.items())

    @property
    def scene_slots(self) -> int:
        """Frame-slots of the frames that are kept of scenes, in main memory; at most, in all
        heads.
        """
        if not self.method.kept_scenes:
            return 0
        entries = sum(policy.episodic_frames * self._count(policy) for policy in self.policies)
        sinks = sum(policy.sink_frames * self._count(policy) for policy in self.policies)
        # of the current scene twice as many frames wait for its end
        return self.method.kept_scenes * (entries + sinks) + entries

    @property
    def layer_sizes(self) -> LayerSizes:
        """Sizes that a layer with the model's mean number of heads per role reads, contexts
        full.
        """
        groups = []
        for policy, slots in self.slots.items():
            heads = round(self._count(policy) / self.layers) or 1
            groups.append((heads, slots * self.frame_tokens))
        return LayerSizes(self.frames_per_block * self.frame_tokens, tuple(groups))

    @property
    def recache_blocks(self) -> int:
        """Number of blocks that a recache writes again: all with a recent frame of any role, and
        one before them.
        """
        frames = 0
        for role in (self.method.local, self.method.anchor, self.method.memory):
            recent = role.recent_frames
            frames = max(frames, self.total_frames if recent is None else recent)
        return math.ceil(frames / self.frames_per_block) + 1
