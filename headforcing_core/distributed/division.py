"""Division of a model's work among ranks: a rectangle of every frame's tokens, and whole heads of every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm

from torch import Tensor

from ..cache.policy import CachePolicy
from ..cache.shape import CacheShape, Shape
from ..errors import HeadForcingError

Heads = tuple[tuple[tuple[int, ...], ...], ...]  # heads[rank][layer], ascending


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
        """The strip of `x [..., rows, columns]` as a view, each token `patch x patch` numbers wide."""
        rows, columns = slice(self.row, self.row + self.rows), slice(self.column, self.column + self.columns)
        scaled = [slice(part.start * patch, part.stop * patch) for part in (rows, columns)]
        return x[..., scaled[0], scaled[1]]

    def of_tokens(self, x: Tensor) -> Tensor:
        """The strip of `x [heads, frames, rows, columns, n]` as a view."""
        return self.of_frames(x.movedim(-1, 2)).movedim(2, -1)


def ratio(speeds: Sequence[float] | None, ranks: int) -> list[int]:
    """The speeds of all ranks as the smallest whole numbers in the same ratio; None stands for equal ones.

    They are taken as decimals: rounding of binary fractions could leave a part of the frame to nobody.
    """
    exact = [Fraction(str(speed)) for speed in speeds or [1] * ranks]
    scale = lcm(*(speed.denominator for speed in exact))
    whole = [int(speed * scale) for speed in exact]
    return [speed // gcd(*whole) for speed in whole]


def strips(rows: int, columns: int, ranks: int, speeds: Sequence[float] | None = None) -> tuple[Strip, ...]:
    """Cut a frame of tokens into bands of rows, and these into one rectangle per rank, so that all finish together.

    `speeds` as for `assign_heads`. Of all numbers of bands the one whose slowest rank finishes earliest.
    """
    parts = ratio(speeds, ranks)

    def slowest(grid: tuple[Strip, ...]) -> tuple[bool, float]:
        loads = [strip.tokens / speed for strip, speed in zip(grid, parts, strict=True)]
        return min(loads) == 0, max(loads)

    widths = [across for across in range(ranks, 0, -1) if ranks % across == 0]
    return min((_bands(rows, columns, parts, across) for across in widths), key=slowest)


def _bands(rows: int, columns: int, speeds: Sequence[int], across: int) -> tuple[Strip, ...]:
    """Bands of `across` rectangles each, of sizes in proportion to the speeds."""
    bands = [speeds[first : first + across] for first in range(0, len(speeds), across)]
    return tuple(
        Strip(top, left, bottom - top, right - left)
        for (top, bottom), band in zip(_cuts(rows, list(map(sum, bands))), bands, strict=True)
        for left, right in _cuts(columns, band)
    )


def _cuts(length: int, parts: Sequence[int]) -> Iterator[tuple[int, int]]:
    sums = list(accumulate(parts, initial=0))
    ends = [length * part // sums[-1] for part in sums]  # the last one is `length`
    return zip(ends, ends[1:], strict=False)


def head_costs(shape: CacheShape) -> list[list[int]]:
    """Per layer and head, the latent frames that a head's queries look at when its context is full."""
    return [[shape.slots[shape.policy.of(role)] for role in layer] for layer in shape.roles]


def assign_heads(costs: Sequence[Sequence[float]], ranks: int, speeds: Sequence[float] | None = None) -> Heads:
    """Give every head of every layer to a rank, so that all ranks finish a layer at about the same time.

    Layers wait for each other, so each is balanced by itself: its dearest head first, to the rank that is done
    earliest; on a tie to the rank that holds least so far. `costs` are per layer and head, `speeds` relative.
    """
    parts, held = ratio(speeds, ranks), [0.0] * ranks
    heads: list[list[list[int]]] = [[[] for _ in costs] for _ in range(ranks)]
    for layer, row in enumerate(costs):
        load = [0.0] * ranks
        for head in sorted(range(len(row)), key=lambda head: (-row[head], head)):
            rank = min(((load[rank] + row[head]) / parts[rank], held[rank], rank) for rank in range(ranks))[2]
            load[rank] += row[head]
            held[rank] += row[head]
            heads[rank][layer].append(head)
    return tuple(tuple(tuple(sorted(layer)) for layer in layers) for layers in heads)


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
    speeds: Sequence[float] | None = None

    @classmethod
    def of(cls, shape: Shape, ranks: int, speeds: Sequence[float] | None = None) -> Division:
        """The division of a cache of this shape; `speeds` as for `assign_heads`."""
        costs = head_costs(grouped(shape))
        return cls(assign_heads(costs, ranks, speeds), strips(shape.rows, shape.columns, ranks, speeds), costs, speeds)

    @property
    def ranks(self) -> int:
        return len(self.heads)

    @property
    def worst_over_mean(self) -> float:
        """Time of the slowest rank's attention over that of an ideal division, in the layer where that is worst."""
        speeds = ratio(self.speeds, self.ranks)

        def over_mean(layer: int) -> float:
            loads = [sum(self.costs[layer][head] for head in heads[layer]) for heads in self.heads]
            slowest = max(load / speed for load, speed in zip(loads, speeds, strict=True))
            return slowest * sum(speeds) / sum(loads)

        return max(map(over_mean, range(len(self.costs))))

    def share_of_cache(self, rank: int) -> float:
        """The part of the cache's bytes that a rank holds."""
        own = sum(self.costs[layer][head] for layer, heads in enumerate(self.heads[rank]) for head in heads)
        return own / sum(map(sum, self.costs))

    def share_of_tokens(self, rank: int) -> float:
        """The part of every frame's tokens that a rank computes."""
        return self.strips[rank].tokens / sum(strip.tokens for strip in self.strips)


def grouped(shape: Shape) -> CacheShape:
    """The shape of a cache that is divided by heads; raises HeadForcingError for a method with a cache of its own."""
    if not isinstance(shape, CacheShape) or not isinstance(shape.policy, CachePolicy):
        raise HeadForcingError(
            "several GPUs divide caches that keep frames by role, as head_forcing and self_forcing do, and this method "
            "has a cache of its own; choose another, or leave out --gpus"
        )
    return shape


def check_division(shape: Shape, ranks: int, speeds: Sequence[float] | None = None) -> None:
    """Refuse a method whose cache is not divided, and ranks or speeds that leave one of the ranks without work."""
    grouped(shape)
    if not _fits(shape, ranks):
        most = [str(count) for count in range(1, shape.heads + 1) if _fits(shape, count)]
        raise HeadForcingError(
            f"{ranks} GPUs leave one without a head or without a part of the frame ({shape.heads} heads, "
            f"{shape.rows}x{shape.columns} tokens a frame); choose --gpus {', '.join(most)}"
        )
    parts = strips(shape.rows, shape.columns, ranks, speeds)
    if min(strip.tokens for strip in parts) == 0:
        given = ",".join(f"{speed:g}" for speed in speeds or ())
        raise HeadForcingError(
            f"--gpu-speeds {given} leave one GPU without a part of the frame ({shape.rows}x{shape.columns} tokens); "
            "give numbers closer to each other, or leave out the slowest GPU"
        )


def _fits(shape: Shape, ranks: int) -> bool:
    return ranks <= shape.heads and min(strip.tokens for strip in strips(shape.rows, shape.columns, ranks)) > 0
