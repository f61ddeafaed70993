"""The specification of the guards (BEYOND_THE_PAPER.md): the reference cache with gate and jitter, head by head."""

from dataclasses import replace

import torch
from headforcing.headforcing_core.cache.guards import JitteredRotary, QueryStatistics, jittered_bases
from headforcing.headforcing_core.cache.head_cache import CacheShape
from headforcing.headforcing_core.cache.policy import CachePolicy
from headforcing.headforcing_core.cache.reference import HeadContext, ReferenceCache
from headforcing.headforcing_core.model.rope import RotaryEmbedding
from headforcing.headforcing_core.model.wan import WanModel
from torch import Tensor


class GuardedReferenceCache(ReferenceCache):
    """Drop-in for `HeadCache` with guards."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device | str = "cpu"):
        super().__init__(shape, dtype, device)
        self.bases = jittered_bases(self.policy.guards.rope_jitter, shape.layers, shape.heads)

    def rope_of(self, layer: int, head: int) -> RotaryEmbedding:
        sizes = (self.shape.head_dim, self.shape.rows, self.shape.columns, self.device)
        return JitteredRotary(self.bases[layer, head], *sizes) if self.policy.guards.rope_jitter else self.rope

    def attend(self, layer: int, q: Tensor) -> Tensor:
        by_frame = self.rope.rotate_spatial(self._by_frame(q))
        if self.policy.guards.sink_gate:
            self.left_out = self._anomalous(layer, by_frame)
        return super().attend(layer, q)

    def context(self, layer: int, head: int, q: Tensor) -> HeadContext:
        q, k, v = super().context(layer, head, q)
        if self.policy.guards.sink_gate:
            stays = [n for n in range(len(k)) if n not in self.left_out[head]]
            k, v = k[stays], v[stays]
        return q, k, v

    def _anomalous(self, layer: int, by_frame: Tensor) -> list[set[int]]:
        """Per head the kept frames that too many heads of its policy prefer to all others, by place in the context."""
        policies = [self.policy.of(role) for role in self.shape.roles[layer]]
        found: list[set[int]] = [set() for _ in policies]
        for policy in set(policies):
            members = [head for head, other in enumerate(policies) if other == policy]
            kept_frames = self._kept_frames(layer, members[0])
            votes = torch.zeros(kept_frames)
            for head in members:
                q, k, _ = super().context(layer, head, by_frame[:, head])
                scores = [(q.mean(dim=(0, 1)) * frame).sum(dim=-1).mean() for frame in k]
                others = torch.stack(scores[kept_frames:]).mean()
                votes += torch.stack([score > others for score in scores[:kept_frames]]) if kept_frames else 0
            anomalous = (votes / len(members) > self.policy.guards.sink_gate).nonzero().flatten().tolist()
            for head in members:
                found[head] = set(anomalous)
        return found

    def _kept_frames(self, layer: int, head: int) -> int:
        """How many of the first frames in a head's context are sinks or episodic entries."""
        policy, past = self.policy.of(self.shape.roles[layer][head]), len(self.past)
        numbers = self.seen(layer, head)[1]
        entries = len(self.memory.entries) if policy.episodic_frames else 0
        recent = past if policy.recent_frames is None else policy.recent_frames
        return entries + sum(number < past - recent for number in numbers[entries:])


def statistics(model: WanModel, seed: int = 2) -> QueryStatistics:
    """Random query statistics of a model."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    shape = (config.num_layers, config.num_heads, config.head_dim // 2)
    mean = torch.randn(*shape, dtype=torch.complex64, generator=generator)
    return QueryStatistics(mean, mean.abs() + torch.rand(shape, generator=generator))


def trigonometric(model: WanModel, policy: CachePolicy) -> CachePolicy:
    """The policy with trigonometric compression."""
    episodic = replace(policy.episodic, token_selection="trigonometric")
    return replace(policy, episodic=episodic, queries=statistics(model))
