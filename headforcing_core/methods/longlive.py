"""LongLive: attention sinks and a short window, which is written again when the prompt changes (KV
recache).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..cache.roles import check_choice
from ..errors import HeadForcingError
from ..timeline.switch import Switch
from .base import BaseMethod, MethodCache, MethodShape, Requirements


@dataclass(frozen=True)
class WindowMethod(BaseMethod):
    """Settings of a window of `window_frames` frame-slots, sinks and current block included."""

    window_frames: int = 12
    sink_frames: int = 3

    @property
    def recached_frames(self) -> int:
        return self.window_frames if self.switch == "recache" else 0

    @property
    def cached_frames(self) -> int:
        """Frames that a head keeps, the current block included: what any pass reads."""
        return self.window_frames

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        return self.cached_frames

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        return {
            f"window_frames of at least sink_frames and a block of {block} frames": (
                self.window_frames >= self.sink_frames + block
            )
        }


@dataclass(frozen=True)
class LongLive(WindowMethod):
    """LongLive's settings (arXiv 2509.22622)."""

    # not annotated, so that it is no option
    switch = "recache"
    # keys are rotated to their index in the window, not to their frame's in the video
    infinite: bool = False
    keeps_sinks: bool = True  # at a prompt switch (`global_sink` in the authors' code)
    # `recent`: a clean pass reads the `clean_frames` newest frames, sinks only while they are among
    # them, which is Commit Forcing's rule; `all`: what denoising passes read
    clean_reads: str = "all"

    def __post_init__(self) -> None:
        check_choice("clean_reads", self.clean_reads, ("all", "recent"))
        if self.clean_reads == "recent" and not self.keeps_sinks:
            raise HeadForcingError(
                "clean_reads recent needs the sinks at a prompt switch, which keeps_sinks=false "
                "drops; remove one of the two options"
            )

    @property
    def rope(self) -> str:
        return "contiguous" if self.infinite else "absolute"

    @property
    def clean_frames(self) -> int:
        """Newest frames that a clean pass reads under the rule, its own block included."""
        return self.window_frames

    @property
    def cached_frames(self) -> int:
        if self.clean_reads == "all":
            return self.window_frames
        return max(self.window_frames, self.sink_frames + self.clean_frames)


@dataclass(frozen=True)
class SelfGradientForcing(LongLive):
    """Self Gradient Forcing's settings (arXiv 2607.20368), chunkwise: LongLive's window with keys
    at their index in it, as its weights were trained. A new prompt changes nothing in the cache."""

    # class attributes, not options: they have no types
    switch = "reset"
    repeats_image = True
    infinite: bool = True

    @property
    def clean_frames(self) -> int:
        return self.window_frames - self.sink_frames


class WindowCache(MethodCache):
    """Per layer `cached_frames` slots for keys and values, initially zero; the first `filled` are
    in use.

    Where temporal indices count in the context, keys are stored without temporal rotation and
    rotated to their slots.
    """

    method: WindowMethod

    def begin_video(self) -> None:
        self.window = self.method.cached_frames
        self.sinks = self.method.sink_frames
        self.slots = self.zeros(self.window)
        self.in_context = self.method.rope == "contiguous"
        self.filled = 0
        self.rolled = False  # whether the current call moved frames to lower slots

    def open(self) -> None:
        if self.recaching:  # the call writes frames again that are in the window
            return
        excess = max(0, self.filled + self.frames - self.window)
        self.rolled = excess > 0
        if excess:
            self.evict(excess)
        self.filled += self.frames

    def evict(self, count: int) -> None:
        """Make room: drop the oldest frames after the sinks."""
        self.drop(self.sinks, count)

    def drop(self, first: int, count: int) -> None:
        """Drop the frames of `count` slots from slot `first` on; later ones move to lower slots."""
        if count:
            for kv in self.slots:
                kv[:, :, first : self.filled - count] = kv[
                    :, :, first + count : self.filled
                ].clone()
        self.filled -= count

    def protected(self, layer: int) -> int:
        """Number of slots, the first ones, that the current pass leaves as they are."""
        return 0

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        k = k if self.in_context else self.at_own_index(k)
        first = self.filled - self.frames
        skipped = max(0, self.protected(layer) - first)
        for slots, x in zip(self.slots[layer], (k, v), strict=True):
            slots[:, first + skipped : self.filled] = x[:, skipped:]

    def read(self, layer: int) -> Tensor:
        """Keys and values that the current pass attends to; its own frames are the last that are
        not empty.
        """
        return self.slots[layer][:, :, : self.filled]

    def with_empty_sinks(self, layer: int) -> Tensor:
        """The slots in use and sinks that are still empty, which are attended to as zeros."""
        return self.slots[layer][:, :, : max(self.sinks, self.filled)]

    def context(self, layer: int, q: Tensor) -> Tensor:
        k, v = self.read(layer)
        if self.in_context:
            count = k.shape[1]
            end = min(count, self.filled)
            k = self.rope.rotate_temporal(k, range(count))
            q = self.rope.rotate_temporal(q, range(end - self.frames, end))
        else:
            q = self.at_own_index(q)
        return self.attention_over(q, k, v)


class LongLiveCache(WindowCache, of=LongLive):
    method: LongLive

    def read(self, layer: int) -> Tensor:
        kv = self.slots[layer]
        first = self.filled - self.method.window_frames + self.sinks
        if self.clean and self.method.clean_reads == "recent":
            return kv[:, :, max(0, self.filled - self.method.clean_frames) : self.filled]
        if first > self.sinks:  # those between are kept for clean passes
            return torch.cat((kv[:, :, : self.sinks], kv[:, :, first : self.filled]), dim=2)
        return self.with_empty_sinks(layer)

    def protected(self, layer: int) -> int:
        # a recache from the first frame on writes the sinks under the new prompt, too
        kept = self.recaching and self.start > 0 and self.method.keeps_sinks
        return self.sinks if kept else 0

    def switch_prompt(self, switch: Switch) -> None:
        if not self.method.keeps_sinks:
            for kv in self.slots:
                kv.zero_()
