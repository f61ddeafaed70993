"""Means over frames of scores that CLIP's features give a frame: aesthetic quality, and likeness to its prompt."""

from __future__ import annotations

from bisect import bisect_right

from torch import Tensor, nn

from .base import MeasuredVideo, Measurement
from .images import ImageEncoder
from .models import Clip


class AestheticMeasurement(Measurement):
    """The score of LAION's linear head, of 0 to 10, over 10, as VBench measures it."""

    def __init__(self, encoder: ImageEncoder, head: nn.Linear, video: MeasuredVideo):
        self._encoder, self._head = encoder, head
        self._total, self._count = 0.0, 0

    def add(self, video_frames: Tensor) -> None:
        scores = self._head(self._encoder(video_frames)) / 10
        self._total += float(scores.double().sum())
        self._count += len(scores)

    def values(self) -> list[float | None]:
        return [self._total / self._count if self._count else None]


class TextMeasurement(Measurement):
    """100 times the cosine of a frame's features and its prompt's, by prompt: CLIPScore without its clipping."""

    def __init__(self, clip: Clip, video: MeasuredVideo):
        self._images = clip.images
        self._starts = [round(start * video.fps) for start, _ in video.prompts]
        self._texts = clip.texts([text for _, text in video.prompts]) if video.prompts else None
        self._totals, self._counts = [0.0] * len(self._starts), [0] * len(self._starts)
        self._frames = 0

    def add(self, video_frames: Tensor) -> None:
        if self._texts is None:
            return
        for feature in self._images(video_frames):
            prompt = bisect_right(self._starts, self._frames) - 1
            if prompt >= 0:
                self._totals[prompt] += 100 * float(feature @ self._texts[prompt])
                self._counts[prompt] += 1
            self._frames += 1

    def values(self) -> list[float | None]:
        """The mean over the video and, where it has several prompts, over the frames of each."""
        sums = [(sum(self._totals), sum(self._counts))]
        if len(self._starts) > 1:
            sums += zip(self._totals, self._counts, strict=True)
        return [total / count if count else None for total, count in sums]
