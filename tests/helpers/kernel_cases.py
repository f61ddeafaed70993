"""Cases for the kernels: random tables and buffers, and the engine's own caches with flat buffers beside them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from benchmarks.kernels.attend_turning import attend_turning
from benchmarks.kernels.tables import rotation_table
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache, HeadGroup
from headforcing.headforcing_core.cache.policy import CachePolicy, EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.model.attention import explicit
from headforcing.headforcing_core.model.rope import angles, axis_dims
from headforcing.headforcing_core.model.wan import PromptKV
from headforcing.kernels.attend import attend
from headforcing.kernels.dispatch import Operation
from headforcing.kernels.feature_frames import feature_frames
from headforcing.kernels.merge import merge_frames
from headforcing.kernels.modulate import norm_modulate, residual_norm_modulate
from headforcing.kernels.move import in_sequence, move_frames
from headforcing.kernels.pool import pooled_keys
from headforcing.kernels.quantise import quantise, quantise_gelu
from headforcing.kernels.write import write_block
from torch import Tensor
from torch.nn import functional as F

OPERATIONS: list[Operation] = [
    write_block, move_frames, pooled_keys, merge_frames, norm_modulate, residual_norm_modulate, attend, attend_turning,
    feature_frames, quantise, quantise_gelu,
]  # fmt: skip

ROLE_MAPS = {
    "every role": [["memory", "local", "anchor"], ["anchor", "memory", "memory"]],
    "a layer without memory heads": [["local", "anchor", "local"], ["memory", "local", "memory"]],
    "no anchor heads": [["local", "memory", "local"]],
    "one role": [["memory", "memory"]],
}


def int_table(rows: Any, device: torch.device | str = "cpu") -> Tensor:
    return torch.tensor(rows, dtype=torch.int32, device=device)


def rotations_around(head_dim: int, most: int) -> Tensor:
    """Rotations by `-most .. most`; index `d` is row `most + d`."""
    return rotation_table(angles(torch.arange(-most, most + 1), axis_dims(head_dim)[0]))


# ------------------------------------------------------------------------------------------------------ random cases


def case(operation: Operation, seed: int, dtype: torch.dtype, s: int, head_dim: int) -> dict[str, Any]:
    """Arguments for an operation, with frames of `s` tokens, that no tile size divides."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(dtype)

    def pick(n: int, count: int) -> list[int]:
        return torch.randperm(n, generator=generator)[:count].tolist()

    slots = 12
    k, v = noise(slots * s, head_dim), noise(slots * s, head_dim)
    rotations = rotations_around(head_dim, 9)
    if operation is write_block:
        heads, frames = 3, 2
        spatial = torch.rand(s, head_dim // 2 - rotations.shape[2], generator=generator) * 6
        q_raw, k_raw, v_raw = noise(frames * s, 3, heads * head_dim).unbind(1)  # rows with gaps, as of one projection
        weights = noise(2, heads * head_dim).unbind() if seed < 2 else None
        return dict(
            q=q_raw if seed % 2 else None, k=k_raw, v=v_raw, weights=weights, eps=1e-6, k_buffer=k, v_buffer=v,
            slot_row=int_table([s * slot for slot in (5, 0, 9)]), first_rotation=int_table(pick(17, heads)),
            q_row=int_table([frames * s * place for place in pick(heads, heads)]),
            temporal=rotations, spatial=rotation_table(spatial),
        )  # fmt: skip
    if operation is move_frames:
        own = [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11]]
        chains = []
        for mine in own:
            steps = [[mine[i] * s for i in pick(len(mine), 2)] + pick(19, 1) for _ in range(3)]
            steps[pick(3, 1)[0]][0] = -1
            chains.append(steps)
        return dict(k_from=k, v_from=v, k_to=k, v_to=v, moves=int_table(chains), rotations=rotations, frame_tokens=s)
    if operation is pooled_keys:
        frames = [[slot * s, pick(19, 1)[0]] for slot in pick(slots, 5)]
        return dict(k=k, frames=int_table(frames), rotations=rotations, frame_tokens=s)
    if operation is merge_frames:
        kept = torch.stack([torch.randperm(2 * s, generator=generator)[:s].sort().values for _ in range(2)])
        merges = [[0, 3, 0, *pick(19, 2), 1], [4, 1, 4, *pick(19, 2), 0], [5, 6, 8, *pick(19, 2), 1]]
        merges = [[*(slot * s for slot in merge[:3]), *merge[3:]] for merge in merges]
        return dict(k=k, v=v, merges=int_table(merges), kept=kept.int(), rotations=rotations)
    if operation in (norm_modulate, residual_norm_modulate):
        frames, dim = 3, 5 * head_dim
        x, y, rows = noise(frames * s, dim), noise(frames * s, dim), noise(frames, 6, dim)
        plain = seed % 2 == 0  # an affine norm after a plain sum, as before cross-attention
        scale, shift = (rows[:1, 1], rows[:1, 0]) if plain else (rows[:, 1], rows[:, 0])
        affine = dict(scale=scale, shift=shift, eps=1e-6, base=0.0 if plain else 1.0)
        if operation is norm_modulate:
            return dict(x=x, **affine)
        return dict(x=x, y=y, gate=None if plain else rows[:, 2], **affine)
    if operation in (quantise, quantise_gelu):
        x = noise(s, 150 * head_dim)  # one tile and a part, and several
        if operation is quantise_gelu:  # few values: where one lies between two numbers of 8 bits, exponentials decide
            x = (4 * x).round() / 4
        x[seed % s, 7], x[3], x[5, -1] = torch.nan, 0, torch.inf
        return dict(x=x)
    if operation is feature_frames:
        frames, size = 1 + seed % 3, (s, 3, head_dim)
        summed = dict(bias=noise(head_dim), residual=noise(frames, *size)) if seed % 2 == 0 else {}
        return dict(x=noise(frames, *size), past=noise(2, *size), gamma=noise(head_dim), **summed)
    rows = [5 * s, 1 * s, 0 if operation is attend else 2 * s]
    if operation is attend:
        rows[0] -= 7
    arguments = dict(
        q=2 * noise(3, 2 * s, head_dim), k=k, v=v, head_start=int_table([3 * s, 0, 9 * s]), head_rows=int_table(rows),
        head_order=int_table([0, 2, 1]),
    )  # fmt: skip
    if operation is attend_turning:
        arguments |= dict(query_index=int_table([3, 0, 1]), key_index=int_table([pick(5, 5) for _ in range(3)]))
        arguments |= dict(rotations=rotations, zero=9, frame_tokens=s)
    return arguments


