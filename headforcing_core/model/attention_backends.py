"""The attention backends, for layers whose heads have different numbers of keys, and the self-test that each must pass.

A backend is a function `(q [heads, queries, d], k [heads, keys, d], v [heads, keys, d]) -> [heads, queries, d]` without
a mask, called once for each group of heads with equally many keys. A `LayerAttention` also computes all heads of a
layer in one call, which uses a GPU better. An optional package is imported only when its backend is tested.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...kernels.attend import attend
from ..devices import kept_tables, upload

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]

PLAN_PAYS = 200  # calls of a shape: what cuDNN's plan for it costs is what it gains in about as many


@dataclass(frozen=True)
class Span:
    """Adjacent heads of a layer with equally many keys: rows of its buffers of keys and values `[all rows, d]`."""

    heads: int  # number of them
    first: int  # first row of the first head
    room: int  # rows allocated per head
    rows: int  # rows in use per head, the first of its `room`


Spans = tuple[Span, ...]  # all heads of a layer, contiguous, in the order of the queries


@dataclass(frozen=True)
class LayerAttention:
    """A backend that can compute all heads of a layer in one call."""

    layer: Callable[[Tensor, Tensor, Tensor, Spans], Tensor]  # q [heads, queries, d], k, v [rows, d] -> like q
    name: str = ""  # for reports

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of heads with equally many keys: the signature of every backend."""
        heads, keys, _ = k.shape
        return self.layer(q, k.flatten(0, 1), v.flatten(0, 1), (Span(heads, 0, keys, keys),))


@dataclass(frozen=True)
class GroupedAttention:
    """A backend that is called once for each group of heads, with a name for reports."""

    function: AttentionFunction
    name: str

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.function(q, k, v)


# ------------------------------------------------------------------------------------ heads with equally many keys


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention written out, one head at a time, in float32 or better: the reference for every backend."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    for head in range(len(q)):
        scores = q[head].to(dtype) @ k[head].to(dtype).T / q.shape[-1] ** 0.5
        out[head] = (scores.softmax(dim=-1) @ v[head].to(dtype)).to(q.dtype)
    return out


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's `scaled_dot_product_attention`, which chooses a flash, cuDNN, memory-efficient or plain kernel."""
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


@dataclass(frozen=True)
class PlannedAttention:
    """cuDNN's kernel for shapes that come again and again, `unplanned` for those that a growing context passes through.

    cuDNN prepares an execution plan, 25 to 42 ms on the host, for every new number of heads and keys.
    """

    planned: AttentionFunction
    unplanned: AttentionFunction = sdpa
    calls: Counter[Any] = field(default_factory=Counter)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shape = q.shape, k.shape, k.stride()
        self.calls[shape] += 1
        return (self.planned if self.calls[shape] > PLAN_PAYS else self.unplanned)(q, k, v)


def _cudnn() -> AttentionFunction:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return sdpa(q, k, v)

    return attention


def _sage() -> AttentionFunction:
    from sageattention import sageattn

    return lambda q, k, v: sageattn(q[None], k[None], v[None], tensor_layout="HND")[0]


def on_streams(dense: AttentionFunction) -> LayerAttention:
    """A backend that calls `dense` for every group of heads, on CUDA streams that run at the same time."""

    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        here, parts = torch.cuda.current_stream(q.device), []
        sides = _side_streams(q.device, len(spans) - 1)
        for side in sides:
            side.wait_stream(here)
        queries = q.split([span.heads for span in spans])
        for span, part, stream in zip(spans, queries, (*sides, here), strict=True):  # the longest are launched first
            with torch.cuda.stream(stream):
                parts.append(dense(part, *views(span, k, v)))
        for side in sides:
            here.wait_stream(side)
        return torch.cat(parts)

    return LayerAttention(layer)


@functools.cache
def _side_streams(device: torch.device, count: int) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(count))


# ----------------------------------------------------------------------------- sequences of different lengths


def varlen(call: Callable[..., Any]) -> LayerAttention:
    """A backend from a variable-length (varlen) kernel. Each head is passed as one sequence with a single head.

    Args:
        call: `(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)` with q, k and v
            `[tokens of all sequences, 1, d]` and the cumulative sequence lengths as int32 `[sequences + 1]`; returns
            the output, or a tuple that begins with it.
    """

    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        starts = sequence_starts(spans, q.shape[1], q.device)
        longest = max(span.room for span in spans)
        out = call(q.flatten(0, 1)[:, None], k[:, None], v[:, None], *starts, q.shape[1], longest)
        return (out[0] if isinstance(out, tuple) else out).view(q.shape)

    return LayerAttention(layer)


def _varlen_of(module: str, function: str) -> Callable[[], AttentionFunction]:
    return lambda: varlen(getattr(import_module(module), function))


