"""The sink anomaly gate (DySink, arXiv 2605.21028): leaves a kept frame out where it draws too many heads at once."""

from __future__ import annotations

import torch
from torch import Tensor


class SinkGate:
    """Decides, pass by pass and layer by layer, which kept frames a group of heads attends to.

    Attributes:
        passes: how many passes of a layer's group had kept frames.
        frames: how many kept frames these passes had, all together.
        left_out: how many of them were left out.
    """

    def __init__(self, threshold: float):
        self.threshold = threshold
        self.passes = self.frames = self.left_out = 0

    def context(self, q: Tensor, k: Tensor, v: Tensor, kept_frames: int) -> tuple[Tensor, Tensor]:
        """The keys and values that a group of heads attends to, `[heads, keys, d]` each.

        Args:
            q: rotated queries of the block, `[heads, queries, d]`.
            k, v: the heads' contexts, `[heads, frames, s, d]`, keys rotated.
            kept_frames: how many of the frames, the first ones, are sinks or episodic entries.
        """
        if kept_frames:
            self.passes, self.frames = self.passes + 1, self.frames + kept_frames
            anomalous = self.anomalous(q, k, kept_frames)
            if anomalous.any():
                # the host reads the decision: contexts of two lengths cannot be one launch
                self.left_out += int(anomalous.sum())
                stays = torch.ones(k.shape[1], dtype=torch.bool, device=k.device)
                stays[:kept_frames] = ~anomalous
                k, v = k[:, stays], v[:, stays]
        return k.flatten(1, 2), v.flatten(1, 2)

    def anomalous(self, q: Tensor, k: Tensor, kept_frames: int) -> Tensor:
        """For every kept frame whether it is left out, `[kept_frames]`; arguments as for `context`.

        The mean query of a head scores a frame by its mean product with the frame's keys, and so it scores all other
        frames together. A frame is left out where more heads than the threshold's share prefer it to the others.
        """
        query = q.mean(dim=1, dtype=torch.float32)
        means = k.mean(dim=2, dtype=torch.float32)  # products are linear in the keys
        scores = torch.einsum("hd,hnd->hn", query, means)
        others = scores[:, kept_frames:].mean(dim=1, keepdim=True)
        shares = (scores[:, :kept_frames] > others).float().mean(dim=0)
        return shares > self.threshold

    def report(self) -> str:
        """One line for a report."""
        return (
            f"sink gate {self.threshold:g}: left out {self.left_out:,} of {self.frames:,} kept frames "
            f"in {self.passes:,} passes of layers"
        )
