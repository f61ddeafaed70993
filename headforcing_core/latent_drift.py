"""Drift seen in the latents themselves, and what episodic memory found new: free while a video is being made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .errors import HeadForcingError


@dataclass(frozen=True)
class LatentDrift:
    """One row for each block.

    Attributes:
        mean: of every channel, `[blocks, channels]`.
        std: of every channel, `[blocks, channels]`.
        cosine: of the block's frames to the video's first frame, averaged, `[blocks]`.
    """

    mean: Tensor
    std: Tensor
    cosine: Tensor

    @property
    def mean_drift(self) -> Tensor:
        """How far channel means moved from the first block, in the first block's spread, `[blocks, channels]`."""
        return (self.mean - self.mean[0]) / self.std[0].clamp_min(1e-6)

    @property
    def std_ratio(self) -> Tensor:
        """Spread of every channel over that of the first block, `[blocks, channels]`."""
        return self.std / self.std[0].clamp_min(1e-6)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; `channel` names the one whose mean moved furthest."""
        furthest = self.mean_drift.abs().amax(dim=0)
        return {
            "blocks": len(self.cosine),
            "mean": _rounded(self.mean),
            "std": _rounded(self.std),
            "cosine_to_first_frame": _rounded(self.cosine),
            "max_mean_drift": _rounded(furthest.max()),
            "channel": int(furthest.argmax()),
            "last_std_ratio": _rounded(self.std_ratio[-1]),
        }


def latent_drift(blocks: Iterable[Tensor]) -> LatentDrift:
    """Channel statistics of latent blocks `[frames, channels, h, w]`, taken one after another."""
    first: Tensor | None = None
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for block in blocks:
        x = block.detach().float()
        if x.ndim != 4 or not len(x):
            raise HeadForcingError(f"latent blocks must be [frames, channels, h, w], got {list(block.shape)}")
        first = x[0].clone() if first is None else first
        cosine = F.cosine_similarity(x.flatten(1), first.flatten()[None], dim=1).mean()
        rows.append((x.mean(dim=(0, 2, 3)).cpu(), x.std(dim=(0, 2, 3), correction=0).cpu(), cosine.cpu()))
    if not rows:
        raise HeadForcingError("latent drift needs at least one block of latents, got none")
    mean, std, cosine = (torch.stack(column) for column in zip(*rows, strict=True))
    return LatentDrift(mean, std, cosine)


def novelty_trace(events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What episodic memory made of its candidates, from `MemoryEvent.to_dict()`s or a replay's `memory_events`.

    `similarity` is each candidate's highest one to what was remembered (paper, Eq. 4; None for the first), and
    `remembered` how many entries memory held afterwards.
    """
    remembered, counts = 0, []
    for event in events:
        lost = bool(event.get("merged")) or bool(event.get("dropped"))  # two become one, or one goes
        remembered += int(event["admitted"]) - int(lost)
        counts.append(remembered)
    found = [float(event["delta"]) if event["delta"] > -1 else None for event in events]
    known = [value for value in found if value is not None]
    return {
        "after_block": [int(event["after_block"]) for event in events],
        "frame": [int(event["frame"]) for event in events],
        "similarity": found,
        "admitted": [bool(event["admitted"]) for event in events],
        "remembered": counts,
        "admissions": sum(bool(event["admitted"]) for event in events),
        "mean_similarity": math.fsum(known) / len(known) if known else None,
    }


def _rounded(x: Tensor) -> Any:
    return [_rounded(part) for part in x] if x.ndim else round(float(x), 6)
