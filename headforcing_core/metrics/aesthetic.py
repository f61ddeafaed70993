"""Aesthetic quality: LAION's linear head on CLIP's image features, as VBench measures it."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import HeadForcingError
from .base import MeasuredVideo, Measurement, Metric, Numbers, VideoMetric
from .images import ImageEncoder
from .models import AESTHETIC_HEAD, CLIP_LARGE, Models

KEY = "aesthetic_quality"


class AestheticMeasurement(Measurement):
    """One video under way."""

    def __init__(self, encoder: ImageEncoder, head: nn.Linear):
        self._encoder, self._head = encoder, head
        self._total, self._count = 0.0, 0

    def add(self, video_frames: Tensor) -> None:
        scores = self._head(self._encoder(video_frames)) / 10
        self._total += float(scores.double().sum())
        self._count += len(scores)

    def numbers(self) -> Numbers:
        return {KEY: self._total / self._count if self._count else None}


class AestheticQuality(VideoMetric):
    """The mean over the frames of the head's score, of 0 to 10, over 10."""

    name = "aesthetic"
    title = "Aesthetic quality (VBench's formula, LAION's head; up to 1)"
    columns = (Metric(KEY, "aesthetic quality", "{:.4f}".format),)
    needs = (*CLIP_LARGE, AESTHETIC_HEAD)

    def __init__(self, models: Models):
        self._encoder, self._head = models.clip_large().images, models.aesthetic_head()
        features = models.clip_large().width
        if self._head.in_features != features:
            raise HeadForcingError(
                f"the aesthetic head takes {self._head.in_features} features, and the CLIP model has {features}: take "
                f"the head for ViT-L/14 from {AESTHETIC_HEAD.source}"
            )

    def begin(self, video: MeasuredVideo) -> Measurement:
        return AestheticMeasurement(self._encoder, self._head)
