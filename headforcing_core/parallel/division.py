"""Which part of a model's work each rank does: a rectangle of every frame's tokens, and whole heads of every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..cache.policy import CachePolicy
from ..cache.shape import CacheShape, Shape
from ..errors import HeadForcingError

DIVIDED_SELECTIONS = ("prompt", "random")  # of tokens, see `roles.EpisodicPolicy`
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


def strips(rows: int, columns: int, ranks: int) -> tuple[Strip, ...]:
    """Cut a frame of tokens into a grid of one rectangle per rank, the grid whose largest rectangle is smallest."""
    grids = [
        tuple(
            Strip(top, left, bottom - top, right - left)
            for top, bottom in _cuts(rows, down)
            for left, right in _cuts(columns, ranks // down)
        )
        for down in range(1, ranks + 1)
        if ranks % down == 0
    ]
    return min(grids, key=lambda grid: (min(strip.tokens for strip in grid) == 0, max(strip.tokens for strip in grid)))


def _cuts(length: int, parts: int) -> Iterator[tuple[int, int]]:
    ends = [length * part // parts for part in range(parts + 1)]
    return zip(ends, ends[1:], strict=False)


def head_costs(shape: CacheShape) -> list[list[int]]:
    """Per layer and head, the latent frames that a head's queries look at when its context is full."""
    return [[shape.slots(shape.policy.of(role)) for role in layer] for layer in shape.roles]


def assign_heads(costs: Sequence[Sequence[float]], ranks: int, speeds: Sequence[float] | None = None) -> Heads:
    """Give every head of every layer to a rank, so that all ranks finish a layer at about the same time.

    Layers wait for each other, so each is balanced by itself: its dearest head first, to the rank that is done
    earliest; on a tie to the rank that holds least so far, which balances memory.

    Args:
        costs: per layer and head.
        speeds: of the ranks, relative to each other; by default all are equal.
    """
    speeds = speeds or [1.0] * ranks
    held = [0.0] * ranks
    heads: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
    for row in costs:
        load, mine = [0.0] * ranks, [[] for _ in range(ranks)]  # type: list[float], list[list[int]]
        for head in sorted(range(len(row)), key=lambda head: (-row[head], head)):
            done = [((load[rank] + row[head]) / speeds[rank], held[rank], rank) for rank in range(ranks)]
            rank = min(done)[2]
            load[rank] += row[head]
            held[rank] += row[head]
            mine[rank].append(head)
        for rank in range(ranks):
            heads[rank].append(tuple(sorted(mine[rank])))
    return tuple(map(tuple, heads))


@dataclass(frozen=True)
class Division:
    """The parts of all ranks.

    Attributes:
        heads: per rank and layer, the heads whose caches it holds and whose attention it computes.
        strips: per rank, the tokens of every frame that it computes outside self-attention.
        costs: per layer and head, see `head_costs`.
    """

    heads: Heads
    strips: tuple[Strip, ...]
    costs: list[list[int]]

    @classmethod
    def of(cls, shape: Shape, ranks: int, speeds: Sequence[float] | None = None) -> Division:
        """The division of a cache of this shape; `speeds` as for `assign_heads`."""
        costs = head_costs(grouped(shape))
        return cls(assign_heads(costs, ranks, speeds), strips(shape.rows, shape.columns, ranks), costs)

    @property
    def ranks(self) -> int:
        return len(self.heads)

    @property
    def worst_over_mean(self) -> float:
        """Attention of the slowest rank over the even share, in the layer where that is worst."""
        return max(max(load) / (sum(load) / len(load)) for load in self._loads())

    def _loads(self) -> Iterator[list[int]]:
        """Per layer, the cost of every rank."""
        for layer, costs in enumerate(self.costs):
            yield [sum(costs[head] for head in heads[layer]) for heads in self.heads]

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
    if shape.policy.episodic.token_selection not in DIVIDED_SELECTIONS or shape.policy.guards:
        raise HeadForcingError(
            "several GPUs cannot divide a cache whose guards or compression look at heads by their number or at all "
            "heads of a layer at once; leave them out, or leave out --gpus"
        )
    if shape.policy.kept_scenes:
        raise HeadForcingError("several GPUs cannot bring scenes back: leave out [recall], or leave out --gpus")
    return shape


def check_division(shape: Shape, ranks: int) -> None:
    """Refuse a method whose cache is not divided, and a number of ranks that leaves one of them without work."""
    grouped(shape)
    if not _fits(shape, ranks):
        most = [str(count) for count in range(1, shape.heads + 1) if _fits(shape, count)]
        raise HeadForcingError(
            f"{ranks} GPUs leave one without a head or without a part of the frame ({shape.heads} heads, "
            f"{shape.rows}x{shape.columns} tokens a frame); choose --gpus {', '.join(most)}"
        )


def _fits(shape: Shape, ranks: int) -> bool:
    return ranks <= shape.heads and min(strip.tokens for strip in strips(shape.rows, shape.columns, ranks)) > 0
