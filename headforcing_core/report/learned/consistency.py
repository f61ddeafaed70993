"""Subject and background consistency: how similar the frames of a video are to the one before and to the first.

The formula of VBench (Huang et al., 2024): of every frame but the first, the mean of the two cosine similarities, each
at least 0; of a video, the mean over these frames. For long videos also as VBench-Long measures it, in clips of 2 s:
the mean over the clips, the last of which is made full with frames before it, and the same formula over the first
frames of the clips.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn import functional

from .base import CLIP_SECONDS, MeasuredVideo, Measurement
from .images import ImageEncoder


@dataclass
class Similarity:
    """The formula over the features `[d]` that it gets, one after the other."""

    first: Tensor | None = None
    before: Tensor | None = None
    total: float = 0.0
    count: int = 0

    def add(self, feature: Tensor) -> None:
        if self.first is None or self.before is None:
            self.first = feature
        else:
            to_before, to_first = (_cosine(other, feature) for other in (self.before, self.first))
            self.total += (to_before + to_first) / 2
            self.count += 1
        self.before = feature

    @property
    def score(self) -> float | None:
        return self.total / self.count if self.count else None


def _cosine(a: Tensor, b: Tensor) -> float:
    return max(0.0, float(functional.cosine_similarity(a, b, dim=-1)))


class ConsistencyMeasurement(Measurement):
    """One video under way; holds the features of one clip."""

    def __init__(self, encoder: ImageEncoder, video: MeasuredVideo):
        self._encoder = encoder
        self._clip_frames = max(2, int(video.fps) * CLIP_SECONDS)
        self._whole, self._clip, self._across = Similarity(), Similarity(), Similarity()
        self._last: deque[Tensor] = deque(maxlen=self._clip_frames)
        self._frames, self._clips, self._clip_total = 0, 0, 0.0

    def add(self, video_frames: Tensor) -> None:
        for feature in self._encoder(video_frames):
            self._whole.add(feature)
            self._clip.add(feature)
            self._last.append(feature)
            self._frames += 1
            if self._frames % self._clip_frames == 0:
                self._across.add(self._last[0])
                self._clip_total += self._clip.score or 0.0
                self._clip = Similarity()

    def values(self) -> tuple[float | None, ...]:
        """The scores of the whole video, in its clips, and across them."""
        return self._whole.score, *self._by_clip()

    def _by_clip(self) -> tuple[float | None, float | None]:
        """The mean score of the clips and the score of their first frames; None for a video of one clip."""
        clips, rest = divmod(self._frames, self._clip_frames)
        total, across = self._clip_total, replace(self._across)
        if clips and rest:  # the last clip begins earlier, so that it is as long as the others
            clip = Similarity()
            for feature in self._last:
                clip.add(feature)
            across.add(self._last[0])
            total, clips = total + (clip.score or 0.0), clips + 1
        return (total / clips, across.score) if clips > 1 else (None, None)
