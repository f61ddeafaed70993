"""Frame-by-frame measurement of how a video changes over its length, without any network.

`DriftMeter` receives video frames one by one and stores one row of sums per second and a limited number of thumbnails,
never the video. `metrics.py` computes the metrics from them. None of these are VBench scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..timeline.clock import BlockClock
from .thumbnails import THUMBNAIL, SwitchWatch, Thumbnails

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]

FROZEN_CHANGE = 0.001 * 255  # mean change below which a frame counts as frozen; as in FFmpeg's freezedetect
PERIOD_FRAMES = 21  # latent frames in the 5 s that the models were trained on: 81 video frames, then 84 each
REFERENCE_SECONDS = 2  # length of the beginning with which colours are compared
_SAMPLE_PIXELS = 40_000  # pixels sampled for colour statistics; more do not change them visibly
HUES = 180  # OpenCV's, of 8-bit colours, in integers: ID-Forcing's histogram is of them
_HUE_BITS = 12  # after the point
_MOTION_SIDE = 128  # longer side, in pixels, of the grey image in which motion is measured

# The row of one second: sums over its video frames, or over the changes between adjacent frames that end in it.
KINDS = ("inside", "frame", "edge", "switch", "period")  # "frame": a latent frame starts, but no block
LEVELS = ("y", "cb", "cr", "y_std", "cb_std", "cr_std", "saturation")
FIELDS = (
    "frames", "changes", "change", "residual", "frozen", "freeze_run", "histogram_distance", "hue_distance",
    *KINDS, *(f"{kind}_changes" for kind in KINDS), *LEVELS,
)  # fmt: skip


class DriftMeter:
    """Measures video frames `[n, H, W, 3]` uint8 of one size as they are added.

    `switches` are the video frames with which a new prompt begins, counted from the first frame added, which is number
    `first_video_frame` of the whole video. `of_luma` are functions of a frame's brightness `[H, W]`; their sums are
    more fields.
    """

    def __init__(
        self,
        fps: float,
        frames_per_block: int = 3,
        switches: Sequence[int] = (),
        first_video_frame: int = 0,
        *,
        of_luma: Mapping[str, Callable[[Pixels], float]],
    ):
        self.clock = BlockClock(frames_per_block, fps)
        self._frame = BlockClock(1, fps)
        self._period = BlockClock(PERIOD_FRAMES, fps)
        self.fps = self.clock.fps
        self.video_frames = 0
        self.thumbnails = Thumbnails()
        self._first = first_video_frame
        self._of_luma = of_luma
        self._fields = (*FIELDS, *of_luma)
        self.watch = SwitchWatch(switches, fps, self.clock.video_frames(2) - self.clock.video_frames(1))
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
        """All `FIELDS` with one value per (started) second. Levels are sums of 0-255, saturation of 0-1."""
        reference = sum(self._histograms[:REFERENCE_SECONDS], np.zeros(256))
        for row, histogram in zip(self._rows, self._histograms, strict=True):
            row["histogram_distance"] = histogram_distance(histogram, reference)
        self._close_hues()
        return {name: np.array([row[name] for row in self._rows]) for name in self._fields}

    def _measure(self, video_frame: Pixels) -> None:
        if self._hues is None:
            self._hues = hue_histogram(video_frame)
        image = Image.fromarray(video_frame)
        grey = image.convert("L")
        row = self._row()
        row["frames"] += 1
        luma = np.asarray(grey)
        for name, measure in self._of_luma.items():
            row[name] += measure(luma)
        step = max(1, round((luma.size / _SAMPLE_PIXELS) ** 0.5))
        for name, value in zip(LEVELS, colour(video_frame[::step, ::step]), strict=True):
            row[name] += value
        self._histograms[-1] += np.bincount(luma[::step, ::step].ravel(), minlength=256)
        small = np.asarray(grey.convert("F").reduce(-(-max(luma.shape) // _MOTION_SIDE)), dtype=np.float64)
        if self._before is not None:
            self._compare(row, *self._before, video_frame, small)
        thumbnail = np.asarray(image.resize(THUMBNAIL, Image.Resampling.BOX))  # area averaging
        self.thumbnails.add(thumbnail)
        self.watch.add(thumbnail)
        self._before = (video_frame, small)
        self.video_frames = self.video_frames + 1

    def _compare(self, row: dict[str, float], before: Pixels, small_before: Array, video_frame: Pixels, small: Array):
        change = float(np.subtract(np.maximum(before, video_frame), np.minimum(before, video_frame)).mean(dtype=float))
        row["changes"] += 1
        row["change"] += change
        row["residual"] += motion(small_before, small)
        frozen = change < FROZEN_CHANGE
        self._freeze_run = self._freeze_run + 1 if frozen else 0
        row["frozen"] += frozen
        row["freeze_run"] = max(row["freeze_run"], self._freeze_run)
        for kind in self._kinds():
            row[kind] += change
            row[f"{kind}_changes"] += 1

    def _kinds(self) -> list[str]:
        """The `KINDS` of the transition from the previous frame to the current one."""
        if self.video_frames in self.watch.switches:
            return ["switch"]  # alone: a new prompt may change everything and must not count as a block edge
        number = self.video_frames + self._first
        edge = (number - self.clock.video_frames(1)) % (self.clock.video_frames(2) - self.clock.video_frames(1)) == 0
        frame = (number - self._frame.video_frames(1)) % (
            self._frame.video_frames(2) - self._frame.video_frames(1)
        ) == 0
        period = (number - self._period.video_frames(1)) % (
            self._period.video_frames(2) - self._period.video_frames(1)
        ) == 0
        applies = {"edge": edge, "inside": not edge, "frame": frame and not edge, "period": period}
        return [kind for kind, is_true in applies.items() if is_true]

    def _row(self) -> dict[str, float]:
        """The row of the current second, appended if it has just begun."""
        if int(self.video_frames / self.fps) >= len(self._rows):
            self._close_hues()
            self._rows.append(dict.fromkeys(self._fields, 0.0))
            self._histograms.append(np.zeros(256))
        return self._rows[-1]

    def _close_hues(self) -> None:
        """Compare the last frame of the current second, so far, with the first one of the video."""
        if self._before is not None and self._hues is not None:
            self._rows[-1]["hue_distance"] = hue_distance(self._hues, hue_histogram(self._before[0]))


def colour(video_frame: Pixels) -> tuple[float, ...]:
    """`LEVELS` of RGB `[h, w, 3]`: mean and standard deviation of full-range BT.601 YCbCr, mean HSV saturation."""
    red, green, blue = video_frame.astype(np.float32).reshape(-1, 3).T
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    cb = 128 + (blue - y) / 1.772
    cr = 128 + (red - y) / 1.402
    most = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)
    saturation = (most - least) / np.maximum(most, 1)
    means, deviations = zip(*((float(x.mean()), float(x.std())) for x in (y, cb, cr)), strict=True)
    return *means, *deviations, float(saturation.mean())


def histogram_distance(a: Array, b: Array) -> float:
    """Earth mover's distance of two histograms with 256 levels, in levels per pixel."""
    return float(np.abs(np.cumsum(a / max(a.sum(), 1)) - np.cumsum(b / max(b.sum(), 1))).sum())


