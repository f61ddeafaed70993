"""LongLive 2.0: a window with a sink for the video and one for each shot, and positions that jump
at a scene cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..timeline.switch import Switch
from .base import MethodShape, Requirements
from .longlive import WindowCache, WindowMethod


@dataclass(frozen=True)
class LongLive2(WindowMethod):
    """LongLive 2.0's settings (arXiv 2605.18739). A shot begins where a prompt is a scene cut
    (`re_anchor`).

    Attributes:
        shot_sinks: the first block of a shot stays as a second sink once it has moved down behind
            the first one, until the next shot begins (`multi_shot_sink`).
        shot_offset: by how many frames each shot moves all later temporal positions up.
        drops_old_shots: a shot's first clean pass sees the first sink and its own block alone, and
            the old shot is dropped (`shot_clean_recache`).
        infinite: keys are rotated to their index in the window, and shots move no positions
            (`use_relative_rope`).
    """

    # class attributes, not options: they have no types
    cuts = True
    needs_shots = True
    window_frames: int = 32
    sink_frames: int = 8
    shot_sinks: bool = True
    shot_offset: int = 8
    drops_old_shots: bool = False
    infinite: bool = False

    @property
    def rope(self) -> str:
        return "contiguous" if self.infinite else "absolute"

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        return super().requirements(shape) | {
            f"window_frames for sink_frames and two blocks of {block} frames, the first one of a "
            "shot and the current one, or shot_sinks=false": (
                not self.shot_sinks or self.window_frames >= self.sink_frames + 2 * block
            )
        }


class LongLive2Cache(WindowCache, of=LongLive2):
    method: LongLive2

    def begin_video(self) -> None:
        super().begin_video()
        self.shots = 0  # begun so far, the first not counted
        self.begins_shot = False
        self.shot_sink: int | None = None  # first slot of the current shot's first block

    def evict(self, count: int) -> None:
        first = self.method.sink_frames
        if self.shot_sink is not None:
            # what lies between the two sinks goes first, then what lies behind the second one; the
            # authors' code loses a shot's sink that does not stop right behind the first one, as it
            # does with whole blocks of sinks
            before = min(count, self.shot_sink - first)
            self.drop(first, before)
            self.shot_sink -= before
            count -= before
            if self.shot_sink == first:
                self.sinks = first + min(first, self.frames)
        super().evict(count)

    def at_own_index(self, x: Tensor) -> Tensor:
        first = self.start + self.shots * self.method.shot_offset
        return self.rope.rotate_temporal(x, range(first, first + self.frames))

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        if self.clean and self.begins_shot and self.method.drops_old_shots:
            self.filled = self.method.sink_frames + self.frames
        super().take(layer, k, v)

    def finish(self) -> None:
        if self.begins_shot and self.method.shot_sinks and self.method.sink_frames:
            place = self.filled - self.frames
            self.sinks = self.method.sink_frames
            # else it is a part of the first sink
            self.shot_sink = place if place >= self.sinks else None
        self.begins_shot = False

    def switch_prompt(self, switch: Switch) -> None:
        self.shots += 1
        self.begins_shot = True
