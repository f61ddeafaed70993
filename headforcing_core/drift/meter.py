"""How a video changes over its length, measured picture by picture without any network.

`DriftMeter` takes the pictures as they come and keeps one row of sums for each second and a bounded number of
thumbnails, never the video. `drift_numbers` makes numbers of them. None of these are VBench scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..errors import HeadForcingError
from ..timeline.clock import BlockClock
from .thumbnails import SwitchResponse, SwitchWatch, Thumbnails, thumbnail

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]

FROZEN_CHANGE = 0.001 * 255  # a smaller mean change is none; the threshold of FFmpeg's freezedetect
PERIOD_FRAMES = 21  # latent frames of the five seconds that the models were trained on: 81 pictures, then 84 each
REFERENCE_SECONDS = 2  # colours are compared with those of the beginning
_SAMPLE_PIXELS = 40_000  # colour statistics need no more
_MOTION_SIDE = 128  # pixels of the longer side of the grey picture in which motion is measured

# What one second holds: sums over its pictures, or over the changes from one picture to the next that end in it.
KINDS = ("inside", "frame", "edge", "switch", "period")  # edges of latent frames are inside blocks
LEVELS = ("y", "cb", "cr", "y_std", "cb_std", "cr_std", "saturation")
FIELDS = (
    "pictures", "changes", "change", "residual", "frozen", "freeze_run", "histogram_distance",
    *KINDS, *(f"{kind}_changes" for kind in KINDS), *LEVELS, "sharpness", "detail",
)  # fmt: skip


class DriftMeter:
    """Measures pictures `[n, H, W, 3]` uint8 as they are added, all of one size.

    Args:
        fps: pictures a second.
        frames_per_block: latent frames of a block, which says where the block edges are.
        switches: the pictures with which a new prompt begins, counted from the first one added.
        first_picture: number of the first one added in the video it was cut from.
    """

    def __init__(self, fps: float, frames_per_block: int = 3, switches: Sequence[int] = (), first_video_frame: int = 0):
        self.clock = BlockClock(frames_per_block, fps)
        self._frame, self._period = BlockClock(1, fps), BlockClock(PERIOD_FRAMES, fps)
        self.fps, self.video_frames = self.clock.fps, 0
        self.thumbnails = Thumbnails()
        self._first, self._switches = first_video_frame, frozenset(switches)
        self._watch = SwitchWatch(switches, fps, self.clock.video_frames(2) - self.clock.video_frames(1))
        self._rows: list[dict[str, float]] = []
        self._histograms: list[Array] = []  # of the reference seconds, then of the second that is being filled
        self._freeze_run = 0
        self._before: tuple[Pixels, Array] | None = None

    def add(self, video_frames: Pixels) -> None:
        """Measure the next pictures."""
        if video_frames.ndim != 4 or video_frames.shape[-1] != 3 or video_frames.dtype != np.uint8:
            raise HeadForcingError(
                "video frames must be uint8 of shape [n, height, width, 3], got "
                f"{video_frames.dtype} {list(video_frames.shape)}"
            )
        for video_frame in video_frames:
            self._measure(np.ascontiguousarray(video_frame))

    def seconds(self) -> dict[str, Array]:
        """One value for each second begun of every field in `FIELDS`. Levels are of 255, saturation of 1."""
        reference = self._histograms[:REFERENCE_SECONDS]
        for row, histogram in zip(self._rows, reference, strict=False):
            row["histogram_distance"] = histogram_distance(histogram, sum(reference, np.zeros(256)))
        if len(self._rows) > REFERENCE_SECONDS:
            self._close_histogram()
        return {name: np.array([row[name] for row in self._rows]) for name in FIELDS}

    def responses(self) -> list[SwitchResponse]:
        """How the pictures answered each prompt switch so far."""
        return self._watch.responses()

    def _measure(self, video_frame: Pixels) -> None:
        if self._before is not None and video_frame.shape != self._before[0].shape:
            raise HeadForcingError(
                f"all pictures must be of one size: {self._before[0].shape[1]}x{self._before[0].shape[0]} is followed "
                f"by {video_frame.shape[1]}x{video_frame.shape[0]}"
            )
        image = Image.fromarray(video_frame)
        grey = image.convert("L")
        row = self._row()
        row["pictures"] += 1
        luma = np.asarray(grey)
        row["sharpness"] += laplacian_variance(luma)
        row["detail"] += detail_share(luma)
        step = max(1, round((luma.size / _SAMPLE_PIXELS) ** 0.5))
        for name, value in zip(LEVELS, colour(video_frame[::step, ::step]), strict=True):
            row[name] += value
        self._histograms[-1] += np.bincount(luma[::step, ::step].ravel(), minlength=256)
        small = np.asarray(grey.convert("F").reduce(-(-max(luma.shape) // _MOTION_SIDE)), dtype=np.float64)
        if self._before is not None:
            self._compare(row, *self._before, video_frame, small)
        small_rgb = thumbnail(image)
        self.thumbnails.add(small_rgb)
        self._watch.add(small_rgb)
        self._before, self.video_frames = (video_frame, small), self.video_frames + 1

    def _compare(self, row: dict[str, float], before: Pixels, small_before: Array, video_frame: Pixels, small: Array):
        change = mean_change(before, video_frame)
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
        """What lies between the picture before and this one."""
        if self.video_frames in self._switches:
            return ["switch"]
        number = self.video_frames + self._first
        edge, frame, period = (_starts_block(clock, number) for clock in (self.clock, self._frame, self._period))
        there = {"edge": edge, "inside": not edge, "frame": frame and not edge, "period": period}
        return [kind for kind, is_there in there.items() if is_there]

    def _row(self) -> dict[str, float]:
        if int(self.video_frames / self.fps) >= len(self._rows):
            if len(self._rows) > REFERENCE_SECONDS:
                self._close_histogram()
                self._histograms.pop()
            self._rows.append(dict.fromkeys(FIELDS, 0.0))
            self._histograms.append(np.zeros(256))
        return self._rows[-1]

    def _close_histogram(self) -> None:
        reference = sum(self._histograms[:REFERENCE_SECONDS], np.zeros(256))
        self._rows[-1]["histogram_distance"] = histogram_distance(self._histograms[-1], reference)


def _starts_block(clock: BlockClock, video_frame: int) -> bool:
    per_block = clock.video_frames(2) - clock.video_frames(1)
    return (video_frame - clock.video_frames(1)) % per_block == 0


def mean_change(a: Pixels, b: Pixels) -> float:
    """Mean absolute difference of two pictures, of 255."""
    return float(np.subtract(np.maximum(a, b), np.minimum(a, b)).mean(dtype=np.float64))


def flicker(mean_change: float) -> float:
    """VBench's temporal flickering of a mean change, 1 for a still picture; VBench leaves moving videos out before."""
    return (255 - mean_change) / 255


