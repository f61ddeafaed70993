"""Roles of attention heads, the frames that a head of each role keeps, and the rules of episodic
memory.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum

import torch
from torch import Tensor

from ..errors import HeadForcingError, unknown_name
from ..names import ROLE_ARRANGEMENTS

# of episodic memory, which pictures leave to the video's own frames: two are merged into one
FREE_ENTRIES = 2


class HeadRole(str, Enum):
    """The role of a head in a long rollout (paper, section "Profile the Different Role of Attention
    Heads").
    """

    LOCAL = "local"
    ANCHOR = "anchor"
    MEMORY = "memory"

    __str__ = str.__str__  # "local" in text
    __hash__ = str.__hash__  # and as a key


# roles[layer][head]: a `HeadRole`, or a label of the method's own
Roles = Sequence[Sequence[str | Enum]]


@dataclass(frozen=True)
class RolePolicy:
    """The history a head attends to besides the current block, in latent frames."""

    sink_frames: int = 0  # the first frames of the video, kept for its whole length
    recent_frames: int | None = 1  # the last frames before the current block; None keeps all
    episodic_frames: int = 0  # capacity of the episodic memory, its summary included

    def __post_init__(self) -> None:
        for name, count in asdict(self).items():
            if count is not None and count < 0:
                raise HeadForcingError(f"{name} must not be negative, got {count}")
        if self.episodic_frames == 1:
            raise HeadForcingError(
                "episodic_frames must be 0 (off) or at least 2, because two entries merge into one"
            )

    @property
    def picture_entries(self) -> int:
        """Entries that pictures may take: none if the role has sinks, whose places they take."""
        return 0 if self.sink_frames else max(0, self.episodic_frames - FREE_ENTRIES)

    def history(self, frames_seen: int, origin: int = 0, oldest: int = 0) -> list[int]:
        """Frames kept, oldest first, after `frames_seen` frames: sinks from `origin` on, then
        `recent` ones.
        """
        recent = self.recent(frames_seen, oldest)
        return [*range(origin, min(origin + self.sink_frames, recent.start)), *recent]

    def recent(self, frames_seen: int, oldest: int = 0) -> range:
        """The recent frames of `history`, none older than `oldest`."""
        first = 0
        if self.recent_frames is not None:
            first = frames_seen - self.recent_frames
        return range(min(max(first, oldest, 0), frames_seen), frames_seen)

    def capacity(self, frames_per_block: int, total_frames: int) -> int:
        """Frame-slots one head needs, the current block included; never more than the video has."""
        if self.recent_frames is None:
            return total_frames
        return min(
            self.sink_frames + self.recent_frames + self.episodic_frames + frames_per_block,
            total_frames,
        )


@dataclass(frozen=True)
class EpisodicPolicy:
    """Updates of episodic memory (paper, "Dynamic Update for Episodic Memory" and "Prompt-guided
    Compression").
    """

    # a candidate is admitted that is less similar to all entries (tau_novel)
    novelty_threshold: float = 0.95
    update_interval: int = 3  # a candidate is considered once in this many blocks
    admission: str = "novelty"  # `novelty`, or `uniform`, which admits every candidate
    eviction: str = "summary"  # `summary` merges redundant entries, `fifo` drops the oldest
    token_selection: str = "prompt"  # of a merge: by likeness to the `prompt`, or at `random`
    center_keys: bool = False  # subtract the mean of all compared keys before measuring novelty
    pin_first: bool = False  # the first entry is never merged or dropped
    seed: int = field(default=0, metadata={"option": False})  # of random tokens

    def __post_init__(self) -> None:
        check_choice("admission", self.admission, ("novelty", "uniform"))
        check_choice("eviction", self.eviction, ("summary", "fifo"))
        check_choice("token_selection", self.token_selection, ("prompt", "random"))
        if self.update_interval < 1:
            raise HeadForcingError(
                f"update_interval must be at least 1 block, got {self.update_interval}"
            )
        if not -1.0 <= self.novelty_threshold <= 2.0:
            raise HeadForcingError(
                f"novelty_threshold must be between -1 and 2, got {self.novelty_threshold}"
            )

    def random_tokens(self, count: int, block: int, layer: int) -> Tensor:
        """Half of the numbers up to `count`, drawn for a merge after `block`, ascending."""
        drawn = torch.Generator().manual_seed(((self.seed * 1000 + block) * 1000 + layer) % 2**63)
        return torch.randperm(count, generator=drawn)[: count // 2].sort().values

    def candidate_frame(self, block: int, frames_per_block: int, fast_frames: int) -> int | None:
        """The frame to consider once `block` is committed: the first frame of a block, if it has
        just left fast memory and the block's number is a multiple of `update_interval`; else
        None."""
        leaving = block - fast_frames // frames_per_block
        if leaving < 0 or leaving % self.update_interval:
            return None
        return leaving * frames_per_block


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise HeadForcingError if the value is not one of the choices."""
    if value not in choices:
        raise unknown_name(name, value, choices)


@dataclass(frozen=True)
class RolePolicies:
    """The settings that the caches of heads with roles read; `head_forcing.HeadForcing` has them
    among its fields.

    Attributes:
        rope: `contiguous` numbers the frames of every context from 0 (the paper's re-encoding);
            `absolute` keeps each frame's index in the video.
        kept_scenes: of how many scenes frames are kept, at most; 0 where none are.
        picture_frames: how many frames of pictures a head may hold beside the video's own, at most.
    """

    local: RolePolicy = RolePolicy(recent_frames=1)
    anchor: RolePolicy = RolePolicy(sink_frames=3, recent_frames=1)
    memory: RolePolicy = RolePolicy(recent_frames=3, episodic_frames=5)
    rope: str = "contiguous"
    episodic: EpisodicPolicy = EpisodicPolicy()
    kept_scenes: int = field(default=0, metadata={"option": False})
    picture_frames: int = field(default=0, metadata={"option": False})

    def of(self, role: str | Enum) -> RolePolicy:
        """The policy of a `HeadRole`."""
        policies = {"local": self.local, "anchor": self.anchor, "memory": self.memory}
        return policies[str(role)]


def arrange_roles(roles: Roles, arrangement: str, seed: int = 0) -> list[list[str | Enum]]:
    """The paper's ablations of head roles: merge one role into memory, or shuffle all roles over
    the model (seeded).
    """
    check_choice("roles", arrangement, ROLE_ARRANGEMENTS)
    flat = [role for layer in roles for role in layer]
    if arrangement == "shuffled":
        random.Random(seed).shuffle(flat)
    elif arrangement != "profile":
        merged = arrangement.removesuffix("_to_memory")
        flat = [HeadRole.MEMORY if role == merged else role for role in flat]
    heads = iter(flat)
    return [[next(heads) for _ in layer] for layer in roles]
