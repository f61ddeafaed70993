"""The attention backends, for layers whose heads have different numbers of keys, and the self-test
that each must pass.

A backend is a function `(q [heads, queries, d], k [heads, keys, d], v [heads, keys, d]) -> [heads,
queries, d]` without a mask, called once for each group of heads with equally many keys. A
`LayerAttention` also computes all heads of a layer in one call, which uses a GPU better. An
optional package is imported only when its backend is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from ...kernels.attend import attend
from ..devices import kept_tables, upload

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Span:
    """Adjacent heads of a layer with equally many keys: rows of its buffers of keys and values
    `[all rows, d]`.
    """

    heads: int  # number of them
    first: int  # first row of the first head
    room: int  # rows allocated per head
    rows: int  # rows in use per head, the first of its `room`

    def view(self, buffer: Tensor) -> Tensor:
        """The rows in use of these heads, `[heads, rows, d]`."""
        end = self.first + self.heads * self.room
        return buffer[self.first : end].unflatten(0, (self.heads, self.room))[:, : self.rows]


Spans = tuple[Span, ...]  # all heads of a layer, contiguous, in the order of the queries


@dataclass(frozen=True)
class Operands:
    """Device, dtype and channels per head of queries, keys and values."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int


@dataclass(frozen=True)
class LayerAttention:
    """A backend that can compute all heads of a layer in one call."""

    # q [heads, queries, d], k, v [rows, d] -> like q
    layer: Callable[[Tensor, Tensor, Tensor, Spans], Tensor]
    name: str = ""  # for reports
    backend: str = ""  # a key of `BACKENDS`

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of heads with equally many keys: the signature of every backend."""
        heads, keys, _ = k.shape
        span = Span(heads, first=0, room=keys, rows=keys)
        return self.layer(q, k.flatten(0, 1), v.flatten(0, 1), (span,))


# --------------------------------------------------------------------- heads with equally many keys


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention written out, one head at a time, in float32 or better: the reference for
    every backend.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    for head in range(len(q)):
        scores = q[head].to(dtype) @ k[head].to(dtype).T / q.shape[-1] ** 0.5
        out[head] = (scores.softmax(dim=-1) @ v[head].to(dtype)).to(q.dtype)
    return out


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """PyTorch's `scaled_dot_product_attention`, which chooses a flash, memory-efficient or plain
    kernel.

    It never computes by cuDNN, which PyTorch would choose on some GPUs: see `cudnn` for the reason.
    """
    if q.device.type == "mps":  # writes all scores, and an array has at most 4 GB
        return torch.cat(
            [_sdpa(q[head, None], k[head, None], v[head, None]) for head in range(len(q))]
        )
    return _sdpa(q, k, v)


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch = q[None], k[None], v[None]
    if not _would_choose_cudnn(*batch):
        return F.scaled_dot_product_attention(*batch)[0]
    if torch.backends.cuda.is_flash_attention_available():
        return torch.ops.aten._scaled_dot_product_flash_attention(*batch)[0][0]
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    return efficient(*batch, None, compute_log_sumexp=False)[0][0]


def _would_choose_cudnn(q: Tensor, k: Tensor, v: Tensor) -> bool:
    cudnn = int(SDPBackend.CUDNN_ATTENTION.value)
    return q.is_cuda and torch._fused_sdp_choice(q, k, v) == cudnn


def cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """cuDNN's kernel, called by its operator: `sdpa_kernel` would choose it for all threads of the
    process.

    It prepares an execution plan for every new number of heads and keys, which takes 25 to 42 ms on
    the host. A growing context has a new number of keys after most blocks.
    """
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention
    return operator(q[None], k[None], v[None], None, compute_log_sumexp=False)[0][0]


def planned(
    dense: AttentionFunction, meanwhile: AttentionFunction, name: str = ""
) -> LayerAttention:
    """A backend that calls `dense`, which needs plans, for heads whose rooms are full, and
    `meanwhile` for others.

    A growing context has a new shape in every block, a full one always the same. The choice depends
    on the shape alone, so that a video that is made again, or resumed, has the same bits.
    """

    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        parts = []
        for span, queries in zip(spans, q.split([span.heads for span in spans]), strict=True):
            if span.rows == span.room:
                parts.append(dense(queries, span.view(k), span.view(v)))
            else:
                rows = slice(span.first, span.first + span.heads * span.room)
                parts.append(
                    attend_layer(
                        meanwhile, queries, k[rows], v[rows], spans=(replace(span, first=0),)
                    )
                )
        return torch.cat(parts)

    return LayerAttention(layer, name, PLANNED)


def _sage() -> AttentionFunction:
    from sageattention import sageattn

    return lambda q, k, v: sageattn(q[None], k[None], v[None], tensor_layout="HND")[0]


# ------------------------------------------------------------------- sequences of different lengths


def varlen(call: Callable[..., Any]) -> LayerAttention:
    """A backend from a variable-length (varlen) kernel. Each head is passed as one sequence with a
    single head.

    Args:
        call: `(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)` with q, k and v
            `[tokens of all sequences, 1, d]` and the cumulative sequence lengths as int32
            `[sequences + 1]`; returns the output, or a tuple that begins with it.
    """

    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        q_starts, k_starts = sequence_starts(spans, q.shape[1], q.device)
        longest = max(span.room for span in spans)
        out = call(
            q.flatten(0, 1)[:, None],
            k[:, None],
            v[:, None],
            q_starts,
            k_starts,
            q.shape[1],
            longest,
        )
        if isinstance(out, tuple):
            out = out[0]
        return out.view(q.shape)

    return LayerAttention(layer)


def _torch_varlen() -> AttentionFunction:
    return varlen(import_module("torch.nn.attention.varlen").varlen_attn)


def _flash_attn(module: str) -> AttentionFunction:
    return varlen(import_module(module).flash_attn_varlen_func)


@kept_tables
def sequence_starts(spans: Spans, queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cumulative sequence lengths of the queries and of the keys, `[sequences + 1]` int32 each.

    Every head is a sequence. Its allocated rows that hold no keys are another one, without queries,
    which the kernel skips; also where it is empty, since a library may prepare a plan for every
    number of sequences.
    """
    q_starts = [0]
    k_starts = [0]
    for span in spans:
        for head in range(span.heads):
            first = span.first + head * span.room
            q_starts += 2 * [q_starts[-1] + queries]
            k_starts += [first + span.rows, first + span.room]
    return _table(q_starts, device), _table(k_starts, device)