def laplacian_variance(luma: Pixels) -> float:
    """Variance of the 4-neighbour Laplacian of `[H, W]`: how sharp edges are. 0 for less than 3x3 pixels."""
    if min(luma.shape) < 3:
        return 0.0
    x = luma.astype(np.int16)
    edges = 4 * x[1:-1, 1:-1] - x[:-2, 1:-1] - x[2:, 1:-1] - x[1:-1, :-2] - x[1:-1, 2:]
    return float(edges.var(dtype=np.float32))


def detail_share(luma: Pixels) -> float:
    """High-frequency share: how much of the variance of `[H, W]` is within squares of 4x4 pixels; 0 if it is flat."""
    rows, columns = luma.shape[0] // 4, luma.shape[1] // 4
    if not rows or not columns:
        return 0.0
    x = luma[: 4 * rows, : 4 * columns].astype(np.float32)
    total = float(x.var())
    means = x.reshape(rows, 4, columns, 4).mean(axis=(1, 3))
    return 0.0 if total < 1e-3 else max(0.0, 1 - float(means.var()) / total)


def colour(video_frame: Pixels) -> tuple[float, ...]:
    """`LEVELS` of RGB pixels `[h, w, 3]`: mean and spread of full-range BT.601 YCbCr, and mean HSV saturation."""
    red, green, blue = video_frame.astype(np.float32).reshape(-1, 3).T
    y = 0.299 * red + 0.587 * green + 0.114 * blue
    cb, cr = 128 + (blue - y) / 1.772, 128 + (red - y) / 1.402
    most = np.maximum(np.maximum(red, green), blue)
    least = np.minimum(np.minimum(red, green), blue)
    saturation = (most - least) / np.maximum(most, 1)
    channels = (y, cb, cr)
    return (*(float(c.mean()) for c in channels), *(float(c.std()) for c in channels), float(saturation.mean()))


def histogram_distance(a: Array, b: Array) -> float:
    """Earth mover's distance of two histograms of 256 levels: how many levels the average pixel has to move."""
    return float(np.abs(np.cumsum(a / max(a.sum(), 1)) - np.cumsum(b / max(b.sum(), 1))).sum())


def motion(before: Array, after: Array) -> float:
    """Mean absolute difference of grey `[h, w]` that is left when one shift of the whole picture is taken out."""
    shifts = {(0, 0), _global_shift(before, after)}
    return min(_residual(before, after, down, right) for down, right in shifts)


def _global_shift(before: Array, after: Array) -> tuple[int, int]:
    """Phase correlation: by how many whole pixels (down, right) the picture moved; at most half of its size."""
    window = np.outer(*(np.hanning(size + 2)[1:-1] for size in before.shape))
    a, b = (np.fft.rfft2((x - x.mean()) * window) for x in (before, after))
    cross = b * a.conj()
    strength = np.abs(cross)  # frequencies that hardly occur in both pictures have no say
    correlation = np.fft.irfft2(cross / (strength + strength.mean() + 1e-9), s=before.shape)
    peak = np.unravel_index(int(correlation.argmax()), correlation.shape)
    down, right = (int(p) if p <= n // 2 else int(p) - n for p, n in zip(peak, correlation.shape, strict=True))
    return down, right


def _residual(before: Array, after: Array, down: int, right: int) -> float:
    """What is left in the overlap after a shift by whole pixels and the best further part of a pixel."""
    height, width = before.shape
    a = before[max(-down, 0) : height - max(down, 0), max(-right, 0) : width - max(right, 0)]
    b = after[max(down, 0) : height + min(down, 0), max(right, 0) : width + min(right, 0)]
    left = b - a
    if min(a.shape) < 3:
        return float(np.abs(left).mean())
    slopes = np.stack([slope.ravel() for slope in np.gradient(a)], axis=1)
    moved = np.linalg.lstsq(slopes.T @ slopes, slopes.T @ left.ravel(), rcond=1e-6)[0]
    if np.abs(moved).max() > 1:  # no part of a pixel: the picture changed in other ways
        return float(np.abs(left).mean())
    return float(min(np.abs(left.ravel() - slopes @ moved).mean(), np.abs(left).mean()))
