"""Colour drift as ID-Forcing's authors measure it: how far the hues of the last video frame are from the first one's.

The hue is OpenCV's of 8-bit colours, 0 to 179, in integers, so that its histogram is theirs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HUES = 180
_SHIFT = 12  # bits after the point


def hue(video_frame: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The hue of every pixel of `[..., 3]`, 0-179; greys have 0."""
    red, green, blue = (video_frame[..., channel].astype(np.int64) for channel in range(3))
    most, least = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    spread = most - least
    above = np.where(
        most == red, green - blue, np.where(most == green, blue - red + 2 * spread, red - green + 4 * spread)
    )
    turns = np.rint((HUES << _SHIFT) / (6.0 * np.maximum(spread, 1))).astype(np.int64) * (spread > 0)
    found = (above * turns + (1 << (_SHIFT - 1))) >> _SHIFT
    return np.where(found < 0, found + HUES, found)


def hue_histogram(video_frame: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The share of pixels with each hue, `[180]`."""
    counts = np.bincount(hue(video_frame).ravel(), minlength=HUES)
    return counts / counts.sum()


def hue_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """The sum of absolute differences of two histograms, 0 to 2."""
    return float(np.abs(a - b).sum())


def color_drift(distance: float) -> float:
    """ID-Forcing's Color Drift of one video or, from a mean distance, of several: 100 keeps all hues, 0 none."""
    return 100 * (1 - distance / 2)