def distance(operation: Operation, arguments: Callable[[], dict[str, Any]]) -> float:
    """How far an operation's two implementations are apart, as in its self-test."""
    return Operation(operation.reference, operation.launch, lambda device, dtype: arguments()).difference(
        torch.device("cpu"), torch.float32
    )


# -------------------------------------------------------------------------------- the engine, with flat buffers beside


class FlatGroup(HeadGroup):
    """A group of heads that repeats everything done to its slots on the flat buffers, with the kernels."""

    def __init__(self, flat: "FlatCache", *arguments: Any):
        super().__init__(*arguments)
        self.flat = flat
        self.slots = self.k[0].shape[1]

    def rows(self, slot: int = 0) -> list[tuple[int, int]]:
        """Layer and first row of a slot of every head of the group, over all layers."""
        s = self.flat.rope.frame_tokens
        return [
            (layer, self.flat.first_row[layer, head] + slot * s)
            for layer, heads in enumerate(self.heads)
            for head in heads.tolist()
        ]

    def _repeat(self, moves: Sequence[tuple[int, int, int]]) -> None:
        s = self.flat.rope.frame_tokens
        chains = [
            [[row + source * s, row + target * s, self.flat.zero + by] for source, target, by in moves]
            for _, row in self.rows()
        ]
        if moves:
            k, v = self.flat.flat_k, self.flat.flat_v
            move_frames(k, v, k, v, self.flat.table(chains), self.flat.rotations, s)

    def begin_block(self, first_frame: int, frames_per_block: int) -> None:
        before = list(self.indices)
        super().begin_block(first_frame, frames_per_block)
        self._repeat([(i, i, self.indices[i] - old) for i, old in enumerate(before) if self.indices[i] != old])

    def _arrange(self, order: list[int]) -> None:
        super()._arrange(order)
        self._repeat([(source, target, 0) for source, target in in_sequence(order, spare=self.slots)])

    def pooled_key(self, frame: int) -> Tensor:
        pooled = super().pooled_key(frame)
        torch.testing.assert_close(self._flat_pooled(self.sources.index([frame], self.entries)), pooled)
        return pooled

    def _flat_pooled(self, slot: int) -> Tensor:
        frames = [[row, self.flat.zero - self.indices[slot]] for _, row in self.rows(slot)]
        return pooled_keys(self.flat.flat_k, self.flat.table(frames), self.flat.rotations, self.flat.rope.frame_tokens)

    def merge_entries(self, i: int, j: int, select: Callable[[int, Tensor], Tensor]) -> Tensor:
        kept = torch.zeros(len(self.heads), self.flat.rope.frame_tokens, dtype=torch.int32, device=self.flat.device)

        def recorded(layer: int, keys: Tensor) -> Tensor:
            kept[layer] = select(layer, keys)
            return kept[layer].long()

        zero, by = self.flat.zero, self.indices[i] - self.indices[j]
        pooled = super().merge_entries(i, j, recorded)
        merges = [
            [a, b, a, zero, zero + by, layer] for (layer, a), (_, b) in zip(self.rows(i), self.rows(j), strict=True)
        ]
        merge_frames(self.flat.flat_k, self.flat.flat_v, self.flat.table(merges), kept, self.flat.rotations)
        torch.testing.assert_close(self._flat_pooled(i), pooled)
        return pooled


