"""What all methods with a cache of their own have in common: settings, sizes, and the frames of the open call.

A method is one frozen dataclass of settings (`MethodPolicy`) and one class that keeps keys and values (`MethodCache`),
side by side in one small file. Where a method keeps frames by role alone it needs neither: it is a row of
`policy.PRESETS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..cache.memory import MemoryEvent
from ..cache.policy import Roles
from ..errors import HeadForcingError
from ..model.attention import AttentionFunction, sdpa
from ..model.rope import RotaryEmbedding, by_head
from ..model.wan import PromptKV, WanConfig
from ..rollout.schedule import Schedule
from ..timeline.switch import Switch

WriteClean = Callable[[Tensor], None]  # one clean pass over latents [frames, channels, h, w]


@dataclass(frozen=True)
class MethodPolicy:
    """The settings of a method with a cache of its own; subclasses add fields and check them.

    Attributes:
        switch: what a new prompt does to the cache, a kind of `switching.Switch`; nothing else can be asked for.
        cuts: whether a scene cut (`re_anchor`) can be asked for, too.
        needs_profile: whether the roles of the heads make a difference.
        own_schedule: noise levels that take the place of a model family's; None where the family's are right.
    """

    switch: ClassVar[str] = "reset"
    cuts: ClassVar[bool] = False
    needs_profile: ClassVar[bool] = False
    own_schedule: ClassVar[Schedule | None] = None

    @property
    def rope(self) -> str:
        """Whether keys stand at their frame's index in the video (`absolute`) or in the window (`contiguous`)."""
        return "absolute"

    @property
    def replays(self) -> bool:
        """Whether clean passes over finished blocks bring the cache into the state it had after they were made."""
        return True

    def frames_per_head(self, layer: int, role: str, frames_per_block: int) -> float:
        """Frame-slots one head takes, the current block included."""
        raise NotImplementedError

    def for_video(self, seed: int, prompts: int) -> MethodPolicy:
        """The settings for a video of this seed and so many prompts."""
        return self

    def recached_frames(self) -> int:
        """How many of the last frames a prompt switch passes through the model, all in one call."""
        return 0

    def own_switch(self, switch: Switch) -> Switch:
        """What is done to the cache where a user asks for `switch`: the method's own way, or an error."""
        if switch.kind not in ("reset", self.switch) or (switch.re_anchor and not self.cuts):
            cut = " or with re-anchor" if self.cuts else ""
            raise HeadForcingError(
                f"this method's prompts take over by {self.switch}{cut}, which needs no tag, got [{switch}]"
            )
        return replace(switch, kind=self.switch)

    def check(self, shape: MethodShape) -> None:
        """Refuse sizes that the method cannot work with."""

    def check_video(self, schedule: Schedule, blocks: int, start_frames: int) -> None:
        """Refuse noise levels, lengths in blocks, and start frames that the method cannot work with."""

    def blocks_per_pass(self, schedule: Schedule) -> int:
        """How many blocks are denoised together, each with those that follow it."""
        return 1

    def overlap(self, frames_per_block: int) -> Overlap | None:
        """How a video is made of several rollouts; None where it is one."""
        return None

    def make_cache(self, *args: Any) -> Any:
        """An empty cache, from the arguments of `MethodCache`."""
        raise NotImplementedError

    def with_memory(self, *_: float) -> MethodPolicy:
        """Unchanged: the numbers of episodic memory are Head Forcing's."""
        return self


