"""Division of a model's work among ranks: a rectangle of every frame's tokens, and whole heads of
every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import gcd

import numpy as np
from torch import Tensor

from ..cache.shape import CacheShape, Shape
from ..errors import HeadForcingError

Heads = tuple[tuple[tuple[int, ...], ...], ...]  # heads[rank][layer], ascending

Speeds = Sequence[float] | None  # of all ranks, relative to each other; None if they are equal


@dataclass(frozen=True)
class Strip:
    """A rectangle of every frame's tokens, `rows x columns` of it beginning at `(row, column)`."""

    row: int
    column: int
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        return self.rows * self.columns

    def of_frames(self, x: Tensor, patch: int = 1) -> Tensor:
        """The strip of `x [..., rows, columns]` as a view, each token `patch x patch` numbers
        wide.
        """
        bands = x.narrow(-2, self.row * patch, self.rows * patch)
        return bands.narrow(-1, self.column * patch, self.columns * patch)

    def of_tokens(self, x: Tensor) -> Tensor:
        """The strip of `x [heads, frames, rows, columns, n]` as a view."""
        return self.of_frames(x.movedim(-1, 2)).movedim(2, -1)


def speed_ratio(speeds: Speeds, ranks: int) -> list[int]:
    """The speeds of all ranks as small whole numbers in the same ratio; None stands for equal ones.

    With whole numbers rounding leaves no part of the frame to nobody.
    """
    parts = [round(1000 * speed) for speed in speeds or [1] * ranks]  # of at least 0.001
    divisor = gcd(*parts)
    return [part // divisor for part in parts]


def strips(rows: int, columns: int, ranks: int, speeds: Speeds = None) -> tuple[Strip, ...]:
    """Cut a frame of tokens into bands of rows, and these into one rectangle per rank, so that all
    finish together.

    `speeds` as for `assign_heads`. Of all numbers of bands the one whose slowest rank finishes
    earliest.
    """
    parts = speed_ratio(speeds, ranks)

    def badness(grid: Sequence[Strip]) -> tuple[bool, float]:
        """Whether a rank has no tokens, and the time of the slowest."""
        times = [strip.tokens / part for strip, part in zip(grid, parts, strict=True)]
        return min(times) == 0, max(times)

    divisors = [across for across in range(ranks, 0, -1) if ranks % across == 0]
    return min((_bands(rows, columns, parts, across) for across in divisors), key=badness)


def _bands(rows: int, columns: int, parts: Sequence[int], across: int) -> tuple[Strip, ...]:
    """Bands of `across` rectangles each, of sizes in proportion to the parts."""
    bands = [parts[first : first + across] for first in range(0, len(parts), across)]
    grid = []
    heights = _cuts(rows, [sum(band) for band in bands])
    for band, (top, bottom) in zip(bands, heights, strict=True):
        for left, right in _cuts(columns, band):
            grid.append(Strip(top, left, bottom - top, right - left))
    return tuple(grid)


def _cuts(length: int, parts: Sequence[int]) -> list[tuple[int, int]]:
    """The places at which each part of a length begins and ends."""
    ends = [length * end // sum(parts) for end in accumulate(parts, initial=0)]
    return list(pairwise(ends))


def head_costs(shape: CacheShape) -> list[list[int]]:
    """Per layer and head, the latent frames that a head's queries look at when its context is
    full.
    """
    costs = []
    for roles in shape.roles:
        costs.append([shape.slots[shape.method.of(role)] for role in roles])
    return costs


def assign_heads(costs: Sequence[Sequence[float]], ranks: int, speeds: Speeds = None) -> Heads:
    """Give every head of every layer to a rank, so that all ranks finish a layer at about the same
    time.

    Layers wait for each other, so each is balanced by itself: its dearest head first, to the rank
    that is done earliest; on a tie to the rank that holds least so far. `costs` are per layer and
    head, `speeds` relative.
    """
    parts = speed_ratio(speeds, ranks)
    held = [0.0] * ranks
    heads: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
    for row in costs:
        load = [0.0] * ranks
        own: list[list[int]] = [[] for _ in range(ranks)]
        for head in sorted(range(len(row)), key=lambda head: -row[head]):
            cost = row[head]
            first = min(
                range(ranks), key=lambda rank: ((load[rank] + cost) / parts[rank], held[rank])
            )
            load[first] += cost
            held[first] += cost
            own[first].append(head)
        for rank in range(ranks):
            heads[rank].append(tuple(sorted(own[rank])))
    return tuple(map(tuple, heads))


@dataclass(frozen=True)
class Division:
    """The parts of all ranks.

    Attributes:
        heads: per rank and layer, the heads whose caches it holds and whose attention it computes.
        strips: per rank, the tokens of every frame that it computes outside self-attention.
        costs, speeds: see `head_costs`, `assign_heads`.
    """

    heads: Heads
    strips: tuple[Strip, ...]
    costs: list[list[int]]
    speeds: Speeds = None

    @classmethod
    def of(cls, shape: Shape, ranks: int, speeds: Speeds = None) -> Division:
        """The division of a cache of this shape; `speeds` as for `assign_heads`."""
        costs = head_costs(grouped(shape))
        heads = assign_heads(costs, ranks, speeds)
        return cls(heads, strips(shape.rows, shape.columns, ranks, speeds), costs, speeds)

    @cached_property
    def loads(self) -> np.ndarray:
        """The costs of the heads of each rank, `[ranks, layers]`."""
        loads = np.zeros((len(self.heads), len(self.costs)))
        for rank, layers in enumerate(self.heads):
            for layer, own in enumerate(layers):
                loads[rank, layer] = sum(self.costs[layer][head] for head in own)
        return loads

    @property
    def worst_over_mean(self) -> float:
        """Time of the slowest rank's attention over that of an ideal division, in the layer where
        that is worst.
        """
        speeds = np.array(speed_ratio(self.speeds, len(self.heads)))
        slowest = (self.loads.T / speeds).max(axis=1)
        return float((slowest * speeds.sum() / self.loads.sum(axis=0)).max())

    def share_of_cache(self, rank: int) -> float:
        """The part of the cache's bytes that a rank holds."""
        return float(self.loads[rank].sum() / self.loads.sum())


def grouped(shape: Shape) -> CacheShape:
    """The shape of a cache that is divided by heads; raises HeadForcingError for a method with a
    cache of its own.
    """
    if not isinstance(shape, CacheShape):
        raise HeadForcingError(
            "several GPUs divide caches that keep frames by role, as head_forcing and self_forcing "
            "do, and this method has a cache of its own; choose another, or leave out --gpus"
        )
    return shape


def check_division(shape: Shape, ranks: int, speeds: Speeds = None) -> None:
    """Refuse a method whose cache is not divided, and ranks or speeds that leave one of the ranks
    without work.
    """
    grouped(shape)
    if not _fits(shape, ranks):
        counts = [str(count) for count in range(1, shape.heads + 1) if _fits(shape, count)]
        raise HeadForcingError(
            f"{ranks} GPUs leave one without a head or without a part of the frame ({shape.heads} "
            f"heads, {shape.rows}x{shape.columns} tokens a frame); choose --gpus "
            f"{', '.join(counts)}"
        )
    if any(strip.tokens == 0 for strip in strips(shape.rows, shape.columns, ranks, speeds)):
        given = ",".join(f"{speed:g}" for speed in speeds or ())
        raise HeadForcingError(
            f"--gpu-speeds {given} leave one GPU without a part of the frame "
            f"({shape.rows}x{shape.columns} tokens); give numbers closer to each other, or leave "
            "out the slowest GPU"
        )


def _fits(shape: Shape, ranks: int) -> bool:
    return ranks <= shape.heads and all(
        strip.tokens for strip in strips(shape.rows, shape.columns, ranks)
    )
