"""Episodic memory: which latent frames are admitted, merged and dropped (paper, "Hierarchical
Memory System").

The caches hold the tokens (`head_group.py`). Frames are compared by their pooled keys
`[memory_heads, head_dim]` float32: for each memory head of every layer, the mean key over a frame's
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.wan import PromptKV
from ..rollout.loop import MemoryEvent as MemoryEvent  # part of what this module gives
from .head_group import HeadGroup
from .roles import EpisodicPolicy
from .state import MemoryEntry as MemoryEntry
from .state import Saved, check_fields


def similarities(pooled: Sequence[Tensor], center: bool = False) -> Tensor:
    """Mean cosine over all memory heads between every two frames: `n x [heads, d]` -> `[n, n]`
    (paper, Eq. 4).
    """
    keys = torch.stack(list(pooled))
    if center:
        keys = keys - keys.mean(dim=0)
    keys = F.normalize(keys, dim=-1)
    # no matrix product: where somebody allows TF32 it would round to 10 bits, and decide otherwise
    # near the threshold
    return (keys[:, None] * keys).sum(dim=(-2, -1)) / keys.shape[1]


def most_similar_pair(similarity: Tensor, first: int = 0) -> tuple[int, int]:
    """The two entries, from index `first` on, with the highest pairwise similarity; the earliest
    pair on a tie.
    """
    pairs = combinations(range(first, len(similarity)), 2)
    return max(pairs, key=lambda pair: float(similarity[pair]))


def most_redundant_entry(similarity: Tensor, first: int = 1) -> int:
    """The entry, from index `first` on, with the highest mean similarity to its neighbours in
    stored order.
    """

    def redundancy(j: int) -> float:
        neighbours = [i for i in (j - 1, j + 1) if 0 <= i < len(similarity)]
        return sum(float(similarity[j, i]) for i in neighbours) / len(neighbours)

    return max(range(first, len(similarity)), key=redundancy)


def token_scores(keys: Tensor, prompt_key: Tensor) -> Tensor:
    """Cosine similarity of each memory head's tokens to the prompt, `[heads, tokens]` float32, from
    keys `[heads, tokens, head_dim]` and the heads' `PromptKV.mean_key`."""
    return F.cosine_similarity(keys.float(), prompt_key.float()[:, None], dim=-1)


def best_tokens(scores: Tensor, count: int) -> Tensor:
    """Indices, ascending, of the tokens with the highest scores `[tokens]`."""
    return scores.topk(count).indices.sort().values


