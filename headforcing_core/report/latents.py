"""Per-block latent statistics and episodic memory decisions of a render, collected while it
runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..files import Fields
from ..rollout.loop import MemoryEvent

# Of the published clip of Wan 2.1 in madebyollin/taehv (examples/test_latents_wan.pth, 61 video
# frames of 512x320): lowest similarity to the first frame, standard deviations of the channels in
# the last block by the first block's, largest change of a channel mean.
CLIP = ("0.84", "1.03", "1.43", "0.5")
# standard deviation of all latents: the least of a latent frame of that clip, and as far above the
# 1 to which latents are normalised
USUAL = (0.6, 1.4)


@dataclass(frozen=True)
class RunReport:
    """Statistics of every block of a video, start blocks included, and the decisions of episodic
    memory.
    """

    mean: Tensor  # of every latent channel, `[blocks, channels]`
    std: Tensor  # the same
    # mean similarity of the block's latent frames to the first one of the video, `[blocks]`
    cosine: Tensor
    # frame slots in use after the block, of all heads; None if it was loaded from disk
    occupied: list[int | None]
    events: list[MemoryEvent]

    @property
    def blocks(self) -> int:
        return len(self.cosine)

    @property
    def mean_drift(self) -> Tensor:
        """Change of the channel means since the first block, in its standard deviations, `[blocks,
        channels]`.
        """
        return (self.mean - self.mean[0]) / self.std[0].clamp_min(1e-6)

    @property
    def std_ratio(self) -> Tensor:
        """Standard deviation of every channel divided by that in the first block, `[blocks,
        channels]`.
        """
        return self.std / self.std[0].clamp_min(1e-6)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of all latents of a block, `[blocks]`; about 1 where they are
        normalised as Wan's.
        """
        square = (self.std.square() + self.mean.square()).mean(dim=1)
        return (square - self.mean.mean(dim=1).square()).clamp_min(0).sqrt()

    def text(self, wan21: bool = False) -> str:
        """The report as text; with `wan21`, for latents of that format, with the figures of a clip
        as a scale. The values are comparable between renders of the same length.
        """
        cosine = self.cosine.tolist()
        lowest = min(cosine)
        last = self.std_ratio[-1]
        furthest = self.mean_drift.abs().amax(dim=0)
        lines = [
            f"latents  similarity to the first frame {cosine[0]:.2f} in the first block, "
            f"{cosine[-1]:.2f} in the last, lowest {lowest:.2f} in block {cosine.index(lowest)}",
            "         standard deviations of the channels in the last block "
            f"{float(last.min()):.2f} to {float(last.max()):.2f} of the first block's; largest "
            f"change of a channel mean {float(furthest.max()):.1f} standard deviations, in channel "
            f"{int(furthest.argmax())}",
        ]
        if wan21:
            lines += self._scale()
        if self.events:
            lines.append(describe_events(self.events))
        used = [count for count in self.occupied if count is not None]
        if used:
            lines.append(
                f"cache    {used[-1]:,} frame slots in use at the end, at most {max(used):,}"
            )
        return "\n".join(lines)

    def _scale(self) -> list[str]:
        """Lines that compare the figures with those of a clip of Wan 2.1."""
        last = float(self.deviation[-1])
        least, most = USUAL
        usual = "usual" if least <= last <= most else f"outside the usual {least} to {most}"
        lowest, smallest, largest, change = CLIP
        return [
            f"         standard deviation of all latents in the last block {last:.2f}, {usual}",
            f"         a clip of Wan 2.1, of 4 s, has: lowest similarity {lowest}, standard "
            f"deviations {smallest} to {largest}, change of a mean {change}",
        ]

    def to_dict(self) -> Fields:
        """The report for JSON; tensors are lists, rounded to 6 digits."""
        return {
            "blocks": self.blocks,
            "mean": _rounded(self.mean),
            "std": _rounded(self.std),
            "cosine_to_first_frame": _rounded(self.cosine),
            "occupied_frame_slots": self.occupied,
            "memory_events": [event.to_dict() for event in self.events],
        }


class RunMeter:
    """Collects a `RunReport` block by block, storing a few numbers per block."""

    def __init__(self) -> None:
        self._first: Tensor | None = None
        # flat, not one tensor per block: many small long-lived tensors fragment memory
        self._rows = array("f")
        self.occupied: list[int | None] = []

    def add(self, latents: Tensor, occupied: int | None = None) -> None:
        """Add the next block of latents `[frames, channels, h, w]`, normalised as for the model and
        in main memory.
        """
        x = latents.detach().float()
        if self._first is None:
            self._first = x[0].flatten().clone()
        cosine = F.cosine_similarity(x.flatten(1), self._first[None], dim=1).mean()
        std, mean = torch.std_mean(x, dim=(0, 2, 3), correction=0)
        self._rows.extend([*mean.tolist(), *std.tolist(), cosine.item()])
        self.occupied.append(occupied)

    def report(self, events: Sequence[MemoryEvent] = ()) -> RunReport:
        """The report of the blocks added so far, at least one."""
        rows = torch.tensor(self._rows).reshape(len(self.occupied), -1)
        mean, std = rows[:, :-1].chunk(2, dim=1)
        return RunReport(
            mean, std, cosine=rows[:, -1], occupied=list(self.occupied), events=list(events)
        )


def describe_events(events: Sequence[MemoryEvent]) -> str:
    """Decisions of episodic memory as text: a line for every latent frame it admitted, and one for
    all rejections.
    """
    lines = [_describe_admission(event) for event in events if event.admitted]
    rejected = [event.delta for event in events if not event.admitted]
    if rejected:
        span = f"similarity {min(rejected):.3f} to {max(rejected):.3f}"
        lines.append(f"{len(rejected)} of {len(events)} candidates were not novel enough ({span})")
    return "\n".join(lines)


def _describe_admission(event: MemoryEvent) -> str:
    """A line about a latent frame that episodic memory admitted."""
    line = f"after block {event.after_block}: admitted frame {event.frame}"
    if event.delta != -1:
        line += f" (similarity {event.delta:.3f})"
    if event.merged:
        merged = []
        for frames in event.merged:
            merged.append(
                f"frame {frames[0]}" if len(frames) == 1 else f"the summary of {len(frames)} frames"
            )
        line += f", merged {' and '.join(merged)}"
    if event.dropped:
        line += f", forgot frame {event.dropped[0]}"
    return line


def _rounded(x: Tensor) -> Any:
    return x.double().round(decimals=6).tolist()
