"""The paper's four implementations of the head-wise caches, V1 to V4 (its supplement on efficiency).

All keep keys with their spatial rotation only and build every head's context anew in every pass: assemble, rotate by
place in the context, attend. They differ in how much of that is a loop over heads in Python. What is remembered is
decided by the engine's own rules (`memory.py`), so their latents are the engine's.

A head's frames lie in adjacent slots, so a context is a slice and needs no gathering: the loops are as fast as such
loops can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from headforcing.headforcing_core.cache.base import Cache
from headforcing.headforcing_core.cache.head_cache import CacheShape
from headforcing.headforcing_core.cache.memory import EpisodicMemory, MemoryEvent
from headforcing.headforcing_core.cache.policy import RolePolicy
from headforcing.headforcing_core.devices import upload
from headforcing.headforcing_core.model.attention import AttentionFunction, Span, sdpa
from headforcing.headforcing_core.model.attention_backends import attend_layer
from headforcing.headforcing_core.model.rope import RotaryEmbedding, by_head
from headforcing.headforcing_core.model.wan import PromptKV
from headforcing.kernels import dispatch
from headforcing.kernels.merge import merge_frames
from headforcing.kernels.move import in_sequence, move_frames
from headforcing.kernels.pool import pooled_keys
from headforcing.kernels.rotation import rotate
from torch import Tensor

from .slots import Orders, Slots


class NaiveLoop(Cache):
    """V1: updates, assembly, rotation and attention head by head, in plain torch."""

    def __init__(
        self,
        shape: CacheShape,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
    ):
        self.shape, self.device, self.attention = shape, torch.device(device), attention
        self.rope = RotaryEmbedding(shape.head_dim, shape.rows, shape.columns, device)
        self.s = self.rope.frame_tokens
        self.block = 0
        self.slots = Slots(shape)
        self.memory = EpisodicMemory(shape.policy.memory.episodic_frames, shape.policy.episodic)
        self.policies = [[shape.policy.of(role) for role in layer] for layer in shape.roles]
        self.heads = [[head for head, p in enumerate(layer) if p.episodic_frames] for layer in self.policies]
        self.memory_heads = [torch.tensor(heads, dtype=torch.long, device=device) for heads in self.heads]
        self.starts: list[list[int]] = []  # per layer and head, its first row
        rows = 0
        for layer in self.policies:
            self.starts.append([])
            for policy in layer:
                self.starts[-1].append(rows)
                rows += (self.slots.capacity[policy] + 1) * self.s  # one to spare, for frames that change places
        self.k, self.v = (torch.empty(rows, shape.head_dim, dtype=dtype, device=device) for _ in range(2))

    def begin_block(self) -> None:
        self.slots.open_block(self.block)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        k, v = self.rope.rotate_spatial(by_head(k, self.s)), by_head(v, self.s)
        for head, start in enumerate(self.starts[layer]):
            stop = start + self.slots.frames(self.policies[layer][head]) * self.s
            rows = slice(stop - k.shape[1] * self.s, stop)
            self.k[rows], self.v[rows] = k[head].flatten(0, 1), v[head].flatten(0, 1)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        return torch.cat([self.attention(*(x[None] for x in head)) for head in self._contexts(layer, q)]).transpose(
            0, 1
        )

    def _contexts(self, layer: int, q: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys and values `[tokens, d]` of every head, rotated by the place of each frame in the context."""
        q = self.rope.rotate_spatial(by_head(q, self.s))
        contexts = []
        for head, start in enumerate(self.starts[layer]):
            frames = self.slots.frames(self.policies[layer][head])
            rows = slice(start, start + frames * self.s)
            keys = self.rope.rotate_temporal(self.k[rows].unflatten(0, (frames, self.s)), range(frames))
            queries = self.rope.rotate_temporal(q[head], range(frames)[-q.shape[1] :])
            contexts.append((queries.flatten(0, 1), keys.flatten(0, 1), self.v[rows]))
        return contexts

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        event = None
        policy = self.slots.memory_policy
        if policy is not None:
            rules, fast = self.shape.policy.episodic, policy.recent_frames or 0
            frame = rules.candidate_frame(self.block, self.shape.frames_per_block, fast)
            if frame is not None:
                event = self.memory.consider(self.block, frame, prompt, self.memory_heads, self)
        self.block += 1
        self._arrange(self.slots.history(self.block))
        return event

    def _arrange(self, orders: Orders) -> None:
        self._move(orders)
        self.slots.arrange(orders)

    def _move(self, orders: Orders) -> None:
        """Bring the frames of every head into a new order, those that stay where they are untouched."""
        moved = {}
        for policy, order in orders.items():
            first = next((place for place, slot in enumerate(order) if place != slot), len(order))
            if order[first:]:  # a list as an index would be copied for every head, and the host would wait
                moved[policy] = slice(first, len(order)), upload(torch.tensor(order[first:]), self.k.device)
        for starts, policies in zip(self.starts, self.policies, strict=True):
            for start, policy in zip(starts, policies, strict=True):
                if policy not in moved:
                    continue
                places, slots = moved[policy]
                for buffer in (self.k, self.v):
                    rows = slice(start, start + self.slots.capacity[policy] * self.s)
                    frames = buffer[rows].unflatten(0, (-1, self.s))
                    frames[places] = frames[slots]

    # what EpisodicMemory asks for (memory.TokenStore)

    def pooled_key(self, frame: int) -> Tensor:
        return self._pooled(self.slots.slot_of(frame))

    def _pooled(self, slot: int) -> Tensor:
        rows = [row for _, row in self._memory_rows(slot)]
        return torch.stack([self.k[row : row + self.s].float().mean(dim=0) for row in rows])

    def merge_entries(self, i: int, j: int, select: Callable[[int, Tensor], Tensor]) -> Tensor:
        pairs: dict[int, list[tuple[int, int]]] = {}  # per layer, the first rows of both frames in every head
        for (layer, a), (_, b) in zip(self._memory_rows(i), self._memory_rows(j), strict=True):
            pairs.setdefault(layer, []).append((a, b))
        kept = {
            layer: select(layer, torch.stack([self._both(self.k, *rows) for rows in heads]))
            for layer, heads in pairs.items()
        }
        self._merge(pairs, kept)
        self.slots.merge(i, j)
        return self._pooled(i)

    def _merge(self, pairs: dict[int, list[tuple[int, int]]], kept: dict[int, Tensor]) -> None:
        for layer, heads in pairs.items():
            for a, b in heads:
                for buffer in (self.k, self.v):
                    buffer[a : a + self.s] = self._both(buffer, a, b)[kept[layer]]

    def arrange_entries(self, order: list[int]) -> None:
        self._arrange(self.slots.with_entries(order))

    def admit(self, frame: int) -> None:
        self._arrange(self.slots.with_entry(frame))

    def _both(self, buffer: Tensor, a: int, b: int) -> Tensor:
        return torch.cat((buffer[a : a + self.s], buffer[b : b + self.s]))

    def _memory_rows(self, slot: int) -> list[tuple[int, int]]:
        """Layer and first row of a slot of every memory head."""
        return [
            (layer, self.starts[layer][head] + slot * self.s)
            for layer, heads in enumerate(self.heads)
            for head in heads
        ]