class FlatCache(HeadCache):
    """The engine's cache and, beside it, the same in flat buffers that only the kernels touch.

    Rows that were never written hold NaN, so reading one shows.
    """

    def __init__(self, shape: CacheShape, device: str = "cpu"):
        super().__init__(shape, torch.float32, device, attention=explicit)
        self.groups = [FlatGroup(self, g.policy, g.heads, g.k, g.v, g.ropes, g.reencode) for g in self.groups]
        self.memory_group = next((g for g in self.groups if g.policy.episodic_frames), None)
        layers, heads, s = len(shape.roles), len(shape.roles[0]), self.rope.frame_tokens
        self.owner = {
            (layer, head): group
            for group in self.groups
            for layer, owned in enumerate(group.heads)
            for head in owned.tolist()
        }
        self.first_row: dict[tuple[int, int], int] = {}
        rows = 0
        for layer in range(layers):
            for head in sorted(range(heads), key=lambda head: -self.owner[layer, head].slots):
                self.first_row[layer, head] = rows
                rows += (self.owner[layer, head].slots + 1) * s
        self.flat_k, self.flat_v = torch.full((2, rows, shape.head_dim), float("nan"), device=device)
        self.zero = shape.total_frames
        self.rotations = rotations_around(shape.head_dim, shape.total_frames).to(device)
        self.spatial = self.rope._spatial.transpose(1, 2).contiguous()
        self.heads = heads

    def table(self, rows: Any) -> Tensor:
        return int_table(rows, self.device)

    def run_layer(self, layer: int, q: Tensor, k: Tensor, v: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Attention `[tokens, heads, head_dim]` by the engine and by the kernels; `q, k, v [tokens, dim]` un-normed."""

        def by_head(x: Tensor) -> Tensor:
            return x.unflatten(1, (self.heads, -1))

        q_normed, k_normed = (F.rms_norm(x, x.shape[1:], w, 1e-6) for x, w in zip((q, k), weights, strict=True))
        self.write(layer, by_head(k_normed), by_head(v))
        expected = self.attend(layer, by_head(q_normed))
        owners = [self.owner[layer, head] for head in range(self.heads)]
        starts = [self.first_row[layer, head] for head in range(self.heads)]
        s = self.rope.frame_tokens
        queries = write_block(
            q, k, v, weights.unbind(), 1e-6, self.flat_k, self.flat_v,
            self.table([start + g.current.start * s for start, g in zip(starts, owners, strict=True)]),
            self.table([head * len(k) for head in range(self.heads)]),
            self.table([self.zero + g.indices[g.current.start] for g in owners]), self.rotations, self.spatial,
        )  # fmt: skip
        assert queries is not None
        lengths = [group.frames * s for group in owners]
        order = sorted(range(self.heads), key=lambda head: -lengths[head])
        found = attend(queries, self.flat_k, self.flat_v, *(self.table(row) for row in (starts, lengths, order)))
        return expected, found

    def check(self) -> None:
        """Everything in use is the same in both."""
        for (layer, head), group in self.owner.items():
            first, place = self.first_row[layer, head], group.heads[layer].tolist().index(head)
            rows = slice(first, first + group.frames * self.rope.frame_tokens)
            for flat, held in ((self.flat_k, group.k), (self.flat_v, group.v)):
                torch.testing.assert_close(flat[rows], held[layer][place, : group.frames].flatten(0, 1))


def roll_out(roles: list[list[str]], episodic_frames: int, rope: str, blocks: int, device: str = "cpu") -> list[Any]:
    """A video's worth of blocks through the engine and the kernels, compared after every step; the memory's events."""
    memory = RolePolicy(recent_frames=3, episodic_frames=episodic_frames)
    policy = CachePolicy(memory=memory, rope=rope, episodic=EpisodicPolicy(admission="uniform", update_interval=1))
    rows, columns, head_dim, frames = 4, 6, 20, 3
    shape = CacheShape(roles, policy, rows, columns, head_dim, frames, total_frames=frames * blocks)
    cache, (heads, layers) = FlatCache(shape, device), (len(roles[0]), len(roles))
    generator = torch.Generator().manual_seed(1)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device)

    keys = [(noise(1, heads, 7, head_dim), noise(1, heads, 7, head_dim)) for _ in roles]
    prompt, events = PromptKV(keys, 5), []
    weights = noise(layers, 2, heads * head_dim)
    for _ in range(blocks):
        cache.begin_block()
        for layer in range(layers):
            q, k, v = noise(3, frames * rows * columns, heads * head_dim)
            expected, found = cache.run_layer(layer, q, k, v, weights[layer])
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
        cache.check()
        events.append(cache.commit(prompt))
    return events
