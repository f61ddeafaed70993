"""A video on several GPUs: checks before weights are loaded, the place of a rank, and the report of
all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from ..errors import HeadForcingError
from ..files import Fields
from ..hashing import digest
from ..model.attention import AttentionFunction
from ..names import versions
from ..plan.describe import format_bytes
from ..plan.plan import RenderPlan
from ..plan.request import RenderJob
from ..plan.resources import Needs
from ..render.render import Listener, Place, Render
from .cache import ParallelCache
from .division import Division, Speeds
from .peers import Peers
from .sharded import weight_bytes

LAYERS_AT_ONCE = 2  # of sharded weights: the one that is computed, and the next one on its way


def rank_place(
    peers: Peers, device: torch.device, attention: AttentionFunction, choice: str
) -> Place:
    """Make the place of a rank: its heads' caches, and rank 0's stored blocks."""
    return Place(
        device,
        attention,
        choice,
        make_cache=lambda job: ParallelCache(
            peers, job.plan.shape, job.request.dtype, device=device, attention=attention
        ),
        share=peers.from_first,
    )


def check_ranks(job: RenderJob, peers: Peers) -> None:
    """Refuse ranks that would not make the same video."""
    plan = job.plan
    division = Division.of(plan.shape, peers.world, peers.speeds)
    peers.agree(
        versions=", ".join(f"{name} {version}" for name, version in versions().items()),
        weights=job.request.weights,
        plan=job.keys[-1],
        division=digest(division.heads, [(strip.row, strip.column) for strip in division.strips]),
    )


def check_rank_memory(
    needs: Needs, plan: RenderPlan, peers: Peers, *, sharded: bool, room: int | None
) -> Needs:
    """The needs of this rank, refused if its device has less than `room` bytes; `needs` are those
    of one GPU alone.
    """
    rank = peers.rank

    def part(speeds: Speeds) -> Needs:
        division = Division.of(plan.shape, peers.world, speeds)
        tokens = division.strips[rank].tokens / plan.shape.frame_tokens
        weights = 1.0
        if sharded:
            weights = min(1.0, 1 / peers.world + LAYERS_AT_ONCE / plan.config.num_layers)
        return replace(
            needs,
            weights=round(needs.weights * weights),
            cache=round(needs.cache * division.share_of_cache(rank)),
            activations=round(needs.activations * tokens),
        )

    own = part(peers.speeds)
    if room is not None and own.memory > room:
        remedies = ["more --gpus", "a smaller --size"]
        if not sharded:
            remedies.append("--shard-weights")
        if peers.speeds is not None and part(None).memory <= room:
            remedies.insert(0, "--gpu-speeds closer to each other")
        raise HeadForcingError(
            f"rank {rank} of {peers.world}: not enough memory, its part needs "
            f"{format_bytes(own.memory)} ({own.parts}) and "
            f"its GPU has {format_bytes(room)}; choose " + " or ".join(remedies)
        )
    return own


# --------------------------------------------------------------------------------------- the report


@dataclass(frozen=True)
class RanksReport:
    """All ranks of a finished render.

    `ranks` has per rank its `device`, the `heads` of each layer whose caches it holds, bytes of
    weights, of caches and of what it sent by kind, and `waited_seconds` in exchanges.
    """

    ranks: Sequence[Fields]
    worst_over_mean: float  # see `Division`
    seconds: float  # of the whole render
    speeds: Speeds = None

    @property
    def slowest(self) -> int:
        """The rank that the others waited for: the one that waited least itself."""
        return min(range(len(self.ranks)), key=lambda rank: self.ranks[rank]["waited_seconds"])

    def to_dict(self) -> Fields:
        """The JSON form."""
        return {**asdict(self), "slowest_rank": self.slowest}

    def describe(self) -> list[str]:
        """Lines of plain text."""
        given = ""
        if self.speeds is not None:
            given = f" with speeds {','.join(map('{:g}'.format, self.speeds))}"
        lines = [
            f"ranks    {len(self.ranks)}{given}; attention of the worst layer "
            f"{self.worst_over_mean:.3f} of the ideal share; slowest rank {self.slowest}"
        ]
        for number, rank in enumerate(self.ranks):
            heads = sum(map(len, rank["heads"]))
            sent = sum(rank["sent_bytes"].values())
            lines.append(
                f"rank {number}   {rank['device']}: {heads} heads, weights "
                f"{rank['weight_bytes'] / 1e6:.1f} MB, KV cache {rank['cache_bytes'] / 1e6:.1f} "
                f"MB, sent {sent / 1e6:.1f} MB, {rank['waited_seconds']:.1f} of {self.seconds:.1f} "
                "s in exchanges"
            )
        return lines


class MeasuredRanks(Listener):
    """Collects the report of all ranks, on every rank, when the last block is there."""

    report: RanksReport | None = None

    def begin(self, render: Render) -> None:
        self._render = render
        self._begun = time.perf_counter()

    def finish(self) -> None:
        render = self._render
        cache = render.run.cache
        assert isinstance(cache, ParallelCache)
        peers = cache.peers
        division = cache.division
        own = {
            "device": str(render.place.device),
            "heads": division.heads[peers.rank],
            "weight_bytes": weight_bytes(render.model.backbone),
            "cache_bytes": cache.bytes,
            "sent_bytes": dict(peers.sent),
            "waited_seconds": round(peers.waited, 3),
        }
        seconds = round(peers.from_first(time.perf_counter() - self._begun), 3)
        self.report = RanksReport(
            peers.share(own), division.worst_over_mean, seconds, division.speeds
        )
