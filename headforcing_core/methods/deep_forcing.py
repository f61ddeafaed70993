"""Deep Forcing (arXiv 2512.05081): sinks whose positions move with the video, and compression by
attention scores.

*Deep Sink* re-rotates the sinks' keys to the indices right before the other frames. *Participative
Compression* drops, when the window is full, all tokens but the sinks, the recent frames, and those
that recent queries attend to most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.state import Saved, check_fields
from .base import BaseMethod, MethodCache, MethodShape, Requirements

WINDOW_FRAMES = 21


@dataclass(frozen=True)
class DeepForcing(BaseMethod):
    """Deep Forcing's settings."""

    sink_frames: int = 10
    # worth of tokens after a compression; None: no compression (Deep Sink alone)
    budget_frames: int | None = 16
    # newest ones, which are never dropped; their queries score the other tokens
    recent_frames: int = 4
    max_reuse: int = 7  # how many compressions a token may survive; 0: no limit

    @property
    def resumes_from(self) -> tuple[str, ...]:
        # compression uses queries of a block's noisiest pass, which clean passes cannot reproduce
        return ("blocks", "state") if self.budget_frames is None else ("state",)

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        # no values beside them
        queries = 0 if self.budget_frames is None else self.recent_frames / 2
        return WINDOW_FRAMES + queries

    def requirements(self, shape: MethodShape) -> Requirements:
        budget = self.budget_frames or WINDOW_FRAMES
        block = shape.frames_per_block
        return {
            f"budget_frames from sink_frames and recent_frames together to {WINDOW_FRAMES}": (
                self.sink_frames + self.recent_frames <= budget <= WINDOW_FRAMES
            ),
            f"recent_frames for a block of {block}": (
                self.budget_frames is None or self.recent_frames >= block
            ),
        }


@dataclass
class Tokens:
    """One layer's tokens in order of time."""

    # [2, heads, tokens, head_dim]; keys are rotated to their frame's index, those of sinks to a
    # moved one
    kv: Tensor
    reused: Tensor  # [tokens], how many compressions each has survived
    # [heads, tokens, head_dim], rotated queries of the latest passes, `recent_frames` of them
    q: Tensor
    sink_start: int | None = None  # temporal index of the first sink; None before sinks were moved


class DeepForcingCache(MethodCache, of=DeepForcing):
    method: DeepForcing
    state_classes = (Tokens,)
    reads_queries = True  # compression scores tokens with them

    def begin_video(self) -> None:
        none_reused = torch.zeros(0, dtype=torch.long, device=self.device)
        self.layers = [
            Tokens(kv.flatten(2, 3), none_reused, kv[0].flatten(1, 2)) for kv in self.zeros(0)
        ]

    @property
    def saved(self) -> Saved:
        return {"layers": self.layers}

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)
        self.layers = saved["layers"]

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self._new = torch.stack((self.at_own_index(k), v)).flatten(2, 3)

    def context(self, layer: int, q: Tensor) -> Tensor:
        tokens = self.layers[layer]
        new = self._new
        del self._new  # these are parts of the layer's tokens from here on
        q = self.at_own_index(q).flatten(1, 2)
        if self.method.budget_frames is not None:
            count = self.method.recent_frames * self.rope.frame_tokens
            tokens.q = torch.cat((tokens.q, q), dim=1)[:, -count:].clone()
        if self.first_pass(layer):
            self._append(layer, tokens, new)
        else:
            tokens.kv[:, :, -new.shape[2] :] = new
        k, v = tokens.kv
        return self.attention(q, k, v)

    def _append(self, layer: int, tokens: Tokens, new: Tensor) -> None:
        tokens.kv = torch.cat((tokens.kv, new), dim=2)
        tokens.reused = torch.cat((tokens.reused, tokens.reused.new_zeros(new.shape[2])))
        s = self.rope.frame_tokens
        count = tokens.kv.shape[2]
        sinks = self.method.sink_frames * self.rope.frame_tokens
        if count <= WINDOW_FRAMES * s:
            return
        place = torch.arange(count, device=self.device)
        if self.method.budget_frames is None:  # sinks and newest frames
            kept = torch.cat((place[:sinks], place[count - WINDOW_FRAMES * s + sinks :]))
        else:  # sinks, the tokens with the highest scores, recent frames
            recent = min(tokens.q.shape[1], count)
            capacity = min(max(self.method.budget_frames * s, sinks + recent), count)
            chosen = sinks + self.choose(
                layer, tokens, slice(sinks, count - recent), capacity - sinks - recent
            )
            tokens.reused[chosen] += 1
            kept = torch.cat((place[:sinks], chosen, place[count - recent :]))
        tokens.kv = tokens.kv[:, :, kept]
        tokens.reused = tokens.reused[kept]
        self._move_sinks(tokens)

    def choose(self, layer: int, tokens: Tokens, candidates: slice, count: int) -> Tensor:
        """Indices of the `count` candidates with the highest scores for recent queries, over all
        heads; ascending.
        """
        # the score of a key is the sum over heads and queries of q.k, so the queries can be summed
        # first
        wanted = tokens.q.float().sum(dim=1, keepdim=True)
        scores = (tokens.kv[0][:, candidates].float() @ wanted.transpose(1, 2)).sum(dim=(0, 2))
        if self.method.max_reuse:
            scores = scores.masked_fill(
                tokens.reused[candidates] >= self.method.max_reuse, -torch.inf
            )
            count = min(count, int((scores > -torch.inf).sum()))
        return scores.topk(min(count, len(scores))).indices.sort().values

    def _move_sinks(self, tokens: Tokens) -> None:
        """Re-rotate the sinks' keys to the indices right before the other frames."""
        s = self.rope.frame_tokens
        sinks = self.method.sink_frames
        # as in the authors' code, the indices end at the current block's first frame and not at its
        # last
        target = self.start - tokens.kv.shape[2] // s
        if tokens.sink_start is None:
            delta = (
                0
                if self.method.budget_frames is None
                else WINDOW_FRAMES - self.method.budget_frames
            )
        else:
            delta = target - tokens.sink_start
        tokens.sink_start = target
        self.rope.rerotate(tokens.kv[0][:, : sinks * s].unflatten(1, (sinks, s)), [delta] * sinks)
