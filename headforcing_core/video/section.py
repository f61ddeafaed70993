"""A section of any video file as video frames of a render: its size, its frame rate.

Video frames are taken by their timestamps, so the file may have any frame rate, a variable one included.
"""

from __future__ import annotations

import io
import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..timeline.clock import TEMPORAL_STRIDE, VIDEO_FPS, video_frames_of
from .fitting import fit
from .reader import VideoSource, open_video

PARTS = ("last", "first")
# Containers round timestamps, to the millisecond at worst: a video frame counts as shown this much earlier. Well below
# the 16 ms between the frames of usual files.
_ROUNDING = 0.004


@dataclass(frozen=True)
class Clock:
    """The times, in seconds, at which the video frames of a file are shown, in order.

    Attributes:
        end: when the last one ends.
        rate: frames per second of a file that does not state them; 0 where it does.
    """

    times: list[float]
    end: float
    rate: float = 0.0

    @classmethod
    def of(cls, source: VideoSource, name: str) -> Clock:
        """Read it from the packets of a file, without decoding them."""
        with _open(source, name) as container:
            stream = container.streams.video[0]
            rate = float(stream.average_rate or stream.guessed_rate or VIDEO_FPS)
            shown: list[tuple[int | None, int | None]] = []
            try:
                for packet in container.demux(stream):
                    if packet.size and not getattr(packet, "is_discard", False):
                        shown.append((packet.pts, packet.duration))
            except av.error.FFmpegError as error:
                raise _damage_error(name, error) from error
            unit = float(stream.time_base or 0)
        if not shown:
            raise HeadForcingError(f"{name} holds no video frames: give a video that plays elsewhere")
        if not unit or any(pts is None for pts, _ in shown):
            times = [place / rate for place in range(len(shown))]
            return cls(times, times[-1] + 1 / rate, rate)
        times = sorted((pts or 0) * unit for pts, _ in shown)
        gaps = sorted(later - time for time, later in pairwise(times))
        usual = gaps[len(gaps) // 2] if gaps else 1 / rate
        _, duration = max((pts or 0, duration or 0) for pts, duration in shown)
        return cls(times, times[-1] + max(duration * unit, usual))  # some files state too short a duration

    def within(self, start: float, duration: float) -> Clock:
        """The part of it from `start` on, counted from its beginning, and so long; 0: all the rest.

        The first video frame is the one that is shown at the start.
        """
        begin = min(self.times[0] + start, self.times[-1])
        end = min(self.end, begin + duration) if duration else self.end
        times = [begin, *(time for time in self.times if begin < time < end)]
        return self if not start and not duration else replace(self, times=times, end=max(end, begin))

    def frames_at(self, fps: float) -> int:
        """Number of video frames of the file at another frame rate."""
        return max(1, math.floor((self.end - self.times[0] + _ROUNDING) * fps))

    def section(self, count: int, fps: float, part: str) -> list[float]:
        """The times of `count` video frames at `fps` from the beginning, or up to the end."""
        last = max(self.times[-1], self.end - 1 / fps)
        begin = self.times[0] if part == "first" else last - (count - 1) / fps
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
    """The `first` or `last` seconds of a video file, `[4(n-1)+1, height, width, 3]` in 0..1, and what was taken.

    At most `seconds`, in whole blocks of `frames_per_block` latent frames. Pictures are turned upright as the file
    says and fitted to `size` (width, height) as in `fitting.fit`; sound is not read. `window` as in `Clock.within`.
    Raises HeadForcingError for a file that cannot be read, is damaged in this section, or is shorter than one block.
    """
    name, (width, height) = "the video" if isinstance(source, io.BytesIO) else Path(source).name, size
    clock = Clock.of(source, name).within(*window)
    available = min(clock.frames_at(fps), math.floor(seconds * fps + 1e-6))
    frames = 1 + (available - 1) // TEMPORAL_STRIDE
    frames -= frames % frames_per_block
    if frames < 1:
        needed = video_frames_of(frames_per_block)
        raise HeadForcingError(
            f"{name}: expected at least one block of {needed} video frames ({needed / fps:.2f} s at {fps:g} a second) "
            f"to start from, got {available}; give a longer section of a video"
        )
    count = video_frames_of(frames)
    video_frames = _read_times(source, name, clock, clock.section(count, fps, part), size)
    length = clock.end - clock.times[0]
    return video_frames, (
        f"the {part} {count / fps:.2f} of {length:.2f} s of {name}, {count} video frames at {fps:g} a second, fitted "
        f"to {width}x{height}"
    )


def _read_times(source: VideoSource, name: str, clock: Clock, times: list[float], size: tuple[int, int]) -> Tensor:
    """Read the video frames that are shown at these times, `[times, height, width, 3]` in 0..1."""
    # from the last key frame before them, if the file's index leads there
    for seeks in (True, False) if not clock.rate and times[0] > 1 else (False,):
        found = _decode_times(source, name, clock, times, size, seeks)
        if found:
            return torch.stack(found)
    raise HeadForcingError(f"{name} holds no video frames that can be decoded: give a video that plays elsewhere")


def _decode_times(
    source: VideoSource, name: str, clock: Clock, times: list[float], size: tuple[int, int], seeks: bool
) -> list[Tensor]:
    """Decode as `_read_times`, once; empty if the decoder began too late or gave nothing."""
    found: list[Tensor] = []
    shown: av.VideoFrame | None = None
    with _open(source, name) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        aspect = float(stream.sample_aspect_ratio or 1)

        def show(frame: av.VideoFrame, until: int) -> None:
            if until > len(found):  # most frames of a file with more of them are never shown
                found.extend([_fit(frame, aspect, size)] * (until - len(found)))

        try:
            if seeks:
                container.seek(math.floor((times[0] - _ROUNDING) / float(stream.time_base or 1)), stream=stream)
            for place, frame in enumerate(container.decode(stream)):
                time = place / clock.rate if clock.rate else frame.time
                if time is None:
                    continue
                if shown is not None:
                    show(shown, bisect_left(times, time - _ROUNDING))
                elif seeks and time > times[0] + _ROUNDING:
                    return []
                shown = frame
                if len(found) == len(times):
                    return found
        except av.error.FFmpegError as error:
            raise _damage_error(name, error) from error
        if shown is not None:
            show(shown, len(times))
    return found


def _fit(frame: av.VideoFrame, aspect: float, size: tuple[int, int]) -> Tensor:
    """A frame turned as its file says and fitted, `[height, width, 3]` in 0..1; `aspect` is that of its pixels."""
    turns = round(getattr(frame, "rotation", 0) / 90) % 4  # counterclockwise; unknown to older versions of PyAV
    pixels = np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), turns))
    return fit(torch.from_numpy(pixels)[None].float() / 255, *size, 1 / aspect if turns % 2 else aspect)[0]


def _open(source: VideoSource, name: str) -> av.container.InputContainer:
    if isinstance(source, io.BytesIO):
        source.seek(0)
    return open_video(source, name)


def _damage_error(name: str, error: Exception) -> HeadForcingError:
    return HeadForcingError(f"{name} is damaged ({error}): give a video that plays elsewhere, or another section")
