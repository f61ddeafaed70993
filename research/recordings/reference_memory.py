"""The specification of episodic memory (paper, "Hierarchical Memory System"; METHOD.md), for
`ReferenceCache`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from ...headforcing_core.cache.shape import CacheShape
from ...headforcing_core.model.wan import PromptKV
from ...headforcing_core.rollout.loop import MemoryEvent

# by layer, keys and values [heads, s, head_dim] of all heads
Frame = dict[int, tuple[Tensor, Tensor]]


@dataclass
class ReferenceEntry:
    """A frame of the video or a picture, or the summary of several."""

    sources: list[int]
    tokens: Frame


class ReferenceMemory:
    """The entries, in order, and the rules that change them."""

    def __init__(self, shape: CacheShape):
        self.policy = shape.method.episodic
        # by layer, its memory heads
        self.heads: dict[int, list[int]] = {}
        for layer, roles in enumerate(shape.roles):
            of_layer = [
                head for head, role in enumerate(roles) if shape.method.of(role).episodic_frames
            ]
            if of_layer:
                self.heads[layer] = of_layer
        self.capacity = shape.method.memory.episodic_frames if self.heads else 0
        self.entries: list[ReferenceEntry] = []
        self.summary: ReferenceEntry | None = None  # one of the entries

    @property
    def sources(self) -> list[list[int]]:
        """The source frames of every entry."""
        return [entry.sources for entry in self.entries]

    def holds(self, frame: int) -> bool:
        """Whether a frame is an entry or part of one."""
        return any(frame in sources for sources in self.sources)

    def flush(self) -> None:
        """Drop all but pictures."""
        self.entries = [entry for entry in self.entries if entry.sources[0] < 0]
        self.summary = None

    def drop_pictures(self) -> None:
        """Drop the pictures of a scene that ends."""
        self.entries = [entry for entry in self.entries if entry.sources[0] >= 0]

    def replace(self, entries: list[ReferenceEntry]) -> None:
        """Take other entries in place of all."""
        self.entries = entries
        self.summary = None

    # --- a candidate

    def consider(self, block: int, number: int, frame: Frame, prompt: PromptKV) -> MemoryEvent:
        """Decide about a candidate after `block`."""
        candidate = ReferenceEntry([number], frame)
        delta = -1.0
        for similarity in self._similarities(candidate):
            delta = max(delta, similarity)
        admitted = (
            not self.entries
            or self.policy.admission == "uniform"
            or delta < self.policy.novelty_threshold
        )
        merged = None
        dropped = None
        if admitted and len(self.entries) == self.capacity:
            if self.policy.eviction == "fifo":
                oldest = self._free[0]
                dropped = oldest.sources
                self._remove(oldest)
            else:
                one, other = self._chosen_pair()
                merged = [one.sources, other.sources]
                self._merge(one, other, block, prompt)
        if admitted:
            self.entries.append(candidate)
        return MemoryEvent(
            block, number, delta=delta, admitted=admitted, merged=merged, dropped=dropped
        )

    @property
    def _free(self) -> list[ReferenceEntry]:
        """The entries that may be merged or dropped: neither pictures nor a pinned first one."""
        free = [entry for entry in self.entries if entry.sources[0] >= 0]
        pinned = self.policy.pin_first and self.capacity > 2 and len(free) == len(self.entries)
        return free[1:] if pinned else free

    def _chosen_pair(self) -> tuple[ReferenceEntry, ReferenceEntry]:
        """The two most similar entries; the summary and the entry that is most like its neighbours,
        where there is a summary. The earliest of equal ones."""
        if self.summary is None:
            pairs = combinations(self._free, 2)
            return max(pairs, key=lambda pair: self._similarity(pair[0].tokens, pair[1].tokens))

        def likeness_to_neighbours(entry: ReferenceEntry) -> float:
            place = self._place(entry)
            neighbours = (
                self.entries[max(0, place - 1) : place] + self.entries[place + 1 : place + 2]
            )
            return sum(self._similarity(entry.tokens, other.tokens) for other in neighbours) / len(
                neighbours
            )

        others = [entry for entry in self._free if entry is not self.summary]
        return self.summary, max(others, key=likeness_to_neighbours)

    def _merge(
        self, one: ReferenceEntry, other: ReferenceEntry, block: int, prompt: PromptKV
    ) -> None:
        """Replace two entries by their summary, the first entry that is free."""
        tokens: Frame = {}
        for layer, (k, v) in one.tokens.items():
            if layer not in self.heads:  # nobody reads it
                tokens[layer] = k, v
                continue
            keys = torch.cat((k, other.tokens[layer][0]), dim=1)
            values = torch.cat((v, other.tokens[layer][1]), dim=1)
            kept = self._kept_tokens(layer, keys[self.heads[layer]], block, prompt)
            tokens[layer] = keys[:, kept], values[:, kept]
        first = self._place(self._free[0])
        self._remove(one)
        self._remove(other)
        self.summary = ReferenceEntry(one.sources + other.sources, tokens)
        self.entries.insert(first, self.summary)

    def _kept_tokens(self, layer: int, keys: Tensor, block: int, prompt: PromptKV) -> list[int]:
        """Half of the tokens of two entries, in their order, from the keys `[memory heads, 2s,
        head_dim]`.
        """
        count = keys.shape[1] // 2
        if self.policy.token_selection == "random":
            return self.policy.random_tokens(2 * count, block, layer).tolist()
        wanted = prompt.mean_key(layer)[self.heads[layer]].float()
        cosines = [
            F.cosine_similarity(keys[head].float(), wanted[head], dim=-1)
            for head in range(len(keys))
        ]
        best = torch.stack(cosines).mean(dim=0).argsort(descending=True, stable=True)[:count]
        return sorted(best.tolist())

    def _place(self, entry: ReferenceEntry) -> int:
        return next(place for place, other in enumerate(self.entries) if other is entry)

    def _remove(self, entry: ReferenceEntry) -> None:
        del self.entries[self._place(entry)]

    # --- similarity

    def _similarities(self, candidate: ReferenceEntry) -> list[float]:
        """The candidate's similarity to every entry, of centred keys where the policy says so."""
        pooled = [self._pooled(entry.tokens) for entry in (*self.entries, candidate)]
        if self.policy.center_keys:
            mean = torch.stack(pooled).mean(dim=0)
            pooled = [keys - mean for keys in pooled]
        return [self._mean_cosine(keys, pooled[-1]) for keys in pooled[:-1]]

    def _similarity(self, one: Frame, other: Frame) -> float:
        return self._mean_cosine(self._pooled(one), self._pooled(other))

    def _pooled(self, frame: Frame) -> Tensor:
        """The mean key over the tokens of a frame, of every memory head of the model, `[heads,
        head_dim]`.
        """
        return torch.cat(
            [frame[layer][0][heads].float().mean(dim=1) for layer, heads in self.heads.items()]
        )

    def _mean_cosine(self, one: Tensor, other: Tensor) -> float:
        return float(F.cosine_similarity(one, other, dim=-1).mean())
