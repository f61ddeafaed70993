"""A head-wise KV cache whose heads lie on several ranks, and the forward pass of one rank's strip.

`wan.forward_block` runs unchanged on a strip of every frame. `ParallelCache` carries the projections of its tokens to
the ranks that hold their heads, and the results of attention back. A rank holds whole heads, so no cache is ever moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache.base import State
from ..cache.head_cache import HeadCache
from ..cache.memory import MemoryEvent, MemoryHeads
from ..cache.roles import RolePolicy
from ..cache.shape import CacheShape, Shape
from ..devices import upload
from ..errors import HeadForcingError
from ..model.attention import AttentionFunction, sdpa
from ..model.wan import PromptKV, forward_block
from .division import Division, grouped
from .peers import Peers

PATCH = 2  # latents per token, in both directions


@dataclass(frozen=True)
class PartShape(CacheShape):
    """The part of a cache that one rank holds: `roles` are those of its own heads, whose number differs by layer.

    Groups are those of the whole model, also where the rank has no head of them, so that all ranks agree on them.
    """

    whole: CacheShape

    @classmethod
    def of(cls, whole: CacheShape, heads: Sequence[Sequence[int]]) -> PartShape:
        """The part with these heads of every layer."""
        values = {field.name: vars(whole)[field.name] for field in fields(CacheShape)}
        roles = [[layer[head] for head in own] for layer, own in zip(whole.roles, heads, strict=True)]
        return cls(**{**values, "roles": roles}, whole=whole)

    @property
    def policies(self) -> list[RolePolicy]:
        return self.whole.policies


@dataclass(frozen=True)
class PartPrompt(PromptKV):
    """A prompt whose mean keys are those of a rank's own `heads` per layer, which index on the device."""

    heads: Sequence[Tensor]

    def mean_key(self, layer: int) -> Tensor:
        return super().mean_key(layer)[self.heads[layer]]


class SpreadMemoryHeads(MemoryHeads):
    """Memory heads that lie on several ranks: every rank decides from all of them, in the model's order of heads.

    The similarities are rank 0's, because GPUs of two kinds may round differently and must not decide differently.
    """

    def __init__(self, peers: Peers, shape: CacheShape, division: Division):
        self._peers = peers
        memory = [
            {head for head, role in enumerate(layer) if shape.policy.of(role).episodic_frames} for layer in shape.roles
        ]
        # per rank and layer, its memory heads
        self._heads = [
            [[head for head in own if head in memory[layer]] for layer, own in enumerate(layers)]
            for layers in division.heads
        ]

    def in_layer(self, layer: int, here: int) -> bool:
        return any(heads[layer] for heads in self._heads)

    def pooled(self, here: Tensor) -> Tensor:
        places = [[(layer, h) for layer, own in enumerate(heads) for h in own] for heads in self._heads]
        return self._gather(here, places)

    def scores(self, layer: int, here: Tensor) -> Tensor:
        return self._gather(here, [heads[layer] for heads in self._heads])

    def decisive(self, similarity: Tensor) -> Tensor:
        return self._peers.from_first(similarity)

    def _gather(self, here: Tensor, places: Sequence[Sequence[Any]]) -> Tensor:
        """All ranks' rows, in the order of their `places` in the model."""
        got = self._peers.gather(here, [(len(own), here.shape[1]) for own in places], "memory")
        flat = [place for own in places for place in own]
        order = sorted(range(len(flat)), key=lambda row: flat[row])
        return torch.cat(got)[upload(torch.tensor(order, dtype=torch.long), here.device)]


