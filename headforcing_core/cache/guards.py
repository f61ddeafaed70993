"""Guards against sink collapse: what other papers add to any cache with kept frames (BEYOND_THE_PAPER.md).

All are off unless they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import HeadForcingError
from ..hashing import digest
from ..model.attention import AttentionFunction
from ..model.rope import THETA, RotaryEmbedding, angles, axis_dims


@dataclass(frozen=True)
class Guards:
    """The guards of a cache; trigonometric compression is a field of `EpisodicPolicy`."""

    sink_gate: float = 0.0  # share of heads above which a kept frame is left out of a pass (DySink, there 0.8); 0: off
    rope_jitter: float = 0.0  # strength of the change of every head's rotary base (LoL, there 0.8); 0: off

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < 1:
                raise HeadForcingError(f"{name} must be 0 (off) or below 1, got {value}")

    def __bool__(self) -> bool:
        return bool(self.sink_gate or self.rope_jitter)


OFF = Guards()


class AroundAttention(Protocol):
    """Measures the attention of a cache, or changes what is attended to, while it is `active`."""

    active: bool

    def around(self, layer: int, group: Any, attention: AttentionFunction) -> AttentionFunction:
        """An attention function around `attention`, for the heads of a `HeadGroup` in `layer`."""


# ------------------------------------------------------------------------------------------------------- sink gate


class SinkGate:
    """DySink (arXiv 2605.21028) leaves a kept frame out of a pass of a layer where it draws too many heads at once."""

    active = True

    def __init__(self, threshold: float):
        self.threshold = threshold
        self.passes = self.frames = self.left_out = 0  # of groups that have kept frames, in a layer; and these

    def around(self, layer: int, group: Any, attention: AttentionFunction) -> AttentionFunction:
        def gated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = (x.unflatten(1, (group.frames, -1)) for x in (k, v))
            return attention(q, *self.context(q, k, v, group.kept_frames))

        return gated

    def context(self, q: Tensor, k: Tensor, v: Tensor, kept_frames: int) -> tuple[Tensor, Tensor]:
        """The keys and values `[heads, keys, d]` that a group attends to with rotated queries `[heads, queries, d]`, of
        contexts `[heads, frames, s, d]` whose first `kept_frames` are sinks or episodic entries."""
        if kept_frames:
            self.passes, self.frames = self.passes + 1, self.frames + kept_frames
            anomalous = self.anomalous(q, k, kept_frames)
            if anomalous.any():
                # the host reads the decision: contexts of two lengths cannot be one launch
                self.left_out += int(anomalous.sum())
                stays = torch.ones(k.shape[1], dtype=torch.bool, device=k.device)
                stays[:kept_frames] = ~anomalous
                k, v = k[:, stays], v[:, stays]
        return k.flatten(1, 2), v.flatten(1, 2)

    def anomalous(self, q: Tensor, k: Tensor, kept_frames: int) -> Tensor:
        """For every kept frame, `[kept_frames]`, whether more heads than the threshold's share prefer it to all frames
        that are not kept: by the mean product of queries and keys. Arguments as for `context`."""
        query = q.mean(dim=1, dtype=torch.float32)
        means = k.mean(dim=2, dtype=torch.float32)  # products are linear in the keys
        scores = torch.einsum("hd,hnd->hn", query, means)
        others = scores[:, kept_frames:].mean(dim=1, keepdim=True)
        shares = (scores[:, :kept_frames] > others).float().mean(dim=0)
        return shares > self.threshold

    def report(self) -> str:
        return (
            f"sink gate {self.threshold:g}: left out {self.left_out:,} of {self.frames:,} kept frames "
            f"in {self.passes:,} passes of layers"
        )


# ---------------------------------------------------------------------------------------------------- rotary jitter


def jittered_bases(strength: float, layers: int, heads: int) -> Tensor:
    """The temporal rotary base of every head in LoL (arXiv 2601.16914), `[layers, heads]` float64: `THETA (1 + strength
    e)` with fixed `e` from U(-1, 1)."""
    drawn = torch.rand(layers, heads, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return THETA * (1 + strength * (2 * drawn - 1))


def jitter_report(strength: float, bases: Tensor) -> str:
    low, high = float(bases.min()), float(bases.max())
    return f"rope jitter {strength:g}: rotary bases from {low:,.0f} to {high:,.0f} in place of {THETA:,.0f}"


class JitteredRotary(RotaryEmbedding):
    """A `RotaryEmbedding` for `[heads, frames, s, d]`, each head with its own base of the temporal angles: `bases
    [heads]` float64, or `[]` for a single head."""

    def __init__(self, bases: Tensor, head_dim: int, rows: int, columns: int, device: torch.device | str = "cpu"):
        super().__init__(head_dim, rows, columns, device)
        self.bases = bases
        # there is one object per layer and group, so each remembers less than the one for all heads
        self._temporal = lru_cache(maxsize=16)(self._temporal_rotations)

    def _temporal_rotations(self, frame_indices: tuple[int, ...]) -> Tensor:
        angle = angles(torch.tensor(frame_indices), self.temporal_dim, self.bases[..., None, None])
        return self._rotations(angle)[..., None, :, :]

    def rotate(self, x: Tensor, frame_indices: Sequence[int], out: Tensor | None = None) -> Tensor:
        # one axis after the other: a table of all axes for every head would be as large as the keys themselves
        rotated = self.rerotate(self.rotate_spatial(x), frame_indices)
        return rotated if out is None else out.copy_(rotated)


# ----------------------------------------------------------------------------------------- trigonometric compression

FUTURE_OFFSETS = tuple(2**power for power in range(8))  # latent frames, 1 to 128


@dataclass(frozen=True, eq=False)
class QueryStatistics:
    """Statistics of every head's queries with the spatial and without the temporal rotation, pair by pair of channels.

    Attributes:
        mean: `[layers, heads, d / 2]` complex64, the mean query; adjacent channels are one complex number.
        size: `[layers, heads, d / 2]` float32, the mean of its absolute value.
    """

    mean: Tensor
    size: Tensor

    @cached_property
    def key(self) -> str:
        """A hash, for block keys."""
        return digest(torch.view_as_real(self.mean), self.size)

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
    """TriAttention's score (repository WeianMao/triattention): how much a head's usual queries will attend to a token.

    Args:
        shape: a `CacheShape` whose policy has query statistics.
        heads: per layer, which heads have episodic memory.
    """

    def __init__(self, shape: Any, heads: Sequence[Tensor]):
        policy, memory = shape.policy, shape.policy.memory
        self.queries, self.heads, self.merges = policy.queries, heads, 0
        layers, all_heads, pairs = self.queries.mean.shape
        if pairs != shape.head_dim // 2:
            raise HeadForcingError(
                f"the profile's query statistics are for heads {2 * pairs} wide, this model's are {shape.head_dim} "
                "wide; measure a profile of this model"
            )
        self.temporal_dim = axis_dims(shape.head_dim)[0]
        jitter = policy.guards.rope_jitter
        self.bases = jittered_bases(jitter, layers, all_heads) if jitter else None
        # latent frames from the merged entry to later queries; empty where they grow with the video
        self.distances: tuple[int, ...] = ()
        if policy.rope == "contiguous":
            pinned = policy.episodic.pin_first and memory.episodic_frames > 2  # the summary is the second entry then
            first = memory.episodic_frames + (memory.recent_frames or 0) - pinned
            self.distances = tuple(range(first, first + shape.frames_per_block))

    def begin_merge(self, frame: int, source: int) -> tuple[int, ...]:
        """The distances for the tokens of a merge that makes room for `frame`; `source` is the merged entry's first."""
        self.merges += 1
        return self.distances or tuple(frame - source + offset for offset in FUTURE_OFFSETS)

    def __call__(self, layer: int, keys: Tensor, distances: tuple[int, ...]) -> Tensor:
        """The score of every token, `[tokens]`, of keys `[heads, tokens, d]` without temporal rotation: the heads' mean
        of `mean_distances sum_f |Eq_f| |k_f| cos(w_f distance + phase) + sum_f (E|q_f| - |Eq_f|) |k_f|`, normalised."""
        heads, device = self.heads[layer], keys.device
        mean, size = (values[layer][heads.to(values.device)] for values in (self.queries.mean, self.queries.size))
        # the mean over the distances of the rotation by them; spatial pairs do not rotate
        base = THETA if self.bases is None else self.bases[layer][heads.cpu()][:, None, None]
        angle = angles(torch.tensor(distances), self.temporal_dim, base)
        turns = torch.polar(torch.ones_like(angle), angle).mean(dim=-2)
        turns = F.pad(turns, (0, mean.shape[-1] - turns.shape[-1]), value=1).to(torch.complex64)
        k = torch.view_as_complex(keys.float().unflatten(-1, (-1, 2)).contiguous())
        expected = torch.einsum("hf,htf->ht", (mean * turns).to(device), k.conj()).real
        spread = torch.einsum("hf,htf->ht", (size - mean.abs()).to(device), k.abs())
        scores = expected + spread
        scores = scores - scores.mean(dim=1, keepdim=True)
        return (scores / scores.std(dim=1, keepdim=True).clamp(min=1e-12)).mean(dim=0)

    def report(self) -> str:
        return f"compression trigonometric: tokens of {self.merges} merges chosen by the profile's query statistics"
