"""The pictures on a wall of the world of rooms: where they hang and of which kind they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .picture_fields import (
    CELL,
    FARTHEST,
    PICTURE_HALF,
    PICTURE_KINDS,
    Layers,
    middles,
    resized,
    unit,
)

_FAR = FARTHEST["frame"]
_BESIDE = 2.5  # pixels from a frame where the wall is seen
_AROUND = 5  # side of the square of cells whose votes a cell counts


@dataclass(frozen=True)
class HungPictures:
    """Places and kinds on which the cells of a frame agree, each of the picture next to it."""

    middle: Tensor  # [n, 2, rows, columns], in pixels of the 64-pixel frame
    kind: Tensor  # odds of its kinds [n, 6, h, w]
    sure: Tensor  # trust in the likeliest kind, 0 to 1, [n, 1, h, w]

    @classmethod
    def voted(cls, frame: Tensor, cells: Layers) -> HungPictures:
        """Count the votes: the distance to frames `[n, 1, h, w]` and the fields of `cells`."""
        middle, kind = _agreed(frame, cells["hang"], cells["kind"])
        kind = resized(kind, frame.shape[-2:]).square()
        kind = kind / kind.sum(1, keepdim=True).clamp_min(0.05)
        likeliest = kind.amax(1, keepdim=True)
        return cls(middle, kind, unit((likeliest - 0.45) / 0.2))

    def agreed(self, edges: Layers) -> Layers:
        """The outlines `edges` with the agreed frames and the light of their kinds, where the
        predicted frame is near the agreed one."""
        predicted = edges["frame"]
        size = predicted.shape[-2:]
        from_middle = self._from_middle(size)
        known = from_middle.abs().amax(1, keepdim=True) - PICTURE_HALF
        apart = (known - predicted.clamp(-_FAR, _FAR)).abs()
        too_near = (_BESIDE - predicted).clamp_min(0)
        apart = torch.where(known < _BESIDE, apart, too_near)
        trust = resized(self.sure, size) * unit((2.2 - apart) / 0.8)
        frame = predicted.lerp(known, trust)
        light = edges["light"].lerp(self._light(from_middle), trust)
        return {**edges, "frame": frame, "light": light}

    def _light(self, from_middle: Tensor) -> Tensor:
        """Signed distance to the bright part of each pixel's picture, positive inside."""
        x, y = from_middle.split(1, 1)
        total = torch.zeros_like(x)
        odds = resized(self.kind, x.shape[-2:]).split(1, 1)
        for name, of_kind in zip(PICTURE_KINDS, odds, strict=True):
            total = total + of_kind * picture_light(name, x, y)
        return total

    def _from_middle(self, size: Sequence[int]) -> Tensor:
        """From the middle of each cell's picture to each pixel, right and down, `[n, 2, h, w]`."""
        large = F.interpolate(self.middle, size=tuple(size), mode="nearest")
        return _places(size, self.middle) - large


def _agreed(frame: Tensor, hang: Tensor, kind: Tensor) -> tuple[Tensor, Tensor]:
    """The middle of the picture next to each cell `[n, 2, rows, columns]`, in whole pixels, and the
    odds of its kind `[n, 6, rows, columns]`: means over the cells around that mean the same
    picture."""
    distance = F.avg_pool2d(frame, CELL)
    weight = (1 - distance / 4).clamp(0.02, 1).square()
    middle = _places(hang.shape[-2:], hang) - hang * PICTURE_HALF
    votes = torch.cat((middle * weight, kind * weight, weight), 1)
    around = F.unfold(votes, _AROUND, padding=_AROUND // 2)
    around = around.view(*votes.shape[:2], _AROUND**2, *votes.shape[2:])
    theirs = _by_weight(around)[:, :2]
    agreed = votes
    for near in (4.0, 3.0):  # pixels
        apart = (theirs - middle[:, :, None]).abs()
        same = apart.amax(1, keepdim=True) < near
        agreed = _by_weight((around * same).sum(2))
        middle = agreed[:, :2]
    return (middle - 0.5).round() + 0.5, agreed[:, 2:-1]


def _by_weight(votes: Tensor) -> Tensor:
    """Sums of votes, divided by the sum of their weights, which is the last channel."""
    return votes / votes[:, -1:].clamp_min(1e-6)


def _places(size: Sequence[int], cells: Tensor) -> Tensor:
    """The middle of every pixel of a picture of this size in pixels of the 64-pixel frame, x and y,
    `[1, 2, h, w]`; `cells` has the coarse cells of that frame."""
    rows, columns = cells.shape[-2:]
    height, width = size
    y = middles(height, cells) * (rows * CELL / height)
    x = middles(width, cells) * (columns * CELL / width)
    down, right = torch.meshgrid(y, x, indexing="ij")
    return torch.stack((right, down))[None]


def picture_light(kind: str, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance to the bright part of a picture, positive inside; `x, y` from its middle."""
    if kind == "moon":
        return 2.9 - torch.hypot(x, y)
    if kind == "peak":
        return (1.5 * x.abs() - y - 4) / math.hypot(1.5, 1)
    if kind == "window":
        return torch.minimum(x.abs(), y.abs()) - 1.0
    if kind == "tower":
        return 1.6 - x.abs() + 0 * y
    if kind == "waves":
        wave = torch.remainder(y + 0.35 * torch.sin(1.15 * x) + 7.5, 4)
        return 1 - (wave - 2).abs()
    return (torch.hypot(x, y) - 3.0).abs() - 1.2
