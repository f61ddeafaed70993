"""Report of the ranks of a finished render: heads, memory, bytes exchanged, time waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .cache import ParallelCache
from .sharded import weight_bytes


@dataclass(frozen=True)
class RankReport:
    """One rank.

    Attributes:
        heads: per layer, the heads whose caches it holds.
        weight_bytes: of the model on this rank; less than all with `--shard-weights`.
        cache_bytes: keys and values of these heads.
        sent_bytes: to the other ranks, by kind: `tokens` to their heads and back, the `flow` of every pass, and what
            episodic `memory` decides by.
        waited_seconds: in exchanges: the transfer, and waiting for the slowest rank.
    """

    device: str
    heads: Sequence[Sequence[int]]
    weight_bytes: int
    cache_bytes: int
    sent_bytes: dict[str, int]
    waited_seconds: float


@dataclass(frozen=True)
class RanksReport:
    """All ranks.

    Attributes:
        worst_over_mean: time of the slowest rank's attention over that of an ideal division, in the worst layer.
        seconds: of the whole render.
        speeds: of the ranks, as given; None for equal ones.
    """

    ranks: Sequence[RankReport]
    worst_over_mean: float
    seconds: float
    speeds: Sequence[float] | None = None

    @classmethod
    def collect(cls, cache: ParallelCache, model: Any, device: str, seconds: float) -> RanksReport:
        """The report, on every rank; all of them call it. `seconds` is the time of the whole render."""
        peers = cache.peers
        heads = cache.division.heads[peers.rank]
        own = RankReport(device, heads, weight_bytes(model), cache.bytes, dict(peers.sent), round(peers.waited, 3))
        seconds = round(peers.from_first(seconds), 3)
        return cls(peers.share(own), cache.division.worst_over_mean, seconds, cache.division.speeds)

    @property
    def slowest(self) -> int:
        """The rank that the others waited for: the one that waited least itself."""
        return min(range(len(self.ranks)), key=lambda rank: self.ranks[rank].waited_seconds)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**asdict(self), "slowest_rank": self.slowest}

    def describe(self) -> list[str]:
        """Lines of plain text."""
        given = "" if self.speeds is None else f" with speeds {','.join(f'{speed:g}' for speed in self.speeds)}"
        lines = [
            f"ranks    {len(self.ranks)}{given}; attention of the worst layer {self.worst_over_mean:.3f} of the ideal "
            f"share; slowest rank {self.slowest}"
        ]
        for number, rank in enumerate(self.ranks):
            heads, sent = sum(map(len, rank.heads)), sum(rank.sent_bytes.values())
            sizes = f"weights {rank.weight_bytes / 1e6:.1f} MB, KV cache {rank.cache_bytes / 1e6:.1f} MB"
            lines.append(
                f"rank {number}   {rank.device}: {heads} heads, {sizes}, sent {sent / 1e6:.1f} MB, "
                f"{rank.waited_seconds:.1f} of {self.seconds:.1f} s in exchanges"
            )
        return lines
