"""A group of heads with equal policies: which latent frames its slots hold, and how slots are moved
and re-rotated.

Each operation of `kernels` changes the slots of all layers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor

from ...kernels.merge import merge_frames
from ...kernels.move import in_sequence, move_frames
from ...kernels.pool import pooled_keys
from ..devices import download_together, upload
from ..model.rope import RotaryEmbedding
from .roles import RolePolicy
from .state import KeptFrame, MemoryEntry, Saved, check_fields

_MOST_TABLES = 64  # of moves that are kept: the same few come again after every block

Move = tuple[int, int, int]  # from slot, to slot, change of the temporal index


class HeadGroup:
    """The slots of all heads that share one policy, over all layers. Slot numbers are the same in
    every layer.

    Args:
        heads, k, v: per layer, which heads these are, and their slots `[heads, slots, s,
            head_dim]`.
        reencode: True: temporal indices count from 0 in each context; False: they are the frames'
            indices in the video.
        flat: keys and values of all groups and layers, `[rows, head_dim]` each, which `k` and `v`
            are views of.
    """

    def __init__(
        self,
        policy: RolePolicy,
        heads: Sequence[Tensor],
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        rope: RotaryEmbedding,
        *,
        reencode: bool,
        flat: tuple[Tensor, Tensor],
    ):
        self.policy = policy
        self.heads = heads
        self.k = k
        self.v = v
        self.rope = rope
        self.reencode = reencode
        # heads of each layer; every pass asks for them, and the length of a tensor takes long
        self.sizes = [len(layer) for layer in heads]
        self.sources: list[list[int]] = []  # per used slot, the frames whose tokens it holds
        # per used slot, the temporal index that its keys are rotated to
        self.indices: list[int] = []
        self.entries = 0  # how many slots, the first ones, hold episodic memory
        self.current = slice(0, 0)  # slots of the current block
        self._flat = flat
        self._rows = _head_rows(k)
        self._tables: dict[tuple[Move, ...], Tensor] = {}  # on the device, by their moves

    @property
    def buffers(self) -> list[Tensor]:
        """The slots of all layers, keys first."""
        return [*self.k, *self.v]

    @property
    def frames(self) -> int:
        """Slots in use, the current block included."""
        return len(self.sources)

    def begin_block(self, first_frame: int, frames_per_block: int, first_recent: int) -> None:
        """Assign slots to the block's own frames, and re-rotate the history to its indices for this
        block. Older frames than `first_recent` are sinks, but for entries.
        """
        history = self.frames
        self.sources += [[first_frame + i] for i in range(frames_per_block)]
        sinks = sum(sources[0] < first_recent for sources in self.sources[self.entries :])
        if self.reencode:  # sinks count before entries, whose slots are the first
            end = sinks + self.entries
            indices = [*range(sinks, end), *range(sinks), *range(end, self.frames)]
        else:
            indices = [sources[0] for sources in self.sources]
        changes = [new - old for new, old in zip(indices[:history], self.indices, strict=True)]
        moves = [(slot, slot, change) for slot, change in enumerate(changes) if change]
        if moves and self._in_one_launch:
            self._move(moves)
        elif moves:
            for k in self.k:
                self.rope.rerotate(k[:, :history], changes)
        self.indices = indices
        self.current = slice(history, self.frames)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the current block's `k, v [all heads, frames, s, head_dim]`, `k` without rotary
        embedding.
        """
        slots = self.k[layer][:, self.current]
        _gather(k, self.heads[layer], out=slots)
        self.rotate(slots)
        _gather(v, self.heads[layer], out=self.v[layer][:, self.current])

    def rotate(self, x: Tensor) -> None:
        """Rotate the current block's queries or keys `[heads, frames, s, head_dim]`, in place, to
        its indices.
        """
        self.rope.rotate(x, self.indices[self.current], out=x)

    def context(self, layer: int) -> tuple[Tensor, Tensor]:
        """The keys and values these heads attend to, `[heads, keys, head_dim]` each, as views of
        the buffers.
        """
        return self.k[layer][:, : self.frames].flatten(1, 2), self.v[layer][
            :, : self.frames
        ].flatten(1, 2)

    def drop_all_but(self, frames: Sequence[int]) -> None:
        """Drop all slots but those of episodic entries and of these frames, in this order. A frame
        that is part of an entry is not kept twice.
        """
        slot_of = {
            sources[0]: slot for slot, sources in enumerate(self.sources) if slot >= self.entries
        }
        in_entries = {frame for sources in self.sources[: self.entries] for frame in sources}
        kept = [slot_of[frame] for frame in frames if frame in slot_of and frame not in in_entries]
        self._arrange([*range(self.entries), *kept])

    # --- changes of slots in all layers

    @property
    def _in_one_launch(self) -> bool:
        """Whether the kernel `move_frames` works on this device; otherwise PyTorch copies whole
        slots, which is faster there than copying rows.
        """
        return move_frames.usable(self._flat[0].device, self._flat[0].dtype)

    def _arrange(self, order: list[int]) -> None:
        """Keep only these slots, in this order."""
        # A cycle of moves needs one spare slot, the first behind the kept ones. If every slot is
        # kept there is none: then PyTorch copies the slots.
        spare = len(order)
        moves = in_sequence(order, spare)
        needs_spare = any(target == spare for _, target in moves)
        has_spare = spare < self.k[0].shape[1]
        if self._in_one_launch and (has_spare or not needs_spare):
            self._move([(source, target, 0) for source, target in moves])
        elif moves:
            first = min(target for _, target in moves)
            slots = upload(torch.tensor(order[first:]), self.k[0].device)
            for buffer in self.buffers:
                buffer[:, first : len(order)] = buffer.index_select(1, slots)
        self.sources = [self.sources[slot] for slot in order]
        self.indices = [self.indices[slot] for slot in order]

    def _move(self, moves: Sequence[Move]) -> None:
        """Carry out moves one after another in every head of every layer."""
        k, v = self._flat
        if not moves or not self._rows:
            return
        s = self.rope.frame_tokens
        # the row `zero + n` of the table rotates by n
        rotations, zero = self.rope.differences(max(abs(change) for _, _, change in moves))
        steps = tuple((source * s, target * s, zero + change) for source, target, change in moves)
        if steps not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            chains = [
                [(first_row + source, first_row + target, turn) for source, target, turn in steps]
                for _, first_row in self._rows
            ]
            self._tables[steps] = self._upload(chains)
        move_frames(
            k_from=k,
            v_from=v,
            k_to=k,
            v_to=v,
            moves=self._tables[steps],
            rotations=rotations,
            frame_tokens=s,
        )

    def _pool(self, slot: int) -> Tensor:
        """The mean key of a slot without its temporal rotation, `[memory_heads, head_dim]`
        float32.
        """
        s = self.rope.frame_tokens
        k = self._flat[0]
        if not self._rows:  # a part of a cache may have none of the group's heads
            return k.new_empty(0, k.shape[1], dtype=torch.float32)
        rotations, zero = self.rope.differences(abs(self.indices[slot]))
        turn = zero - self.indices[slot]
        frames = [(first_row + slot * s, turn) for _, first_row in self._rows]
        return pooled_keys(k, self._upload(frames), rotations, s)

    def has_heads(self, layer: int) -> bool:
        """Whether a layer of the model has heads of the group."""
        return len(self.k[layer]) > 0

    def _upload(self, rows: Sequence[object]) -> Tensor:
        return upload(torch.tensor(rows, dtype=torch.int32), self.k[0].device)

    # --- entries of episodic memory

    def pooled_key(self, frame: int) -> Tensor:
        """The mean key of a frame that is no part of an entry, `[memory_heads, head_dim]`."""
        return self._pool(self.sources.index([frame], self.entries))

    def merge_entries(self, i: int, j: int, select: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Put into the slot of entry `i` the tokens of entries `i` and `j` that `select` keeps;
        returns the mean key of what it holds now, `[memory_heads, head_dim]`.

        Entry `j` stays until `arrange_entries` leaves it out. `select` gets a layer and the keys of
        both entries without temporal rotation, `[heads, 2 s, head_dim]`, and returns the indices of
        `s` tokens.
        """
        difference = self.indices[i] - self.indices[j]
        s = self.rope.frame_tokens
        kept = torch.zeros(len(self.k), s, dtype=torch.int32, device=self.k[0].device)
        for layer, k in enumerate(self.k):
            if self.has_heads(layer):
                # keys of entry j are rotated to the index of entry i, as `merge_frames` stores
                # them, and then those of both back to no rotation
                moved = self.rope.rotate_temporal(k[:, j, None], [difference])
                keys = torch.cat((k[:, i, None], moved), dim=2).float()
                kept[layer] = select(
                    layer, self.rope.rotate_temporal(keys, [-self.indices[i]])[:, 0]
                )
        if self._rows:
            rotations, zero = self.rope.differences(abs(difference))
            merges = []
            for layer, first_row in self._rows:
                row_i = first_row + i * s
                row_j = first_row + j * s
                # from, and from, to; rotations of the two; which tokens are kept
                merges.append((row_i, row_j, row_i, zero, zero + difference, layer))
            k, v = self._flat
            merge_frames(k=k, v=v, merges=self._upload(merges), kept=kept, rotations=rotations)
        self.sources[i] = self.sources[i] + self.sources[j]
        return self._pool(i)

    def arrange_entries(self, order: list[int]) -> None:
        """Keep only these entries, in this order."""
        self._arrange([*order, *range(self.entries, self.frames)])
        self.entries = len(order)

    def admit(self, frame: int) -> None:
        """Make a frame of the history the last entry of episodic memory."""
        order = list(range(self.frames))
        order.remove(slot := self.sources.index([frame], self.entries))
        order.insert(self.entries, slot)
        self._arrange(order)
        self.entries += 1

    # --- scenes and pictures

    def keep_frame(self, frame: int) -> KeptFrame:
        """A copy of a frame of the current block."""
        slot = self.sources.index([frame], self.current.start)
        copies = download_together([x[:, slot] for x in self.buffers])
        layers = len(self.k)
        return KeptFrame(frame, self.indices[slot], k=copies[:layers], v=copies[layers:])

    def put_entries(self, frames: Sequence[KeptFrame]) -> list[MemoryEntry]:
        """Replace all entries of episodic memory by these frames."""
        own = [[kept.frame] for kept in frames]
        self._arrange(
            [slot for slot in range(self.entries, self.frames) if self.sources[slot] not in own]
        )
        self.entries = 0
        self._put_first(frames)
        self.entries = len(frames)
        return [MemoryEntry([kept.frame], self._pool(slot)) for slot, kept in enumerate(frames)]

    def put_sinks(self, frames: Sequence[KeptFrame], recent: Sequence[int]) -> None:
        """Keep only entries, these sinks and the frames `recent`, each frame once."""
        self.drop_all_but(recent)
        held = {*recent, *chain(*self.sources[: self.entries])}
        self._put_first([kept for kept in frames if kept.frame not in held])

    def _put_first(self, frames: Sequence[KeptFrame]) -> None:
        """Put frames before all others but entries."""
        first = self.frames
        for kept in frames:
            for buffer, copy in zip(self.buffers, (*kept.k, *kept.v), strict=True):
                buffer[:, self.frames] = upload(copy, buffer.device)
            self.sources.append([kept.frame])
            self.indices.append(kept.index)
        entries = range(self.entries)
        self._arrange([*entries, *range(first, self.frames), *range(self.entries, first)])

    @contextmanager
    def emptied(self, slots: int) -> Iterator[None]:
        """Hold nothing, and afterwards the same as before; the first `slots` may be written
        meanwhile.
        """
        count = min(slots, self.frames)
        copies = [buffer[:, :count].to("cpu", copy=True) for buffer in self.buffers]
        sources = self.sources
        indices = self.indices
        entries = self.entries
        current = self.current
        self.sources = []
        self.indices = []
        self.entries = 0
        try:
            yield
        finally:
            self.sources = sources
            self.indices = indices
            self.entries = entries
            self.current = current
            for buffer, copy in zip(self.buffers, copies, strict=True):
                buffer[:, :count] = copy.to(buffer.device)

    # --- stored between two blocks

    @property
    def saved(self) -> Saved:
        """Its part of a stored cache, see `cache.state`; keys and values are views of the
        buffers.
        """
        return {
            "sources": self.sources,
            "indices": self.indices,
            "entries": self.entries,
            "k": [k[:, : self.frames] for k in self.k],
            "v": [v[:, : self.frames] for v in self.v],
        }

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)
        self.sources = saved["sources"]
        self.indices = saved["indices"]
        self.entries = saved["entries"]
        for buffer, tensor in zip(self.buffers, (*saved["k"], *saved["v"]), strict=True):
            buffer[:, : self.frames] = tensor.to(buffer)


def _head_rows(buffers: Sequence[Tensor]) -> list[tuple[int, int]]:
    """The layer and the first row in the flat buffer of every head of buffers `[heads, slots, s,
    head_dim]`.
    """
    rows = []
    for layer, slots in enumerate(buffers):
        for head in slots:
            rows.append((layer, head.storage_offset() // head.shape[-1]))
    return rows


def _gather(x: Tensor, heads: Tensor, out: Tensor) -> None:
    """Copy these heads of `x` into `out`: without a temporary where `index_select` can write to
    strided memory.
    """
    if x.device.type in ("cpu", "cuda"):
        torch.index_select(x, 0, heads, out=out)
    else:
        out.copy_(x.index_select(0, heads))
