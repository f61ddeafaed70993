"""Dummy Forcing (arXiv 2601.20499): heads that attend little to the past keep one latent frame.

In one clean pass every head's attention is divided into shares of the first frames, of the frames
between, and of the block itself. Heads with little attention to the first two are *last* heads (the
paper's dummy heads), the others *first* or *mid* heads. Only clean passes write to the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..model.attention import end_shares
from ..timeline.switch import Switch
from .base import BaseMethod, MethodCache, MethodShape, Requirements, last_frames
from .method import VideoFacts
from .options import NO_OPTION

# kinds of heads
FIRST = 0
MID = 1
LAST = 2


@dataclass(frozen=True)
class DummyForcing(BaseMethod):
    """Dummy Forcing's settings."""

    # not annotated, so that it is no option
    switch = "recache"
    split_block: int = 1  # in whose clean pass the heads are classified
    mid_blocks: int = 1  # how many of the last blocks mid heads keep
    last_share: float = 0.5  # of all heads, that become last heads
    window_frames: int = 12  # how many of the last frames a prompt switch writes again
    seed: int = field(default=0, metadata=NO_OPTION)  # of the random choice of queries

    def for_video(self, video: VideoFacts) -> DummyForcing:
        return replace(self, seed=video.seed)

    @property
    def recached_frames(self) -> int:
        return self.window_frames

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        # before the split all heads keep the first frame and what mid heads keep
        return 1 + (self.mid_blocks + 1) * shape.frames_per_block

    def requirements(self, shape: MethodShape) -> Requirements:
        return {
            "split_block, mid_blocks and window_frames of at least 1": (
                min(self.split_block, self.mid_blocks, self.window_frames) >= 1
            ),
            "last_share from 0 to 1": 0 <= self.last_share <= 1,
        }


@dataclass
class PastFrames:
    """Past frames `[2, heads, frames, s, head_dim]` that some heads of a layer keep; the first
    `fixed` of these heads keep the video's first frame.
    """

    heads: Tensor
    past: Tensor
    fixed: int = 0


class DummyForcingCache(MethodCache, of=DummyForcing):
    """Per layer the kinds of heads and what they keep: before the split all heads the first frame
    and the last blocks, afterwards first and last heads one frame, and mid heads the last blocks.
    """

    method: DummyForcing
    reads_queries = True  # the clean pass classifies heads with them

    def begin_video(self) -> None:
        self.own = self.zeros(0)
        self.kind_of_head: Tensor | None = None  # [layers, heads]
        self.sampled: dict[int, Tensor] = {}
        self._join()

    def _join(self) -> None:
        """Let all heads of a layer keep the same, and nothing yet."""
        self.split = False
        every = torch.arange(self.shape.heads, device=self.device)
        self.kinds = [[PastFrames(every, past)] for past in self.zeros(0)]

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.own[layer] = torch.stack((self.at_own_index(k), v))

    def context(self, layer: int, q: Tensor) -> Tensor:
        q = self.at_own_index(q)
        if self._classifies:
            self.sampled[layer] = q.flatten(1, 2)[:, self.sampled_rows(layer)]
        out = self.empty_attention(q)
        for kind in self.kinds[layer]:
            if len(kind.heads):
                out[kind.heads] = self.attention_over(q[kind.heads], *self._seen(layer, kind))
        return out

    def _seen(self, layer: int, kind: PastFrames) -> Tensor:
        """Keys and values that heads of a kind attend to."""
        return torch.cat((kind.past, self.own[layer][:, kind.heads]), dim=2)

    def finish(self) -> None:
        if self._classifies:
            self.kind_of_head = self.classify(
                torch.stack([self._shares(layer) for layer in range(self.shape.layers)])
            )
            self.sampled.clear()
        block = self.shape.frames_per_block
        kept = self.method.mid_blocks * block
        for layer, own in enumerate(self.own):
            if self.split:
                short, mid = self.kinds[layer]
                short.past[:, short.fixed :] = own[:, short.heads[short.fixed :], -1:]
                mid.past = last_frames(self._seen(layer, mid), kept)
            else:
                (every,) = self.kinds[layer]
                every.past = self._seen(layer, every)
                if self.start // block >= self.method.mid_blocks:
                    latest = last_frames(every.past, kept)
                    every.past = torch.cat((every.past[:, :, :1], latest), dim=2)
        # after a recache, too: the heads are not classified again
        if self.kind_of_head is not None and not self.split:
            self._split(self.kind_of_head)

    def switch_prompt(self, switch: Switch) -> None:
        self._join()

    @property
    def _classifies(self) -> bool:
        return (
            self.kind_of_head is None
            and not self.recaching
            and self.block == self.method.split_block
        )

    def sampled_rows(self, layer: int) -> Tensor:
        """Indices of the queries whose attention is measured, `[n]`, drawn with replacement by a
        separate generator.
        """
        own = self.shape.frames_per_block * self.rope.frame_tokens
        count = (self.rope.frame_tokens if self.method.split_block == 1 else own) // 3
        generator = torch.Generator().manual_seed((self.method.seed * 1000 + layer) % 2**63)
        return torch.randint(own, (max(1, count),), generator=generator).to(self.device)

    def _shares(self, layer: int) -> Tensor:
        """Attention shares of the first frames, the frames between, and the block itself, `[heads,
        3]`.
        """
        # with more than one past block the whole first block counts as first, as in the authors'
        # code
        first = 1 if self.method.split_block == 1 else self.shape.frames_per_block
        s = self.rope.frame_tokens
        k, _ = self._seen(layer, self.kinds[layer][0]).flatten(2, 3)
        return end_shares(
            self.attention,
            self.sampled[layer],
            k=k,
            first_tokens=first * s,
            last_tokens=self.frames * s,
        )

    def classify(self, shares: Tensor) -> Tensor:
        """The kind of every head of the model, `[layers, heads]`: FIRST, MID or LAST, by the heads'
        shares `[layers, heads, 3]`.
        """
        first = shares[..., 0] / shares[..., 0].sum()
        middle = shares[..., 1] / shares[..., 1].sum()
        needs_past = torch.maximum(first, middle).flatten()
        count = round(self.method.last_share * len(needs_past))
        kinds = torch.where(first < middle, MID, FIRST).flatten()
        kinds[needs_past.argsort(stable=True)[:count]] = LAST
        return kinds.view(first.shape)

    def _split(self, kinds_of_heads: Tensor) -> None:
        self.split = True
        for layer, kinds in enumerate(kinds_of_heads):
            past = self.kinds[layer][0].past
            first = (kinds == FIRST).nonzero()[:, 0]
            mid = (kinds == MID).nonzero()[:, 0]
            last = (kinds == LAST).nonzero()[:, 0]
            one = torch.cat((past[:, first, :1], past[:, last, -1:]), dim=1)
            short = PastFrames(torch.cat((first, last)), one, fixed=len(first))
            self.kinds[layer] = [short, PastFrames(mid, past[:, mid, 1:])]
