"""Metrics of the features that an image encoder gives every frame: consistency, aesthetic quality,
likeness to prompts.

Subject and background consistency is the formula of VBench (Huang et al., 2024): of every frame but
the first, the mean of its cosine similarities to the frame before and to the first, each at least
0; of a video, the mean over these frames. For long videos also as VBench-Long measures it, in clips
of 2 s: the mean over the clips, the last of which is made full with frames before it, and the same
formula over the first frames of the clips.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn import functional

from .base import CLIP_SECONDS, Measurement, VideoFacts
from .models import Clip, ImageEncoder


@dataclass
class Similarity:
    """VBench's formula over the features `[d]` that it gets, one after the other."""

    first: Tensor | None = None
    before: Tensor | None = None
    total: float = 0.0
    count: int = 0

    def add(self, feature: Tensor) -> None:
        if self.first is None or self.before is None:
            self.first = feature
        else:
            to_before = functional.cosine_similarity(self.before, feature, dim=-1)
            to_first = functional.cosine_similarity(self.first, feature, dim=-1)
            self.total += (max(0.0, float(to_before)) + max(0.0, float(to_first))) / 2
            self.count += 1
        self.before = feature

    @property
    def score(self) -> float | None:
        return self.total / self.count if self.count else None


class ConsistencyMeasurement(Measurement):
    """One video under way; holds the features of one clip."""

    def __init__(self, encoder: ImageEncoder, video: VideoFacts):
        self._encoder = encoder
        self._clip_frames = max(2, int(video.fps) * CLIP_SECONDS)
        self._whole = Similarity()
        self._across = Similarity()
        self._last: deque[Tensor] = deque(maxlen=self._clip_frames)
        self._frames = 0
        self._clip_total = 0.0

    def add(self, video_frames: Tensor) -> None:
        for feature in self._encoder(video_frames):
            self._whole.add(feature)
            self._last.append(feature)
            self._frames += 1
            if self._frames % self._clip_frames == 0:
                self._across.add(self._last[0])
                self._clip_total += self._last_clip()

    def values(self) -> tuple[float | None, ...]:
        """The scores of the whole video, in its clips, and across them; of one clip the first."""
        clips, rest = divmod(self._frames, self._clip_frames)
        total = self._clip_total
        across = replace(self._across)
        if clips and rest:  # the last clip begins earlier, so that it is as long as the others
            across.add(self._last[0])
            total += self._last_clip()
            clips += 1
        if clips < 2:
            return self._whole.score, None, None
        return self._whole.score, total / clips, across.score

    def _last_clip(self) -> float:
        """The score of the last frames, as many as a clip has."""
        clip = Similarity()
        for feature in self._last:
            clip.add(feature)
        return clip.score or 0.0


class AestheticMeasurement(Measurement):
    """The score of LAION's linear head, of 0 to 10, over 10, as VBench measures it."""

    def __init__(self, encoder: ImageEncoder, head: nn.Linear, video: VideoFacts):
        self._encoder = encoder
        self._head = head
        self._total = 0.0
        self._count = 0

    def add(self, video_frames: Tensor) -> None:
        scores = self._head(self._encoder(video_frames)) / 10
        self._total += float(scores.double().sum())
        self._count += len(scores)

    def values(self) -> list[float | None]:
        return [self._total / self._count if self._count else None]


class TextMeasurement(Measurement):
    """100 times the cosine of a frame's features and its prompt's, by prompt: CLIPScore without its
    clipping.
    """

    def __init__(self, clip: Clip, video: VideoFacts):
        self._images = clip.images
        self._starts = [round(start * video.fps) for start, _ in video.prompts]
        self._texts = clip.texts([text for _, text in video.prompts]) if video.prompts else None
        self._totals = [0.0] * len(self._starts)
        self._counts = [0] * len(self._starts)
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
