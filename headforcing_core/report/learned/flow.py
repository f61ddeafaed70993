"""Dynamic degree: whether a video moves, by optical flow, and how much; and whether it still moves at its end.

VBench's rule on RAFT's flow: a video moves if the mean of the 5 % largest flow is above 6 pixels, at a shorter side of
256, in a quarter of the frames sampled at about 8 a second. Of a long video also the share of its clips of 2 s that
do, which is how VBench-Long measures it. ID-Forcing's motion drift judges the first and the last five seconds by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .base import CLIP_SECONDS, MeasuredVideo, Measurement
from .models import Flow

SAMPLED_FPS = 8
THRESHOLD = 6.0  # pixels between two sampled frames whose shorter side is `SIDE`
SIDE = 256
TOP = 0.05  # the share of pixels with the largest flow, whose mean decides
LEAST_SIDE = 128  # pixels; RAFT takes no smaller frames
MOST_PIXELS = 1 << 20  # of a frame: RAFT's memory grows with the square of this number
DRIFT_SECONDS = 5.0  # of the beginning and of the end


class FlowMeasurement(Measurement):
    """One video under way; holds one frame, and whether the pairs of the last clip move."""

    def __init__(self, flow: Flow, video: MeasuredVideo):
        self._flow, self._every = flow, max(1, round(video.fps / SAMPLED_FPS))
        self._before: Tensor | None = None
        self._frames, self._sampled, self._above = 0, 0, 0
        self._clip = max(2, -(-int(video.fps) * CLIP_SECONDS // self._every))  # sampled frames
        self._last: deque[bool] = deque(maxlen=self._clip - 1)  # those between the frames of one clip
        self._clips_moving = 0
        self._top_total, self._mean_total = 0.0, 0.0

    def add(self, video_frames: Tensor) -> None:
        if min(video_frames.shape[1:3]) < LEAST_SIDE:
            return
        for video_frame in video_frames:
            if self._frames % self._every == 0:
                self._sample(video_frame.permute(2, 0, 1)[None].float())
            self._frames += 1

    def _sample(self, image: Tensor) -> None:
        image = halved(image)
        if self._before is not None:
            scale = min(image.shape[-2:]) / SIDE
            top, mean = magnitudes(self._flow(padded(self._before), padded(image)))
            self._last.append(top > THRESHOLD * scale)
            self._above += self._last[-1]
            self._top_total += top / scale
            self._mean_total += mean / scale
        self._before, self._sampled = image, self._sampled + 1
        if self._sampled % self._clip == 0:
            self._clips_moving += self._last_moves()

    def _last_moves(self) -> bool:
        """Whether the last sampled frames, as many as a clip has, move."""
        return sum(self._last) >= _needed(self._clip)

    def values(self) -> tuple[float | None, ...]:
        """Whether the video moves, the share of its clips that do (None of one), the largest flow and the mean flow."""
        pairs = self._sampled - 1
        if pairs < 1:
            return (None,) * 4
        clips, rest = divmod(self._sampled, self._clip)
        moving = self._clips_moving
        if clips and rest:  # the last clip begins earlier, so that it is as long as the others
            moving, clips = moving + self._last_moves(), clips + 1
        within = moving / clips if clips > 1 else None
        moves = float(self._above >= _needed(self._sampled))
        return moves, within, self._top_total / pairs, self._mean_total / pairs


def sampled(frames: int, fps: float, seconds: float = DRIFT_SECONDS) -> tuple[range, range]:
    """The indices of the sampled frames in the first and in the last `seconds` of a video, about 8 a second."""
    wanted, every = round(fps * seconds), max(1, round(fps / SAMPLED_FPS))
    return range(0, min(wanted, frames), every), range(max(0, frames - wanted), frames, every)


def motion(flow: Flow, frames: Sequence[Tensor]) -> tuple[list[float], bool]:
    """The largest flow of every pair of frames `[H, W, 3]` uint8, sampled from a part of a video, and if it moves."""
    images = [halved(frame.permute(2, 0, 1)[None].float()) for frame in frames]
    scores = [magnitudes(flow(*map(padded, pair)))[0] for pair in zip(images, images[1:], strict=False)]
    above = [score > THRESHOLD * min(images[0].shape[-2:]) / SIDE for score in scores]
    return scores, bool(scores) and sum(above) >= _needed(len(images))


class MotionDriftMeasurement(Measurement):
    """One video under way; holds the frames of its first and of its last five seconds."""

    def __init__(self, flow: Flow, video: MeasuredVideo):
        self._flow, self._fps = flow, video.fps
        self._wanted = round(video.fps * DRIFT_SECONDS)
        self._first: list[Tensor] = []
        self._last: deque[Tensor] = deque(maxlen=self._wanted)
        self._frames = 0
        self._beginning: tuple[list[float], bool] | None = None  # once it is complete

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
        means = (sum(scores) / len(scores) if scores else None for scores, _ in (begins, ends))
        return 100.0 * (not begins[1] or ends[1]), *means


def _needed(sampled: int) -> int:
    """The pairs above the threshold that VBench's rule asks for among so many sampled frames."""
    return round(4 * sampled / 16)


def halved(image: Tensor) -> Tensor:
    """An image with half the sides until it has at most `MOST_PIXELS`, if RAFT takes one so small."""
    while image.shape[-2] * image.shape[-1] > MOST_PIXELS and min(image.shape[-2:]) >= 2 * LEAST_SIDE:
        image = functional.avg_pool2d(image, 2)
    return image


def magnitudes(flow: Tensor) -> tuple[float, float]:
    """The mean length of the 5 % longest vectors of a flow `[1, 2, h, w]`, and that of all, in pixels."""
    lengths = flow[0].float().square().sum(dim=0).sqrt().flatten()
    longest = torch.topk(lengths, max(1, int(len(lengths) * TOP))).values
    return float(longest.mean()), float(lengths.mean())


def padded(image: Tensor) -> Tensor:
    """An image with sides divisible by 8, its edge repeated on both sides."""
    missing = [-size % 8 for size in image.shape[-2:]]
    (top, left) = (amount // 2 for amount in missing)
    return functional.pad(image, (left, missing[1] - left, top, missing[0] - top), mode="replicate")
