"""Forcing-KV: *static* heads keep two last latent frames, *dynamic* heads also the tokens of moving parts.

The split into static and dynamic heads comes from a head profile: every role but `memory` is static. The first layer is
never split. Only clean passes write to the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import HeadForcingError
from ..timeline.switch import Switch
from .base import MethodCache, MethodPolicy, MethodShape, WriteClean
from .frames import KVFrames, no_frames, slots_of

CANDIDATE_FRAMES = 3  # frames whose chunks of tokens are candidates of dynamic heads


@dataclass(frozen=True)
class ForcingKV(MethodPolicy):
    """Forcing-KV's settings.

    Attributes:
        split_block: the heads are split after the clean pass of this block.
        static_frames, dynamic_frames: how many of the last frames the heads of each kind keep.
        chunks_per_frame: number of chunks of consecutive tokens that a frame is divided into.
        kept_share: fraction of the chunks of three frames that dynamic heads keep in addition; 0 keeps none.
        keeps_sinks: whether the sinks survive a prompt switch (`global_sink` in the authors' code).
    """

    switch, heads_by = "recache", "roles"
    sink_frames: int = 1
    split_block: int = 1
    static_frames: int = 1
    dynamic_frames: int = 1
    chunks_per_frame: int = 6
    kept_share: float = 0.33
    keeps_sinks: bool = True

    @property
    def kept_chunks(self) -> int:
        return round(CANDIDATE_FRAMES * self.chunks_per_frame * self.kept_share)

    @property
    def moving_frames(self) -> int:
        """The kept chunks in frame-slots."""
        return -(-self.kept_chunks // self.chunks_per_frame)

    @property
    def local_frames(self) -> int:
        """Number of last frames that all heads keep before the split, and those of the first layer always."""
        return max(self.static_frames, self.dynamic_frames)

    @property
    def recached_frames(self) -> int:
        return max(self.local_frames, self.moving_frames, self.sink_frames, 1)

    def frames_per_head(self, layer: int, role: str, frames_per_block: int) -> float:
        last = self.local_frames if layer == 0 else self.static_frames
        if layer and role == "memory":
            last = self.dynamic_frames + self.moving_frames
        return self.sink_frames + last + frames_per_block

    def check(self, shape: MethodShape) -> None:
        block = shape.frames_per_block
        if self.chunks_per_frame < 1 or not 0 <= self.kept_share <= 1:
            raise HeadForcingError(
                f"Forcing-KV divides a frame into at least 1 chunk and keeps a share from 0 to 1 of all chunks, got "
                f"{self.chunks_per_frame} and {self.kept_share:g}"
            )
        if not 0 < self.static_frames <= block or not 0 < self.dynamic_frames <= block:
            raise HeadForcingError(
                f"Forcing-KV keeps 1 to {block} last frames in either kind of head, got {self.static_frames} and "
                f"{self.dynamic_frames}"
            )
        if not self.kept_chunks:
            return
        if block < CANDIDATE_FRAMES or shape.frame_tokens < self.chunks_per_frame:
            raise HeadForcingError(
                f"Forcing-KV needs blocks of at least {CANDIDATE_FRAMES} latent frames with at least "
                f"{self.chunks_per_frame} tokens each, got {block} and {shape.frame_tokens}; choose another model "
                "family or size"
            )
        if shape.layers > 1 and "memory" not in shape.roles[1]:
            raise HeadForcingError(
                "Forcing-KV needs a memory head in the second layer, which selects the moving chunks; choose "
                "another head profile"
            )


class ForcingKVCache(MethodCache, of=ForcingKV):
    """Per layer `sink` and `local` of all heads; after the split each kind of head has its own in place of `local`."""

    policy: ForcingKV

    def begin_video(self) -> None:
        self.sink, self.local = no_frames(self), no_frames(self)
        self.own = no_frames(self)  # of the current call's latest pass
        kinds = [[role == "memory" for role in layer] for layer in self.shape.roles]
        self.dynamic = [torch.tensor(layer, device=self.device).nonzero()[:, 0] for layer in kinds]
        self.static = [(~torch.tensor(layer, device=self.device)).nonzero()[:, 0] for layer in kinds]
        # chunks of consecutive tokens, numbered over the candidate frames; of equal size if the number divides
        tokens, chunks = self.rope.frame_tokens, self.policy.chunks_per_frame
        places = torch.arange(CANDIDATE_FRAMES * tokens, device=self.device)
        self.chunk_of_token = places // tokens * chunks + places % tokens * chunks // tokens
        self.split = False
        self.static_last: dict[int, KVFrames] = {}
        self.dynamic_last: dict[int, KVFrames] = {}
        self.moving: dict[int, KVFrames] = {}  # the chosen tokens, each as a frame of one token

    @property
    def occupied(self) -> int:
        parted = (*self.static_last.values(), *self.dynamic_last.values(), *self.moving.values())
        return slots_of(self, (*self.sink, *self.local, *self.own, *parted))

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.own[layer] = KVFrames(self.at_own_index(k), v)

    def context(self, layer: int, q: Tensor) -> Tensor:
        q, own, sink = self.at_own_index(q), self.own[layer], self.sink[layer]
        if layer == 0 or not self.split:
            seen = sink + self.local[layer] + own
            return self.attention_over(q, seen.k, seen.v)
        out = q.new_empty(q.shape[0], self.frames * self.rope.frame_tokens, q.shape[-1])
        static, dynamic = self.static[layer], self.dynamic[layer]
        if len(static):
            seen = sink.of(static) + self.static_last[layer] + own.of(static)
            out[static] = self.attention_over(q[static], seen.k, seen.v)
        if len(dynamic):
            seen = (sink.of(dynamic) + self.dynamic_last[layer] + own.of(dynamic)).tokens() + self.moving[layer]
            out[dynamic] = self.attention_over(q[dynamic], seen.k, seen.v)
        return out

    def finish(self, prompt: object) -> None:
        kept = self._choose_chunks() if self.split and self.policy.kept_chunks else None
        for layer in range(self.shape.layers):
            own = self.own[layer]
            if layer == 0 or not self.split:
                everything = self.sink[layer] + self.local[layer] + own
                if not self.split:
                    self.sink[layer] = everything[: self.policy.sink_frames]
                self.local[layer] = everything[self.policy.sink_frames :].last(self.policy.local_frames)
            else:
                dynamic = own.of(self.dynamic[layer])
                if self.policy.kept_chunks:
                    self.moving[layer] = self._chunks(self.dynamic_last[layer] + dynamic, kept)
                self.static_last[layer] = own.of(self.static[layer]).last(self.policy.static_frames)
                self.dynamic_last[layer] = dynamic.last(self.policy.dynamic_frames)
        if not self.recaching and self.block == self.policy.split_block:
            self._split()

    def _split(self) -> None:
        self.split = True
        for layer in range(1, self.shape.layers):
            local = self.local[layer]
            self.static_last[layer] = local.of(self.static[layer]).last(self.policy.static_frames)
            self.dynamic_last[layer] = local.of(self.dynamic[layer]).last(self.policy.dynamic_frames)
            self.moving[layer] = self.dynamic_last[layer][:0].tokens()
            self.local[layer] = local[:0]

    def _choose_chunks(self) -> Tensor | None:
        """The moving chunks, chosen in the second layer for all layers; None if there are too few frames to compare."""
        if self.shape.layers < 2 or not len(self.dynamic_last[1]):
            return None
        chain = self.dynamic_last[1].k, self.own[1].k[self.dynamic[1]]
        return self.choose(torch.cat(chain, dim=1)[:, : CANDIDATE_FRAMES + 1])

    def choose(self, chain: Tensor) -> Tensor:
        """Indices of the chunks of `[heads, 4, s, d]` whose keys differ most from the next frame's; ascending."""
        keys = chain.float().permute(1, 2, 0, 3).flatten(2)  # all heads of a token together
        similarity = F.cosine_similarity(keys[:-1], keys[1:], dim=-1).flatten()
        chunk = self.chunk_of_token
        chunks = torch.zeros(int(chunk[-1]) + 1, device=self.device).index_add(0, chunk, similarity) / chunk.bincount()
        return chunks.topk(self.policy.kept_chunks, largest=False).indices.sort().values

    def _chunks(self, chain: KVFrames, kept: Tensor | None) -> KVFrames:
        if kept is None:
            return chain[:0].tokens()
        candidates, moving = chain[:CANDIDATE_FRAMES].tokens(), torch.isin(self.chunk_of_token, kept)
        return candidates[moving]

    def switch_prompt(self, switch: Switch, write_clean: WriteClean, latest: Tensor) -> None:
        was_split, self.split = self.split, False
        self.local = [local[:0] for local in self.local]
        if not self.policy.keeps_sinks:
            self.sink = [sink[:0] for sink in self.sink]
        self.recache(write_clean, latest)
        if was_split:
            self._split()
