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
# latent frames in the 5 s that the models were trained on: 81 video frames, then 84 each
PERIOD_FRAMES = 21
REFERENCE_SECONDS = 2  # length of the beginning with which colours are compared
_SAMPLE_PIXELS = 40_000  # pixels sampled for colour statistics; more do not change them visibly
HUES = 180  # OpenCV's, of 8-bit colours, in integers: ID-Forcing's histogram is of them
_HUE_BITS = 12  # after the point
_MOTION_SIDE = 128  # longer side, in pixels, of the grey image in which motion is measured


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


def detail_share(luma: Pixels) -> float:
    """Fraction of the variance of `[H, W]` that is within 4x4 pixel squares (high frequencies); 0
    for a flat image.
    """
    rows = luma.shape[0] // 4
    columns = luma.shape[1] // 4
    if not rows or not columns:
        return 0.0
    x = luma[: 4 * rows, : 4 * columns].astype(np.float32)
    total = float(x.var())
    means = x.reshape(rows, 4, columns, 4).mean(axis=(1, 3))
    if total < 1e-3:
        return 0.0
    return max(0.0, 1 - float(means.var()) / total)


OF_LUMA = {
    "sharpness": laplacian_variance,
    "detail": detail_share,
}  # measured in every frame's brightness

# The row of one second: sums over its video frames, or over the changes between adjacent frames
# that end in it.
KINDS = (
    "inside",
    "frame",
    "edge",
    "switch",
    "period",
)  # "frame": a latent frame starts, but no block
LEVELS = ("y", "cb", "cr", "y_std", "cb_std", "cr_std", "saturation")
FIELDS = (
    "frames",
    "changes",
    "change",
    "residual",
    "frozen",
    "freeze_run",
    "histogram_distance",
    "hue_distance",
    *KINDS,
    *(f"{kind}_changes" for kind in KINDS),
    *LEVELS,
    *OF_LUMA,
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
        self._lengths = {  # of blocks, latent frames and periods, in video frames
            "edge": TEMPORAL_STRIDE * frames_per_block,
            "frame": TEMPORAL_STRIDE,
            "period": TEMPORAL_STRIDE * PERIOD_FRAMES,
        }
        self.fps = fps
        self.video_frames = 0
        self.thumbnails = Thumbnails()
        self._first = first_video_frame
        self.watch = SwitchWatch(switches, fps, self._lengths["edge"])
        self._rows: list[dict[str, float]] = []
        self._histograms: list[Array] = []  # of brightness, one of each second
        self._freeze_run = 0
        self._hues: Array | None = None  # of the first frame
        self._before: tuple[Pixels, Array] | None = None

    def add(self, video_frames: Pixels) -> None:
        """Measure the next video frames."""
        for video_frame in video_frames:
            self._measure(np.ascontiguousarray(video_frame))

    def seconds(self) -> dict[str, Array]:
        """All `FIELDS` with one value per (started) second. Levels are sums of 0-255, saturation of
        0-1.
        """
        reference = sum(self._histograms[:REFERENCE_SECONDS], np.zeros(256))
        for row, histogram in zip(self._rows, self._histograms, strict=True):
            row["histogram_distance"] = histogram_distance(histogram, reference)
        self._close_hues()
        return {name: np.array([row[name] for row in self._rows]) for name in FIELDS}

    def _measure(self, video_frame: Pixels) -> None:
        if self._hues is None:
            self._hues = hue_histogram(video_frame)
        image = Image.fromarray(video_frame)
        grey = image.convert("L")
        row = self._row()
        row["frames"] += 1
        luma = np.asarray(grey)
        for name, measure in OF_LUMA.items():
            row[name] += measure(luma)
        step = max(1, round((luma.size / _SAMPLE_PIXELS) ** 0.5))
        for name, value in zip(LEVELS, colour(video_frame[::step, ::step]), strict=True):
            row[name] += value
        self._histograms[-1] += np.bincount(luma[::step, ::step].ravel(), minlength=256)
        small = np.asarray(
            grey.convert("F").reduce(-(-max(luma.shape) // _MOTION_SIDE)), dtype=np.float64
        )
        if self._before is not None:
            change = difference(self._before[0], video_frame)
            self._add_change(row, change, residual=motion(self._before[1], small))
        thumbnail = np.asarray(image.resize(THUMBNAIL, Image.Resampling.BOX))  # area averaging
        self.thumbnails.add(thumbnail)
        self.watch.add(thumbnail)
        self._before = (video_frame, small)
        self.video_frames += 1

    def _add_change(self, row: dict[str, float], change: float, residual: float) -> None:
        """Add the change since the previous frame to a row; `residual` is without camera motion."""
        row["changes"] += 1
        row["change"] += change
        row["residual"] += residual
        if change < FROZEN_CHANGE:
            self._freeze_run += 1
            row["frozen"] += 1
        else:
            self._freeze_run = 0
        row["freeze_run"] = max(row["freeze_run"], self._freeze_run)
        for kind in self._kinds():
            row[kind] += change
            row[f"{kind}_changes"] += 1

    def _kinds(self) -> list[str]:
        """The `KINDS` of the transition from the previous frame to the current one."""
        if self.video_frames in self.watch.switches:
            # alone: a new prompt may change everything and must not count as a block edge
            return ["switch"]
        # the first latent frame of a video is as long as one video frame
        number = self.video_frames + self._first + TEMPORAL_STRIDE - 1
        kinds = [kind for kind, length in self._lengths.items() if number % length == 0]
        if "edge" not in kinds:
            return ["inside", *kinds]
        return [kind for kind in kinds if kind != "frame"]

    def _row(self) -> dict[str, float]:
        """The row of the current second, appended if it has just begun."""
        if int(self.video_frames / self.fps) >= len(self._rows):
            self._close_hues()
            self._rows.append(dict.fromkeys(FIELDS, 0.0))
            self._histograms.append(np.zeros(256))
        return self._rows[-1]

    def _close_hues(self) -> None:
        """Compare the last frame of the current second, so far, with the first one of the video."""
        if self._before is not None and self._hues is not None:
            self._rows[-1]["hue_distance"] = hue_distance(
                self._hues, hue_histogram(self._before[0])
            )


def colour(video_frame: Pixels) -> tuple[float, ...]:
    """`LEVELS` of RGB `[h, w, 3]`: mean and standard deviation of full-range BT.601 YCbCr, mean HSV
    saturation.
    """
    red, green, blue = video_frame.astype(np.float32).reshape(-1, 3).T
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    cb = 128 + (blue - y) / 1.772
    cr = 128 + (red - y) / 1.402
    most = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)
    saturation = (most - least) / np.maximum(most, 1)
    levels = np.stack([y, cb, cr])
    return *levels.mean(axis=1).tolist(), *levels.std(axis=1).tolist(), float(saturation.mean())


def difference(before: Pixels, after: Pixels) -> float:
    """Mean absolute difference of two images."""
    # uint8, which cannot be negative
    distance = np.maximum(before, after) - np.minimum(before, after)
    return float(distance.mean(dtype=float))


def histogram_distance(a: Array, b: Array) -> float:
    """Earth mover's distance of two histograms with 256 levels, in levels per pixel."""
    share_a = a / max(a.sum(), 1)
    share_b = b / max(b.sum(), 1)
    return float(np.abs(np.cumsum(share_a - share_b)).sum())


def motion(before: Array, after: Array) -> float:
    """Mean absolute difference of grey images `[h, w]` after compensation of a global shift (camera
    motion).
    """
    down, right = _global_shift(before, after)
    still = _residual(before, after, 0, 0)
    if (down, right) == (0, 0):
        return still
    return min(still, _residual(before, after, down, right))


def _global_shift(before: Array, after: Array) -> tuple[int, int]:
    """Global shift (down, right) in whole pixels by phase correlation, at most half of the image's
    size.
    """
    height, width = before.shape
    window = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])
    a = np.fft.rfft2((before - before.mean()) * window)
    b = np.fft.rfft2((after - after.mean()) * window)
    cross = b * a.conj()
    strength = np.abs(cross)  # frequencies that are weak in either image are down-weighted
    correlation = np.fft.irfft2(cross / (strength + strength.mean() + 1e-9), s=before.shape)
    down, right = divmod(int(correlation.argmax()), width)
    if down > height // 2:
        down -= height
    if right > width // 2:
        right -= width
    return down, right


def _residual(before: Array, after: Array, down: int, right: int) -> float:
    """Mean absolute difference in the overlap after a shift by whole pixels and the best additional
    subpixel shift.
    """
    height, width = before.shape
    a = before[max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)]
    b = after[max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)]
    left = b - a
    unmoved = float(np.abs(left).mean())
    if min(a.shape) < 3:
        return unmoved
    # subpixel shift: least-squares solution of the linearised difference (optical flow of one
    # global vector)
    slopes = np.asarray(np.gradient(a)).reshape(2, -1)
    moved = np.linalg.lstsq(slopes @ slopes.T, slopes @ left.ravel(), rcond=1e-6)[0]
    if np.abs(moved).max() > 1:  # not a subpixel shift: the linearisation does not hold
        return unmoved
    return min(unmoved, float(np.abs(left.ravel() - moved @ slopes).mean()))


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
