"""Entries of episodic memory, and the memory heads that agree on them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class MemoryEntry:
    """A stored frame, or the summary of several: the frames it was made of, and its pooled key."""

    sources: list[int]
    pooled: Tensor


class MemoryHeads:
    """The memory heads of the model, all in this process, so that values of its heads are those of
    all. `distributed/cache.py` has heads of several processes, which send each other theirs.
    """

    def in_layer(self, layer: int, count: int) -> bool:
        """Whether a layer has memory heads, `count` of them in this process."""
        return count > 0

    def pooled(self, own: Tensor) -> Tensor:
        """The pooled key of a frame `[memory_heads, head_dim]` over all memory heads, layer after
        layer.
        """
        return own

    def scores(self, layer: int, own: Tensor) -> Tensor:
        """The `token_scores` of all memory heads of a layer."""
        return own

    def decisive(self, similarity: Tensor) -> Tensor:
        """The similarities that all processes decide by: those of the first, since another GPU may
        round differently.
        """
        return similarity


ALL_HERE = MemoryHeads()
