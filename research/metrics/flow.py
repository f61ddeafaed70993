"""Dynamic degree: whether a video moves, by optical flow, and how much; and whether it still moves
at its end.

VBench's rule on RAFT's flow: a video moves if the mean of the 5 % largest flow is above 6 pixels,
at a shorter side of 256, in a quarter of the frames sampled at about 8 a second. Of a long video
also the share of its clips of 2 s that do, which is how VBench-Long measures it. ID-Forcing's
motion drift judges the first and the last five seconds by it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional

from .base import CLIP_SECONDS, Measurement, VideoFacts
from .models import Flow

SAMPLED_FPS = 8
THRESHOLD = 6.0  # pixels between two sampled frames whose shorter side is `SIDE`
SIDE = 256
TOP = 0.05  # the share of pixels with the largest flow, whose mean decides
LEAST_SIDE = 128  # pixels; RAFT takes no smaller frames
MOST_PIXELS = 1 << 20  # of a frame: RAFT's memory grows with the square of this number
DRIFT_SECONDS = 5.0  # of the beginning and of the end


class FlowMeasurement(Measurement):
    """One video under way; holds one frame, and three numbers for each pair of sampled ones."""

    def __init__(self, flow: Flow, video: VideoFacts):
        self._flow = flow
        self._every = max(1, round(video.fps / SAMPLED_FPS))
        self._clip = max(2, -(-int(video.fps) * CLIP_SECONDS // self._every))  # sampled frames
        self._before: Tensor | None = None
        self._pairs: list[tuple[float, float, bool]] = []  # see `compare`
        self._frames = 0
        self._scale = 1.0

    def add(self, video_frames: Tensor) -> None:
        if min(video_frames.shape[1:3]) < LEAST_SIDE:
            return
        for video_frame in video_frames:
            if self._frames % self._every == 0:
                image = image_of(video_frame)
                if self._before is not None:
                    self._pairs.append(compare(self._flow, self._before, image))
                self._before = image
                self._scale = min(image.shape[-2:]) / SIDE
            self._frames += 1

    def values(self) -> tuple[float | None, ...]:
        """Whether the video moves, the share of its clips that do (None of one), the largest flow
        and the mean flow.
        """
        if not self._pairs:
            return (None,) * 4
        tops, means, moving = zip(*self._pairs, strict=True)
        sampled = len(moving) + 1
        clip = self._clip
        starts = [*range(0, sampled - clip + 1, clip)]
        # the last clip begins earlier, so that it is as long as the others
        if starts and sampled % clip:
            starts.append(sampled - clip)
        clips = [moves(moving[start : start + clip - 1]) for start in starts]
        within = fmean(clips) if len(clips) > 1 else None
        return float(moves(moving)), within, fmean(tops) / self._scale, fmean(means) / self._scale


def sampled(frames: int, fps: float, seconds: float = DRIFT_SECONDS) -> tuple[range, range]:
    """The indices of the sampled frames in the first and in the last `seconds` of a video, about 8
    a second.
    """
    wanted = round(fps * seconds)
    every = max(1, round(fps / SAMPLED_FPS))
    return range(0, min(wanted, frames), every), range(max(0, frames - wanted), frames, every)


def motion(flow: Flow, frames: Sequence[Tensor]) -> tuple[list[float], bool]:
    """The largest flow of every pair of frames `[H, W, 3]` uint8, sampled from a part of a video,
    and if it moves.
    """
    pairs = [compare(flow, *images) for images in pairwise(map(image_of, frames))]
    return [top for top, _, _ in pairs], bool(pairs) and moves([moving for _, _, moving in pairs])


class MotionDriftMeasurement(Measurement):
    """One video under way; holds the frames of its first and of its last five seconds."""

    def __init__(self, flow: Flow, video: VideoFacts):
        self._flow = flow
        self._fps = video.fps
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
        """0 where the motion of the beginning is lost, else 100; the flow of the beginning and of
        the end.
        """
        if self._frames < 2:
            return (None,) * 3
        first, last = sampled(self._frames, self._fps)
        before = self._frames - len(self._last)
        begins = self._beginning or motion(self._flow, [self._first[i] for i in first])
        if len(self._first) == self._wanted:
            self._beginning = begins
        ends = motion(self._flow, [self._last[i - before] for i in last])
        is_kept = not begins[1] or ends[1]
        return 100.0 * is_kept, _mean(begins[0]), _mean(ends[0])


def _mean(scores: Sequence[float]) -> float | None:
    return fmean(scores) if scores else None


def moves(pairs: Sequence[bool]) -> bool:
    """VBench's rule for sampled frames, of which these neighbours are above the threshold."""
    return sum(pairs) >= round((len(pairs) + 1) / 4)


def compare(flow: Flow, before: Tensor, after: Tensor) -> tuple[float, float, bool]:
    """The mean length of the 5 % longest vectors of the flow between two images, of all, and if the
    first is above the threshold."""
    lengths = flow(padded(before), padded(after))[0].float().square().sum(dim=0).sqrt().flatten()
    top = float(torch.topk(lengths, max(1, int(len(lengths) * TOP))).values.mean())
    return top, float(lengths.mean()), top > THRESHOLD * min(after.shape[-2:]) / SIDE


def image_of(video_frame: Tensor) -> Tensor:
    """An image `[1, 3, h, w]` of a frame `[H, W, 3]`: with half the sides, until RAFT can take
    it.
    """
    image = video_frame.permute(2, 0, 1)[None].float()
    while (
        image.shape[-2] * image.shape[-1] > MOST_PIXELS and min(image.shape[-2:]) >= 2 * LEAST_SIDE
    ):
        image = functional.avg_pool2d(image, 2)
    return image


def padded(image: Tensor) -> Tensor:
    """An image with sides divisible by 8, its edge repeated on both sides."""
    down = -image.shape[-2] % 8
    right = -image.shape[-1] % 8
    sides = (right // 2, right - right // 2, down // 2, down - down // 2)
    return functional.pad(image, sides, mode="replicate")