def _table(numbers: Sequence[object], device: torch.device) -> Tensor:
    return upload(torch.tensor(numbers, dtype=torch.int32), device)


def _triton() -> AttentionFunction:
    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        return attend.kernel(q.contiguous(), k, v, head_table(spans, q.device)).transpose(0, 1)

    return LayerAttention(layer)


@kept_tables
def head_table(spans: Spans, device: torch.device) -> Tensor:
    """Every head's first row and its number of keys, `[heads, 2]` int32."""
    rows = []
    for span in spans:
        for head in range(span.heads):
            rows.append((span.first + head * span.room, span.rows))
    return _table(rows, device)


BACKENDS: dict[str, Callable[[], AttentionFunction]] = {
    "sdpa": lambda: sdpa,
    "cudnn": lambda: cudnn,
    "torch_varlen": _torch_varlen,
    "flash_attn": partial(_flash_attn, "flash_attn"),
    "triton": _triton,
    "explicit": lambda: explicit,
    "sage": _sage,
}
PLANNED = "cudnn"  # the one that prepares a plan for every shape
VERSIONS = {
    "flash_attn": [
        partial(_flash_attn, module) for module in ("flash_attn.cute", "flash_attn_interface")
    ]
}
"""Newer versions of a backend, the newest first. Each needs a newer GPU than the one after it."""


# ------------------------------------------------------------------------------------ the self-test


def load_attention(name: str, operands: Operands) -> AttentionFunction:
    """The backend `name`, in its newest version that passes the self-test; raises what its import
    or kernel raises.
    """
    failures = []
    for load in (*VERSIONS.get(name, ()), BACKENDS[name]):
        try:
            attention = load()
            difference = self_test(attention, operands)
            if not difference < allowed_error(name, operands.dtype):  # also true for NaN
                raise RuntimeError(f"its largest error in a self-test is {difference:.2g}")
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            failures.append(error)
            continue
        if isinstance(attention, LayerAttention):
            return replace(attention, name=name, backend=name)
        return attention
    # a version that is installed tells more than one that is not
    raise min(failures, key=lambda error: isinstance(error, ImportError))


def allowed_error(name: str, dtype: torch.dtype) -> float:
    """The largest error of a backend that passes a self-test."""
    if name == "sage":  # computes in 8 bits; the others only round differently
        return 0.1
    return 5e-3 if dtype == torch.float32 else 2e-2


@torch.no_grad()
def self_test(attention: AttentionFunction, operands: Operands) -> float:
    """Largest absolute difference from `explicit`, infinite for a wrong shape.

    Tests three heads with two numbers of keys (160 and 88), one group with allocated rows that hold
    no keys.
    """
    generator = torch.Generator().manual_seed(0)

    def noise(rows: int) -> Tensor:
        drawn = torch.randn(rows, operands.head_dim, generator=generator)
        return drawn.to(operands.device, operands.dtype)

    q = noise(3 * 72).unflatten(0, (3, 72))
    k = noise(480)
    v = noise(480)
    spans = (Span(1, first=0, room=160, rows=160), Span(2, first=160, room=160, rows=88))
    expected = by_span(explicit, q, k, v, spans=spans)
    out = attend_layer(attention, q, k, v, spans=spans)
    if out.shape != expected.shape:
        return float("inf")
    return float((out.float() - expected.float()).abs().max())


def attend_layer(
    attention: AttentionFunction, q: Tensor, k: Tensor, v: Tensor, spans: Spans
) -> Tensor:
    """All heads of a layer `[heads, queries, d]`, in as few calls as the backend allows."""
    if isinstance(attention, LayerAttention):
        return attention.layer(q, k, v, spans)
    return by_span(attention, q, k, v, spans=spans)


def by_span(attention: AttentionFunction, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
    """All heads of a layer `[heads, queries, d]`, one call for every group of heads."""
    parts = []
    for span, queries in zip(spans, q.split([span.heads for span in spans]), strict=True):
        parts.append(attention(queries, span.view(k), span.view(v)))
    return torch.cat(parts)
