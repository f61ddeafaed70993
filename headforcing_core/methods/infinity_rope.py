"""Infinity-RoPE: temporal indices that count inside the window, a flush at a new prompt, a jump of
indices at a cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..timeline.switch import Switch
from .base import MethodShape, Requirements
from .longlive import WindowCache, WindowMethod

# temporal index of a new scene's first frame during its first block (the paper's RoPE cut)
CUT_INDEX = 45


@dataclass(frozen=True)
class InfinityRope(WindowMethod):
    """Infinity-RoPE's settings (arXiv 2511.20649). `re_anchor` at a prompt switch is its scene
    cut.
    """

    # class attributes, not options: they have no types
    switch = "flush"
    cuts = True
    rope = "contiguous"
    window_frames: int = 6
    sink_frames: int = 1

    def requirements(self, shape: MethodShape) -> Requirements:
        return super().requirements(shape) | {
            "sink_frames of at least 1 and window_frames of at least 5": (
                self.sink_frames >= 1 and self.window_frames >= 5
            )
        }


class InfinityRopeCache(WindowCache, of=InfinityRope):
    method: InfinityRope
    cut = False  # whether the current block begins a new scene

    def context(self, layer: int, q: Tensor) -> Tensor:
        keys = [*range(self.filled)]
        # as in the authors' code, once the video is longer than the window, queries get its last
        # indices even after a flush: until the window is full again these are larger than those of
        # the block's own keys
        first = self.start
        if self.start >= self.window or self.rolled:
            first = self.window - self.frames
        if self.cut:
            first = CUT_INDEX
        queries = range(first, first + self.frames)
        if self.cut:
            keys[-self.frames :] = queries
        k, v = self.read(layer)
        return self.attention_over(
            self.rope.rotate_temporal(q, queries), self.rope.rotate_temporal(k, keys), v
        )

    def finish(self) -> None:
        self.cut = False

    def switch_prompt(self, switch: Switch) -> None:
        # as in the authors' code the last two slots: before the window is full they are still zero
        for kv in self.slots:
            kv[:, :, 1:3] = kv[:, :, self.window - 2 :].clone()
        self.filled = 3
        self.cut = switch.re_anchor
