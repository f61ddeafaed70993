"""Head-wise KV caches: every head keeps the frames its role needs, in buffers that are the attention input.

Heads of one layer whose policies are equal form a group. A group's buffers `k, v [heads, slots, s, head_dim]` hold, in
order, `[episodic, summary first | sink | recent | current block]` without gaps, so the first `frames` slots *are* the
context: nothing is assembled per pass. A key is stored fully rotated, and the group remembers the temporal index baked
into each slot; once per block, slots whose index in the context has changed are turned by the difference. Values and
the spatial rotation never change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .attention import AttentionFunction, sdpa
from .errors import HeadForcingError
from .memory import EpisodicMemory, MemoryEvent, candidate_frame
from .policy import CachePolicy, RolePolicy, Roles
from .rope import RotaryEmbedding
from .switching import RoleSwitching
from .wan import PromptKV, WanConfig

FLUSHED_TO_FRAMES = 2  # recent frames that a flush leaves


@dataclass(frozen=True)
class CacheShape:
    """Everything that decides how large a cache is, known before anything is allocated.

    Attributes:
        rows, columns: tokens of one frame, `latent height / 2` and `latent width / 2`.
        total_frames: length of the video in latent frames; bounds policies that keep everything.
    """

    roles: Roles
    policy: CachePolicy
    rows: int
    columns: int
    head_dim: int
    frames_per_block: int
    total_frames: int

    def __post_init__(self) -> None:
        fast = self.policy.memory.recent_frames
        if self.policy.memory.episodic_frames and (fast is None or fast % self.frames_per_block):
            raise HeadForcingError(
                f"memory heads with episodic memory need recent frames in whole blocks of {self.frames_per_block}, "
                f"got {'all' if fast is None else fast}"
            )

    def groups(self) -> dict[RolePolicy, list[list[int]]]:
        """Heads by policy: per layer, the indices of the heads that share it.

        In an order that does not depend on the length of the video, as saved states number the groups.
        """

        def order(policy: RolePolicy) -> tuple[Any, ...]:
            recent = policy.recent_frames
            held = policy.sink_frames + (recent or 0) + policy.episodic_frames
            return recent is None, held, policy.sink_frames, policy.episodic_frames

        policies = {self.policy.of(role) for layer in self.roles for role in layer}
        return {
            policy: [[h for h, role in enumerate(layer) if self.policy.of(role) == policy] for layer in self.roles]
            for policy in sorted(policies, key=order)
        }

    @property
    def recache_blocks(self) -> int:
        """How many blocks a recache writes again: all that hold a recent frame of any role, and one as their past."""
        recent = [role.recent_frames for role in (self.policy.local, self.policy.anchor, self.policy.memory)]
        frames = max(self.total_frames if count is None else count for count in recent)
        return -(-frames // self.frames_per_block) + 1

    @property
    def frame_slots(self) -> int:
        """Frames held by all heads together, the current block included: 3,096 at the paper's setting."""
        return sum(
            policy.capacity(self.frames_per_block, self.total_frames) * sum(map(len, heads))
            for policy, heads in self.groups().items()
        )

    def bytes(self, dtype: torch.dtype) -> int:
        """Size of all key and value buffers."""
        return 2 * self.frame_slots * self.rows * self.columns * self.head_dim * dtype.itemsize

    @classmethod
    def for_model(
        cls,
        config: WanConfig,
        roles: Roles,
        policy: CachePolicy,
        latent_height: int,
        latent_width: int,
        frames_per_block: int,
        total_frames: int,
    ) -> CacheShape:
        """The shape for latents of `latent_height x latent_width`; checks the roles against the model."""
        found = {(len(roles), len(layer)) for layer in roles}
        if found != {(config.num_layers, config.num_heads)}:
            raise HeadForcingError(
                f"the head roles must be given for {config.num_layers} layers x {config.num_heads} heads, "
                f"got {sorted(found)}"
            )
        _, ph, pw = config.patch_size
        rows, columns = latent_height // ph, latent_width // pw
        return cls(roles, policy, rows, columns, config.head_dim, frames_per_block, total_frames)