class PackedHeads(NaiveLoop):
    """V2: the heads' contexts are packed into one sequence each and attended to in one call."""

    def begin_block(self) -> None:
        super().begin_block()
        self.spans = []  # per layer, every head as a group of its own
        for policies in self.policies:
            rows = [self.slots.frames(policy) * self.s for policy in policies]
            self.spans.append(tuple(Span(1, sum(rows[:head]), count, count) for head, count in enumerate(rows)))

    @property
    def queries(self) -> int:
        """Of a head, in every pass."""
        return self.shape.frames_per_block * self.s

    def attend(self, layer: int, q: Tensor) -> Tensor:
        packed = [torch.cat(parts) for parts in zip(*self._contexts(layer, q), strict=True)]
        return self._attend_packed(layer, *packed)

    def _attend_packed(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend_layer(self.attention, q.unflatten(0, (-1, self.queries)), k, v, self.spans[layer]).transpose(0, 1)


class CacheKernels(PackedHeads):
    """V3: one kernel rolls the caches of all heads and layers, one updates episodic memory, pooling is batched.

    The paper's kernels move, merge and pool as the engine's do, but keys turn only when a context is assembled; so
    these are the engine's, with tables that rotate by nothing.

    Args:
        kernels: as for `dispatch.using`: `triton`, or `reference` to check the tables on a CPU.
    """

    def __init__(self, *arguments: Any, kernels: str = "triton", **options: Any):
        super().__init__(*arguments, **options)
        self.kernels = kernels
        self.tables: dict[Any, Any] = {}
        self.rotations = self.rope.tables(max(self.slots.capacity.values()))[0]  # row 0 rotates by nothing

    def _table(self, rows: Any, *shape: int) -> Tensor:
        """As a table on the device; one that was asked for before is not built again."""
        key = (tuple(rows), *shape)
        if key not in self.tables:
            table = torch.tensor(rows, dtype=torch.int32).reshape(-1, *shape)
            self.tables[key] = upload(table, self.device)
        return self.tables[key]

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """All heads in one copy each of keys and values."""
        rows = self._table(self._first_rows(layer), 1) + self._table(range(self.queries))
        self.k[rows.long()] = self.rope.rotate_spatial(by_head(k, self.s)).flatten(1, 2)
        self.v[rows.long()] = by_head(v, self.s).flatten(1, 2)

    def _first_rows(self, layer: int) -> list[int]:
        """Where each head's current block begins."""
        frames = [self.slots.frames(policy) - self.shape.frames_per_block for policy in self.policies[layer]]
        return [start + count * self.s for start, count in zip(self.starts[layer], frames, strict=True)]

    def _move(self, orders: Orders) -> None:
        moves = {p: in_sequence(order, spare=self.slots.capacity[p]) for p, order in orders.items()}
        longest = max(map(len, moves.values()))
        chains = [
            tuple((start + source * self.s, start + target * self.s, 0) for source, target in moves[policy])
            + ((-1, 0, 0),) * (longest - len(moves[policy]))
            for starts, policies in zip(self.starts, self.policies, strict=True)
            for start, policy in zip(starts, policies, strict=True)
            if policy in moves
        ]
        if longest:
            with dispatch.using(self.kernels):
                table = self._table(chains, longest, 3)
                move_frames(self.k, self.v, self.k, self.v, table, self.rotations, self.s)

    def _merge(self, pairs: dict[int, list[tuple[int, int]]], kept: dict[int, Tensor]) -> None:
        merges = [(a, b, a, 0, 0, group) for group, heads in enumerate(pairs.values()) for a, b in heads]
        chosen = torch.stack(list(kept.values())).int()
        with dispatch.using(self.kernels):
            merge_frames(self.k, self.v, self._table(merges, 6), chosen, self.rotations)

    def _pooled(self, slot: int) -> Tensor:
        frames = self._table([(row, 0) for _, row in self._memory_rows(slot)], 2)
        with dispatch.using(self.kernels):
            return pooled_keys(self.k, frames, self.rotations, self.s)


class FusedAssembly(CacheKernels):
    """V4: assembly, temporal rotation and packing are one kernel; the complete system of the paper."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        rows = max(sum(self.slots.capacity[policy] for policy in policies) for policies in self.policies) * self.s
        self.packed = tuple(torch.empty_like(self.k[:rows]) for _ in range(2))

    def begin_block(self) -> None:
        super().begin_block()
        filled = tuple(map(self.slots.frames, self.slots.capacity))
        if filled not in self.tables:  # they change only while contexts grow
            self.tables[filled] = (
                [self._packing(layer) for layer in range(len(self.policies))],
                [torch.stack([self._last_rotations(p) for p in policies]) for policies in self.policies],
            )
        self.moves, self.query_rotations = self.tables[filled]  # the second per layer [heads, frames, 2, pairs]

    def _last_rotations(self, policy: RolePolicy) -> Tensor:
        """Of the current block's frames, by their places in the context."""
        return self.rotations[: self.slots.frames(policy)][-self.shape.frames_per_block :]

    def _packing(self, layer: int) -> Tensor:
        """A move for every frame: from its row, to the next one of the packed buffers, turned by its place."""
        places = [
            (start + place * self.s, place)
            for start, policy in zip(self.starts[layer], self.policies[layer], strict=True)
            for place in range(self.slots.frames(policy))
        ]
        moves = [(row, number * self.s, place) for number, (row, place) in enumerate(places)]
        return self._table(moves, 1, 3)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        k, v = (buffer[: sum(span.rows for span in self.spans[layer])] for buffer in self.packed)
        with dispatch.using(self.kernels):
            move_frames(self.k, self.v, k, v, self.moves[layer], self.rotations, self.s)
        q = self.rope.rotate_spatial(by_head(q, self.s))
        t = self.rope.temporal_dim
        cos, sin = self.query_rotations[layer][:, :, None].unbind(-2)
        q = torch.cat((rotate(q[..., :t], cos, sin), q[..., t:]), dim=-1)
        return self._attend_packed(layer, q.flatten(0, 2), k, v)
