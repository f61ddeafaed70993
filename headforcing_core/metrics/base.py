"""What every metric with a model of its own does: begin a video, take its frames in order, tell its numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BATCH = 8  # video frames that a model gets at once
CLIP_SECONDS = 2  # of the clips in which VBench-Long measures long videos
Numbers = dict[str, float | None]


@dataclass(frozen=True)
class Metric:
    """Key, name and number format of a metric."""

    key: str
    name: str
    form: Callable[[float], str] = "{:.3g}".format


@dataclass(frozen=True)
class Needed:
    """A file that a metric needs: one of `paths`, below the folder of models, and where it comes from."""

    paths: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class MeasuredVideo:
    """What is known of a video before its first frame.

    Attributes:
        prompts: (start in seconds, text) in order.
    """

    fps: float
    prompts: Sequence[tuple[float, str]] = ()


class Measurement(ABC):
    """One video under way. What it holds does not grow with the number of video frames."""

    @abstractmethod
    def add(self, video_frames: Tensor) -> None:
        """Measure the next video frames, `[n, H, W, 3]` uint8, of one size."""

    @abstractmethod
    def numbers(self) -> Numbers:
        """The metrics of the video frames so far, by key; None where there are too few."""


class VideoMetric(ABC):
    """A metric whose model is loaded, for one video after the other.

    Attributes:
        name: as `--metrics` names it.
        title: the heading above its numbers.
        columns: its numbers; those that a video does not have are left out.
        needs: the files it is loaded from.

    Args:
        models: `models.Models`, or what has the methods of it that the metric asks for.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    columns: ClassVar[tuple[Metric, ...]]
    needs: ClassVar[tuple[Needed, ...]]

    @abstractmethod
    def __init__(self, models: Any): ...

    @abstractmethod
    def begin(self, video: MeasuredVideo) -> Measurement:
        """Begin a video."""


class Panel:
    """Several metrics that measure the same videos.

    Attributes:
        left_out: why the others are not measured, a sentence each.
    """

    def __init__(self, metrics: Sequence[VideoMetric], left_out: Sequence[str] = ()):
        self.metrics, self.left_out = tuple(metrics), tuple(left_out)

    def begin(self, video: MeasuredVideo, first_seconds: float = 0.0) -> PanelMeasurement:
        """Begin a video, whose first seconds have numbers of their own."""
        return PanelMeasurement([metric.begin(video) for metric in self.metrics], round(first_seconds * video.fps))

    def groups(self, numbers: Mapping[str, object]) -> dict[str, list[Metric]]:
        """The metrics that these numbers have, by the heading above them."""
        groups: dict[str, list[Metric]] = {}
        for metric in self.metrics:
            if found := [column for column in metric.columns if column.key in numbers]:
                groups.setdefault(metric.title, []).extend(found)
        return groups


class PanelMeasurement:
    """Hands the frames of one video to all metrics, `BATCH` at a time: metrics with one encoder share its work."""

    def __init__(self, measurements: Iterable[Measurement], first_frames: int = 0):
        self._measurements, self._first_frames = list(measurements), first_frames
        self._waiting: list[NDArray[np.uint8]] = []
        self._video_frames = 0
        self._first: Numbers | None = None

    def add(self, video_frames: NDArray[np.uint8]) -> None:
        """Measure the next video frames, `[n, H, W, 3]` uint8."""
        for video_frame in video_frames if self._measurements else ():
            self._waiting.append(video_frame)
            self._video_frames += 1
            if len(self._waiting) == BATCH:
                self._measure()
            if self._video_frames == self._first_frames:
                self._first = self.numbers()

    def numbers(self) -> Numbers:
        """The numbers of all metrics for the frames so far."""
        self._measure()
        return {key: value for each in self._measurements for key, value in each.numbers().items()}

    def first_numbers(self) -> Numbers:
        """The numbers of the first seconds, or of all frames so far if they are fewer."""
        return self.numbers() if self._first is None else self._first

    def _measure(self) -> None:
        if self._waiting:
            batch = torch.from_numpy(np.stack(self._waiting))
            self._waiting.clear()
            with torch.inference_mode():
                for measurement in self._measurements:
                    measurement.add(batch)
