"""A head-wise KV cache whose heads lie on several ranks, and the forward pass of one rank's strip.

`wan.forward_block` runs unchanged on a strip of every frame. `ParallelCache` carries the
projections of its tokens to the ranks that hold their heads, and the results of attention back. A
rank holds whole heads, so no cache is ever moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache.head_cache import HeadCache
from ..cache.head_group import HeadGroup
from ..cache.memory import EpisodicMemory, MemoryEvent
from ..cache.roles import RolePolicy
from ..cache.shape import CacheShape, Shape
from ..devices import Device, upload
from ..model.attention import AttentionFunction, sdpa
from ..model.wan import Backbone, BlockInputs, Norms, PromptKV, forward_block
from .division import Division, grouped
from .peers import Peers

PATCH = 2  # latents per token, in both directions


@dataclass(frozen=True)
class PartShape(CacheShape):
    """The shape of a part of a cache. `of_all` are the policies of the whole model's heads: groups
    are also those of which the part has no head, so that all ranks agree on them.
    """

    of_all: tuple[RolePolicy, ...] = ()

    @property
    def policies(self) -> list[RolePolicy]:
        return list(self.of_all)


def part_of(whole: CacheShape, heads: Sequence[Sequence[int]]) -> PartShape:
    """The part of a cache with these heads of every layer, whose number may differ by layer."""
    roles = []
    for layer, own in zip(whole.roles, heads, strict=True):
        roles.append([layer[head] for head in own])
    given = {each.name: getattr(whole, each.name) for each in fields(whole)}
    return PartShape(**{**given, "roles": roles}, of_all=tuple(whole.policies))


@dataclass(frozen=True)
class PartPrompt(PromptKV):
    """A prompt whose mean keys are those of a rank's own `heads` per layer, which index on the
    device.
    """

    heads: Sequence[Tensor]

    def mean_key(self, layer: int) -> Tensor:
        return super().mean_key(layer)[self.heads[layer]]


class SpreadHeads:
    """Memory heads that lie on several ranks: every rank decides from all of them, in the model's
    order of heads.
    """

    def __init__(self, peers: Peers, shape: CacheShape, division: Division):
        self.peers = peers
        # layer, head and rank of all memory heads, in the model's order
        self._places: list[tuple[int, int, int]] = []
        for rank, layers in enumerate(division.heads):
            for layer, own in enumerate(layers):
                for head in own:
                    if shape.method.of(shape.roles[layer][head]).episodic_frames:
                        self._places.append((layer, head, rank))
        self._places.sort()

    def in_layer(self, layer: int) -> bool:
        """Whether a layer has memory heads, of any rank."""
        return any(place[0] == layer for place in self._places)

    def of_all(self, own: Tensor) -> Tensor:
        """One row `[head_dim]` of each memory head, layer after layer, from those of the own
        heads.
        """
        return self._gather(own, self._places)

    def of_layer(self, layer: int, own: Tensor) -> Tensor:
        """One row of each memory head of a layer."""
        return self._gather(own, [place for place in self._places if place[0] == layer])

    def _gather(self, own: Tensor, places: Sequence[tuple[int, int, int]]) -> Tensor:
        """The rows of all ranks, of the heads in these places, in their order."""
        ranks = torch.tensor([rank for *_, rank in places], dtype=torch.long)
        counts = ranks.bincount(minlength=self.peers.world).tolist()
        rows = self.peers.gather(own, [(count, own.shape[1]) for count in counts], "memory")
        # where each row stands among those that are sorted by rank
        order = ranks.argsort(stable=True).argsort()
        return torch.cat(rows)[upload(order, own.device)]


class SpreadGroup(HeadGroup):
    """A rank's heads of a group, whose frames all ranks compare and merge alike."""

    spread: SpreadHeads  # set when the cache is made

    def has_heads(self, layer: int) -> bool:
        return self.spread.in_layer(layer)

    def _pool(self, slot: int) -> Tensor:
        return self.spread.of_all(super()._pool(slot))


class SpreadMemory(EpisodicMemory):
    """Episodic memory that decides on all ranks alike.

    The similarities are rank 0's, because GPUs of two kinds may round differently and must not
    decide differently.
    """

    spread: SpreadHeads  # set when the cache is made

    def compared(self, pooled_keys: Sequence[Tensor]) -> Tensor:
        return self.spread.peers.from_first(super().compared(pooled_keys))

    def scores(self, layer: int, keys: Tensor, prompt: PromptKV) -> Tensor:
        return self.spread.of_layer(layer, super().scores(layer, keys, prompt))


