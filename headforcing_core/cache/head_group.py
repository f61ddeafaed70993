"""A group of heads with equal policies: which latent frames its slots hold, and how slots are moved and re-rotated.

Where the kernels work, one launch changes the slots of all layers; elsewhere every change is a loop over the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...kernels.merge import merge_frames
from ...kernels.move import in_sequence, move_frames
from ...kernels.pool import pooled_keys
from ..devices import download, kept_tables, upload
from ..model.attention import Spans
from ..model.rope import RotaryEmbedding
from .memory import MemoryEntry, MemoryHeads
from .roles import RolePolicy
from .scenes import KeptFrame
from .state import check_fields

_MOST_TABLES = 64  # kept; the same few moves come again after every block


class HeadGroup:
    """The slots of all heads that share one policy, over all layers. Slot numbers are the same in every layer.

    Args:
        heads, k, v: per layer, which heads these are, and their slots `[heads, slots, s, head_dim]`.
        reencode: whether temporal indices count from 0 in each context, or are the frames' indices in the video.
        flat: keys and values of all groups and layers, `[rows, head_dim]` each, which `k` and `v` are views of.
        everywhere: as for `memory.EpisodicMemory`.
    """

    def __init__(
        self,
        policy: RolePolicy,
        heads: Sequence[Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        rope: RotaryEmbedding,
        reencode: bool,
        flat: tuple[Tensor, Tensor],
        *,
        everywhere: MemoryHeads | None = None,
    ):
        self.policy, self.heads, self.k, self.v = policy, heads, k, v
        self.sizes = [len(layer) for layer in heads]  # asked for in every pass, where a tensor's length takes long
        self.rope, self.reencode, self._flat = rope, reencode, flat
        self._everywhere = everywhere or MemoryHeads()
        # per layer, the row of each head's first slot
        self._rows = [[(x.storage_offset() + h * x.stride(0)) // x.shape[-1] for h in range(len(x))] for x in k]
        self._tables: dict[tuple[tuple[int, int, int], ...], Tensor] = {}  # of moves
        self.sources: list[list[int]] = []  # per used slot, the frames whose tokens it holds
        self.indices: list[int] = []  # per used slot, the temporal index that its keys are rotated to
        self.entries = 0  # how many slots, the first ones, hold episodic memory
        self.current = slice(0, 0)  # slots of the current block

    @property
    def frames(self) -> int:
        """Slots in use, the current block included."""
        return len(self.sources)

    def begin_block(self, first_frame: int, frames_per_block: int) -> None:
        """Assign slots to the block's own frames, and re-rotate the history to its indices for this block."""
        history = self.frames
        self.sources += [[first_frame + i] for i in range(frames_per_block)]
        target = list(range(self.frames)) if self.reencode else [sources[0] for sources in self.sources]
        moved = [slot for slot in range(history) if target[slot] != self.indices[slot]]
        if moved and (flat := self._buffers()):
            self._move(flat, [(slot, slot, target[slot] - self.indices[slot]) for slot in moved])
        elif moved:
            first, end = moved[0], moved[-1] + 1
            differences = [target[slot] - self.indices[slot] for slot in range(first, end)]
            for k in self.k:
                self.rope.rerotate(k[:, first:end], differences)
        self.indices = target
        self.current = slice(history, self.frames)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the current block's `k, v [all heads, frames, s, head_dim]`, `k` without rotary embedding."""
        slots = self.k[layer][:, self.current]
        _gather(k, self.heads[layer], out=slots)
        self.rotate(slots, out=slots)
        _gather(v, self.heads[layer], out=self.v[layer][:, self.current])

    def rotate(self, x: Tensor, out: Tensor) -> None:
        """Rotate the current block's queries or keys `[heads, frames, s, head_dim]` to its indices in the contexts."""
        self.rope.rotate(x, self.indices[self.current], out=out)

    def take(self, layer: int, k: Tensor, v: Tensor, indices: Sequence[int]) -> None:
        """Store `k, v` like `write`, where `k` is already rotated to these temporal indices."""
        k_slots = self.k[layer][:, self.current]
        k_slots.copy_(k)
        differences = [new - old for new, old in zip(self.indices[self.current], indices, strict=True)]
        self.rope.rerotate(k_slots, differences)
        self.v[layer][:, self.current] = v

    def context(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values these heads attend to, `[heads, keys, head_dim]` each, as views of the buffers."""
        k, v = (x[layer][:, : self.frames].flatten(1, 2) for x in (self.k, self.v))
        return k, v

    def keep(self, frames: Sequence[int]) -> None:
        """Drop all frames but these and episodic entries; a frame that is part of an entry is not kept twice."""
        slot_of = {sources[0]: slot for slot, sources in enumerate(self.sources) if slot >= self.entries}
        in_entries = {frame for sources in self.sources[: self.entries] for frame in sources}
        kept = [slot_of[frame] for frame in frames if frame in slot_of and frame not in in_entries]
        self._arrange([*range(self.entries), *kept])

    def _arrange(self, order: list[int]) -> None:
        """Keep only these slots, in this order. Leading slots whose position does not change are not copied."""
        fixed = next((place for place, slot in enumerate(order) if place != slot), len(order))
        spare = self.frames  # the next slot, which a full context has not: only slots that change places need it
        moves = in_sequence(order, spare)
        has_room = spare < self.k[0].shape[1] or all(place != spare for _, place in moves)
        if has_room and (flat := self._buffers()):
            self._move(flat, [(source, place, 0) for source, place in moves])
        elif fixed < len(order):
            moved = upload(torch.tensor(order[fixed:]), self.k[0].device)
            for buffer in (*self.k, *self.v):
                buffer[:, fixed : len(order)] = buffer.index_select(1, moved)
        self.sources = [self.sources[slot] for slot in order]
        self.indices = [self.indices[slot] for slot in order]

    # --- launches over all layers

    def _buffers(self) -> tuple[Tensor, Tensor] | None:
        """Keys and values of all layers for launches of the kernels; None where one of these does not work."""
        place = self._flat[0].device, self._flat[0].dtype
        return self._flat if all(kernel.usable(*place) for kernel in (move_frames, merge_frames, pooled_keys)) else None

    def _heads_rows(self) -> list[tuple[int, int]]:
        """Layer and first row of every head."""
        return [(layer, row) for layer, rows in enumerate(self._rows) for row in rows]

    def _upload(self, rows: Sequence[object]) -> Tensor:
        return upload(torch.tensor(rows, dtype=torch.int32), self.k[0].device)

    def _move(self, flat: tuple[Tensor, Tensor], moves: Sequence[tuple[int, int, int]]) -> None:
        """Carry out `(from slot, to slot, difference of temporal indices)` one after another in every head."""
        if not moves or not any(self._rows):
            return
        rotations, zero = self.rope.differences(max(abs(by) for _, _, by in moves))
        s, steps = self.rope.frame_tokens, tuple((a, b, zero + by) for a, b, by in moves)
        if steps not in self._tables:  # kept, because they come again after every block
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            rows = [[(row + a * s, row + b * s, by) for a, b, by in steps] for _, row in self._heads_rows()]
            self._tables[steps] = self._upload(rows)
        move_frames(*flat, *flat, self._tables[steps], rotations, s)

    def _pool(self, slot: int) -> Tensor:
        """The mean key of a slot without its temporal rotation, `[memory_heads, head_dim]` float32."""
        if (flat := self._buffers()) and any(self._rows):
            rotations, zero = self.rope.differences(abs(self.indices[slot]))
            s, index = self.rope.frame_tokens, self.indices[slot]
            frames = self._upload([(row + slot * s, zero - index) for _, row in self._heads_rows()])
            pooled = pooled_keys(flat[0], frames, rotations, s)
        else:
            keys = [self._without_time(k[:, slot, None], slot)[:, 0] for k in self.k]
            pooled = torch.cat([k.mean(dim=1) for k in keys])
        return self._everywhere.pooled(pooled)

    def _without_time(self, keys: Tensor, slot: int) -> Tensor:
        """Keys `[heads, 1, tokens, d]` with the temporal rotation of a slot removed, float32, to compare them."""
        return self.rope.rotate_temporal(keys.float(), [-self.indices[slot]])

    # --- memory.TokenStore

    def pooled_key(self, frame: int) -> Tensor:
        return self._pool(self.sources.index([frame], self.entries))

    def merge_entries(self, i: int, j: int, select: Callable[[int, Tensor], Tensor]) -> Tensor:
        difference, flat = self.indices[i] - self.indices[j], self._buffers()
        s = self.rope.frame_tokens
        chosen = torch.zeros(len(self.k), s, dtype=torch.int32, device=self.k[0].device)
        for layer, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            if not self._everywhere.in_layer(layer, len(k)):
                continue
            moved = self.rope.rotate_temporal(k[:, j, None], [difference])
            keys = torch.cat((k[:, i], moved[:, 0]), dim=1)
            kept = select(layer, self._without_time(keys[:, None], i)[:, 0])
            if flat:
                chosen[layer] = kept
            else:
                k[:, i] = keys[:, kept]
                v[:, i] = torch.cat((v[:, i], v[:, j]), dim=1)[:, kept]
        if flat and any(self._rows):
            rotations, zero = self.rope.differences(abs(difference))
            merges = [
                (row + i * s, row + j * s, row + i * s, zero, zero + difference, layer)
                for layer, row in self._heads_rows()
            ]
            merge_frames(*flat, self._upload(merges), chosen, rotations)
        self.sources[i] = self.sources[i] + self.sources[j]
        return self._pool(i)

    def arrange_entries(self, order: list[int]) -> None:
        self._arrange([*order, *range(self.entries, self.frames)])
        self.entries = len(order)

    def admit(self, frame: int) -> None:
        slot = self.sources.index([frame], self.entries)
        rest = [s for s in range(self.entries, self.frames) if s != slot]
        self._arrange([*range(self.entries), slot, *rest])
        self.entries += 1

    # --- scenes and pictures

    def keep_frame(self, frame: int) -> KeptFrame:
        """A copy of a frame of the current block, see `scenes.FrameStore`."""
        slot = self.sources.index([frame], self.current.start)
        k, v = ([download(x[:, slot]) for x in layers] for layers in (self.k, self.v))
        return KeptFrame(frame, self.indices[slot], k, v)

    def put_entries(self, frames: Sequence[KeptFrame]) -> list[MemoryEntry]:
        """Replace all entries of episodic memory by these frames."""
        own = [[kept.frame] for kept in frames]
        self._arrange([slot for slot in range(self.entries, self.frames) if self.sources[slot] not in own])
        self._put_first(frames)
        self.entries = len(frames)
        return [MemoryEntry([kept.frame], self._pool(slot)) for slot, kept in enumerate(frames)]

    def put_sinks(self, frames: Sequence[KeptFrame], recent: Sequence[int]) -> None:
        """Replace all history by these sinks and its own recent frames."""
        self.keep(recent)
        self._put_first([kept for kept in frames if kept.frame not in recent])

    def _put_first(self, frames: Sequence[KeptFrame]) -> None:
        """Put frames before all others."""
        first = self.frames
        for slot, kept in enumerate(frames, start=first):
            for layers, copies in ((self.k, kept.k), (self.v, kept.v)):
                for x, copy in zip(layers, copies, strict=True):
                    x[:, slot] = upload(copy, x.device)
        self.sources += [[kept.frame] for kept in frames]
        self.indices += [kept.index for kept in frames]
        self._arrange([*range(first, self.frames), *range(first)])

    def set_aside(self, slots: int) -> Callable[[], None]:
        """Forget everything, and return what puts it back; the first slots may be written meanwhile."""
        count = min(slots, self.frames)
        copies = [[x[:, :count].to("cpu", copy=True) for x in layers] for layers in (self.k, self.v)]
        state = self.sources, self.indices, self.entries, self.current
        self.sources, self.indices, self.entries, self.current = [], [], 0, slice(0, 0)

        def put_back() -> None:
            self.sources, self.indices, self.entries, self.current = state
            for layers, held in zip((self.k, self.v), copies, strict=True):
                for x, copy in zip(layers, held, strict=True):
                    x[:, :count] = copy.to(x.device)

        return put_back

    # --- stored between two blocks

    @property
    def saved(self) -> dict[str, Any]:
        """Its part of a stored cache, see `cache.state`; keys and values are views of the buffers."""
        return {
            "sources": self.sources,
            "indices": self.indices,
            "entries": self.entries,
            "k": [k[:, : self.frames] for k in self.k],
            "v": [v[:, : self.frames] for v in self.v],
        }

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        check_fields(saved, ("sources", "indices", "entries", "k", "v"))
        self.sources = saved["sources"]
        self.indices = saved["indices"]
        self.entries = saved["entries"]
        for buffers, tensors in ((self.k, saved["k"]), (self.v, saved["v"])):
            for buffer, tensor in zip(buffers, tensors, strict=True):
                buffer[:, : self.frames] = tensor.to(buffer)


# ------------------------------------------------------------------------------------------ the groups of a layer


def parts(groups: Sequence[HeadGroup], layer: int, heads: Tensor) -> list[tuple[HeadGroup, Tensor]]:
    """Every group that has heads in a layer, with its part of a tensor whose heads are in the order of the buffers."""
    split = heads.split([group.sizes[layer] for group in groups])
    return [(group, part) for group, part in zip(groups, split, strict=True) if group.sizes[layer]]


def _gather(x: Tensor, heads: Tensor, out: Tensor) -> None:
    """Copy these heads of `x` into `out`: without a temporary where `index_select` can write to strided memory."""
    if x.device.type in ("cpu", "cuda"):
        torch.index_select(x, 0, heads, out=out)
    else:
        out.copy_(x.index_select(0, heads))


@kept_tables
def block_tables(
    spans: Spans, starts: tuple[tuple[int, int], ...], places: tuple[int, ...], tokens: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Index tables of `kernels.write.write_block` for a layer: `slot_row, q_row, first_rotation [heads]`, int32.

    Args:
        starts: for each span, the row within a head where the current block begins, and its first temporal index.
        places: per head of the model, its position in the order of the spans.
        tokens: number of tokens of the block.
    """
    rows = [
        (span.first + head * span.room + row, index)
        for span, (row, index) in zip(spans, starts, strict=True)
        for head in range(span.heads)
    ]
    table = torch.tensor([[rows[place][0], place * tokens, rows[place][1]] for place in places], dtype=torch.int32)
    slot_row, q_row, first_rotation = upload(table.T.contiguous(), device).unbind(0)
    return slot_row, q_row, first_rotation
