"""Rolling Sink: behind the newest block the window holds the video's first frames, played forwards
and backwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..devices import upload
from .base import MethodShape, Requirements, played
from .longlive import WindowCache, WindowMethod


@dataclass(frozen=True)
class RollingSink(WindowMethod):
    """Rolling Sink's settings (arXiv 2602.07775)."""

    window_frames: int = 21
    sink_frames: int = 0

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        whole = self.window_frames % block == 0
        return super().requirements(shape) | {f"window_frames in whole blocks of {block}": whole}

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        # the window, and the frames that are played
        return 2 * self.window_frames - shape.frames_per_block


class RollingSinkCache(WindowCache, of=RollingSink):
    def begin_video(self) -> None:
        super().begin_video()
        # the last block of the window is never played
        self.period = self.window - self.shape.frames_per_block
        self.first = self.zeros(self.period)  # keys not rotated in time

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        super().take(layer, k, v)
        if self.end <= self.period:
            self.first[layer][:, :, self.start : self.end] = torch.stack((k, v))

    def finish(self) -> None:
        if self.start < self.window:
            return
        # the block before the current one, which has attended to it: one block late, as in the
        # authors' code
        replaced = range(self.start - self.frames, self.start)
        # the host would wait for a list
        first = upload(torch.tensor(played(replaced, self.period)), self.device)
        for slots, kept in zip(self.slots, self.first, strict=True):
            k, v = kept[:, :, first]
            place = slice(self.filled - 2 * self.frames, self.filled - self.frames)
            slots[0][:, place] = self.rope.rotate_temporal(k, replaced)
            slots[1][:, place] = v
