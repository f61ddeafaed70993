"""State of Echo-Forcing in one layer, and its scores: how much the first window's queries would
attend to each token.

Their mean is turned by the distance in time to a key; how far queries are from their mean adds to
the product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


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


@dataclass(frozen=True)
class TokenScores:
    """Scores the tokens of a layer's history, by options of `echo_forcing.EchoForcing`.

    `frequencies`: of the rotation in time, one per pair of channels.
    """

    frequencies: Tensor
    window_frames: int
    takes_maximum: bool
    amplitude: bool
    gated: bool
    drift: float

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
        if self.amplitude:
            spread = state.query_size[:, None] / counted - torch.hypot(m_real, m_imag)
            still = still + self._gate(mean, queries) * (spread * torch.hypot(k_real, k_imag)).sum(
                dim=-1
            )
        distance = history.frame[-1] + 1 - history.frame
        found = []
        for power in range(self.window_frames.bit_length()):
            turn = (distance + 2**power)[:, None] * self.frequencies
            moving = real[..., :temporal] * turn.cos() - imag[..., :temporal] * turn.sin()
            found.append(moving.sum(dim=-1) + still)
        scores = torch.stack(found)
        return scores.amax(dim=(0, 1)) if self.takes_maximum else scores.mean(dim=(0, 1))

    def _gate(self, mean: Tensor, queries: Tensor) -> float:
        """Less than 1 where the current queries point elsewhere than those of the scene's
        beginning.
        """
        if not self.gated:
            return 1.0
        cosine = F.cosine_similarity(
            queries.float().mean(dim=(1, 2)).flatten(), mean.flatten(), dim=0
        )
        return float(torch.exp(-self.drift * (1 - cosine.clamp(-1, 1))))
