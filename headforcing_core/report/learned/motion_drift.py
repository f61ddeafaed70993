"""Motion drift as ID-Forcing's authors measure it: whether a video that moves at its beginning moves at its end.

The first and the last five seconds are each judged by VBench's rule for the dynamic degree, on RAFT's flow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .base import MeasuredVideo, Measurement
from .flow import LEAST_SIDE, SAMPLED_FPS, SIDE, THRESHOLD, halved, magnitudes, padded
from .models import Flow

SECONDS = 5.0  # of the beginning and of the end


@dataclass(frozen=True)
class Motion:
    """The motion of a part of a video.

    Attributes:
        scores: of every pair of sampled frames, the mean of the largest 5 % of the flow, in pixels.
        threshold: a pair moves above it.
        needed: how many pairs have to move; 0 asks for any pair.
    """

    scores: tuple[float, ...]
    threshold: float
    needed: int

    @property
    def moves(self) -> bool:
        return bool(self.scores) and sum(score > self.threshold for score in self.scores) >= self.needed

    @property
    def flow(self) -> float | None:
        """The mean score; None without a pair."""
        return sum(self.scores) / len(self.scores) if self.scores else None


def sampled(frames: int, fps: float, seconds: float = SECONDS) -> tuple[range, range]:
    """The indices of the sampled frames in the first and in the last `seconds` of a video, about 8 a second."""
    wanted, every = round(fps * seconds), max(1, round(fps / SAMPLED_FPS))
    return range(0, min(wanted, frames), every), range(max(0, frames - wanted), frames, every)


def motion(flow: Flow, frames: Sequence[Tensor]) -> Motion:
    """The motion in frames `[H, W, 3]` uint8 that were sampled from one part of a video."""
    images = [halved(frame.permute(2, 0, 1)[None].float()) for frame in frames]
    pairs = zip(images, images[1:], strict=False)
    scores = tuple(magnitudes(flow(*map(padded, pair)))[0] for pair in pairs)
    side = min(images[0].shape[-2:]) if images else SIDE
    return Motion(scores, THRESHOLD * side / SIDE, round(4 * len(images) / 16))


class MotionDriftMeasurement(Measurement):
    """One video under way; holds the frames of its first and of its last five seconds."""

    def __init__(self, flow: Flow, video: MeasuredVideo):
        self._flow, self._fps = flow, video.fps
        self._wanted = round(video.fps * SECONDS)
        self._first: list[Tensor] = []
        self._last: deque[Tensor] = deque(maxlen=self._wanted)
        self._frames = 0
        self._beginning: Motion | None = None  # once it is complete

    def add(self, video_frames: Tensor) -> None:
        if min(video_frames.shape[1:3]) < LEAST_SIDE:
            return
        for video_frame in video_frames:
            if len(self._first) < self._wanted:
                self._first.append(video_frame)
            self._last.append(video_frame)
            self._frames += 1

    def values(self) -> tuple[float | None, ...]:
        """0 where the motion of the beginning is lost, else 100; the flow of the beginning and of the end."""
        if self._frames < 2:
            return (None,) * 3
        first, last = sampled(self._frames, self._fps)
        before = self._frames - len(self._last)
        begins = self._beginning or motion(self._flow, [self._first[i] for i in first])
        if len(self._first) == self._wanted:
            self._beginning = begins
        ends = motion(self._flow, [self._last[i - before] for i in last])
        return 100.0 * (not begins.moves or ends.moves), begins.flow, ends.flow
