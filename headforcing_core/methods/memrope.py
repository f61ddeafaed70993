"""MemRoPE: two memory frames, moving averages of evicted keys and values, between the sinks and the
recent frames.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .base import MethodShape, Requirements
from .longlive import WindowCache, WindowMethod


@dataclass(frozen=True)
class MemRoPE(WindowMethod):
    """MemRoPE's settings (arXiv 2603.12513)."""

    # not annotated, so that it is no option
    rope = "contiguous"
    long_rate: float = 0.01  # share of new frames in an update of the long memory frame
    short_rate: float = 0.1
    # averages per place in the frame, and for the short memory a rate per place that grows with the
    # change of its keys; otherwise, as in the authors' settings, one average over all places
    adaptive: bool = False

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        return super().requirements(shape) | {
            f"window_frames for sink_frames, 2 memory frames and a block of {block}": (
                self.window_frames >= self.sink_frames + 2 + block
            )
        }


class MemRoPECache(WindowCache, of=MemRoPE):
    method: MemRoPE
    rotates_spatially = False

    def begin_video(self) -> None:
        super().begin_video()
        self.has_memory = False  # whether the two slots behind the sinks are memory frames yet

    def evict(self, count: int) -> None:
        for kv in self.slots:
            self._average(kv, count)
        self.has_memory = True
        self.drop(self.sinks + 2, count)

    def _average(self, kv: Tensor, count: int) -> None:
        """Average the oldest frames behind the memory frames into these."""
        oldest = kv[:, :, self.sinks + 2 : self.sinks + 2 + count].float()
        # [2, heads, s or 1, head_dim]
        new = oldest.mean(2 if self.method.adaptive else (2, 3), keepdim=True)[:, :, 0]
        long = kv[:, :, self.sinks]
        short = kv[:, :, self.sinks + 1]
        if not self.has_memory:
            long[:] = new
            short[:] = new
            return
        long_rate = self.method.long_rate
        short_rate: float | Tensor = self.method.short_rate
        if self.method.adaptive:
            short_rate = self.rates(new[0] - short[0].float())[:, None]
        long[:] = long_rate * new + (1 - long_rate) * long.float()
        short[:] = short_rate * new + (1 - short_rate) * short.float()

    def rates(self, change: Tensor) -> Tensor:
        """The short memory's rate for each place `[s]`, from the change of its keys `[heads, s,
        head_dim]`.
        """
        size = change.norm(dim=-1).mean(dim=0)
        low = 0.1 * self.method.short_rate
        high = 5 * self.method.short_rate
        return low + size / (size.max() + 1e-8) * (high - low)

    def context(self, layer: int, q: Tensor) -> Tensor:
        k, v = self.read(layer)
        q = self.rope.rotate_temporal(
            self.rope.rotate_spatial(q), range(self.filled - self.frames, self.filled)
        )
        return self.attention_over(q, self.rope.rotate(k, range(self.filled)), v)
