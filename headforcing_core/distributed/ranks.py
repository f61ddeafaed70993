"""Checks of a video on several GPUs: before any rank is started, and in a rank before weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ..errors import HeadForcingError
from ..hashing import digest
from ..model.attention import AttentionFunction
from ..render.describe import format_bytes
from ..render.job import RenderJob
from ..render.plan import RenderPlan
from ..render.render import Place
from ..render.resources import Needs
from ..versions import versions
from .cache import ParallelCache
from .division import Division
from .peers import Peers

PROCESS_BYTES = 250_000_000  # of a rank on a CPU, Python and PyTorch without anything of a model
LAYERS_AT_ONCE = 2  # of sharded weights: the one that is computed, and the next one on its way


def rank_place(peers: Peers, device: torch.device, attention: AttentionFunction, choice: str) -> Place:
    """Make the place of a rank: its heads' caches, and rank 0's stored blocks."""

    def new_cache(job: RenderJob) -> ParallelCache:
        return ParallelCache(peers, job.plan.shape, job.dtype, device, attention)

    return Place(device, attention, choice, new_cache, peers.from_first)


def check_roles(plan: RenderPlan) -> None:
    """Refuse roles that are found while sampling."""
    if plan.auto is not None:
        raise HeadForcingError(
            "head roles cannot be found on several GPUs: load or measure a head profile, or leave out --gpus"
        )


def check_ranks(job: RenderJob, peers: Peers) -> None:
    """Refuse roles that are found while sampling, and ranks that would not make the same video."""
    plan = job.plan
    check_roles(plan)
    division = Division.of(plan.shape, peers.world, peers.speeds)
    peers.agree(
        versions=", ".join(f"{name} {version}" for name, version in versions().items()),
        weights=job.weights,
        plan=job.keys[-1],
        division=digest(division.heads, [(strip.row, strip.column) for strip in division.strips]),
    )


def check_all_ranks_memory(
    needs: Needs, plan: RenderPlan, ranks: int, speeds: Sequence[float] | None, sharded: bool, room: int
) -> None:
    """Refuse ranks that together need more than `room` bytes of one machine; only rank 0 decodes."""
    division = Division.of(plan.shape, ranks, speeds)
    others = replace(needs, vae=0, held=0, decode=0)
    parts = [_part(others if rank else needs, plan, division, rank, sharded).memory for rank in range(ranks)]
    if (together := sum(parts) + ranks * PROCESS_BYTES) > room:
        raise HeadForcingError(
            f"not enough memory: {ranks} ranks need {format_bytes(together)} together, this machine has "
            f"{format_bytes(room)} free; choose a smaller --gpus or a smaller --size"
        )


def check_rank_memory(needs: Needs, plan: RenderPlan, peers: Peers, sharded: bool, room: int | None) -> Needs:
    """The needs of this rank, refused if its device has less than `room` bytes; `needs` are those of one GPU alone."""
    rank = peers.rank

    def part(speeds: Sequence[float] | None) -> Needs:
        return _part(needs, plan, Division.of(plan.shape, peers.world, speeds), rank, sharded)

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


def _part(needs: Needs, plan: RenderPlan, division: Division, rank: int, sharded: bool) -> Needs:
    """The needs of one rank."""
    layers = min(1.0, 1 / division.ranks + LAYERS_AT_ONCE / plan.config.num_layers)
    return replace(
        needs,
        weights=round(needs.weights * layers) if sharded else needs.weights,
        cache=round(needs.cache * division.share_of_cache(rank)),
        activations=round(needs.activations * division.share_of_tokens(rank)),
    )
