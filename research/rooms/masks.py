"""Masks of video frames: connected regions, and what is near."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def label(masks: Tensor) -> Tensor:
    """Label the connected regions (8 neighbours) of `masks [n, h, w]` with distinct numbers from 1; 0 elsewhere."""
    ids = torch.arange(1, masks[0].numel() + 1, dtype=torch.float32).view_as(masks[0]) * masks
    while True:
        spread = F.max_pool2d(ids[:, None], 3, 1, 1)[:, 0] * masks
        if torch.equal(spread, ids):
            return ids.long()
        ids = spread


def grow(masks: Tensor, pixels: int) -> Tensor:
    """Dilate `masks [n, h, w]` by `pixels` in all directions."""
    return F.max_pool2d(masks.float()[:, None], 2 * pixels + 1, 1, pixels)[:, 0] > 0


def regions(labels: Tensor, smallest: int) -> list[tuple[tuple[float, float], Tensor]]:
    """Centre `(x, y)` and mask of each labelled region with at least `smallest` pixels."""
    large = []
    for number in labels.unique().tolist():
        mask = labels == number
        if number and mask.sum() >= smallest:
            y, x = (mask.nonzero().float().mean(0) + 0.5).tolist()
            large.append(((x, y), mask))
    return large