class HeadGroup:
    """The slots of all heads that share one policy, over all layers. Slots are numbered alike in every layer."""

    def __init__(
        self,
        policy: RolePolicy,
        heads: Sequence[Sequence[int]],
        shape: CacheShape,
        rope: RotaryEmbedding,
        dtype: torch.dtype,
        device: torch.device | str,
    ):
        self.policy = policy
        self.rope = rope
        self.reencode = shape.policy.rope == "contiguous"
        self.heads = [torch.tensor(h, dtype=torch.long, device=device) for h in heads]
        slots = policy.capacity(shape.frames_per_block, shape.total_frames)
        buffer = (slots, rope.frame_tokens, shape.head_dim)
        self.k = [torch.empty(len(h), *buffer, dtype=dtype, device=device) for h in heads]
        self.v = [torch.empty(len(h), *buffer, dtype=dtype, device=device) for h in heads]
        self.sources: list[list[int]] = []  # per used slot, the frames it was made of
        self.indices: list[int] = []  # per used slot, the temporal index baked into its keys
        self.entries = 0  # how many of the first slots are episodic
        self.current = slice(0, 0)  # slots of the current block

    @property
    def frames(self) -> int:
        """Slots in use, the current block included."""
        return len(self.sources)

    def begin_block(self, first_frame: int, frames_per_block: int) -> None:
        """Give every slot its temporal index for this block and make room for the block's own frames."""
        history = self.frames
        self.sources += [[first_frame + i] for i in range(frames_per_block)]
        target = list(range(self.frames)) if self.reencode else [sources[0] for sources in self.sources]
        moved = [slot for slot in range(history) if target[slot] != self.indices[slot]]
        if moved:
            turns = [target[slot] - self.indices[slot] for slot in moved]
            for k in self.k:
                k[:, moved] = self.rope.rotate_temporal(k[:, moved], turns)
        self.indices = target
        self.current = slice(history, self.frames)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the current block's `k, v [all heads, frames, s, head_dim]`; `k` is rotated spatially already."""
        heads = self.heads[layer]
        self.k[layer][:, self.current] = self.rope.rotate_temporal(k[heads], self.indices[self.current])
        self.v[layer][:, self.current] = v[heads]

    def attend(self, layer: int, q: Tensor, attention: AttentionFunction) -> Tensor:
        """Attention of `q [all heads, frames, s, head_dim]`, rotated spatially; `[heads of this group, queries, d]`."""
        q = self.rope.rotate_temporal(q[self.heads[layer]], self.indices[self.current])
        k, v = self.k[layer][:, : self.frames], self.v[layer][:, : self.frames]
        return attention(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2))

    def keep(self, frames: Sequence[int]) -> None:
        """Drop all frames but these. Episodic entries stay, and what they remember is not kept a second time."""
        slot_of = {sources[0]: slot for slot, sources in enumerate(self.sources) if slot >= self.entries}
        remembered = {frame for sources in self.sources[: self.entries] for frame in sources}
        kept = [slot_of[frame] for frame in frames if frame not in remembered]
        self._arrange([*range(self.entries), *kept])

    def _arrange(self, order: list[int]) -> None:
        """Keep only these slots, in this order. Slots that stay where they are are not touched."""
        fixed = next((place for place, slot in enumerate(order) if place != slot), len(order))
        for buffer in (*self.k, *self.v):
            buffer[:, fixed : len(order)] = buffer[:, order[fixed:]]
        self.sources = [self.sources[slot] for slot in order]
        self.indices = [self.indices[slot] for slot in order]

    # what EpisodicMemory asks of the place where the tokens are (memory.TokenStore)

    def pooled_key(self, frame: int) -> Tensor:
        return self._pooled(self.sources.index([frame], self.entries))

    def merge_entries(self, i: int, j: int, select: Callable[[int, Tensor], Tensor]) -> Tensor:
        for layer, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            if not len(k):
                continue
            turned = self.rope.rotate_temporal(k[:, [j]], [self.indices[i] - self.indices[j]])
            keys = torch.cat((k[:, i], turned[:, 0]), dim=1)
            kept = select(layer, self._without_time(keys[:, None], i)[:, 0])
            k[:, i] = keys[:, kept]
            v[:, i] = torch.cat((v[:, i], v[:, j]), dim=1)[:, kept]
        self.sources[i] = self.sources[i] + self.sources[j]
        return self._pooled(i)

    def arrange_entries(self, order: list[int]) -> None:
        self._arrange([*order, *range(self.entries, self.frames)])
        self.entries = len(order)

    def admit(self, frame: int) -> None:
        slot = self.sources.index([frame], self.entries)
        rest = [s for s in range(self.entries, self.frames) if s != slot]
        self._arrange([*range(self.entries), slot, *rest])
        self.entries += 1

    def _pooled(self, slot: int) -> Tensor:
        return torch.cat([self._without_time(k[:, [slot]], slot)[:, 0].mean(dim=1) for k in self.k])

    def _without_time(self, keys: Tensor, slot: int) -> Tensor:
        """Keys `[heads, 1, tokens, d]` as they are compared: float32, spatial rotation only."""
        return self.rope.rotate_temporal(keys.float(), [-self.indices[slot]])


class AttentionMeter(Protocol):
    """Something that measures attention while it is computed."""

    def watch(self, layer: int, group: HeadGroup, attention: AttentionFunction) -> AttentionFunction:
        """`attention`, measured, for the heads of `group` in `layer`."""


