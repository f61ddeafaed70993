"""Dummy Forcing (arXiv 2601.20499): heads that attend little to the past keep one latent frame.

In one clean pass every head's attention is divided into shares of the first frames, of the frames
between, and of the block itself. Heads with little attention to the first two are *last* heads (the
paper's dummy heads), the others *first* or *mid* heads. Only clean passes write to the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..model.attention import with_shares
from ..timeline.switch import Switch
from .base import MethodCache, MethodPolicy, MethodShape, last_frames
from .method import VideoFacts
from .options import NO_OPTION

Groups = list[dict[str, list[int]]]  # per layer: the heads of `first`, `mid` and `last`


@dataclass(frozen=True)
class DummyForcing(MethodPolicy):
    """Dummy Forcing's settings."""

    switch = "recache"
    split_block: int = 1  # in whose clean pass the heads are classified
    mid_blocks: int = 1  # how many of the last blocks mid heads keep
    last_share: float = 0.5  # of all heads, that become last heads
    window_frames: int = 12  # how many of the last frames a prompt switch writes again
    seed: int = field(default=0, metadata=NO_OPTION)  # of the random choice of queries
    # indices of the sampled queries per layer, in place of random ones
    rows: tuple[tuple[int, ...], ...] | None = field(default=None, metadata=NO_OPTION)

    def for_video(self, video: VideoFacts) -> DummyForcing:
        return replace(self, seed=video.seed)

    @property
    def recached_frames(self) -> int:
        return self.window_frames

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        # before the split all heads keep the first frame and what mid heads keep
        return 1 + (self.mid_blocks + 1) * shape.frames_per_block

    def check(self, shape: MethodShape) -> None:
        if (
            min(self.split_block, self.mid_blocks, self.window_frames) < 1
            or not 0 <= self.last_share <= 1
        ):
            raise HeadForcingError(
                "split_block, mid_blocks and window_frames must be at least 1 and last_share "
                f"from 0 to 1, got {self.split_block}, {self.mid_blocks}, {self.window_frames} and "
                f"{self.last_share:g}"
            )


class DummyForcingCache(MethodCache, of=DummyForcing):
    """Per layer `sink`, the first frame, and `local`, the last blocks.

    Before the split both are of all heads. After it `local` is of mid heads only, and `short` is
    the one frame that first and last heads keep.
    """

    policy: DummyForcing
    reads_queries = True  # the clean pass classifies heads with them

    def begin_video(self) -> None:
        self.sink = self.zeros(0)
        self.local = self.zeros(0)
        self.own = self.zeros(0)
        self.short: list[Tensor] = []
        self.groups: Groups | None = None
        # per layer, `groups` on the device, and `short`, the first and last
        self.heads: list[dict[str, Tensor]] = []
        self.sampled: dict[int, Tensor] = {}
        self.split = False

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.own[layer] = torch.stack((self.at_own_index(k), v))

    def context(self, layer: int, q: Tensor) -> Tensor:
        q = self.at_own_index(q)
        own = self.own[layer]
        if not self.split:
            if self._classifies:
                self.sampled[layer] = q.flatten(1, 2)[:, self._rows(layer)]
            return self.attention_over(q, *self._everything(layer))
        out = self.empty_attention(q)
        kinds = self.heads[layer]
        for heads, past in ((kinds["short"], self.short[layer]), (kinds["mid"], self.local[layer])):
            if len(heads):
                out[heads] = self.attention_over(q[heads], *torch.cat((past, own[:, heads]), dim=2))
        return out

    def finish(self) -> None:
        if self._classifies:
            self.groups = self.classify(
                torch.stack([self._shares(layer) for layer in range(self.shape.layers)])
            )
            self.sampled.clear()
        kept = self.policy.mid_blocks * self.shape.frames_per_block
        for layer, own in enumerate(self.own):
            if self.split:
                heads = self.heads[layer]
                self.short[layer][:, len(heads["first"]) :] = own[:, heads["last"], -1:]
                self.local[layer] = last_frames(
                    torch.cat((self.local[layer], own[:, heads["mid"]]), dim=2), kept
                )
            else:
                everything = self._everything(layer)
                self.sink[layer] = everything[:, :, :1].clone()
                full = self.start // self.shape.frames_per_block > self.policy.mid_blocks - 1
                self.local[layer] = last_frames(
                    everything, kept if full else everything.shape[2] - 1
                )
        # after a recache, too: the heads are not classified again
        if self.groups is not None and not self.split:
            self._split(self.groups)

    def switch_prompt(self, switch: Switch) -> None:
        self.split = False
        self.sink = self.zeros(0)
        self.local = self.zeros(0)

    @property
    def _classifies(self) -> bool:
        return self.groups is None and not self.recaching and self.block == self.policy.split_block

    def _everything(self, layer: int) -> Tensor:
        return torch.cat((self.sink[layer], self.local[layer], self.own[layer]), dim=2)

    def _rows(self, layer: int) -> Tensor:
        """Indices of the queries whose attention is measured, `[n]`, drawn with replacement by a
        separate generator.
        """
        if self.policy.rows is not None:
            return torch.tensor(self.policy.rows[layer], device=self.device)
        own = self.shape.frames_per_block * self.rope.frame_tokens
        count = (self.rope.frame_tokens if self.policy.split_block == 1 else own) // 3
        generator = torch.Generator().manual_seed((self.policy.seed * 1000 + layer) % 2**63)
        return torch.randint(own, (max(1, count),), generator=generator).to(self.device)

    def _shares(self, layer: int) -> Tensor:
        """Attention shares of the first frames, the frames between, and the block itself, `[heads,
        3]`.
        """
        # with more than one past block the whole first block counts as first, as in the authors'
        # code
        first = 1 if self.policy.split_block == 1 else self.shape.frames_per_block
        s = self.rope.frame_tokens
        k, v = self._everything(layer).flatten(2, 3)
        return with_shares(
            self.attention,
            self.sampled[layer],
            k=k,
            v=v,
            first_tokens=first * s,
            last_tokens=self.frames * s,
        )[1]

    def classify(self, shares: Tensor) -> Groups:
        """Classify the heads of the whole model by their shares `[layers, heads, 3]`."""
        first = shares[..., 0] / shares[..., 0].sum()
        middle = shares[..., 1] / shares[..., 1].sum()
        needs_past = torch.maximum(first, middle).flatten()
        count = round(self.policy.last_share * len(needs_past))
        dummies = set(needs_past.argsort(stable=True)[:count].tolist())
        groups: Groups = []
        for layer in range(self.shape.layers):
            found: dict[str, list[int]] = {"first": [], "mid": [], "last": []}
            for head in range(self.shape.heads):
                kind = "first"
                if layer * self.shape.heads + head in dummies:
                    kind = "last"
                elif first[layer, head] < middle[layer, head]:
                    kind = "mid"
                found[kind].append(head)
            groups.append(found)
        return groups

    def _split(self, groups: Groups) -> None:
        self.split = True
        self.heads = [
            {
                kind: torch.tensor(heads, dtype=torch.long, device=self.device)
                for kind, heads in (*kinds.items(), ("short", kinds["first"] + kinds["last"]))
            }
            for kinds in groups
        ]
        self.short = [
            torch.cat((sink[:, heads["first"]], local[:, heads["last"], -1:]), dim=1)
            for sink, local, heads in zip(self.sink, self.local, self.heads, strict=True)
        ]
        self.local = [
            local[:, heads["mid"]] for local, heads in zip(self.local, self.heads, strict=True)
        ]
        self.sink = self.zeros(0)