def motion(before: Array, after: Array) -> float:
    """Mean absolute difference of grey images `[h, w]` after compensation of a global shift (camera motion)."""
    return min(_residual(before, after, *shift) for shift in {(0, 0), _global_shift(before, after)})


def _global_shift(before: Array, after: Array) -> tuple[int, int]:
    """Global shift (down, right) in whole pixels by phase correlation, at most half of the image's size."""
    window = np.outer(*(np.hanning(size + 2)[1:-1] for size in before.shape))
    a = np.fft.rfft2((before - before.mean()) * window)
    b = np.fft.rfft2((after - after.mean()) * window)
    cross = b * a.conj()
    strength = np.abs(cross)  # frequencies that are weak in either image are down-weighted
    correlation = np.fft.irfft2(cross / (strength + strength.mean() + 1e-9), s=before.shape)
    peak = np.unravel_index(int(correlation.argmax()), correlation.shape)
    down, right = (int(p) if p <= n // 2 else int(p) - n for p, n in zip(peak, correlation.shape, strict=True))
    return down, right


def _residual(before: Array, after: Array, down: int, right: int) -> float:
    """Mean absolute difference in the overlap after a shift by whole pixels and the best additional subpixel shift."""
    height, width = before.shape
    a = before[max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)]
    b = after[max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)]
    left = b - a
    if min(a.shape) < 3:
        return float(np.abs(left).mean())
    # subpixel shift: least-squares solution of the linearised difference (optical flow of one global vector)
    slopes = np.stack([slope.ravel() for slope in np.gradient(a)], axis=1)
    moved = np.linalg.lstsq(slopes.T @ slopes, slopes.T @ left.ravel(), rcond=1e-6)[0]
    if np.abs(moved).max() > 1:  # not a subpixel shift: the linearisation does not hold
        return float(np.abs(left).mean())
    return float(min(np.abs(left.ravel() - slopes @ moved).mean(), np.abs(left).mean()))


def hue(video_frame: Pixels) -> NDArray[np.int64]:
    """The hue of every pixel of `[..., 3]`, 0-179; greys have 0."""
    red, green, blue = (video_frame[..., channel].astype(np.int64) for channel in range(3))
    most = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)
    spread = most - least
    above = np.select((most == red, most == green), (green - blue, blue - red + 2 * spread), red - green + 4 * spread)
    turns = np.rint((HUES << _HUE_BITS) / (6.0 * np.maximum(spread, 1))).astype(np.int64) * (spread > 0)
    found = (above * turns + (1 << (_HUE_BITS - 1))) >> _HUE_BITS
    return np.where(found < 0, found + HUES, found)


def hue_histogram(video_frame: Pixels) -> Array:
    """The share of pixels with each hue, `[180]`."""
    counts = np.bincount(hue(video_frame).ravel(), minlength=HUES)
    return counts / counts.sum()


def hue_distance(a: Array, b: Array) -> float:
    """The sum of absolute differences of two histograms, 0 to 2."""
    return float(np.abs(a - b).sum())


def color_drift(distance: float) -> float:
    """ID-Forcing's Color Drift of one video or, from a mean distance, of several: 100 keeps all hues, 0 none."""
    return 100 * (1 - distance / 2)
