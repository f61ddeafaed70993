"""The paper's four implementations of the head-wise caches, V1 to V4 (its supplement on
efficiency).

All keep keys with their spatial rotation only and build every head's context anew in every pass:
assemble, rotate by place in the context, attend. They differ in how much of that is a loop over
heads in Python. Which frames lie in which slots is decided by the engine's own rules, so their
latents are the engine's.

A head's frames lie in adjacent slots, so a context is a slice and needs no gathering: the loops are
as fast as such loops can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any

import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.head_group import HeadGroup
from headforcing.headforcing_core.cache.memory import MemoryEvent
from headforcing.headforcing_core.devices import upload
from headforcing.headforcing_core.model.attention import AttentionFunction, Span, sdpa
from headforcing.headforcing_core.model.attention_backends import attend_layer
from headforcing.headforcing_core.model.rope import RotaryEmbedding, by_head
from headforcing.headforcing_core.model.wan import Norms, PromptKV
from headforcing.kernels.move import move_frames
from headforcing.kernels.rotation import rotate
from headforcing.tests.helpers.kernel_choice import using
from torch import Tensor


class WithoutTime(RotaryEmbedding):
    """Rotates by a token's place in its frame alone: the indices of frames are taken and count for
    nothing.
    """

    def _temporal_rotations(self, frame_indices: tuple[int, ...]) -> Tensor:
        return super()._temporal_rotations((0,) * len(frame_indices))

    def _kernel_table(self, first: int, end: int) -> Tensor:
        return super()._kernel_table(0, 1).expand(end - first, -1, -1).contiguous()


class Looped(HeadGroup):
    """A group whose slots are changed head by head, in plain torch: what a layer is to the
    engine's, a head is here.
    """

    def __init__(self, group: HeadGroup, rope: RotaryEmbedding):
        k = [head[None] for head in chain(*group.k)]
        v = [head[None] for head in chain(*group.v)]
        super().__init__(group.policy, group.heads, k, v, rope, reencode=False, flat=group._flat)
        ends = list(accumulate(self.sizes))
        self.of_layers = [
            slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)
        ]

    _in_one_launch = False

    def _pool(self, slot: int) -> Tensor:
        return torch.cat([k[:, slot].float().mean(dim=1) for k in self.k])

    def merge_entries(self, i: int, j: int, select: Callable[[int, Tensor], Tensor]) -> Tensor:
        for layer, own in enumerate(self.of_layers):
            if not self.sizes[layer]:
                continue
            keys = [torch.cat((k[0, i], k[0, j])) for k in self.k[own]]
            kept = select(layer, torch.stack(keys))
            for k, v, both in zip(self.k[own], self.v[own], keys, strict=True):
                k[0, i], v[0, i] = both[kept], torch.cat((v[0, i], v[0, j]))[kept]
        self.sources[i] = self.sources[i] + self.sources[j]
        return self._pool(i)


class NaiveLoop(HeadCache):
    """V1: updates, assembly, rotation and attention head by head, in plain torch."""

    looped = True

    def __init__(
        self,
        shape: CacheShape,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
    ):
        # with indices of the video, which stay, no key is ever turned again
        super().__init__(
            replace(shape, method=replace(shape.method, rope="absolute")), dtype, device, attention
        )
        self.fused = False
        self.s = self.rope.frame_tokens
        without_time = WithoutTime(shape.head_dim, shape.rows, shape.columns, device)
        found: list[dict[int, tuple[HeadGroup, Tensor, Tensor]]] = [{} for _ in shape.roles]
        for number, group in enumerate(self.groups):
            kv = group.k, group.v
            group.rope = without_time
            self.groups[number] = group = Looped(group, without_time) if self.looped else group
            for layer, heads, k, v in zip(found, group.heads, *kv, strict=True):
                layer.update(
                    {
                        head: (group, *slots)
                        for head, *slots in zip(heads.tolist(), k, v, strict=True)
                    }
                )
        # per layer and head, its group and its slots
        self.own = []
        for layer in found:
            self.own.append([layer[head] for head in range(shape.heads)])
        self.memory.store = next(
            (group for group in self.groups if group.policy.episodic_frames), self.groups[0]
        )

    def write_and_rotate(
        self, layer: int, k: Tensor, v: Tensor, q: Tensor | None = None, norms: Norms | None = None
    ) -> Tensor | None:
        k = self.rope.rotate_spatial(by_head(k, self.s))
        v = by_head(v, self.s)
        for (group, k_slots, v_slots), own_k, own_v in zip(self.own[layer], k, v, strict=True):
            k_slots[group.current], v_slots[group.current] = own_k, own_v
        return q

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        heads = [
            self.attention(q[None], k[None], v[None]) for q, k, v in self._contexts(layer, queries)
        ]
        return torch.cat(heads).transpose(0, 1)

    def _contexts(self, layer: int, q: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys and values `[tokens, d]` of every head, rotated by the place of each frame
        in the context.
        """
        q = self.rope.rotate_spatial(by_head(q, self.s))
        contexts = []
        for (group, k, v), own in zip(self.own[layer], q, strict=True):
            places = range(group.frames)
            queries = self.rope.rotate_temporal(own, places[-len(own) :])
            keys = self.rope.rotate_temporal(k[: group.frames], places)
            contexts.append(
                (queries.flatten(0, 1), keys.flatten(0, 1), v[: group.frames].flatten(0, 1))
            )
        return contexts