@kept_tables
def sequence_starts(spans: Spans, queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cumulative sequence lengths of the queries and of the keys, `[sequences + 1]` int32 each.

    Every head is a sequence. Its allocated rows that hold no keys are another one, without queries, which the kernel
    skips; also where it is empty, since a library may prepare a plan for every number of sequences.
    """
    q_starts, k_starts = [0], [0]
    for span in spans:
        for head in range(span.heads):
            first = span.first + head * span.room
            q_starts += 2 * [q_starts[-1] + queries]
            k_starts += [first + span.rows, first + span.room]
    return _table(q_starts, device), _table(k_starts, device)


def _table(numbers: Sequence[int], device: torch.device) -> Tensor:
    return upload(torch.tensor(numbers, dtype=torch.int32), device)


def _cudnn_varlen() -> AttentionFunction:
    forward = torch.ops.aten._cudnn_attention_forward
    # no mask; the last four: log-sum-exp (an output of cuDNN's graph), dropout, causal, debug mask
    return varlen(lambda q, k, v, *lengths: forward(q, k, v, None, *lengths, True, 0.0, False, False))


def _triton() -> AttentionFunction:
    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        return attend.kernel(q.contiguous(), k, v, *head_tables(spans, q.device)).transpose(0, 1)

    return LayerAttention(layer)


@kept_tables
def head_tables(spans: Spans, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Every head's first row, its number of keys, and the order in which heads are launched, `[heads]` int32 each."""
    starts = [span.first + head * span.room for span in spans for head in range(span.heads)]
    rows = [span.rows for span in spans for _ in range(span.heads)]
    return _table(starts, device), _table(rows, device), _table(range(len(rows)), device)


BACKENDS: dict[str, Callable[[], AttentionFunction]] = {
    "sdpa": lambda: sdpa,
    "cudnn": _cudnn,
    "sdpa_streams": lambda: on_streams(sdpa),
    "cudnn_streams": lambda: on_streams(_cudnn()),
    "torch_varlen": _varlen_of("torch.nn.attention.varlen", "varlen_attn"),
    "flash_attn_2": _varlen_of("flash_attn", "flash_attn_varlen_func"),
    "flash_attn_3": _varlen_of("flash_attn_interface", "flash_attn_varlen_func"),
    "flash_attn_4": _varlen_of("flash_attn.cute", "flash_attn_varlen_func"),
    "cudnn_varlen": _cudnn_varlen,
    "triton": _triton,
    "explicit": lambda: explicit,
    "sage": _sage,
}


# ---------------------------------------------------------------------------------------------------- the self-test


def sparing_plans(name: str, attention: AttentionFunction) -> AttentionFunction:
    """The backend `name` as a render calls it: without a plan for every shape that passes."""
    if name == "cudnn":
        return PlannedAttention(attention)
    if name == "cudnn_streams":
        return replace(on_streams(PlannedAttention(_cudnn())), name=name)
    return attention


def load_attention(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionFunction:
    """The backend `name` after its self-test; raises whatever its import or its kernel raises."""
    attention = BACKENDS[name]()
    # sage computes in 8 bits; the others only round differently
    allowed = 0.1 if name == "sage" else 5e-3 if dtype == torch.float32 else 2e-2
    error = self_test(attention, device, dtype, head_dim)
    if not error < allowed:  # also true for NaN
        raise RuntimeError(f"its largest error in a self-test is {error:.2g}")
    return replace(attention, name=name) if isinstance(attention, LayerAttention) else attention


@torch.no_grad()
def self_test(attention: AttentionFunction, device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """Largest absolute difference from `explicit`, infinite for a wrong shape.

    Tests three heads with two numbers of keys (160 and 88), one group with allocated rows that hold no keys.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, head_dim, generator=generator).to(device, dtype) for n in (3 * 72, 480, 480))
    q, spans = q.unflatten(0, (3, 72)), (Span(1, 0, 160, 160), Span(2, 160, 160, 88))
    expected, out = by_span(explicit, q, k, v, spans), attend_layer(attention, q, k, v, spans)
    if out.shape != expected.shape:
        return float("inf")
    return float((out.float() - expected.float()).abs().max())


def attend_layer(attention: AttentionFunction, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """All heads of a layer `[heads, queries, d]`, in as few calls as the backend allows."""
    if isinstance(attention, LayerAttention):
        return attention.layer(q, k, v, spans)
    return by_span(attention, q, k, v, spans)


def by_span(attention: AttentionFunction, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """All heads of a layer `[heads, queries, d]`, one call for every group of heads."""
    queries = q.split([span.heads for span in spans])
    return torch.cat([attention(x, *views(span, k, v)) for x, span in zip(queries, spans, strict=True)])


def views(span: Span, *buffers: Tensor) -> list[Tensor]:
    """The rows in use of a span's heads, a view `[heads, rows, d]` of each buffer."""
    return [
        buffer[span.first : span.first + span.heads * span.room].unflatten(0, (span.heads, -1))[:, : span.rows]
        for buffer in buffers
    ]
