"""Reward Forcing: sinks that are moving averages of the frames that leave the window ("EMA
sink").
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .base import MethodShape, Requirements
from .longlive import WindowCache, WindowMethod


@dataclass(frozen=True)
class RewardForcing(WindowMethod):
    """Reward Forcing's settings (arXiv 2512.04678). `kept_share`: of a sink's old content in an
    average.
    """

    # not annotated, so that it is no option
    rope = "contiguous"
    window_frames: int = 9
    kept_share: float = 0.999

    def requirements(self, shape: MethodShape) -> Requirements:
        return super().requirements(shape) | {
            "sink_frames of at least 1 and kept_share from 0 to 1": (
                self.sink_frames >= 1 and 0 <= self.kept_share <= 1
            )
        }


class RewardForcingCache(WindowCache, of=RewardForcing):
    method: RewardForcing

    def read(self, layer: int) -> Tensor:
        return self.with_empty_sinks(layer)

    def evict(self, count: int) -> None:
        kept = self.method.kept_share
        fed = min(self.sinks, count)
        for kv in self.slots:
            evicted = kv[:, :, self.sinks : self.sinks + count]
            sinks = kv[:, :, :fed]
            if count == self.sinks:
                sinks[:] = kept * sinks.float() + (1 - kept) * evicted.float()
            else:  # as in the authors' code, a copy and no average
                sinks[:] = evicted[:, :, :fed]
        super().evict(count)