class PackedHeads(NaiveLoop):
    """V2: the heads' contexts are packed into one sequence each and attended to in one call."""

    def begin_block(self) -> None:
        super().begin_block()
        self.packed_spans = []  # per layer, every head as a group of its own
        for own in self.own:
            rows = [group.frames * self.s for group, _, _ in own]
            self.packed_spans.append(
                tuple(Span(1, sum(rows[:head]), n, n) for head, n in enumerate(rows))
            )

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        packed = [torch.cat(parts) for parts in zip(*self._contexts(layer, queries), strict=True)]
        return self._attend_packed(layer, *packed)

    def _attend_packed(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.unflatten(0, (len(self.own[layer]), -1))
        return attend_layer(self.attention, q, k, v, self.packed_spans[layer]).transpose(0, 1)


class CacheKernels(PackedHeads):
    """V3: the engine's kernels roll caches and update episodic memory in all heads and layers at
    once.

    Args:
        kernels: as for `kernel_choice.using`: `triton`, or `reference` to check everything else on a
            CPU.
    """

    looped = False

    def __init__(self, *arguments: Any, kernels: str = "triton", **options: Any):
        super().__init__(*arguments, **options)
        self.kernels = kernels

    def write_and_rotate(
        self, layer: int, k: Tensor, v: Tensor, q: Tensor | None = None, norms: Norms | None = None
    ) -> Tensor | None:
        HeadCache.write_and_rotate(self, layer, k, v)
        return q

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        with using(self.kernels):
            return super().commit(prompt)


class FusedAssembly(CacheKernels):
    """V4: assembly, temporal rotation and packing are one kernel; the complete system of the
    paper.
    """

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        most_of_a_layer = 0
        most_of_a_head = 0
        for own in self.own:
            slots = [len(k) for _, k, _ in own]
            most_of_a_layer = max(most_of_a_layer, sum(slots))
            most_of_a_head = max(most_of_a_head, *slots)
        self.packed = [torch.empty_like(buffer[: most_of_a_layer * self.s]) for buffer in self.flat]
        self.rotations = self.rope.tables(most_of_a_head)[0]
        self.tables: dict[Sequence[int], tuple[list[Tensor], list[Tensor]]] = {}

    def begin_block(self) -> None:
        super().begin_block()
        filled = tuple(group.frames for group in self.groups)
        if filled not in self.tables:  # they change only while contexts grow
            moves = []
            rotations = []
            for layer, own in enumerate(self.own):
                moves.append(self._packing(layer))
                rotations.append(
                    torch.stack([self.rotations[group.current] for group, _, _ in own])
                )
            self.tables[filled] = (moves, rotations)
        # the second per layer [heads, frames, 2, pairs]
        self.moves, self.query_rotations = self.tables[filled]

    def _packing(self, layer: int) -> Tensor:
        """A move for every frame: from its row, to the next one of the packed buffers, turned by
        its place.
        """
        moves: list[list[tuple[int, int, int]]] = []
        for group, k, _ in self.own[layer]:
            start = k.storage_offset() // k.shape[-1]
            for place in range(group.frames):
                moves.append([(start + place * self.s, len(moves) * self.s, place)])
        return upload(torch.tensor(moves, dtype=torch.int32), self.device)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        rows = sum(span.rows for span in self.packed_spans[layer])
        k = self.packed[0][:rows]
        v = self.packed[1][:rows]
        with using(self.kernels):
            move_frames(*self.flat, k, v, self.moves[layer], self.rotations, self.s)
        q = self.rope.rotate_spatial(by_head(queries, self.s))
        t = self.rope.temporal_dim
        cos, sin = self.query_rotations[layer][:, :, None].unbind(-2)
        q = torch.cat((rotate(q[..., :t], cos, sin), q[..., t:]), dim=-1)
        return self._attend_packed(layer, q.flatten(0, 2), k, v)
