"""A finished video whose frames are read a few at a time, from any of them on."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .reader import VideoSource
from .section import Clock, read_frames
from .sound import Sound, sound_of_file


@dataclass(frozen=True)
class Footage:
    """The frames of a video, at a constant rate, and its sound.

    Attributes:
        video_frames: their number.
        read: from a frame on all frames, one by one, `[height, width, 3]`, uint8 or in 0..1.
        sound: None where there is none.
    """

    video_frames: int
    fps: float
    width: int
    height: int
    read: Callable[[int], Iterator[Tensor]]
    sound: Sound | None = None

    @classmethod
    def of_file(cls, source: VideoSource, window: tuple[float, float] = (0.0, 0.0)) -> Footage:
        """A video file, `window` as in `Clock.within`. Raises HeadForcingError for one that cannot be read."""
        name = "the video" if isinstance(source, io.BytesIO) else Path(source).name
        clock = Clock.of(source, name).within(*window)
        times = clock.section(clock.frames_at(clock.fps), clock.fps, "first")
        height, width, _ = next(read_frames(source, name, clock, times[:1])).shape
        return cls(
            len(times),
            clock.fps,
            width,
            height,
            lambda first: read_frames(source, name, clock, times[first:]),
            sound_of_file(source, name, clock.times[0], clock.end),
        )

    @classmethod
    def of_images(cls, images: Tensor, fps: float, sound: Sound | None = None) -> Footage:
        """Frames in memory, `[n, height, width, 3]` in 0..1."""
        count, height, width, _ = images.shape
        return cls(count, fps, width, height, lambda first: iter(images[first:]), sound)

    def chunks(self, first: int, length: int) -> Iterator[Tensor]:
        """Chunks `[n, height, width, 3]` in 0..1 from a frame on, each of which brings up to `length` frames.

        The first chunk has one frame more; later ones begin with the last frame of the one before, for models that
        take pairs of frames.
        """
        held: list[Tensor] = []
        begun = False
        for frame in self.read(first):
            held.append(frame if frame.is_floating_point() else frame.float() / 255)
            if len(held) > length:
                yield torch.stack(held)
                begun, held = True, held[-1:]
        if held and not (begun and len(held) == 1):
            yield torch.stack(held)