class HeadCache(RoleSwitching):
    """The caches of all heads of a model for one video. One block at a time:

    `begin_block()`, then any number of passes that `write` and `attend` layer by layer (a pass replaces the keys and
    values of the pass before), then, after the clean pass, `commit(prompt)`. `flush`, `re_anchor` and `rewind` change
    between two blocks what is held of the past.
    """

    def __init__(
        self,
        shape: CacheShape,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
    ):
        self.shape = shape
        self.attention = attention
        self.device = torch.device(device)
        self.meter: AttentionMeter | None = None  # measures attention while it runs (profiler.py)
        self.block = 0  # blocks closed so far
        self.origin = 0  # the frame that counts as the first: sinks begin there
        self.oldest = 0  # recent frames reach back to this one at most
        self.rope = RotaryEmbedding(shape.head_dim, shape.rows, shape.columns, device)
        self.groups = [
            HeadGroup(policy, heads, shape, self.rope, dtype, device) for policy, heads in shape.groups().items()
        ]
        self.memory_group = next((g for g in self.groups if g.policy.episodic_frames), None)
        self.memory = EpisodicMemory(
            self.memory_group.policy.episodic_frames if self.memory_group else 0, shape.policy.episodic
        )

    @property
    def bytes(self) -> int:
        """Bytes held by all key and value buffers; constant over the whole video."""
        return sum(buffer.nbytes for group in self.groups for buffer in (*group.k, *group.v))

    @property
    def occupied(self) -> int:
        """Frame-slots in use by all heads together."""
        return sum(group.frames * sum(map(len, group.heads)) for group in self.groups)

    def begin_block(self) -> None:
        """Open the next block of frames."""
        for group in self.groups:
            group.begin_block(self._frames_seen, self.shape.frames_per_block)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Take the current block's `k, v [tokens, heads, head_dim]`, without rotary embedding."""
        self._write_rotated(layer, self.rope.rotate_spatial(self._by_head(k)), self._by_head(v))

    def _write_rotated(self, layer: int, k: Tensor, v: Tensor) -> None:
        for group in self.groups:
            group.write(layer, k, v)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of `q [tokens, heads, head_dim]`, without rotary embedding, to each head's own context."""
        rotated = self.rope.rotate_spatial(self._by_head(q))
        out = torch.empty_like(q)
        for group in self.groups:
            if len(group.heads[layer]):
                attention = self.attention if self.meter is None else self.meter.watch(layer, group, self.attention)
                out[:, group.heads[layer]] = group.attend(layer, rotated, attention).transpose(0, 1)
        return out

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        """Close the block after its clean pass: update episodic memory, then drop what the roles do not keep."""
        event = None
        group = self.memory_group
        if group is not None:
            frame = candidate_frame(
                self.block,
                self.shape.frames_per_block,
                group.policy.recent_frames or 0,
                self.shape.policy.episodic.update_interval,
            )
            if frame is not None and frame >= self.oldest:
                event = self.memory.consider(self.block, frame, prompt, group.heads, group)
        self.close()
        return event

    def close(self) -> None:
        """Close the block, as `commit` does, without a change to episodic memory."""
        self.block += 1
        self._keep_history()

    def flush(self) -> None:
        """Forget everything but the sinks and the last two frames, episodic memory included."""
        if self.memory_group is not None:
            self.memory.forget(self.memory_group)
        self.oldest = max(self.oldest, self._frames_seen - FLUSHED_TO_FRAMES)
        self._keep_history()

    def re_anchor(self) -> None:
        """Drop the sinks; the frames of the next block and after it become the new ones."""
        self.origin = self._frames_seen
        self._keep_history()

    def rewind(self, blocks: int) -> None:
        """Drop the last blocks to write them again; episodic memory and earlier sinks stay."""
        self.block -= blocks
        self.oldest = max(self.oldest, self._frames_seen)
        self._keep_history()

    @property
    def _frames_seen(self) -> int:
        return self.block * self.shape.frames_per_block

    def _keep_history(self) -> None:
        for group in self.groups:
            group.keep(group.policy.history(self._frames_seen, self.origin, self.oldest))

    def refill(self, full: HeadCache, block: int, prompt: PromptKV) -> MemoryEvent | None:
        """Go through a block again from the keys and values of a cache that holds every frame in every head."""
        (group,) = full.groups
        frames = self.shape.frames_per_block
        slots = slice(block * frames, (block + 1) * frames)
        back = [-index for index in group.indices[slots]]
        self.begin_block()
        for layer, (k, v) in enumerate(zip(group.k, group.v, strict=True)):
            self._write_rotated(layer, self.rope.rotate_temporal(k[:, slots], back), v[:, slots])
        return self.commit(prompt)

    def _by_head(self, x: Tensor) -> Tensor:
        """`[frames * s, heads, d]` -> `[heads, frames, s, d]`."""
        return x.unflatten(0, (-1, self.rope.frame_tokens)).permute(2, 0, 1, 3)
