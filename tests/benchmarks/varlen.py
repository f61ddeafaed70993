"""Attention over packed sequences of different lengths, as the paper uses it: every head is a sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from headforcing.headforcing_core.model.attention import (
    ONE_CALL,
    LayerAttention,
    LayerSizes,
    Span,
    Spans,
    fastest_backend,
)
from torch import Tensor
from torch.nn import functional as F

from .case import HEAD_DIM


@dataclass(frozen=True)
class Lengths:
    """Where each head's queries and keys begin in the packed tensors."""

    queries: int  # per head
    keys: tuple[int, ...]

    @property
    def spans(self) -> Spans:
        """Every head as the engine's attention is told of it."""
        firsts = [0, *accumulate(self.keys)]
        return tuple(Span(1, first, rows, rows) for first, rows in zip(firsts, self.keys, strict=False))


# (q [heads * queries, d], k, v [sum of keys, d], lengths) -> [heads * queries, d]
PackedAttention = Callable[[Tensor, Tensor, Tensor, Lengths], Tensor]


def head_by_head(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> Tensor:
    """Stands in where there is no varlen kernel: the same packed tensors, one dense call per head."""
    pieces = zip(q.split(lengths.queries), k.split(lengths.keys), v.split(lengths.keys), strict=True)
    return torch.cat([F.scaled_dot_product_attention(*(x[None, None] for x in piece))[0, 0] for piece in pieces])


def nothing(q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> Tensor:
    """No attention, to time what is around it."""
    return q


def one_call(device: torch.device, dtype: torch.dtype, sizes: LayerSizes) -> LayerAttention:
    """The fastest backend that takes all heads of a layer in one call; raises ImportError where none works."""
    found = fastest_backend(ONE_CALL, device, dtype, HEAD_DIM, sizes) if device.type == "cuda" else None
    if not isinstance(found, LayerAttention):
        raise ImportError("no attention to sequences of different lengths works here")
    return found


def packed_attention(device: torch.device, dtype: torch.dtype, sizes: LayerSizes) -> tuple[str, PackedAttention]:
    """What attends, and its name: on CUDA the fastest in one call, elsewhere a stand-in; ImportError as `one_call`."""
    if device.type != "cuda":
        return "dense calls, head by head", head_by_head
    function = one_call(device, dtype, sizes)
    return function.name, partial(_in_one_call, function)


def _in_one_call(function: LayerAttention, q: Tensor, k: Tensor, v: Tensor, lengths: Lengths) -> Tensor:
    return function.layer(q.unflatten(0, (-1, lengths.queries)), k, v, lengths.spans).flatten(0, 1)
