"""How well frames show their prompt: CLIPScore without its clipping, by prompt."""

from __future__ import annotations

from bisect import bisect_right

from torch import Tensor

from .base import MeasuredVideo, Measurement, Metric, Numbers, VideoMetric
from .models import CLIP_BASE_TEXT, Clip, Models

KEY = "text_score"
MOST_SHOWN = 60  # prompts of a video with a number of their own in tables


class TextMeasurement(Measurement):
    """One video under way."""

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

    def numbers(self) -> Numbers:
        counted = sum(self._counts)
        found: Numbers = {KEY: sum(self._totals) / counted if counted else None}
        if len(self._starts) > 1:
            for number, (total, count) in enumerate(zip(self._totals, self._counts, strict=True), 1):
                found[f"{KEY}_{number}"] = total / count if count else None
        return found


class TextScore(VideoMetric):
    """100 times the cosine of CLIP's features of a frame and of its prompt: means over the video and by prompt."""

    name = "text"
    title = "Prompts (100 times CLIP's cosine, means over frames)"
    columns = (
        Metric(KEY, "text score", "{:.2f}".format),
        *(Metric(f"{KEY}_{i}", f"text score, prompt {i}", "{:.2f}".format) for i in range(1, MOST_SHOWN + 1)),
    )
    needs = CLIP_BASE_TEXT

    def __init__(self, models: Models):
        self._clip = models.clip_base()

    def begin(self, video: MeasuredVideo) -> Measurement:
        return TextMeasurement(self._clip, video)
