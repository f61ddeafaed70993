"""Interfaces of metrics with a model of their own, and the panel that measures several of them in
one video.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..statistics import Numbers

BATCH = 8  # video frames that a model gets at once
CLIP_SECONDS = 2  # of the clips in which VBench-Long measures long videos


@dataclass(frozen=True)
class Column:
    """Key, name and number format of one number of a metric."""

    key: str
    name: str
    form: Callable[[float], str] = "{:.3g}".format


@dataclass(frozen=True)
class ModelFile:
    """A file that a metric needs: one of `paths`, below the folder of models, and where it comes
    from.
    """

    paths: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class VideoFacts:
    """What is known about a video before its first frame; `prompts` are (start in seconds, text) in
    order.
    """

    fps: float
    prompts: Sequence[tuple[float, str]] = ()


class Measurement(ABC):
    """One video under way. What it holds does not grow with the number of video frames."""

    @abstractmethod
    def add(self, video_frames: Tensor) -> None:
        """Measure the next video frames, `[n, H, W, 3]` uint8, of one size."""

    @abstractmethod
    def values(self) -> Sequence[float | None]:
        """The numbers so far, in the order of the metric's columns, or of the first of them; None
        where there are too few video frames."""


Begin = Callable[[VideoFacts], Measurement]


@dataclass(frozen=True)
class LearnedMetric:
    """A row of `registry.METRICS`; `title` is the heading above its numbers, the `columns`, and
    `load` takes `models.Models`."""

    name: str
    title: str
    columns: tuple[Column, ...]
    needs: tuple[ModelFile, ...]
    load: Callable[[Any], Begin]


class Panel:
    """Loaded metrics that measure the same videos; `left_out` says why others do not, a sentence
    each.
    """

    def __init__(self, loaded: Mapping[LearnedMetric, Begin], left_out: Sequence[str] = ()):
        self._loaded = loaded
        self.metrics = tuple(loaded)
        self.left_out = tuple(left_out)

    def begin(self, video: VideoFacts, first_seconds: float = 0.0) -> PanelMeasurement:
        """Begin a video, whose first seconds have numbers of their own."""
        measurements = {metric: begin(video) for metric, begin in self._loaded.items()}
        return PanelMeasurement(measurements, round(first_seconds * video.fps))


class PanelMeasurement:
    """Passes the frames of one video to all metrics, `BATCH` at a time: metrics of one encoder use
    its last result.
    """

    def __init__(self, measurements: Mapping[LearnedMetric, Measurement], first_frames: int = 0):
        self._measurements = measurements
        self._first_frames = first_frames
        self._waiting: list[NDArray[np.uint8]] = []
        self._video_frames = 0
        self._first: Numbers | None = None

    def add(self, video_frames: NDArray[np.uint8]) -> None:
        """Measure the next video frames, `[n, H, W, 3]` uint8."""
        for video_frame in video_frames:
            self._waiting.append(video_frame)
            self._video_frames += 1
            if len(self._waiting) == BATCH:
                self._measure()
            if self._video_frames == self._first_frames:
                self._first = self.numbers()

    def numbers(self) -> Numbers:
        """The numbers of all metrics for the frames so far, by key."""
        self._measure()
        numbers: Numbers = {}
        for metric, measurement in self._measurements.items():
            keys = [column.key for column in metric.columns]
            numbers |= zip(keys, measurement.values(), strict=False)
        return numbers

    def first_numbers(self) -> Numbers:
        """The numbers of the first seconds, or of all frames so far if they are fewer."""
        return self.numbers() if self._first is None else self._first

    def _measure(self) -> None:
        if not self._waiting:
            return
        batch = torch.from_numpy(np.stack(self._waiting))
        self._waiting.clear()
        with torch.inference_mode():
            for measurement in self._measurements.values():
                measurement.add(batch)
