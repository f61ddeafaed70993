"""Attention over one group of heads. The only module that knows attention backends.

A backend is a function `(q [heads, queries, d], k [heads, keys, d], v [heads, keys, d]) -> [heads, queries, d]` without
a mask: every query sees every key.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .errors import HeadForcingError

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention written out, one head at a time, in float32 or better: what every backend has to equal."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    for head in range(len(q)):
        scores = q[head].to(dtype) @ k[head].to(dtype).T / q.shape[-1] ** 0.5
        out[head] = (scores.softmax(dim=-1) @ v[head].to(dtype)).to(q.dtype)
    return out


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's dense attention; it picks flash, cuDNN, memory-efficient or plain by itself."""
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


BACKENDS: dict[str, AttentionFunction] = {"sdpa": sdpa, "explicit": explicit}


def attention_function(name: str) -> AttentionFunction:
    """The backend of that name (`auto` picks `sdpa`, which runs everywhere), or an error that lists the names."""
    if name == "auto":
        return sdpa
    if name not in BACKENDS:
        raise HeadForcingError(f"attention must be one of auto, {', '.join(BACKENDS)}, got {name!r}")
    return BACKENDS[name]
