"""What a rank checks before weights are loaded; used only where a video is made on several GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import HeadForcingError
from ..hashing import digest
from ..parallel.division import Division
from ..parallel.peers import Peers
from ..render.describe import format_bytes
from ..render.job import RenderJob
from ..render.plan import RenderPlan
from ..render.resources import Needs
from ..versions import versions

LAYERS_AT_ONCE = 2  # of sharded weights: the one that is computed, and the next one on its way


def check_ranks(job: RenderJob, peers: Peers) -> None:
    """Refuse roles that are found while sampling, and ranks that would not make the same video."""
    plan = job.plan
    if plan.auto is not None:
        raise HeadForcingError(
            "head roles cannot be found on several GPUs: load or measure a head profile, or leave out --gpus"
        )
    division = Division.of(plan.shape, peers.world, peers.speeds)
    peers.agree(
        versions=", ".join(f"{name} {version}" for name, version in versions().items()),
        weights=job.weights,
        plan=job.keys[-1],
        division=digest(division.heads, [(strip.row, strip.column) for strip in division.strips]),
    )


def check_rank_memory(needs: Needs, plan: RenderPlan, peers: Peers, sharded: bool, room: int | None) -> Needs:
    """The needs of this rank, refused if its device has less than `room` bytes; `needs` are those of one GPU alone."""
    rank, layers = peers.rank, min(1.0, 1 / peers.world + LAYERS_AT_ONCE / plan.config.num_layers)

    def part(speeds: Sequence[float] | None) -> Needs:
        division = Division.of(plan.shape, peers.world, speeds)
        return replace(
            needs,
            weights=round(needs.weights * layers) if sharded else needs.weights,
            cache=round(needs.cache * division.share_of_cache(rank)),
            activations=round(needs.activations * division.share_of_tokens(rank)),
        )

    own = part(peers.speeds)
    if room is not None and own.memory > room:
        remedies = ["more --gpus", "a smaller --size", *([] if sharded else ["--shard-weights"])]
        if peers.speeds is not None and part(None).memory <= room:
            remedies.insert(0, "--gpu-speeds closer to each other")
        raise HeadForcingError(
            f"rank {rank} of {peers.world}: not enough memory, its part needs {format_bytes(own.memory)} "
            f"({own.describe().splitlines()[0].partition(': ')[2]}) and its GPU has {format_bytes(room)}; choose "
            + " or ".join(remedies)
        )
    return own
