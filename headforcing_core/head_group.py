"""One group of heads with equal policies: which frames its slots hold, and how they move and turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .policy import RolePolicy
from .rope import RotaryEmbedding


class HeadGroup:
    """The slots of all heads that share one policy, over all layers. Slots are numbered alike in every layer.

    Args:
        heads: per layer, which heads these are.
        k, v: per layer, their slots `[heads, slots, s, head_dim]`.
        reencode: whether contexts are numbered from 0, or by the frames' places in the video.
    """

    def __init__(
        self,
        policy: RolePolicy,
        heads: Sequence[Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        rope: RotaryEmbedding,
        reencode: bool,
    ):
        self.policy, self.heads, self.k, self.v = policy, heads, k, v
        self.rope, self.reencode = rope, reencode
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
            first, end = moved[0], moved[-1] + 1
            turns = [target[slot] - self.indices[slot] for slot in range(first, end)]
            for k in self.k:
                self.rope.turn(k[:, first:end], turns)
        self.indices = target
        self.current = slice(history, self.frames)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the current block's `k, v [tokens, all heads, head_dim]`, `k` without rotary embedding."""
        k_slots, v_slots = self.k[layer][:, self.current], self.v[layer][:, self.current]
        self.rope.rotate(self._of_mine(layer, k), self.indices[self.current], out=k_slots)
        v_slots.copy_(self._of_mine(layer, v))

    def take(self, layer: int, k: Tensor, v: Tensor, indices: Sequence[int]) -> None:
        """The same for `k, v [all heads, frames, s, head_dim]`, `k` rotated already, to these temporal indices."""
        k_slots, v_slots = self.k[layer][:, self.current], self.v[layer][:, self.current]
        k_slots.copy_(k[self.heads[layer]])
        self.rope.turn(k_slots, [new - old for new, old in zip(self.indices[self.current], indices, strict=True)])
        v_slots.copy_(v[self.heads[layer]])

    def queries(self, layer: int, q: Tensor, out: Tensor) -> None:
        """Rotate the queries of these heads, from `q [tokens, all heads, head_dim]` to `out [heads, tokens, ...]`."""
        frames = out.unflatten(1, (-1, self.rope.frame_tokens))
        self.rope.rotate(self._of_mine(layer, q), self.indices[self.current], out=frames)

    def _of_mine(self, layer: int, x: Tensor) -> Tensor:
        """What belongs to these heads of `x [tokens, all heads, head_dim]`, `[heads, frames, s, head_dim]`."""
        mine = x.index_select(1, self.heads[layer])  # of whole tokens: rows that lie together are copied together
        return mine.unflatten(0, (-1, self.rope.frame_tokens)).permute(2, 0, 1, 3)

    def context(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values these heads see, `[heads, keys, head_dim]` each, where they lie."""
        k, v = self.k[layer], self.v[layer]
        return k[:, : self.frames].flatten(1, 2), v[:, : self.frames].flatten(1, 2)

    def keep(self, frames: Sequence[int]) -> None:
        """Drop all frames but these. Episodic entries stay, and what they remember is not kept a second time."""
        slot_of = {sources[0]: slot for slot, sources in enumerate(self.sources) if slot >= self.entries}
        remembered = {frame for sources in self.sources[: self.entries] for frame in sources}
        kept = [slot_of[frame] for frame in frames if frame not in remembered]
        self._arrange([*range(self.entries), *kept])

    def _arrange(self, order: list[int]) -> None:
        """Keep only these slots, in this order. Slots that stay where they are are not touched."""
        fixed = next((place for place, slot in enumerate(order) if place != slot), len(order))
        if fixed < len(order):
            moved = torch.tensor(order[fixed:]).to(self.k[0].device, non_blocking=True)
            for buffer in (*self.k, *self.v):
                buffer[:, fixed : len(order)] = buffer[:, moved]
        self.sources = [self.sources[slot] for slot in order]
        self.indices = [self.indices[slot] for slot in order]

    # what EpisodicMemory asks of the place where the tokens are (memory.TokenStore)

    def pooled_key(self, frame: int) -> Tensor:
        return self._pooled(self.sources.index([frame], self.entries))

    def merge_entries(self, i: int, j: int, select: Callable[[int, Tensor], Tensor]) -> Tensor:
        for layer, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            if not len(k):
                continue
            turned = self.rope.rotate_temporal(k[:, j, None], [self.indices[i] - self.indices[j]])
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
        return torch.cat([self._without_time(k[:, slot, None], slot)[:, 0].mean(dim=1) for k in self.k])

    def _without_time(self, keys: Tensor, slot: int) -> Tensor:
        """Keys `[heads, 1, tokens, d]` as they are compared: float32, spatial rotation only."""
        return self.rope.rotate_temporal(keys.float(), [-self.indices[slot]])
