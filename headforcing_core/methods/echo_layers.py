"""State of Echo-Forcing in one layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor


@dataclass
class History:
    """Tokens of the last frames: `k, v [heads, tokens, head_dim]`, and of each its frame and number of uses."""

    k: Tensor
    v: Tensor
    frame: Tensor
    uses: Tensor

    def append(self, k: Tensor, v: Tensor, frames: range, limit: int) -> None:
        """Add frames `[heads, frames, s, head_dim]` and drop the oldest tokens over `limit`."""
        number = torch.arange(frames.start, frames.stop, device=k.device).repeat_interleave(k.shape[2])
        self.k, self.v = (  # copies, so that what is dropped is freed
            torch.cat((old[:, max(0, old.shape[1] + len(number) - limit) :], new.flatten(1, 2)), dim=1)
            for old, new in ((self.k, k), (self.v, v))
        )
        self.frame = torch.cat((self.frame, number))[-limit:]
        self.uses = torch.cat((self.uses, torch.zeros_like(number)))[-limit:]


@dataclass
class Layer:
    """One layer's state. Keys and queries are without rotary embedding, in `[heads, ..., s, head_dim]`.

    Attributes:
        k, v: the window's slots.
        first_k, first_v: the first frames of the scene, kept ones included.
        history: keys and values of the last frames' clean passes, with each token's frame and how often it was chosen.
        query_sum, query_size: sums over queries of the scene's first window, real and in absolute value per pair.
        scene_queries: sum over all queries of the scene.
        candidates: keys and values from which the scene's memory frame is made.
        weights, rates: of kept tokens `[kept frames, s]`, and by what they fade from block to block.
    """

    k: Tensor
    v: Tensor
    first_k: Tensor
    first_v: Tensor
    history: History
    query_sum: Tensor
    query_size: Tensor
    scene_queries: Tensor
    candidates: list[tuple[Tensor, Tensor]]
    weights: Tensor
    rates: Tensor | None = None

    @classmethod
    def empty(
        cls, heads: int, s: int, head_dim: int, window: int, first: int, dtype: torch.dtype, device: torch.device
    ) -> Layer:
        """The state before a scene's first block, with room for `window` and `first` frames of `s` tokens."""
        zeros = partial(torch.zeros, dtype=dtype, device=device)
        sums = partial(torch.zeros, device=device)
        none = torch.zeros(0, dtype=torch.long, device=device)
        return cls(
            k=zeros(heads, window, s, head_dim),
            v=zeros(heads, window, s, head_dim),
            first_k=zeros(heads, first, s, head_dim),
            first_v=zeros(heads, first, s, head_dim),
            history=History(zeros(heads, 0, head_dim), zeros(heads, 0, head_dim), none, none),
            query_sum=sums(heads, head_dim),
            query_size=sums(heads, head_dim // 2),
            scene_queries=sums(heads, head_dim),
            candidates=[],
            weights=torch.ones(0, s, device=device),
        )
