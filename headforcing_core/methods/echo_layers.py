"""State of Echo-Forcing in one layer, and its scores: how much the queries to come would attend to each token.

The first window's queries stand for those to come. Their mean times a key, turned by the distance between the two in
time, is the attention that the mean query pays to the key; how far queries are from their mean adds to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.rope import angles, axis_dims


@dataclass
class History:
    """Tokens of the last frames: `k, v [heads, tokens, head_dim]`, and of each its frame and number of uses."""

    k: Tensor
    v: Tensor
    frame: Tensor
    uses: Tensor

    def append(self, k: Tensor, v: Tensor, frames: range, limit: int) -> None:
        """Add frames `[heads, frames, s, head_dim]` and drop the oldest tokens over `limit`."""
        number = torch.arange(frames.start, frames.stop, device=k.device).repeat_interleave(k.shape[2])
        self.k, self.v = (  # copies, so that what is dropped is freed
            torch.cat((old[:, max(0, old.shape[1] + len(number) - limit) :], new.flatten(1, 2)), dim=1)
            for old, new in ((self.k, k), (self.v, v))
        )
        self.frame = torch.cat((self.frame, number))[-limit:]
        self.uses = torch.cat((self.uses, torch.zeros_like(number)))[-limit:]


@dataclass
class Layer:
    """One layer's state. Keys and queries are without rotary embedding, in `[heads, ..., s, head_dim]`.

    Attributes:
        k, v: the window's slots.
        first_k, first_v: the first frames of the scene, kept ones included.
        history: keys and values of the last frames' clean passes, with each token's frame and how often it was chosen.
        query_sum, query_size: sums over queries of the scene's first window, real and in absolute value per pair.
        scene_queries: sum over all queries of the scene.
        candidates: keys and values from which the scene's memory frame is made.
        weights, rates: of kept tokens `[kept frames, s]`, and by what they fade from block to block.
    """

    k: Tensor
    v: Tensor
    first_k: Tensor
    first_v: Tensor
    history: History
    query_sum: Tensor
    query_size: Tensor
    scene_queries: Tensor
    candidates: list[tuple[Tensor, Tensor]]
    weights: Tensor
    rates: Tensor | None = None


class TokenScores:
    """Scores the tokens of a layer's history by the options of `policy`, an `echo_forcing.EchoForcing`."""

    def __init__(self, policy: Any, head_dim: int, device: torch.device):
        self.policy = policy
        temporal, _, _ = axis_dims(head_dim)
        self.frequencies = angles(torch.arange(2), temporal)[1].float().to(device)
        window = policy.window_frames
        self.offsets = [2**power for power in range(window.bit_length()) if 2**power <= window]

    def of(self, state: Layer, queries: Tensor, counted: int) -> Tensor:
        """`[tokens]`; `queries [heads, frames, s, head_dim]` are the current ones, `counted` those in the sums."""
        history = state.history
        mean = state.query_sum / counted
        m_real, m_imag = mean.unflatten(-1, (-1, 2))[:, None].unbind(-1)  # [heads, 1, pairs]
        k_real, k_imag = history.k.float().unflatten(-1, (-1, 2)).unbind(-1)  # [heads, tokens, pairs]
        real, imag = m_real * k_real + m_imag * k_imag, m_imag * k_real - m_real * k_imag
        temporal = len(self.frequencies)
        still = real[..., temporal:].sum(dim=-1)
        if self.policy.amplitude:
            spread = state.query_size[:, None] / counted - torch.hypot(m_real, m_imag)
            still = still + self._gate(mean, queries) * (spread * torch.hypot(k_real, k_imag)).sum(dim=-1)
        distance = history.frame[-1] + 1 - history.frame
        found = []
        for offset in self.offsets:
            turn = (distance + offset)[:, None] * self.frequencies
            moving = real[..., :temporal] * turn.cos() - imag[..., :temporal] * turn.sin()
            found.append(moving.sum(dim=-1) + still)
        scores = torch.stack(found)
        return scores.amax(dim=(0, 1)) if self.policy.takes_maximum else scores.mean(dim=(0, 1))

    def _gate(self, mean: Tensor, queries: Tensor) -> float:
        """Less than 1 where the current queries point elsewhere than those of the scene's beginning."""
        if not self.policy.gated:
            return 1.0
        cosine = F.cosine_similarity(queries.float().mean(dim=(1, 2)).flatten(), mean.flatten(), dim=0)
        return float(torch.exp(-self.policy.drift * (1 - cosine.clamp(-1, 1))))
