"""TetherCache: sinks, recent frames, and between them a memory of the frames that the model attends
to most; frames that enter it are aligned with what is there (arXiv 2606.13035; details as in the
authors' code).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..devices import upload
from .base import MethodShape, Requirements
from .longlive import WindowCache, WindowMethod

LEAST_DEVIATION = 1e-6


@dataclass(frozen=True)
class TetherCache(WindowMethod):
    """TetherCache's settings; the memory has the frames of the window that are left."""

    window_frames: int = 21
    sink_frames: int = 3
    recent_frames: int = 1  # before the current block
    diversity_weight: float = 0.35  # of how far in time a frame is from others (`alpha`)
    temperature: float = 1.0  # of the share of attention among the candidates
    alignment: float = 0.35  # of frames that enter the memory with it (`tau`); 0: none

    @property
    def rope(self) -> str:
        return "contiguous"

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        return self.window_frames + shape.frames_per_block  # with the block that is set aside

    def memory_frames(self, block: int) -> int:
        """Frames of the memory, for blocks of so many frames."""
        return self.window_frames - self.sink_frames - self.recent_frames - block

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        return {
            f"window_frames for sink_frames, recent_frames and a block of {block}": (
                self.memory_frames(block) >= 0
            ),
            f"window_frames in whole blocks of {block}": self.window_frames % block == 0,
            "temperature above 0": self.temperature > 0,
            "alignment from 0 to 1": 0 <= self.alignment <= 1,
        }


class TetherCacheSlots(WindowCache, of=TetherCache):
    """Slots of sinks, memory and recent frames, the current block last; keys have no rotation.

    A block that needs room sets the oldest recent frames aside: denoising steps read them no more,
    and its clean pass decides, layer by layer and before it reads, which of them and of the memory
    stay.
    """

    method: TetherCache
    rotates_spatially = False
    reads_queries = True  # of the clean pass, in the last layer, too

    def begin_video(self) -> None:
        super().begin_video()
        self.memory = self.method.memory_frames(self.shape.frames_per_block)
        # per layer: the numbers in the video of the memory's frames; none until it is used first
        self.numbers: list[list[int]] = [[] for _ in self.shape.roles]
        # per layer: keys and values of the frames that this block has set aside
        self.aside: list[Tensor] = []

    def open(self) -> None:
        if self.filled + self.frames <= self.window:
            self.filled += self.frames
            return
        first = self.sinks + self.memory
        for kv in self.slots:
            self.aside.append(kv[:, :, first : first + self.frames].clone())
            kv[:, :, first : self.window - self.frames] = kv[:, :, first + self.frames :].clone()
        self.filled = self.window

    def finish(self) -> None:
        self.aside = []

    def context(self, layer: int, q: Tensor) -> Tensor:
        if self.clean and self.memory and self.filled == self.window:
            self._remember(layer, q)
        k, v = self.read(layer)
        own = range(self.filled - self.frames, self.filled)
        return self.attention_over(
            self.rope.rotate(q, own), self.rope.rotate(k, range(self.filled)), v
        )

    def _remember(self, layer: int, q: Tensor) -> None:
        """Choose the memory of a layer from its frames and those that were set aside; at first it
        has the frames behind the sinks.
        """
        sinks, kv = self.sinks, self.slots[layer]
        numbers = self.numbers[layer] or list(range(sinks, sinks + self.memory))
        self.numbers[layer] = numbers
        if not self.aside:
            return
        oldest = self.start - self.method.recent_frames - self.frames
        numbers = [*numbers, *range(oldest, oldest + self.frames)]
        trusted = kv[:, :, : sinks + self.memory]
        candidates = torch.cat((trusted[:, :, sinks:], self.aside[layer]), dim=2)
        kept = self.choose(layer, q, candidates[0], numbers)
        aligned = self._aligned(self.aside[layer], trusted)
        candidates[:, :, self.memory :] = aligned.to(candidates.dtype)
        places = upload(torch.tensor(kept), kv.device)
        kv[:, :, sinks : sinks + self.memory] = candidates[:, :, places]
        self.numbers[layer] = [numbers[index] for index in kept]

    def choose(self, layer: int, q: Tensor, k: Tensor, numbers: list[int]) -> list[int]:
        """The indices of the candidates that stay, in order: those with the highest `scores`."""
        scores = self.scores(q, k, numbers)
        best = scores.topk(self.memory).indices
        return best.sort().values.tolist()

    def scores(self, q: Tensor, k: Tensor, numbers: list[int]) -> Tensor:
        """The score of each candidate (GRAB): its share of the attention of the clean pass, and, by
        `diversity_weight`, how far in time it is from candidates whose share is large.

        Args:
            q: queries of the clean pass, `[heads, frames, s, head_dim]`, without rotation.
            k: keys of the candidates, in the same layout.
            numbers: of the candidates' frames in the video.
        """
        # the mean over all pairs of tokens is the product of the means
        query = q.float().mean((1, 2))
        logits = (k.float().mean(2) * query[:, None]).sum(-1).mean(0) / math.sqrt(q.shape[-1])
        mass = (logits / self.method.temperature).softmax(0)
        at = upload(torch.tensor(numbers, dtype=torch.float32), k.device)
        sigma = max(1.0, (max(numbers) - min(numbers) + 1) / 2)
        near = torch.exp(-(at[:, None] - at).abs() / sigma).fill_diagonal_(0)
        diversity = (1 - (near * mass).amax(1)).clamp(min=0)
        return mass + self.method.diversity_weight * diversity

    def _aligned(self, frames: Tensor, trusted: Tensor) -> Tensor:
        """Frames `[2, heads, frames, s, head_dim]` whose mean and deviation over tokens are moved
        towards those of all trusted frames (TAME).
        """
        share = self.method.alignment
        if not share:
            return frames
        x = frames.float()
        pool = trusted.float().flatten(2, 3)[:, :, None]  # all tokens as those of one frame
        mean, deviation = _statistics(x)
        to_mean, to_deviation = _statistics(pool)
        return (1 - share) * x + share * (to_deviation * (x - mean) / deviation + to_mean)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the tokens of each frame."""
    deviation = x.std(3, correction=0, keepdim=True).clamp(min=LEAST_DEVIATION)
    return x.mean(3, keepdim=True), deviation
