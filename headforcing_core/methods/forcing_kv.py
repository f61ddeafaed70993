"""Forcing-KV (arXiv 2605.09681): *static* heads keep last latent frames, *dynamic* heads also
tokens of moving parts.

The heads of role `memory` are dynamic. The first layer is never split. Only clean passes write to
the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..timeline.switch import Switch
from .base import BaseMethod, MethodCache, MethodShape, Requirements, last_frames

CANDIDATE_FRAMES = 3  # frames whose chunks of tokens are candidates of dynamic heads


@dataclass(frozen=True)
class ForcingKV(BaseMethod):
    """Forcing-KV's settings."""

    # class attributes, not options: they have no types
    switch = "recache"
    heads_by = "roles"
    sink_frames: int = 1
    split_block: int = 1  # after whose clean pass the heads are split
    static_frames: int = 1  # how many of the last frames static heads keep
    dynamic_frames: int = 1
    chunks_per_frame: int = 6  # of consecutive tokens
    kept_share: float = 0.33  # of the chunks of three frames that dynamic heads keep in addition
    keeps_sinks: bool = True  # at a prompt switch (`global_sink` in the authors' code)

    @property
    def kept_chunks(self) -> int:
        return round(CANDIDATE_FRAMES * self.chunks_per_frame * self.kept_share)

    @property
    def moving_frames(self) -> int:
        """The kept chunks in frame-slots."""
        return -(-self.kept_chunks // self.chunks_per_frame)

    @property
    def local_frames(self) -> int:
        """Number of last frames that all heads keep before the split, and those of the first layer
        always.
        """
        return max(self.static_frames, self.dynamic_frames)

    @property
    def recached_frames(self) -> int:
        return max(self.local_frames, self.moving_frames, self.sink_frames, 1)

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        last = self.local_frames if layer == 0 else self.static_frames
        if layer and role == "memory":
            last = self.dynamic_frames + self.moving_frames
        return self.sink_frames + last + shape.frames_per_block

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        chunks = self.chunks_per_frame
        return {
            "chunks_per_frame of at least 1 and kept_share from 0 to 1": (
                chunks >= 1 and 0 <= self.kept_share <= 1
            ),
            f"static_frames and dynamic_frames from 1 to {block}": (
                0 < self.static_frames <= block and 0 < self.dynamic_frames <= block
            ),
            f"blocks of at least {CANDIDATE_FRAMES} latent frames of at least {chunks} tokens each "
            "(choose another model family or size)": (
                not self.kept_chunks or (block >= CANDIDATE_FRAMES and shape.frame_tokens >= chunks)
            ),
            "a memory head in the second layer, which selects the moving chunks (choose another "
            "head profile)": (
                not self.kept_chunks or shape.layers == 1 or "memory" in shape.roles[1]
            ),
        }


@dataclass
class PastTokens:
    """Keys and values that some heads of a layer keep of the past."""

    heads: Tensor  # their numbers
    count: int  # of the last frames
    last: Tensor  # those frames, `[2, heads, frames, s, head_dim]`
    moving: Tensor  # the chosen tokens, `[2, heads, tokens, head_dim]`
    dynamic: bool = False


class ForcingKVCache(MethodCache, of=ForcingKV):
    """Per layer the `sink` of all heads, and what its kinds of heads keep: one kind before the
    split and in the first layer, then static and dynamic heads.
    """

    method: ForcingKV

    def begin_video(self) -> None:
        self.sink = self.zeros(0)
        self.own = self.zeros(0)  # of the current call's latest pass
        # chunks of consecutive tokens, numbered over the candidate frames; of equal size if the
        # number divides
        tokens = self.rope.frame_tokens
        chunks = self.method.chunks_per_frame
        places = torch.arange(CANDIDATE_FRAMES * tokens, device=self.device)
        self.chunk_of_token = places // tokens * chunks + places % tokens * chunks // tokens
        self._join()

    def _join(self) -> None:
        """Let all heads of a layer keep the same, and nothing yet."""
        self.split = False
        every = torch.arange(self.shape.heads, device=self.device)
        self.kinds = [
            [PastTokens(every, self.method.local_frames, last=none, moving=none.flatten(2, 3))]
            for none in self.zeros(0)
        ]

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.own[layer] = torch.stack((self.at_own_index(k), v))

    def context(self, layer: int, q: Tensor) -> Tensor:
        q = self.at_own_index(q)
        out = self.empty_attention(q)
        past = self.sink[layer]
        own = self.own[layer]
        for kind in self.kinds[layer]:
            heads = kind.heads
            if len(heads):
                frames = torch.cat((past[:, heads], kind.last, own[:, heads]), dim=2)
                k, v = torch.cat((frames.flatten(2, 3), kind.moving), dim=2)
                out[heads] = self.attention(q[heads].flatten(1, 2), k, v)
        return out

    def finish(self) -> None:
        chosen = self._choose_chunks()
        for layer, own in enumerate(self.own):
            for kind in self.kinds[layer]:
                frames = torch.cat((kind.last, own[:, kind.heads]), dim=2)
                if kind.dynamic and chosen is not None:
                    tokens = frames[:, :, :CANDIDATE_FRAMES].flatten(2, 3)
                    kind.moving = tokens[:, :, torch.isin(self.chunk_of_token, chosen)]
                if not self.split:
                    sink = self.sink[layer]
                    missing = self.method.sink_frames - sink.shape[2]
                    self.sink[layer] = torch.cat((sink, frames[:, :, :missing]), dim=2)
                    frames = frames[:, :, missing:]
                kind.last = last_frames(frames, kind.count)
        if not self.split and self.block >= self.method.split_block + self.recaching:
            self._split()

    def _split(self) -> None:
        self.split = True
        method = self.method
        for layer in range(1, self.shape.layers):
            (whole,) = self.kinds[layer]
            self.kinds[layer] = []
            for dynamic, count in ((False, method.static_frames), (True, method.dynamic_frames)):
                of_kind = [(role == "memory") is dynamic for role in self.shape.roles[layer]]
                heads = torch.tensor(of_kind, device=self.device).nonzero()[:, 0]
                last = last_frames(whole.last[:, heads], count)
                self.kinds[layer].append(
                    PastTokens(
                        heads, count, last=last, moving=whole.moving[:, heads], dynamic=dynamic
                    )
                )

    def _choose_chunks(self) -> Tensor | None:
        """The moving chunks, chosen in the second layer for all layers; None before the split, and
        if there are too few frames to compare.
        """
        if not self.split or not self.method.kept_chunks or self.shape.layers < 2:
            return None
        dynamic = self.kinds[1][1]
        if not dynamic.last.shape[2]:
            return None
        chain = torch.cat((dynamic.last[0], self.own[1][0][dynamic.heads]), dim=1)
        return self.choose(chain[:, : CANDIDATE_FRAMES + 1])

    def choose(self, chain: Tensor) -> Tensor:
        """Indices of the chunks of `[heads, 4, s, d]` whose keys differ most from the next frame's;
        ascending.
        """
        keys = chain.float().permute(1, 2, 0, 3).flatten(2)  # all heads of a token together
        similarity = F.cosine_similarity(keys[:-1], keys[1:], dim=-1).flatten()
        chunk = self.chunk_of_token
        sums = torch.zeros(int(chunk[-1]) + 1, device=self.device).index_add(0, chunk, similarity)
        means = sums / chunk.bincount()
        return means.topk(self.method.kept_chunks, largest=False).indices.sort().values

    def switch_prompt(self, switch: Switch) -> None:
        self._join()
        if not self.method.keeps_sinks:
            self.sink = self.zeros(0)