@dataclass(frozen=True)
class MethodShape:
    """Everything that decides how large a method's cache is; the counterpart of `cache.CacheShape`."""

    roles: Roles
    policy: MethodPolicy
    rows: int
    columns: int
    head_dim: int
    frames_per_block: int
    total_frames: int

    def __post_init__(self) -> None:
        self.policy.check(self)

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
        """Frames held by all heads together, the current block included."""
        return round(
            sum(
                self.policy.frames_per_head(layer, role, self.frames_per_block)
                for layer, heads in enumerate(self.roles)
                for role in heads
            )
        )

    def bytes(self, dtype: torch.dtype) -> int:
        """What all keys and values take."""
        return 2 * self.frame_slots * self.frame_tokens * self.head_dim * dtype.itemsize

    def bytes_while_recaching(self, dtype: torch.dtype) -> int:
        """The most they take while a prompt switch writes the last frames again."""
        slots = max(self.frame_slots, self.policy.recached_frames() * self.layers * self.heads)
        return 2 * slots * self.frame_tokens * self.head_dim * dtype.itemsize

    @classmethod
    def for_model(
        cls,
        config: WanConfig,
        roles: Roles,
        policy: MethodPolicy,
        latent_height: int,
        latent_width: int,
        frames_per_block: int,
        total_frames: int,
    ) -> MethodShape:
        """The shape for latents of `latent_height x latent_width`."""
        _, ph, pw = config.patch_size
        rows, columns = latent_height // ph, latent_width // pw
        return cls(roles, policy, rows, columns, config.head_dim, frames_per_block, total_frames)