class ParallelCache(HeadCache):
    """The caches of one rank's heads, for its strip of tokens; `bytes` are those of this rank's
    keys and values.

    Args:
        shape: of the whole model's cache.
        division: by default that for the speeds of the ranks.
    """

    group_class = SpreadGroup
    memory_class = SpreadMemory
    groups: list[SpreadGroup]  # type: ignore[assignment]
    memory: SpreadMemory

    def __init__(
        self,
        peers: Peers,
        shape: Shape,
        dtype: torch.dtype,
        device: Device = "cpu",
        attention: AttentionFunction = sdpa,
        division: Division | None = None,
    ):
        whole = grouped(shape)
        self.peers = peers
        self.whole = whole
        self.division = division or Division.of(whole, peers.world, peers.speeds)
        self._own = self.division.heads[peers.rank]
        super().__init__(part_of(whole, self._own), dtype, device=device, attention=attention)
        spread = SpreadHeads(peers, whole, self.division)
        self.memory.spread = spread
        for group in self.groups:
            group.spread = spread
        # per rank and layer, its heads, as what indexes tensors on the device without a copy
        self._heads: list[list[Tensor]] = []
        for layers in self.division.heads:
            self._heads.append(
                [torch.tensor(own, dtype=torch.long, device=self.device) for own in layers]
            )

    @property
    def occupied(self) -> int:
        frames = 0
        for group, layers in zip(self.groups, self.whole.groups.values(), strict=True):
            frames += group.frames * sum(map(len, layers))
        return frames

    def state(self) -> None:
        """None: a rank holds its own heads only."""

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        return super().commit(
            PartPrompt(
                prompt.layers, prompt.valid_tokens, prompt.text, heads=self._heads[self.peers.rank]
            )
        )

    def write_and_rotate(
        self, layer: int, k: Tensor, v: Tensor, q: Tensor | None = None, norms: Norms | None = None
    ) -> Tensor | None:
        """Norms over all heads first, then one message with keys, values and queries to where their
        heads are.
        """
        if norms is not None:
            q_weight, k_weight, eps = norms
            k = F.rms_norm(k, k.shape[1:], k_weight.view(k.shape[1:]), eps)
            if q is not None:
                q = F.rms_norm(q, q.shape[1:], q_weight.view(q.shape[1:]), eps)
        sent = [k, v] if q is None else [k, v, q]
        got = self._to_heads(layer, torch.cat(sent, dim=-1)).chunk(len(sent), dim=-1)
        queries = None if q is None else got[2]
        return (
            super().write_and_rotate(layer, got[0], got[1], q=queries)
            if self._own[layer]
            else queries
        )

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        if self._own[layer]:
            queries = super().attend(layer, queries)
        return self._to_tokens(layer, queries)

    def _to_heads(self, layer: int, x: Tensor) -> Tensor:
        """`x [own tokens, all heads, n]` to `[all tokens, own heads, n]`, tokens in the order of
        the frames.
        """
        strips = self.division.strips
        own = len(self._own[layer])
        frames = len(x) // strips[self.peers.rank].tokens
        by_head = x.transpose(0, 1)
        full = x.new_empty((own, frames, self.whole.rows, self.whole.columns, x.shape[-1]))
        places = [strip.of_tokens(full) for strip in strips]
        parts = [by_head[heads[layer]] for heads in self._heads]
        got = self.peers.exchange(parts, [place.numel() for place in places], "tokens")
        for place, part in zip(places, got, strict=True):
            place.copy_(part.view(place.shape))
        return full.flatten(1, 3).transpose(0, 1)

    def _to_tokens(self, layer: int, x: Tensor) -> Tensor:
        """The inverse of `_to_heads`: `x [all tokens, own heads, n]` to `[own tokens, all heads,
        n]`.
        """
        strips = self.division.strips
        shape = self.whole
        width = x.shape[-1]
        frames = len(x) // shape.frame_tokens
        tokens = frames * strips[self.peers.rank].tokens
        by_head = x.transpose(0, 1).reshape((-1, frames, shape.rows, shape.columns, width))
        parts = [strip.of_tokens(by_head) for strip in strips]
        heads = [of_rank[layer] for of_rank in self._heads]
        sizes = [len(own) * tokens * width for own in heads]
        got = self.peers.exchange(parts, sizes, "tokens")
        full = x.new_empty(tokens, shape.heads, width)
        for own, part in zip(heads, got, strict=True):
            full[:, own] = part.view(len(own), tokens, width).transpose(0, 1)
        return full


def parallel_forward(
    backbone: Backbone,
    latents: Tensor,
    timesteps: Tensor,
    prompt: PromptKV,
    cache: ParallelCache,
    *,
    write_only: bool = False,
    forward: Callable[..., Tensor | None] = forward_block,
    inputs: BlockInputs | None = None,
) -> Tensor | None:
    """`wan.forward_block` of the rank's own strip of `latents`; every rank returns the flow of the
    whole block.

    `forward` replaces `forward_block`. Raises KeyboardInterrupt on all ranks after the pass in
    which one was stopped.
    """
    peers = cache.peers
    strips = cache.division.strips
    strip = strips[peers.rank]
    own = strip.of_frames(latents, PATCH)
    if inputs is not None:
        inputs = replace(inputs, channels=strip.of_frames(inputs.channels, PATCH))
    flow = forward(backbone, own, timesteps, prompt, cache, write_only=write_only, inputs=inputs)
    if peers.any(peers.stopping):
        raise KeyboardInterrupt
    if flow is None:
        return None
    whole = flow.new_empty(*flow.shape[:2], *latents.shape[2:])
    places = [strip.of_frames(whole, PATCH) for strip in strips]
    parts = peers.gather(flow, [place.shape for place in places], "flow")
    for place, part in zip(places, parts, strict=True):
        place.copy_(part)
    return whole
