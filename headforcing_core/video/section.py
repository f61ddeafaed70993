"""Video frames of any file, by their timestamps: a section at a render's size and frame rate, or
all, one by one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_high
from typing import Any

import numpy as np
import torch
from av import VideoFrame
from av.error import FFmpegError
from torch import Tensor

from ..errors import HeadForcingError
from ..timeline.clock import TEMPORAL_STRIDE, VIDEO_FPS, video_frames_of
from .reader import VideoSource, fit, name_of, open_video
from .sound import Sound, sound_of_file

# Containers round timestamps, to the millisecond at worst: a video frame counts as shown this much
# earlier, or by a quarter of the time between two frames, if that is less.
_ROUNDING = 0.004
MAX_START_SECONDS = 30.0  # of video frames in memory
_PLAYS = "give a video that plays elsewhere"


@dataclass(frozen=True)
class Clock:
    """The times, in seconds, at which the video frames of a file are shown, in order."""

    times: list[float]
    end: float  # of the last one
    fps: float  # as the file states it where that fits, else the mean
    timed: bool = True  # the file has timestamps

    @classmethod
    def of(cls, source: VideoSource) -> Clock:
        """Read it from the packets of a file, without decoding them."""
        with open_video(source, name_of(source)) as container:
            stream = container.streams.video[0]
            rate = float(stream.average_rate or stream.guessed_rate or VIDEO_FPS)
            shown: list[Any] = []
            try:
                for packet in container.demux(stream):
                    if packet.size and not packet.is_discard:
                        shown.append((packet.pts, packet.duration or 0))
            except FFmpegError as error:
                raise _damage_error(source, error) from error
            unit = float(stream.time_base or 0)
        if not shown:
            raise HeadForcingError(f"{name_of(source)} holds no video frames: {_PLAYS}")
        if not unit or any(pts is None for pts, _ in shown):
            times = [place / rate for place in range(len(shown))]
            return cls(times, times[-1] + 1 / rate, rate, timed=False)
        shown.sort()
        times = [pts * unit for pts, _ in shown]
        gaps = [later - time for time, later in pairwise(times)]
        usual = median_high(gaps or [1 / rate])
        _, duration = shown[-1]
        end = times[-1] + max(duration * unit, usual)  # some files state too short a duration
        count = len(times)
        span = end - times[0]
        if span and abs(rate * span - count) > 0.01 * count:
            rate = count / span
        return cls(times, end, rate)

    def within(self, start: float, duration: float) -> Clock:
        """The part from `start` on, counted from the beginning, with the frame shown then, and so
        long; 0: the rest.
        """
        if not start and not duration:
            return self
        begin = min(self.times[0] + start, self.times[-1])
        end = self.end
        if duration:
            end = min(end, begin + duration)
        times = [begin, *(time for time in self.times if begin < time < end)]
        return replace(self, times=times, end=max(end, begin))

    @property
    def rounding(self) -> float:
        """Seconds by which a video frame counts as shown earlier."""
        return min(_ROUNDING, 0.25 / self.fps)

    def frames_at(self, fps: float) -> int:
        """Number of video frames of the file at another frame rate."""
        return max(1, math.floor((self.end - self.times[0] + self.rounding) * fps))

    def section(self, count: int, fps: float, part: str) -> list[float]:
        """The times of `count` video frames at `fps` from the beginning, or up to the end."""
        last = max(self.times[-1], self.end - 1 / fps)
        begin = last - (count - 1) / fps
        if part == "first":
            begin = self.times[0]
        return [begin + place / fps for place in range(count)]


def read_section(
    source: VideoSource,
    size: tuple[int, int],
    seconds: float,
    part: str = "last",
    frames_per_block: int = 3,
    window: tuple[float, float] = (0.0, 0.0),
    fps: float = VIDEO_FPS,
) -> tuple[Tensor, str]:
    """The `first` or `last` seconds of a video file, `[4(n-1)+1, height, width, 3]` in 0..1, and
    what was taken.

    Blocks of `frames_per_block` latent frames, upright, fitted to `size` (width, height); `window`
    as in `within`. Raises HeadForcingError for a file that cannot be read, is damaged in this
    section, or is shorter than one block.
    """
    if not 0 < seconds <= MAX_START_SECONDS:
        raise HeadForcingError(
            f"start seconds must be above 0 and at most {MAX_START_SECONDS:g}, got {seconds:g}"
        )
    name = name_of(source)
    clock = Clock.of(source).within(*window)
    available = min(clock.frames_at(fps), math.floor(seconds * fps + 1e-6))
    frames = 1 + (available - 1) // TEMPORAL_STRIDE
    frames -= frames % frames_per_block
    if frames < 1:
        needed = video_frames_of(frames_per_block)
        raise HeadForcingError(
            f"{name}: expected at least one block of {needed} video frames ({needed / fps:.2f} s "
            f"at {fps:g} a second) to start from, got {available}; give a longer section of a video"
        )
    count = video_frames_of(frames)
    video_frames = torch.stack(
        list(read_frames(source, clock, clock.section(count, fps, part), size))
    )
    length = clock.end - clock.times[0]
    return video_frames, (
        f"the {part} {count / fps:.2f} of {length:.2f} s of {name}, {count} video frames at "
        f"{fps:g} a second, fitted to {size[0]}x{size[1]}"
    )


@dataclass(frozen=True)
class Footage:
    """The frames of a video, at a constant rate, and its sound, if it has any."""

    video_frames: int
    fps: float
    width: int
    height: int
    # all frames from one on, one by one, `[h, w, 3]`, uint8 or in 0..1
    read: Callable[[int], Iterator[Tensor]]
    sound: Sound | None = None

    @classmethod
    def of_file(cls, source: VideoSource, window: tuple[float, float] = (0.0, 0.0)) -> Footage:
        """A video file, `window` as in `Clock.within`. Raises HeadForcingError for one that cannot
        be read.
        """
        clock = Clock.of(source).within(*window)
        times = clock.section(clock.frames_at(clock.fps), clock.fps, "first")
        height, width, _ = next(read_frames(source, clock, times[:1])).shape
        return cls(
            video_frames=len(times),
            fps=clock.fps,
            width=width,
            height=height,
            read=lambda first: read_frames(source, clock, times[first:]),
            sound=sound_of_file(source, clock.times[0], clock.end),
        )

    @classmethod
    def of_images(cls, images: Tensor, fps: float, sound: Sound | None = None) -> Footage:
        """Frames in memory, `[n, height, width, 3]` in 0..1."""
        count, height, width, _ = images.shape
        return cls(
            video_frames=count,
            fps=fps,
            width=width,
            height=height,
            read=lambda first: iter(images[first:]),
            sound=sound,
        )

    def chunks(self, first: int, length: int) -> Iterator[Tensor]:
        """Chunks `[n, height, width, 3]` in 0..1 from a frame on, each of which brings up to
        `length` frames.

        The first chunk has one frame more; later ones begin with the last frame of the one before,
        for models that take pairs of frames.
        """
        held = []
        begun = False
        for frame in self.read(first):
            held.append(frame if frame.is_floating_point() else frame.float() / 255)
            if len(held) > length:
                yield torch.stack(held)
                begun = True
                held = held[-1:]
        if len(held) > begun:
            yield torch.stack(held)


def read_frames(
    source: VideoSource, clock: Clock, times: list[float], size: tuple[int, int] | None = None
) -> Iterator[Tensor]:
    """The video frames that are shown at these times, ascending, one by one: `[height, width, 3]`,
    uint8, upright.

    With a `size` (width, height) they are fitted to it, in 0..1. Raises HeadForcingError for a file
    that is damaged there.
    """
    shown = 0
    for frame, aspect, count in frames_shown(source, clock, times, clock.timed and times[0] > 1):
        shown += count
        turns = round(frame.rotation / 90) % 4  # counterclockwise
        pixels = torch.from_numpy(
            np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))
        )
        if turns % 2:
            aspect = 1 / aspect
        if size is not None:
            pixels = fit(pixels[None].float() / 255, *size, aspect)[0]
        yield from [pixels] * count
    if not shown:
        raise HeadForcingError(
            f"{name_of(source)} holds no video frames that can be decoded: {_PLAYS}"
        )


def frames_shown(
    source: VideoSource, clock: Clock, times: Sequence[float], seeks: bool
) -> Iterator[tuple[VideoFrame, float, int]]:
    """The frames shown at these times, ascending, each with its pixels' aspect and at how many of
    the times it is shown; with `seeks` from the last key frame before them, if the file's index
    leads there.
    """
    known = 0  # times at which the frame is known
    before: VideoFrame | None = None
    with open_video(source, name_of(source)) as container:
        stream = container.streams.video[0]
        aspect = float(stream.sample_aspect_ratio or 1)
        try:
            if seeks:
                container.seek(
                    math.floor((times[0] - clock.rounding) / float(stream.time_base or 1)),
                    stream=stream,
                )
            for place, frame in enumerate(container.decode(stream)):
                time = frame.time if clock.timed else place / clock.fps
                if time is None:
                    continue
                until = bisect_left(times, time - clock.rounding)
                if before is None and seeks and until:
                    break  # the seek went too far
                if before is not None and until > known:
                    # most frames of a file with more of them are never shown
                    yield before, aspect, until - known
                    known = until
                before = frame
                if known == len(times):
                    return
        except FFmpegError as error:
            raise _damage_error(source, error) from error
        if before is not None:
            yield before, aspect, len(times) - known
    if before is None and seeks:
        yield from frames_shown(source, clock, times, seeks=False)


def _damage_error(source: VideoSource, error: Exception) -> HeadForcingError:
    return HeadForcingError(f"{name_of(source)} is damaged ({error}): {_PLAYS}, or another section")
