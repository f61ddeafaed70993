"""Echo-Forcing's scores: how much the queries to come would attend to each token of the history.

The first window's queries stand for those to come. Their mean times a key, turned by the distance between the two in
time, is the attention that the mean query pays to the key; how far queries are from their mean adds to that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.rope import angles, axis_dims
from .echo_layers import Layer


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
