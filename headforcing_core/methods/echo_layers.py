"""State of Echo-Forcing in one layer, and its scores: how much the first window's queries would
attend to each token.

Their mean is turned by the distance in time to a key; how far queries are from their mean adds to
the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..model.rope import angles


@dataclass
class History:
    """Tokens of the last frames: `kv [2, heads, tokens, head_dim]`, and of each its frame and
    number of uses.
    """

    kv: Tensor
    frame: Tensor
    uses: Tensor

    def append(self, kv: Tensor, frames: range, limit: int) -> None:
        """Add frames `[2, heads, frames, s, head_dim]` and drop the oldest tokens over `limit`."""
        number = torch.arange(frames.start, frames.stop, device=kv.device).repeat_interleave(
            kv.shape[3]
        )
        dropped = max(0, len(self.frame) + len(number) - limit)
        self.kv = torch.cat((self.kv[:, :, dropped:], kv.flatten(2, 3)), dim=2)
        self.frame = torch.cat((self.frame[dropped:], number))
        self.uses = torch.cat((self.uses[dropped:], torch.zeros_like(number)))


@dataclass
class Layer:
    """One layer's state. Keys and queries are without rotary embedding, in `[2, heads, ..., s,
    head_dim]`.
    """

    kv: Tensor  # the window's slots
    first: Tensor  # the first frames of the scene, kept ones included
    history: History  # of the last frames' clean passes
    query_sum: Tensor  # over queries of the scene's first window
    query_size: Tensor  # the same, of absolute values per pair
    scene_queries: Tensor  # sum over all queries of the scene
    candidates: list[Tensor]  # frames from which the scene's memory frame is made
    weights: Tensor  # of kept tokens [kept frames, s]
    rates: Tensor | None = None  # by which they fade from block to block


class TokenScores:
    """Scores the tokens of a layer's history by the options of `policy`, an
    `echo_forcing.EchoForcing`.
    """

    def __init__(self, policy: Any, temporal_dim: int, device: torch.device):
        self.policy = policy
        self.frequencies = angles(torch.arange(2), temporal_dim)[1].float().to(device)
        self.offsets = [2**power for power in range(policy.window_frames.bit_length())]

    def of(self, state: Layer, queries: Tensor, counted: int) -> Tensor:
        """`[tokens]`; `queries [heads, frames, s, head_dim]` are the current ones, `counted` those
        in the sums.
        """
        history = state.history
        mean = state.query_sum / counted
        m_real, m_imag = mean.unflatten(-1, (-1, 2))[:, None].unbind(-1)  # [heads, 1, pairs]
        # [heads, tokens, pairs]
        k_real, k_imag = history.kv[0].float().unflatten(-1, (-1, 2)).unbind(-1)
        real = m_real * k_real + m_imag * k_imag
        imag = m_imag * k_real - m_real * k_imag
        temporal = len(self.frequencies)
        still = real[..., temporal:].sum(dim=-1)
        if self.policy.amplitude:
            spread = state.query_size[:, None] / counted - torch.hypot(m_real, m_imag)
            still = still + self._gate(mean, queries) * (spread * torch.hypot(k_real, k_imag)).sum(
                dim=-1
            )
        distance = history.frame[-1] + 1 - history.frame
        found = []
        for offset in self.offsets:
            turn = (distance + offset)[:, None] * self.frequencies
            moving = real[..., :temporal] * turn.cos() - imag[..., :temporal] * turn.sin()
            found.append(moving.sum(dim=-1) + still)
        scores = torch.stack(found)
        return scores.amax(dim=(0, 1)) if self.policy.takes_maximum else scores.mean(dim=(0, 1))

    def _gate(self, mean: Tensor, queries: Tensor) -> float:
        """Less than 1 where the current queries point elsewhere than those of the scene's
        beginning.
        """
        if not self.policy.gated:
            return 1.0
        cosine = F.cosine_similarity(
            queries.float().mean(dim=(1, 2)).flatten(), mean.flatten(), dim=0
        )
        return float(torch.exp(-self.policy.drift * (1 - cosine.clamp(-1, 1))))
