"""What a render itself can tell, for free: drift seen in the latents, and what episodic memory found new."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache.memory import MemoryEvent
from ..errors import HeadForcingError


@dataclass(frozen=True)
class RunReport:
    """One row for each block of a video, start blocks included.

    Attributes:
        mean: of every latent channel, `[blocks, channels]`.
        std: of every latent channel, `[blocks, channels]`.
        cosine: of the block's frames to the video's first frame, averaged, `[blocks]`.
        occupied: frame-slots in use after the block, all heads together; None where the block was not made anew.
        events: what episodic memory did.
    """

    mean: Tensor
    std: Tensor
    cosine: Tensor
    occupied: list[int | None]
    events: list[MemoryEvent]

    @property
    def blocks(self) -> int:
        return len(self.cosine)

    @property
    def mean_drift(self) -> Tensor:
        """How far channel means moved from the first block, in the first block's spread, `[blocks, channels]`."""
        return (self.mean - self.mean[0]) / self.std[0].clamp_min(1e-6)

    @property
    def std_ratio(self) -> Tensor:
        """Spread of every channel over that of the first block, `[blocks, channels]`."""
        return self.std / self.std[0].clamp_min(1e-6)

    def text(self) -> str:
        """The report for people, to be read against other renders of the same length."""
        furthest, last = self.mean_drift.abs().amax(dim=0), self.std_ratio[-1]
        lines = [
            f"latents  likeness to the first frame {float(self.cosine[0]):.2f} in the first block, "
            f"{float(self.cosine[-1]):.2f} in the last, lowest {float(self.cosine.min()):.2f} in block "
            f"{int(self.cosine.argmin())}",
            f"         channel spreads end at {float(last.min()):.2f} to {float(last.max()):.2f} of the first block's; "
            f"the mean of channel {int(furthest.argmax())} moved furthest, by {float(furthest.max()):.1f} spreads",
        ]
        trace = novelty_trace(self.events)
        known = [value for value in trace["similarity"] if value is not None]
        if known:
            lines.append(
                f"memory   {trace['admissions']} of {len(self.events)} candidates remembered, similarity to what was "
                f"there {min(known):.2f} to {max(known):.2f}, {trace['remembered'][-1]} entries at the end"
            )
        used = [count for count in self.occupied if count is not None]
        if used:
            lines.append(f"cache    {used[-1]:,} frame-slots in use at the end, at most {max(used):,}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        furthest = self.mean_drift.abs().amax(dim=0)
        return {
            "blocks": self.blocks,
            "mean": _rounded(self.mean),
            "std": _rounded(self.std),
            "cosine_to_first_frame": _rounded(self.cosine),
            "max_mean_drift": _rounded(furthest.max()),
            "channel": int(furthest.argmax()),
            "last_std_ratio": _rounded(self.std_ratio[-1]),
            "occupied_frame_slots": self.occupied,
            "novelty": novelty_trace(self.events),
        }


class RunMeter:
    """Collects a `RunReport` block by block; keeps a few numbers of each."""

    def __init__(self) -> None:
        self._first: Tensor | None = None
        self._rows = array("f")  # one after another: what lives as long as the run lies in one piece of memory
        self._occupied: list[int | None] = []

    def add(self, latents: Tensor, occupied: int | None = None) -> None:
        """Take the next block `[frames, channels, h, w]`, as the model sees it."""
        x = latents.detach().float().cpu()
        if x.ndim != 4 or not len(x):
            raise HeadForcingError(f"latent blocks must be [frames, channels, h, w], got {list(latents.shape)}")
        if self._first is None:
            self._first = x[0].flatten().clone()
        cosine = F.cosine_similarity(x.flatten(1), self._first[None], dim=1).mean()
        std, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
        self._rows.extend([*mean.tolist(), *std.tolist(), cosine.item()])
        self._occupied.append(occupied)

    def report(self, events: Sequence[MemoryEvent] = ()) -> RunReport:
        """What was collected so far."""
        if not self._rows:
            raise HeadForcingError("a run report needs at least one finished block")
        rows = torch.tensor(self._rows).unflatten(0, (len(self._occupied), -1))
        mean, std = rows[:, :-1].chunk(2, dim=1)
        return RunReport(mean, std, rows[:, -1], list(self._occupied), list(events))


def describe_events(events: Sequence[MemoryEvent]) -> str:
    """What episodic memory did: a line for every frame it remembered, one for all that it did not."""
    lines = []
    for event in events:
        if not event.admitted:
            continue
        line = f"after block {event.after_block}: remembered frame {event.frame}"
        if event.delta != -1:
            line += f" (similarity {event.delta:.3f})"
        if event.merged:
            parts = [f"frame {p[0]}" if len(p) == 1 else f"the summary of {len(p)} frames" for p in event.merged]
            line += f", merged {' and '.join(parts)}"
        if event.dropped:
            line += f", forgot frame {event.dropped[0]}"
        lines.append(line)
    rejected = [event.delta for event in events if not event.admitted]
    if rejected:
        lines.append(
            f"{len(rejected)} of {len(events)} candidates were not novel enough (similarity {min(rejected):.3f} to "
            f"{max(rejected):.3f})"
        )
    return "\n".join(lines)


def novelty_trace(events: Sequence[MemoryEvent]) -> dict[str, Any]:
    """What episodic memory made of its candidates.

    `similarity` is each candidate's highest one to what was remembered (paper, Eq. 4; None for the first), and
    `remembered` how many entries memory held afterwards.
    """
    remembered, counts = 0, []
    for event in events:
        if event.delta == -1:  # it was empty, at the beginning or after a flush
            remembered = 0
        lost = bool(event.merged) or bool(event.dropped)  # two become one, or one goes
        remembered += int(event.admitted) - int(lost)
        counts.append(remembered)
    found = [event.delta if event.delta > -1 else None for event in events]
    known = [value for value in found if value is not None]
    return {
        "after_block": [event.after_block for event in events],
        "frame": [event.frame for event in events],
        "similarity": found,
        "admitted": [event.admitted for event in events],
        "remembered": counts,
        "admissions": sum(event.admitted for event in events),
        "mean_similarity": math.fsum(known) / len(known) if known else None,
    }


def _rounded(x: Tensor) -> Any:
    return [_rounded(part) for part in x] if x.ndim else round(float(x), 6)
