"""Attention over packed sequences of different lengths, as the paper uses it: every head is a sequence."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Lengths:
    """Where each head's queries and keys begin in the packed tensors."""

    queries: int  # per head
    keys: list[int]
    query_starts: Tensor  # [heads + 1] int32
    key_starts: Tensor

    @classmethod
    def of(cls, queries: int, keys: Sequence[int], device: torch.device) -> Lengths:
        """For heads with `queries` queries each and `keys` keys."""
        query_starts = [queries * head for head in range(len(keys) + 1)]
        tables = (
            torch.tensor(rows, dtype=torch.int32, device=device) for rows in (query_starts, [0, *accumulate(keys)])
        )
        return cls(queries, list(keys), *tables)


# the order in which the engine tries them: rows are to be compared with the same kernel
VARLEN_KERNELS = (
    ("flash_attn_3", "flash_attn_interface", "flash_attn_varlen_func"),
    ("torch_varlen", "torch.nn.attention.varlen", "varlen_attn"),
    ("flash_attn_2", "flash_attn", "flash_attn_varlen_func"),
)

# (q [heads * queries, d], k, v [sum of keys, d], lengths) -> [heads * queries, d]
PackedAttention = Callable[[Tensor, Tensor, Tensor, Lengths], Tensor]


def head_by_head(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> Tensor:
    """Stands in where there is no varlen kernel: the same packed tensors, one dense call per head."""
    pieces = zip(q.split(lengths.queries), k.split(lengths.keys), v.split(lengths.keys), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*(x[None, None] for x in piece))[0, 0] for piece in pieces])


def nothing(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> Tensor:
    """No attention, to time what is around it."""
    return q


def packed_attention(device: torch.device) -> tuple[str, PackedAttention]:
    """What attends, and its name: one call for all heads on CUDA (ImportError if nothing offers it), or a stand-in."""
    if device.type != "cuda":
        return "dense calls, head by head", head_by_head
    name, kernel = _varlen_kernel()

    def varlen(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> Tensor:
        packed = (x[:, None] for x in (q, k, v))
        out = kernel(*packed, lengths.query_starts, lengths.key_starts, lengths.queries, max(lengths.keys))
        return (out[0] if isinstance(out, tuple) else out)[:, 0]  # some versions return the log-sum-exp, too

    return name, varlen


def _varlen_kernel() -> tuple[str, Any]:
    for name, module, function in VARLEN_KERNELS:
        try:
            return name, getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError):
            continue
    raise ImportError("neither torch, from 2.10 on, nor flash-attn offers varlen attention here")
