"""TriAttention's score (repository WeianMao/triattention): how much a head's usual queries will attend to a token.

Statistics of the queries, which the head profiler measures, replace the queries that are not known yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import HeadForcingError
from ..hashing import digest
from ..model.rope import THETA, angles, axis_dims
from .guards import jittered_bases

FUTURE_OFFSETS = tuple(2**power for power in range(8))  # latent frames, 1 to 128


@dataclass(frozen=True, eq=False)
class QueryStatistics:
    """Statistics of every head's queries with the spatial and without the temporal rotation, pair by pair of channels.

    Attributes:
        mean: `[layers, heads, d / 2]` complex64, the mean query; adjacent channels are one complex number.
        size: `[layers, heads, d / 2]` float32, the mean of its absolute value.
        key: a hash of both, for block keys.
    """

    mean: Tensor
    size: Tensor
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", digest(torch.view_as_real(self.mean), self.size))

    @classmethod
    def of(cls, queries: Sequence[Sequence[Sequence[float]]]) -> QueryStatistics:
        """The statistics of a head profile, `head_profiles.profile.Queries`."""
        real, imaginary, size = torch.tensor(queries).unflatten(-1, (3, -1)).unbind(2)
        return cls(torch.complex(real, imaginary), size.contiguous())


def query_means(q: Tensor) -> Tensor:
    """Means over the queries `q [heads, tokens, d]`: `[heads, 3, d / 2]` real and imaginary parts, absolute values."""
    pairs = q.unflatten(-1, (-1, 2)).float()
    return torch.cat((pairs.mean(dim=1).transpose(1, 2), pairs.norm(dim=-1).mean(dim=1)[:, None]), dim=1)


class QueryScore:
    """Scores the tokens of a merge for the heads of a cache with episodic memory.

    Args:
        heads: per layer, which heads have episodic memory.
        distances: latent frames from the merged entry to later queries, for contexts with re-encoded positions; empty
            where they grow with the video.
        jitter: strength of the rotary jitter.

    Attributes:
        merges: how many merges were scored, for the report.
    """

    def __init__(
        self,
        queries: QueryStatistics,
        heads: Sequence[Tensor],
        distances: tuple[int, ...],
        head_dim: int,
        jitter: float,
    ):
        self.queries, self.heads, self.distances = queries, heads, distances
        self.temporal_dim = axis_dims(head_dim)[0]
        self.bases = jittered_bases(jitter, *queries.mean.shape[:2]) if jitter else None
        self.merges = 0

    @classmethod
    def of(cls, shape: Any, heads: Sequence[Tensor]) -> QueryScore:
        """The score of a `CacheShape` whose policy has query statistics."""
        policy = shape.policy
        pairs = policy.queries.mean.shape[-1]
        if pairs != shape.head_dim // 2:
            raise HeadForcingError(
                f"the profile's query statistics are for heads {2 * pairs} wide, this model's are {shape.head_dim} "
                "wide; measure a profile of this model"
            )
        memory = policy.memory
        distances: tuple[int, ...] = ()
        if policy.rope == "contiguous":
            pinned = policy.episodic.pin_first and memory.episodic_frames > 2  # the summary is the second entry then
            first = memory.episodic_frames + (memory.recent_frames or 0) - pinned
            distances = tuple(range(first, first + shape.frames_per_block))
        return cls(policy.queries, heads, distances, shape.head_dim, policy.guards.rope_jitter)

    def begin_merge(self, frame: int, source: int) -> tuple[int, ...]:
        """The distances over which the tokens of a merge are scored.

        Args:
            frame: the candidate that the merge makes room for.
            source: the first frame of the merged entry.
        """
        self.merges += 1
        return self.distances or tuple(frame - source + offset for offset in FUTURE_OFFSETS)

    def __call__(self, layer: int, keys: Tensor, distances: tuple[int, ...]) -> Tensor:
        """The score of every token, `[tokens]`, of keys `[heads, tokens, d]` without temporal rotation.

        A head's score is the mean over the distances of `sum_f |Eq_f| |k_f| cos(w_f distance + phase)` plus
        `sum_f (E|q_f| - |Eq_f|) |k_f|`, normalised over the tokens; all heads count the same.
        """
        heads, device = self.heads[layer], keys.device
        mean, size = (values[layer][heads.to(values.device)] for values in (self.queries.mean, self.queries.size))
        turned = (mean * self._turns(layer, heads, distances)).to(device)
        k = torch.view_as_complex(keys.float().unflatten(-1, (-1, 2)).contiguous())
        expected = torch.einsum("hf,htf->ht", turned, k.conj()).real
        spread = torch.einsum("hf,htf->ht", (size - mean.abs()).to(device), k.abs())
        scores = expected + spread
        scores = scores - scores.mean(dim=1, keepdim=True)
        return (scores / scores.std(dim=1, keepdim=True).clamp(min=1e-12)).mean(dim=0)

    def _turns(self, layer: int, heads: Tensor, distances: tuple[int, ...]) -> Tensor:
        """The mean over the distances of the rotation by them, `[heads, d / 2]` complex64, or `[d / 2]` for one base; 1
        for spatial pairs."""
        base = THETA if self.bases is None else self.bases[layer][heads.cpu()][:, None, None]
        angle = angles(torch.tensor(distances), self.temporal_dim, base)
        temporal = torch.polar(torch.ones_like(angle), angle).mean(dim=-2)
        spatial = self.queries.mean.shape[-1] - temporal.shape[-1]
        return F.pad(temporal, (0, spatial), value=1).to(torch.complex64)

    def report(self) -> str:
        """One line for a report."""
        return f"compression trigonometric: tokens of {self.merges} merges chosen by the profile's query statistics"
