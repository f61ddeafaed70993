"""Frame-by-frame measurement of how a video changes over its length, without any network.

`DriftMeter` receives video frames one by one and stores one row of sums per second and a limited
number of thumbnails, never the video. `metrics.py` computes the metrics from them. None of these
are VBench scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..timeline.clock import TEMPORAL_STRIDE
from .thumbnails import THUMBNAIL, Array, Pixels, SwitchWatch, Thumbnails

# mean change below which a frame counts as frozen; as in FFmpeg's freezedetect
FROZEN_CHANGE = 0.001 * 255
_SAMPLE_PIXELS = 40_000  # pixels sampled for colour statistics; more do not change them visibly
HUES = 180  # OpenCV's, of 8-bit colours, in integers: ID-Forcing's histogram is of them
_HUE_BITS = 12  # after the point

LEVELS = ("y", "y_std", "saturation", "sharpness")
# The row of one second: sums over its video frames, or over the changes between adjacent frames
# that end in it. `edge` are changes with which a block begins, `inside` all others.
FIELDS = (
    "frames",
    "changes",
    "change",
    "frozen",
    "freeze_run",
    "hue_distance",
    "edge",
    "edge_changes",
    "inside",
    "inside_changes",
    *LEVELS,
)


class DriftMeter:
    """Measures video frames `[n, H, W, 3]` uint8 of one size as they are added.

    `switches` are the video frames with which a new prompt begins, counted from the first frame
    added, which is number `first_video_frame` of the whole video.
    """

    def __init__(
        self,
        fps: float,
        frames_per_block: int = 3,
        switches: Sequence[int] = (),
        first_video_frame: int = 0,
    ):
        self.fps = fps
        self.video_frames = 0
        self.thumbnails = Thumbnails()
        self._block = TEMPORAL_STRIDE * frames_per_block  # in video frames
        self._first = first_video_frame
        self.watch = SwitchWatch(switches, fps, self._block)
        self._rows: list[dict[str, float]] = []
        self._freeze_run = 0
        self._hues: Array | None = None  # of the first frame
        self._before: Pixels | None = None

    def add(self, video_frames: Pixels) -> None:
        """Measure the next video frames."""
        for video_frame in video_frames:
            self._measure(np.ascontiguousarray(video_frame))

    def seconds(self) -> dict[str, Array]:
        """All `FIELDS` with one value per (started) second. Levels are sums of 0-255, saturation of
        0-1.
        """
        self._close_hues()
        return {name: np.array([row[name] for row in self._rows]) for name in FIELDS}

    def _measure(self, video_frame: Pixels) -> None:
        if self._hues is None:
            self._hues = hue_histogram(video_frame)
        row = self._row()
        row["frames"] += 1
        for name, value in zip(LEVELS, levels(video_frame), strict=True):
            row[name] += value
        if self._before is not None:
            self._add_change(row, difference(self._before, video_frame))
        image = Image.fromarray(video_frame)
        thumbnail = np.asarray(image.resize(THUMBNAIL, Image.Resampling.BOX))  # area averaging
        self.thumbnails.add(thumbnail)
        self.watch.add(thumbnail)
        self._before = video_frame
        self.video_frames += 1

    def _add_change(self, row: dict[str, float], change: float) -> None:
        """Add the change since the previous frame to a row."""
        row["changes"] += 1
        row["change"] += change
        if change < FROZEN_CHANGE:
            self._freeze_run += 1
            row["frozen"] += 1
        else:
            self._freeze_run = 0
        row["freeze_run"] = max(row["freeze_run"], self._freeze_run)
        if self.video_frames in self.watch.switches:
            return  # a new prompt may change everything and must not count as a block edge
        # the first latent frame of a video is as long as one video frame
        number = self.video_frames + self._first + TEMPORAL_STRIDE - 1
        kind = "inside" if number % self._block else "edge"
        row[kind] += change
        row[f"{kind}_changes"] += 1

    def _row(self) -> dict[str, float]:
        """The row of the current second, appended if it has just begun."""
        if int(self.video_frames / self.fps) >= len(self._rows):
            self._close_hues()
            self._rows.append(dict.fromkeys(FIELDS, 0.0))
        return self._rows[-1]

    def _close_hues(self) -> None:
        """Compare the last frame of the current second, so far, with the first one of the video."""
        if self._before is not None and self._hues is not None:
            self._rows[-1]["hue_distance"] = hue_distance(self._hues, hue_histogram(self._before))


def levels(video_frame: Pixels) -> list[float]:
    """`LEVELS` of an RGB image `[H, W, 3]`: mean and standard deviation of the brightness of
    BT.601, mean HSV saturation, sharpness.
    """
    luma = np.asarray(Image.fromarray(video_frame).convert("L"))
    step = max(1, round((luma.size / _SAMPLE_PIXELS) ** 0.5))
    red, green, blue = video_frame[::step, ::step].astype(np.float32).reshape(-1, 3).T
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    most = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)
    saturation = (most - least) / np.maximum(most, 1)
    return [float(y.mean()), float(y.std()), float(saturation.mean()), laplacian_variance(luma)]


def laplacian_variance(luma: Pixels) -> float:
    """Variance of the 4-neighbour Laplacian of `[H, W]`, a measure of sharpness. 0 for fewer than
    3x3 pixels.
    """
    if min(luma.shape) < 3:
        return 0.0
    x = luma.astype(np.int16)
    above = x[:-2, 1:-1]
    below = x[2:, 1:-1]
    left = x[1:-1, :-2]
    right = x[1:-1, 2:]
    edges = 4 * x[1:-1, 1:-1] - above - below - left - right
    return float(edges.var(dtype=np.float32))


def difference(before: Pixels, after: Pixels) -> float:
    """Mean absolute difference of two images."""
    # uint8, which cannot be negative
    distance = np.maximum(before, after) - np.minimum(before, after)
    return float(distance.mean(dtype=float))


def hue(video_frame: Pixels) -> NDArray[np.int64]:
    """The hue of every pixel of `[..., 3]`, 0-179; greys have 0."""
    red, green, blue = np.moveaxis(video_frame.astype(np.int64), -1, 0)
    most = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)
    spread = most - least
    from_red = green - blue
    from_green = blue - red + 2 * spread
    from_blue = red - green + 4 * spread
    above = np.where(most == red, from_red, np.where(most == green, from_green, from_blue))
    turns = np.rint((HUES << _HUE_BITS) / (6.0 * np.maximum(spread, 1))).astype(np.int64)
    half = 1 << (_HUE_BITS - 1)
    return ((above * turns + half) >> _HUE_BITS) % HUES


def hue_histogram(video_frame: Pixels) -> Array:
    """The share of pixels with each hue, `[180]`."""
    hues = hue(video_frame)
    return np.bincount(hues.ravel(), minlength=HUES) / hues.size


def hue_distance(a: Array, b: Array) -> float:
    """The sum of absolute differences of two histograms, 0 to 2."""
    return float(np.abs(a - b).sum())


def color_drift(distance: float) -> float:
    """ID-Forcing's Color Drift of one video or, from a mean distance, of several: 100 keeps all
    hues, 0 none.
    """
    return 100 * (1 - distance / 2)