class ParallelCache(HeadCache):
    """The caches of one rank's heads, for its strip of tokens; `bytes` are those of this rank's keys and values.

    Args:
        shape: of the whole model's cache.
        division: by default that for the speeds of the ranks.
    """

    def __init__(
        self,
        peers: Peers,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
        division: Division | None = None,
    ):
        whole = grouped(shape)
        self.peers, self.whole = peers, whole
        self.division = division or Division.of(whole, peers.world, peers.speeds)
        self._own = self.division.heads[peers.rank]
        everywhere = SpreadMemoryHeads(peers, whole, self.division)
        super().__init__(PartShape.of(whole, self._own), dtype, device, attention, everywhere=everywhere)
        # per rank and layer, its heads, as what indexes tensors on the device without a copy
        self._heads = [
            [torch.tensor(own, dtype=torch.long, device=self.device) for own in layers]
            for layers in self.division.heads
        ]

    @property
    def occupied(self) -> int:
        heads = [sum(map(len, layers)) for layers in self.whole.groups.values()]
        return sum(group.frames * count for group, count in zip(self.groups, heads, strict=True))

    def state(self) -> None:
        """None: a rank holds its own heads only."""

    def restore(self, state: State) -> None:
        raise HeadForcingError("this cache does not store its state")

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        return super().commit(PartPrompt(prompt.layers, prompt.valid_tokens, self._heads[self.peers.rank]))

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store `k, v [own tokens, all heads, head_dim]` where their heads are."""
        k, v = self._to_heads(layer, torch.cat((k, v), dim=-1)).chunk(2, dim=-1)  # one message for both
        super().write(layer, k, v)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of `q [own tokens, all heads, head_dim]` in the contexts of all heads, in the same shape."""
        q = self._to_heads(layer, q)
        return super().attend(layer, q) if self._own[layer] else self._to_tokens(layer, q)

    def write_projections(
        self, layer: int, q: Tensor | None, k: Tensor, v: Tensor, weights: tuple[Tensor, Tensor] | None, eps: float
    ) -> Tensor | None:
        """Norms over all heads first, then one message for queries, keys and values, then the kernel."""
        if weights is not None:
            k = F.rms_norm(k, k.shape[1:], weights[1], eps)
            q = None if q is None else F.rms_norm(q, q.shape[1:], weights[0], eps)
        sent = [x.unflatten(-1, (self.whole.heads, -1)) for x in (k, v, q) if x is not None]
        got = self._to_heads(layer, torch.cat(sent, dim=-1)).chunk(len(sent), dim=-1)
        if not self._own[layer]:
            return None if q is None else got[2]
        flat = [x.flatten(1) for x in got]
        return super().write_projections(layer, None if q is None else flat[2], flat[0], flat[1], None, eps)

    def attend_rotated(self, layer: int, queries: Tensor) -> Tensor:
        """`attend` for what `write_projections` returned."""
        return self._to_tokens(layer, super().attend_rotated(layer, queries) if self._own[layer] else queries)

    def _to_heads(self, layer: int, x: Tensor) -> Tensor:
        """`x [own tokens, all heads, n]` to `[all tokens, own heads, n]`, tokens in the order of the frames."""
        strips, shape, own, n = self.division.strips, self.whole, len(self._own[layer]), x.shape[-1]
        frames = len(x) // strips[self.peers.rank].tokens
        by_head = x.transpose(0, 1)
        parts = [by_head[heads[layer]] for heads in self._heads]
        got = self.peers.exchange(parts, [own * frames * strip.tokens * n for strip in strips], "tokens")
        full = x.new_empty(own, frames, shape.rows, shape.columns, n)
        for strip, part in zip(strips, got, strict=True):
            strip.of_tokens(full).copy_(part.view(own, frames, strip.rows, strip.columns, n))
        return full.flatten(1, 3).transpose(0, 1)

    def _to_tokens(self, layer: int, x: Tensor) -> Tensor:
        """The inverse of `_to_heads`: `x [all tokens, own heads, n]` to `[own tokens, all heads, n]`."""
        strips, shape, n = self.division.strips, self.whole, x.shape[-1]
        frames = len(x) // shape.frame_tokens
        own_tokens = frames * strips[self.peers.rank].tokens
        by_head = x.transpose(0, 1).unflatten(1, (frames, shape.rows, shape.columns))
        counts = [len(layers[layer]) for layers in self.division.heads]
        got = self.peers.exchange(
            [strip.of_tokens(by_head) for strip in strips], [count * own_tokens * n for count in counts], "tokens"
        )
        full = x.new_empty(own_tokens, shape.heads, n)
        for heads, count, part in zip(self._heads, counts, got, strict=True):
            full[:, heads[layer]] = part.view(count, own_tokens, n).transpose(0, 1)
        return full


def parallel_forward(
    backbone: Any,
    latents: Tensor,
    timesteps: Tensor,
    prompt: PromptKV,
    cache: ParallelCache,
    *,
    write_only: bool = False,
    forward: Callable[..., Tensor | None] = forward_block,
) -> Tensor | None:
    """`wan.forward_block` of the rank's own strip of `latents`; every rank returns the flow of the whole block.

    `forward` replaces `forward_block`. Raises KeyboardInterrupt on all ranks after the pass in which one was stopped.
    """
    peers, strips = cache.peers, cache.division.strips
    own = strips[peers.rank].of_frames(latents, PATCH)
    flow = forward(backbone, own, timesteps, prompt, cache, write_only=write_only)
    peers.check_stop()
    if flow is None:
        return None
    shapes = [(*flow.shape[:2], PATCH * strip.rows, PATCH * strip.columns) for strip in strips]
    whole = flow.new_empty(*flow.shape[:2], *latents.shape[2:])
    for strip, part in zip(strips, peers.gather(flow, shapes, "flow"), strict=True):
        strip.of_frames(whole, PATCH).copy_(part)
    return whole
