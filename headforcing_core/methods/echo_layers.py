"""State of Echo-Forcing in one layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class History:
    """Tokens of the last frames: `kv [2, heads, tokens, head_dim]`, and of each its frame and
    number of uses.
    """

    kv: Tensor
    frame: Tensor
    uses: Tensor

    def append(self, kv: Tensor, frames: range, limit: int) -> None:
        """Add frames `[2, heads, frames, s, head_dim]` and drop the oldest tokens over `limit`."""
        number = torch.arange(frames.start, frames.stop, device=kv.device).repeat_interleave(
            kv.shape[3]
        )
        dropped = max(0, len(self.frame) + len(number) - limit)
        self.kv = torch.cat((self.kv[:, :, dropped:], kv.flatten(2, 3)), dim=2)
        self.frame = torch.cat((self.frame[dropped:], number))
        self.uses = torch.cat((self.uses[dropped:], torch.zeros_like(number)))


@dataclass
class Layer:
    """One layer's state. Keys and queries are without rotary embedding, in `[2, heads, ..., s,
    head_dim]`.
    """

    kv: Tensor  # the window's slots
    first: Tensor  # the first frames of the scene, kept ones included
    history: History  # of the last frames' clean passes
    query_sum: Tensor  # over queries of the scene's first window
    query_size: Tensor  # the same, of absolute values per pair
    scene_queries: Tensor  # sum over all queries of the scene
    candidates: list[Tensor]  # frames from which the scene's memory frame is made
    weights: Tensor  # of kept tokens [kept frames, s]
    rates: Tensor | None = None  # by which they fade from block to block