class EpisodicMemory:
    """The entries and the rules that change them. Pictures that the scene holds come first, or else
    an entry that is pinned; then the summary of merged entries, if there is one; then the others in
    order of admission.

    `store` holds their keys and values, numbered in stored order; without memory heads it is any
    group, since no frame is ever considered.
    """

    def __init__(self, capacity: int, policy: EpisodicPolicy, store: HeadGroup):
        self.capacity = capacity
        self.policy = policy
        self.store = store
        self.entries: list[MemoryEntry] = []
        self.has_summary = False

    @property
    def saved(self) -> Saved:
        """The entries; the store has their keys and values."""
        return {"entries": self.entries, "has_summary": self.has_summary}

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)
        self.entries = saved["entries"]
        self.has_summary = saved["has_summary"]

    @property
    def sources(self) -> list[list[int]]:
        """The source frames of every entry."""
        return [entry.sources for entry in self.entries]

    def consider(self, block: int, frame: int, prompt: PromptKV) -> MemoryEvent:
        """Decide about a candidate after `block`, and change the store."""
        pooled = self.store.pooled_key(frame)
        pooled_keys = [entry.pooled for entry in self.entries] + [pooled]
        similarity, for_novelty = self.compared(pooled_keys)
        # the paper's delta: the highest similarity to an entry, low for what is new
        delta = float(for_novelty[-1, :-1].max()) if self.entries else -1.0
        admitted = (
            not self.entries
            or self.policy.admission == "uniform"
            or delta < self.policy.novelty_threshold
        )
        merged = None
        dropped = None
        if admitted:
            if len(self.entries) == self.capacity and self.policy.eviction == "fifo":
                dropped = self._drop_oldest()
            elif len(self.entries) == self.capacity:
                merged = self._merge(similarity[:-1, :-1], block, prompt)
            self.store.admit(frame)
            self.entries.append(MemoryEntry([frame], pooled))
        return MemoryEvent(
            block, frame, delta=delta, admitted=admitted, merged=merged, dropped=dropped
        )

    def compared(self, pooled_keys: Sequence[Tensor]) -> Tensor:
        """The similarities of entries and candidate to one another, `[2, n, n]` on the CPU: those
        that decide about merging, and those about admission.
        """
        plain = similarities(pooled_keys)
        centered = similarities(pooled_keys, self.policy.center_keys)
        # stacked, so that the host waits for the device only once
        return torch.stack((plain, centered)).cpu()

    def scores(self, layer: int, keys: Tensor, prompt: PromptKV) -> Tensor:
        """The `token_scores` of all memory heads of a layer."""
        return token_scores(keys, prompt.mean_key(layer)[self.store.heads[layer]])

    # --- between two prompts

    @property
    def pictures(self) -> int:
        """Number of entries, the first ones, that are reference pictures of the scene: never merged
        or dropped while it lasts. They are no frames of the video, so their numbers are negative.
        """
        return sum(entry.sources[0] < 0 for entry in self.entries)

    def drop_pictures(self) -> None:
        """Drop the pictures of a scene that ends."""
        self._arrange(list(range(self.pictures, len(self.entries))))

    def replace(self, entries: list[MemoryEntry]) -> None:
        """Take the entries of another scene, which the caller has put into the store; none of them
        is a summary.
        """
        self.entries = entries
        self.has_summary = False

    def forget(self) -> None:
        """Drop every entry, the summary too, but for pictures."""
        self._arrange(list(range(self.pictures)))
        self.has_summary = False

    # --- changes

    @property
    def _first_free(self) -> int:
        """Index of the summary and of the first entry that may be dropped: behind pictures, or
        behind a pinned entry if two more fit.
        """
        return self.pictures or int(self.policy.pin_first and self.capacity > 2)

    def _drop_oldest(self) -> list[int]:
        """Drop the first entry that may be dropped; returns its source frames."""
        first = self._first_free
        sources = self.entries[first].sources
        self._arrange([k for k in range(self.capacity) if k != first])
        return sources

    def _merge(self, similarity: Tensor, block: int, prompt: PromptKV) -> list[list[int]]:
        """Merge two entries to make room for another; returns their source frames."""
        first = self._first_free
        if self.has_summary:
            i = first
            j = most_redundant_entry(similarity, first + 1)
        else:
            i, j = most_similar_pair(similarity, first)

        def select(layer: int, keys: Tensor) -> Tensor:
            """Half of the tokens of both entries, the same ones in all heads of a layer."""
            count = keys.shape[1] // 2
            if self.policy.token_selection == "random":
                tokens = self.policy.random_tokens(2 * count, block, layer)
                return tokens.to(keys.device)
            return best_tokens(self.scores(layer, keys, prompt).mean(dim=0), count)

        sources = [list(self.entries[i].sources), list(self.entries[j].sources)]
        pooled = self.store.merge_entries(i, j, select)
        self.entries[i] = MemoryEntry(sources[0] + sources[1], pooled)
        order = [k for k in range(len(self.entries)) if k not in (i, j)]
        order.insert(first, i)
        self._arrange(order)
        self.has_summary = True
        return sources

    def _arrange(self, order: list[int]) -> None:
        self.entries = [self.entries[k] for k in order]
        self.store.arrange_entries(order)
