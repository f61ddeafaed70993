"""Rolling Sink: behind the newest block the window holds the video's first frames, played forwards and backwards.

At the end of each block the block before it is replaced by frames of the first window, with the temporal indices of the
frames that they replace. As in the authors' code this is one block late: the current block attends to the real one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import HeadForcingError
from .base import MethodCache, MethodShape
from .longlive import WindowCache, WindowPolicy


@dataclass(frozen=True)
class RollingSink(WindowPolicy):
    """Rolling Sink's settings (arXiv 2602.07775)."""

    window_frames: int = 21
    sink_frames: int = 0

    def check(self, shape: MethodShape) -> None:
        super().check(shape)
        if self.window_frames % shape.frames_per_block:
            raise HeadForcingError(
                f"Rolling Sink's window is whole blocks of {shape.frames_per_block} frames, got {self.window_frames}"
            )

    def frames_per_head(self, layer: int, role: str, frames_per_block: int) -> float:
        return 2 * self.window_frames - frames_per_block  # the window, and the frames that are played

    def make_cache(self, *args: Any) -> MethodCache:
        return RollingSinkCache(*args)


class RollingSinkCache(WindowCache):
    policy: RollingSink

    def begin_video(self) -> None:
        super().begin_video()
        self.period = self.window - self.shape.frames_per_block  # the last block of the window is never played
        self.first_k, self.first_v = self.zeros(self.period), self.zeros(self.period)  # keys not rotated in time

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.store(layer, self.at_own_index(k), v)
        if self.end <= self.period:
            self.first_k[layer][:, self.start : self.end], self.first_v[layer][:, self.start : self.end] = k, v

    def context(self, layer: int, q: Tensor) -> Tensor:
        used = slice(self.filled)
        return self.attention_over(self.at_own_index(q), self.k[layer][:, used], self.v[layer][:, used])

    def finish(self, prompt: object) -> None:
        if self.start < self.window:
            return
        replaced = range(self.start - self.frames, self.start)
        slots = slice(self.filled - 2 * self.frames, self.filled - self.frames)
        for k, v, first_k, first_v in zip(self.k, self.v, self.first_k, self.first_v, strict=True):
            k[:, slots] = self.rope.rotate_temporal(first_k[:, self.played(replaced)], replaced)
            v[:, slots] = first_v[:, self.played(replaced)]

    def played(self, frames: range) -> list[int]:
        """The first frames that stand for these: forwards and backwards in turn, both ends twice in a row."""
        turns = (divmod(frame, self.period) for frame in frames)
        return [self.period - 1 - place if turn % 2 else place for turn, place in turns]

    @property
    def occupied(self) -> int:
        first = min(self.frames_seen, self.period)
        return (self.filled + first) * self.shape.layers * self.shape.heads
