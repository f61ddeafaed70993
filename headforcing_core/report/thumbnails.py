"""Metrics from thumbnails of a video: repetition, and speed of the response to a new prompt."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Matrix = NDArray[np.float32]
Pixels = NDArray[np.uint8]

THUMBNAIL = (32, 18)  # width and height in pixels
MOST_THUMBNAILS = 600
# measured time after a switch; the mean of its second half is the final state
RESPONSE_SECONDS = 10.0
BEFORE_SECONDS = 2.0  # measured time before a switch; its mean is the initial state
REPEAT_SECONDS = 2.0  # shorter lags do not count: adjacent frames are similar in every video
_LONGEST_LAG = 0.75  # of the length: for longer lags there are too few pairs of thumbnails
_LEAST_RISE = 0.1  # smallest rise of similarity, after a fall, that counts as repetition
_NOISE = 1.0  # 0-255: smaller differences between thumbnails are noise


class Thumbnails:
    """Evenly spaced thumbnails of a video of unknown length: at most `MOST_THUMBNAILS`, one every
    `spacing` video frames.

    When they are full, every second one is dropped and the spacing doubles.
    """

    def __init__(self) -> None:
        self.spacing = 1
        self._kept: list[Pixels] = []
        self._seen = 0

    def add(self, small: Pixels) -> None:
        """Add the next video frame's thumbnail; only every `spacing`-th is stored."""
        if self._seen % self.spacing == 0:
            if len(self._kept) == MOST_THUMBNAILS:
                self._kept = self._kept[::2]
                self.spacing *= 2
            if self._seen % self.spacing == 0:
                self._kept.append(small)
        self._seen += 1

    def stack(self, video_frames: int | None = None) -> Pixels:
        """The stored thumbnails `[n, 18, 32, 3]`, of all frames or of the first `video_frames`."""
        count = None if video_frames is None else -(-video_frames // self.spacing)
        return np.stack(self._kept[:count])


def self_similarity(thumbnails: Pixels) -> Matrix:
    """Cosine similarity of `n` thumbnails after subtraction of their mean, `[n, n]`, -1 to 1.

    Without the mean, static parts of the video do not contribute: 1 means that the changing parts
    are equal.
    """
    x = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    x = x - x.mean(axis=0)
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), _NOISE * x.shape[1] ** 0.5)
    similarity: Matrix = x @ x.T
    return similarity


def repetition(similarity: Matrix, spacing_seconds: float) -> tuple[float, float | None]:
    """The similarity (0..1) at which a video repeats itself, and after how many seconds; 0 and None
    if it does not.

    That is the shortest lag of at least 2 s at which similarity has risen again, within 5 %, by as
    much as at any lag.
    """
    lags = range(int(len(similarity) * _LONGEST_LAG) + 1)
    by_lag = np.array([similarity.diagonal(lag).mean() for lag in lags])
    rise = by_lag - np.minimum.accumulate(by_lag)
    top = np.zeros(len(by_lag), dtype=bool)
    top[1:-1] = (by_lag[1:-1] >= by_lag[:-2]) & (by_lag[1:-1] >= by_lag[2:])
    rise[~top | (np.arange(len(by_lag)) * spacing_seconds < REPEAT_SECONDS - 1e-6)] = 0
    best = float(rise.max(initial=0))
    if best < _LEAST_RISE:
        return 0.0, None
    first = int(np.argmax(rise >= 0.95 * best))
    return max(0.0, float(by_lag[first])), first * spacing_seconds


@dataclass(frozen=True)
class SwitchResponse:
    """Response of the video to a prompt switch at `video_frame`, measured in thumbnails."""

    video_frame: int
    change: float  # mean absolute difference between the states before and after, 0-255
    # time until 80 % of the change; None if too little follows or changes
    seconds_to_80: float | None

    def text(self) -> str:
        """The response in words."""
        reached = "not measurable"
        if self.seconds_to_80 is not None:
            reached = f"after {self.seconds_to_80:.2f} s"
        return f"80 % {reached}, change {self.change:.1f} of 255"


class SwitchWatch:
    """Collects thumbnails for up to 10 s after each switch, or until the next one, and measures the
    responses.
    """

    def __init__(self, switches: Sequence[int], fps: float, block_frames: int):
        self.switches = frozenset(switches)
        self._fps = fps
        self._block = block_frames
        self._before: deque[Array] = deque(maxlen=max(1, round(BEFORE_SECONDS * fps)))
        self._reference: Array | None = None
        self._after: list[Pixels] = []
        self._limit = max(2 * block_frames, round(RESPONSE_SECONDS * fps))
        self._done: list[SwitchResponse] = []
        self._seen = 0

    def add(self, small: Pixels) -> None:
        """Add the next video frame's thumbnail."""
        if self._seen in self.switches and self._before:
            self._done = self.responses()
            self._reference = np.mean(self._before, axis=0)
            self._after = []
            self._start = self._seen
        if self._reference is not None:
            self._after.append(small)
            if len(self._after) == self._limit:
                self._done = self.responses()
                self._reference = None
        self._before.append(small.astype(np.float64))
        self._seen += 1

    def responses(self) -> list[SwitchResponse]:
        """All responses so far, including that to the current switch."""
        if self._reference is None:
            return self._done
        return [*self._done, self._response(self._reference)]

    def _response(self, before: Array) -> SwitchResponse:
        """The response to the current switch, from the mean thumbnail before it.

        The final state is the mean of the second half of those after it. Progress is the projection
        of each thumbnail on the direction from `before` to the final state, so that other motion
        does not count as a response.
        """
        after = np.stack(self._after).astype(np.float64)
        towards = after[len(after) // 2 :].mean(axis=0) - before
        change = float(np.abs(towards).mean())
        if change < _NOISE or len(after) < 2 * self._block:
            return SwitchResponse(self._start, change, None)
        changes = (after - before).reshape(len(after), -1)
        progress = changes @ towards.ravel() / float((towards**2).sum())
        seconds = None
        reached = int(np.argmax(progress >= 0.8))
        if progress[reached] >= 0.8:
            seconds = 0.0
            if reached:  # between two video frames
                before_it = progress[reached - 1]
                part = float((0.8 - before_it) / (progress[reached] - before_it))
                seconds = (reached - 1 + part) / self._fps
        return SwitchResponse(self._start, change, seconds)
