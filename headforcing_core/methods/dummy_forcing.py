"""Dummy Forcing: heads that attend little to the past keep one latent frame; they are found in the second block.

In one clean pass every head's attention, over a sample of queries, is divided into shares of the first frames, of the
frames between, and of the block itself. Heads with little attention to the first two are *last* heads (the paper's
dummy heads), the others *first* or *mid* heads. Only clean passes write to the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..cache.method import VideoFacts
from ..cache.options import NO_OPTION
from ..errors import HeadForcingError
from ..model.attention_shares import with_shares
from ..timeline.switch import Switch
from .base import MethodCache, MethodPolicy, MethodShape, WriteClean
from .frames import KVFrames, no_frames, slots_of

Groups = list[dict[str, list[int]]]  # per layer: the heads of `first`, `mid` and `last`


@dataclass(frozen=True)
class DummyForcing(MethodPolicy):
    """Dummy Forcing's settings.

    Attributes:
        split_block: the block in whose clean pass the heads are classified.
        mid_blocks: how many of the last blocks mid heads keep.
        last_share: fraction of all heads that become last heads.
        window_frames: how many of the last frames a prompt switch writes again.
        seed: of the random choice of queries.
        rows: indices of the sampled queries per layer, in place of random ones.
    """

    switch = "recache"
    split_block: int = 1
    mid_blocks: int = 1
    last_share: float = 0.5
    window_frames: int = 12
    seed: int = field(default=0, metadata=NO_OPTION)
    rows: tuple[tuple[int, ...], ...] | None = field(default=None, metadata=NO_OPTION)

    def for_video(self, video: VideoFacts) -> DummyForcing:
        return replace(self, seed=video.seed)

    @property
    def recached_frames(self) -> int:
        return self.window_frames

    def frames_per_head(self, layer: int, role: str, frames_per_block: int) -> float:
        # before the split all heads keep the first frame and what mid heads keep
        return 1 + (self.mid_blocks + 1) * frames_per_block

    def check(self, shape: MethodShape) -> None:
        if min(self.split_block, self.mid_blocks, self.window_frames) < 1 or not 0 <= self.last_share <= 1:
            raise HeadForcingError(
                f"Dummy Forcing needs at least 1 block before the split, 1 in mid heads and 1 frame in the window, and "
                f"a share of last heads from 0 to 1, got {self.split_block}, {self.mid_blocks}, {self.window_frames} "
                f"and {self.last_share:g}"
            )


class DummyForcingCache(MethodCache, of=DummyForcing):
    """Per layer `sink`, the first frame, and `local`, the last blocks.

    Before the split both are of all heads. After it `local` is of mid heads only, and `short` is the one frame that
    first and last heads keep.
    """

    policy: DummyForcing
    reads_queries = True  # the clean pass classifies heads with them

    def begin_video(self) -> None:
        self.sink, self.local, self.own = no_frames(self), no_frames(self), no_frames(self)
        self.short: list[KVFrames] = []
        self.groups: Groups | None = None
        self.heads: list[dict[str, Tensor]] = []  # per layer, `groups` on the device, and `short`, the first and last
        self.sampled: dict[int, Tensor] = {}
        self.split = False

    @property
    def occupied(self) -> int:
        return slots_of(self, (*self.sink, *self.local, *self.own, *self.short))

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.own[layer] = KVFrames(self.at_own_index(k), v)

    def context(self, layer: int, q: Tensor) -> Tensor:
        q, own = self.at_own_index(q), self.own[layer]
        if not self.split:
            if self._classifies:
                self.sampled[layer] = q.flatten(1, 2)[:, self._rows(layer)]
            seen = self._everything(layer)
            return self.attention_over(q, seen.k, seen.v)
        out = q.new_empty(q.shape[0], self.frames * self.rope.frame_tokens, q.shape[-1])
        kinds = self.heads[layer]
        for heads, past in ((kinds["short"], self.short[layer]), (kinds["mid"], self.local[layer])):
            if len(heads):
                seen = past + own.of(heads)
                out[heads] = self.attention_over(q[heads], seen.k, seen.v)
        return out

    def finish(self, prompt: object) -> None:
        if self._classifies:
            self.groups = self.classify(torch.stack([self._shares(layer) for layer in range(self.shape.layers)]))
            self.sampled.clear()
        kept = self.policy.mid_blocks * self.shape.frames_per_block
        for layer in range(self.shape.layers):
            if self.split:
                own, heads = self.own[layer], self.heads[layer]
                firsts, last = len(heads["first"]), own.of(heads["last"]).last(1)
                self.short[layer].k[firsts:], self.short[layer].v[firsts:] = last.k, last.v
                self.local[layer] = (self.local[layer] + own.of(heads["mid"])).last(kept)
            else:
                everything = self._everything(layer)
                self.sink[layer] = everything[:1]
                full = self.start // self.shape.frames_per_block > self.policy.mid_blocks - 1
                self.local[layer] = everything.last(kept) if full else everything[1:]
        if self.groups is not None and not self.split and not self.recaching:
            self._split()

    def switch_prompt(self, switch: Switch, write_clean: WriteClean, latest: Tensor) -> None:
        was_split, self.split = self.split, False
        self.sink, self.local = no_frames(self), no_frames(self)
        self.recache(write_clean, latest)
        if was_split:  # the heads are not classified again
            self._split()

    @property
    def _classifies(self) -> bool:
        return self.groups is None and not self.recaching and self.block == self.policy.split_block

    def _everything(self, layer: int) -> KVFrames:
        return self.sink[layer] + self.local[layer] + self.own[layer]

    def _rows(self, layer: int) -> Tensor:
        """Indices of the queries whose attention is measured, `[n]`, drawn with replacement by a separate generator."""
        if self.policy.rows is not None:
            return torch.tensor(self.policy.rows[layer], device=self.device)
        own = self.shape.frames_per_block * self.rope.frame_tokens
        count = (self.rope.frame_tokens if self.policy.split_block == 1 else own) // 3
        generator = torch.Generator().manual_seed((self.policy.seed * 1000 + layer) % 2**63)
        return torch.randint(own, (max(1, count),), generator=generator).to(self.device)

    def _shares(self, layer: int) -> Tensor:
        """Attention shares of the first frames, the frames between, and the block itself, `[heads, 3]`."""
        seen = self._everything(layer)
        # with more than one past block the whole first block counts as first, as in the authors' code
        first = 1 if self.policy.split_block == 1 else self.shape.frames_per_block
        s = self.rope.frame_tokens
        k, v = seen.k.flatten(1, 2), seen.v.flatten(1, 2)
        return with_shares(self.attention, self.sampled[layer], k, v, first * s, self.frames * s)[1]

    def classify(self, shares: Tensor) -> Groups:
        """Classify the heads of the whole model by their shares `[layers, heads, 3]`."""
        first, middle = (part / part.sum() for part in shares.unbind(-1)[:2])
        needs_past = torch.maximum(first, middle).flatten()
        count = round(self.policy.last_share * len(needs_past))
        dummies = set(needs_past.argsort(stable=True)[:count].tolist())
        groups: Groups = []
        for layer in range(self.shape.layers):
            found: dict[str, list[int]] = {"first": [], "mid": [], "last": []}
            for head in range(self.shape.heads):
                kind = "mid" if first[layer, head] < middle[layer, head] else "first"
                found["last" if layer * self.shape.heads + head in dummies else kind].append(head)
            groups.append(found)
        return groups

    def _split(self) -> None:
        assert self.groups is not None
        self.split, self.short = True, []
        of_layers = [{**kinds, "short": kinds["first"] + kinds["last"]} for kinds in self.groups]
        self.heads = [
            {kind: torch.tensor(heads, dtype=torch.long, device=self.device) for kind, heads in kinds.items()}
            for kinds in of_layers
        ]
        for layer, heads in enumerate(self.heads):
            sink, newest = self.sink[layer].of(heads["first"]), self.local[layer].of(heads["last"]).last(1)
            self.short.append(KVFrames(torch.cat((sink.k, newest.k)), torch.cat((sink.v, newest.v))))
            self.local[layer] = self.local[layer].of(heads["mid"])
            self.sink[layer] = self.sink[layer][:0]