class MethodCache:
    """A cache that satisfies `rollout.BlockCache`. Subclasses keep what they like per layer and say what is attended.

    A *call* covers the frames `start` to `end`: the passes of one block (every denoising step, then the clean pass), or
    the single pass with which a prompt switch writes the last frames again. Keys arrive in `take` with the spatial
    rotary embedding only, as `[heads, frames, s, head_dim]`.

    Attributes:
        reads_queries: whether the clean pass must compute the last layer's queries, too.
    """

    policy: Any  # subclasses name their own
    reads_queries = False

    def __init__(
        self,
        shape: MethodShape,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
    ):
        self.shape, self.dtype, self.device, self.attention = shape, dtype, torch.device(device), attention
        self.rope = RotaryEmbedding(shape.head_dim, shape.rows, shape.columns, device)
        self.block = 0  # blocks closed so far
        self.start = self.end = 0  # frames of the open call
        self.recaching = False  # whether the open call writes frames again after a prompt switch
        self.policy = shape.policy
        self.begin_video()

    # --- what a method defines

    def begin_video(self) -> None:
        """Make what is kept per layer."""
        raise NotImplementedError

    def open(self) -> None:
        """A call begins: `start`, `end` and `recaching` are set."""

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Keys and values of a pass; those of a later pass of the same call take their place."""
        raise NotImplementedError

    def context(self, layer: int, q: Tensor) -> Tensor:
        """Attention of `q [heads, frames, s, head_dim]`, rotated spatially, as `[heads, queries, head_dim]`."""
        raise NotImplementedError

    def finish(self, prompt: PromptKV | None) -> None:
        """The call is over, its last pass was a clean one; `prompt` is None after writing frames again."""

    def switch_prompt(self, switch: Switch, write_clean: WriteClean, latest: Tensor) -> None:
        """What a new prompt changes. `latest` holds the last `recached_frames` clean latents; `recache` writes them."""

    # --- rollout.BlockCache

    def begin_block(self) -> None:
        self._open(self.frames_seen, self.frames_seen + self.shape.frames_per_block, recaching=False)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        s = self.shape.frame_tokens
        self.take(layer, self.rope.rotate_spatial(by_head(k, s)), by_head(v, s))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        return self.context(layer, self.rope.rotate_spatial(by_head(q, self.shape.frame_tokens))).transpose(0, 1)

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        self.finish(prompt)
        self.block += 1
        return None

    def switch_blocks(self, switch: Switch) -> int:
        return -(-self.shape.policy.recached_frames() // self.shape.frames_per_block)

    def apply_switch(self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]) -> None:
        count = self.policy.recached_frames()
        known = [latents.to(self.device) for latents in latest]  # those of an earlier render come from the disk
        frames = torch.cat(known)[-count:] if known and count else torch.empty(0)
        self.switch_prompt(self.policy.own_switch(switch), write_clean, frames)

    @property
    def bytes(self) -> int:
        """The most that all keys and values take."""
        return self.shape.bytes(self.dtype)

    @property
    def occupied(self) -> int:
        """Frame-slots in use by all heads together; where a method does not count them, all frames that had room."""
        block, roles = self.shape.frames_per_block, self.shape.roles
        room = (self.policy.frames_per_head(i, role, block) for i, heads in enumerate(roles) for role in heads)
        return round(sum(min(frames, self.frames_seen) for frames in room))

    # --- for methods

    @property
    def frames_seen(self) -> int:
        """Frames of all closed blocks."""
        return self.block * self.shape.frames_per_block

    @property
    def frames(self) -> int:
        """Frames of the open call."""
        return self.end - self.start

    def recache(self, write_clean: WriteClean, latents: Tensor) -> None:
        """Write the last frames again, all in one clean pass, so that they see each other in both directions."""
        self._open(self.frames_seen - len(latents), self.frames_seen, recaching=True)
        write_clean(latents)
        self.finish(None)

    def at_own_index(self, x: Tensor) -> Tensor:
        """Queries or keys of the open call, rotated at their frames' indices in the video."""
        return self.rope.rotate_temporal(x, range(self.start, self.end))

    def attention_over(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Full attention of `q` to `k, v`, each `[heads, frames, s, head_dim]`; `[heads, queries, head_dim]`."""
        return self.attention(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2))

    def zeros(self, frames: int) -> list[Tensor]:
        """Per layer `[heads, frames, s, head_dim]`."""
        size = (self.shape.heads, frames, self.shape.frame_tokens, self.shape.head_dim)
        return [torch.zeros(size, dtype=self.dtype, device=self.device) for _ in self.shape.roles]

    def _open(self, start: int, end: int, recaching: bool) -> None:
        self.start, self.end, self.recaching = start, end, recaching
        self.open()


@dataclass(frozen=True)
class Overlap:
    """How rollouts are laid over one another.

    Attributes:
        frames: latent frames of one rollout; the cache's `shape.total_frames`.
        overlap: how many of them a rollout after the first begins with; whole blocks.
    """

    frames: int = 21
    overlap: int = 3
    frames_per_block: int = 3

    def __post_init__(self) -> None:
        if self.frames % self.frames_per_block:
            raise HeadForcingError(f"frames must be whole blocks of {self.frames_per_block}, got {self.frames}")
        if self.overlap % self.frames_per_block or not 0 < self.overlap < self.frames:
            raise HeadForcingError(
                f"overlap must be whole blocks of {self.frames_per_block} latent frames, at least one and less than "
                f"the {self.frames} of a rollout, got {self.overlap}"
            )

    @property
    def blocks(self) -> int:
        """Blocks of one rollout, those it begins with included."""
        return self.frames // self.frames_per_block

    @property
    def given_blocks(self) -> int:
        """Blocks that a rollout after the first begins with."""
        return self.overlap // self.frames_per_block

    @property
    def stride(self) -> int:
        """Blocks from the beginning of one rollout to that of the next."""
        return self.blocks - self.given_blocks

    @property
    def finished_frames(self) -> int:
        """Frames of a rollout up to the one whose last picture is encoded anew, 19 of 21: the next begins with it.

        The authors drop that picture and those after it: 72 of 81 stay, and the next rollout goes on there without a
        gap. They also drop them where none goes on, at the end of a video; here they stay.
        """
        return self.frames - self.overlap + 1

    def rollouts(self, blocks: int) -> int:
        """How many rollouts a video of `blocks` blocks takes; the last one may be shorter than the others."""
        return max(1, -(-(blocks - self.given_blocks) // self.stride))

    def restart_frames(self, blocks: int) -> tuple[int, ...]:
        """The frames of a video of `blocks` blocks that its rollouts after the first begin with: 18, 36 ..."""
        return tuple(number * self.stride * self.frames_per_block for number in range(1, self.rollouts(blocks)))
