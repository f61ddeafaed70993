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

from ..errors import HeadForcingError
from ..timeline.switch import Switch
from .base import MethodCache, MethodPolicy, MethodShape, last_frames

CANDIDATE_FRAMES = 3  # frames whose chunks of tokens are candidates of dynamic heads


@dataclass(frozen=True)
class ForcingKV(MethodPolicy):
    """Forcing-KV's settings."""

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

    def check(self, shape: MethodShape) -> None:
        block = shape.frames_per_block
        if self.chunks_per_frame < 1 or not 0 <= self.kept_share <= 1:
            raise HeadForcingError(
                "chunks_per_frame must be at least 1 and kept_share from 0 to 1, got "
                f"{self.chunks_per_frame} and {self.kept_share:g}"
            )
        if not 0 < self.static_frames <= block or not 0 < self.dynamic_frames <= block:
            raise HeadForcingError(
                f"static_frames and dynamic_frames must be from 1 to {block}, got "
                f"{self.static_frames} and {self.dynamic_frames}"
            )
        if self.kept_chunks and (
            block < CANDIDATE_FRAMES or shape.frame_tokens < self.chunks_per_frame
        ):
            raise HeadForcingError(
                f"Forcing-KV needs blocks of at least {CANDIDATE_FRAMES} latent frames with at "
                f"least {self.chunks_per_frame} tokens each, got {block} and {shape.frame_tokens}; "
                "choose another model family or size"
            )
        if self.kept_chunks and shape.layers > 1 and "memory" not in shape.roles[1]:
            raise HeadForcingError(
                "Forcing-KV needs a memory head in the second layer, which selects the moving "
                "chunks; choose another head profile"
            )


class ForcingKVCache(MethodCache, of=ForcingKV):
    """Per layer `sink` and `local` of all heads; after the split each kind of head has its own in
    place of `local`.
    """

    policy: ForcingKV

    def begin_video(self) -> None:
        self.sink, self.local = self.zeros(0), self.zeros(0)
        self.own = self.zeros(0)  # of the current call's latest pass
        kinds = [
            torch.tensor([role == "memory" for role in layer], device=self.device)
            for layer in self.shape.roles
        ]
        self.dynamic = [dynamic.nonzero()[:, 0] for dynamic in kinds]
        self.static = [(~dynamic).nonzero()[:, 0] for dynamic in kinds]
        # chunks of consecutive tokens, numbered over the candidate frames; of equal size if the
        # number divides
        tokens = self.rope.frame_tokens
        chunks = self.policy.chunks_per_frame
        places = torch.arange(CANDIDATE_FRAMES * tokens, device=self.device)
        self.chunk_of_token = places // tokens * chunks + places % tokens * chunks // tokens
        self.split = False
        self.static_last: dict[int, Tensor] = {}
        self.dynamic_last: dict[int, Tensor] = {}
        self.moving: dict[int, Tensor] = {}  # the chosen tokens, `[2, heads, tokens, head_dim]`

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.own[layer] = torch.stack((self.at_own_index(k), v))

    def context(self, layer: int, q: Tensor) -> Tensor:
        q = self.at_own_index(q)
        own = self.own[layer]
        sink = self.sink[layer]
        if layer == 0 or not self.split:
            return self.attention_over(q, *torch.cat((sink, self.local[layer], own), dim=2))
        out = self.empty_attention(q)
        static = self.static[layer]
        dynamic = self.dynamic[layer]
        if len(static):
            seen = torch.cat((sink[:, static], self.static_last[layer], own[:, static]), dim=2)
            out[static] = self.attention_over(q[static], *seen)
        if len(dynamic):
            frames = torch.cat((sink[:, dynamic], self.dynamic_last[layer], own[:, dynamic]), dim=2)
            k, v = torch.cat((frames.flatten(2, 3), self.moving[layer]), dim=2)
            out[dynamic] = self.attention(q[dynamic].flatten(1, 2), k, v)
        return out

    def finish(self) -> None:
        kept = self._choose_chunks() if self.split and self.policy.kept_chunks else None
        sinks = self.policy.sink_frames
        for layer, own in enumerate(self.own):
            if layer == 0 or not self.split:
                everything = torch.cat((self.sink[layer], self.local[layer], own), dim=2)
                if not self.split:
                    self.sink[layer] = everything[:, :, :sinks].clone()
                self.local[layer] = last_frames(everything[:, :, sinks:], self.policy.local_frames)
            else:
                dynamic = own[:, self.dynamic[layer]]
                if kept is not None:
                    chain = torch.cat((self.dynamic_last[layer], dynamic), dim=2)[
                        :, :, :CANDIDATE_FRAMES
                    ]
                    self.moving[layer] = chain.flatten(2, 3)[
                        :, :, torch.isin(self.chunk_of_token, kept)
                    ]
                self.static_last[layer] = last_frames(
                    own[:, self.static[layer]], self.policy.static_frames
                )
                self.dynamic_last[layer] = last_frames(dynamic, self.policy.dynamic_frames)
        if not self.split and self.block >= self.policy.split_block + self.recaching:
            self._split()

    def _split(self) -> None:
        self.split = True
        for layer in range(1, self.shape.layers):
            local = self.local[layer]
            self.static_last[layer] = last_frames(
                local[:, self.static[layer]], self.policy.static_frames
            )
            self.dynamic_last[layer] = last_frames(
                local[:, self.dynamic[layer]], self.policy.dynamic_frames
            )
            self.moving[layer] = self.dynamic_last[layer][:, :, :0].flatten(2, 3).clone()
            self.local[layer] = local[:, :, :0].clone()

    def _choose_chunks(self) -> Tensor | None:
        """The moving chunks, chosen in the second layer for all layers; None if there are too few
        frames to compare.
        """
        if self.shape.layers < 2 or not self.dynamic_last[1].shape[2]:
            return None
        chain = self.dynamic_last[1][0], self.own[1][0][self.dynamic[1]]
        return self.choose(torch.cat(chain, dim=1)[:, : CANDIDATE_FRAMES + 1])

    def choose(self, chain: Tensor) -> Tensor:
        """Indices of the chunks of `[heads, 4, s, d]` whose keys differ most from the next frame's;
        ascending.
        """
        keys = chain.float().permute(1, 2, 0, 3).flatten(2)  # all heads of a token together
        similarity = F.cosine_similarity(keys[:-1], keys[1:], dim=-1).flatten()
        chunk = self.chunk_of_token
        chunks = (
            torch.zeros(int(chunk[-1]) + 1, device=self.device).index_add(0, chunk, similarity)
            / chunk.bincount()
        )
        return chunks.topk(self.policy.kept_chunks, largest=False).indices.sort().values

    def switch_prompt(self, switch: Switch) -> None:
        self.split = False
        self.local = self.zeros(0)
        if not self.policy.keeps_sinks:
            self.sink = self.zeros(0)
