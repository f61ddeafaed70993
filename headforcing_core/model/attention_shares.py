"""Share of attention that each part of a context receives, computed without an attention map."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import AttentionFunction


def with_shares(
    attention: AttentionFunction, q: Tensor, k: Tensor, v: Tensor, first_tokens: int, last_tokens: int
) -> tuple[Tensor, Tensor]:
    """Attention `[heads, queries, d]`, and the shares `[heads, 3]` of it that the first, the middle and the last keys
    receive (paper, Eq. 1), with so many `first_tokens` and `last_tokens`."""
    part = torch.ones(k.shape[1], dtype=torch.long, device=k.device)
    part[:first_tokens], part[k.shape[1] - last_tokens :] = 0, 2
    shares = part_shares(attention, q, k, part, 3)
    return attention(q, k, v), shares


def part_shares(attention: AttentionFunction, q: Tensor, k: Tensor, part: Tensor, parts: int) -> Tensor:
    """Share of attention that the keys of each part receive, `[heads, parts]`, averaged over the queries.

    `part [keys]` is the part that a key belongs to. One attention call whose values are one-hot vectors of the parts,
    as wide as keys because fast kernels need that. In float64 where the device supports it (mps does not), and scaled
    to sum to 1: in bfloat16 each share has an error of up to 0.2 %, too much for a head profile.
    """
    columns = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)[part]
    shares = attention(q, k, columns[None].expand_as(k))[..., :parts]
    shares = shares.to(torch.float64 if shares.device.type in ("cpu", "cuda") else torch.float32).mean(dim=1)
    return shares / shares.sum(dim=-1, keepdim=True)
