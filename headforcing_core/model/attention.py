"""Attention of heads to contexts of different lengths. The only module that knows attention backends.

A backend is a function `(q [heads, queries, d], k [heads, keys, d], v [heads, keys, d]) -> [heads, queries, d]` without
a mask: every query sees every key. It is called for the heads of a layer that see equally many keys. One that is a
`LayerAttention` can also take all heads of a layer in one call, which keeps a GPU busier: no short call ends with most
of it idle. Which one `auto` stands for is found by trying, nothing optional is imported before it is tried.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...kernels.attend import attend
from ..devices import upload
from ..errors import HeadForcingError, first_sentence

log = logging.getLogger(__name__)

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Span:
    """Adjacent heads in a layer's buffers `[all rows, d]` that see equally many keys.

    Attributes:
        first: row of the buffers where they begin.
        room: rows from one head to the next.
        rows: how many of these are keys, at the head's beginning.
    """

    heads: int
    first: int
    room: int
    rows: int


Spans = tuple[Span, ...]  # without gaps, in the order of the queries


@dataclass(frozen=True)
class LayerAttention:
    """A backend that can take all heads of a layer in one call.

    Attributes:
        layer: `(q [heads, queries, d], k [rows, d], v [rows, d], spans) -> [heads, queries, d]`.
    """

    layer: Callable[[Tensor, Tensor, Tensor, Spans], Tensor]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same for heads that see equally many keys, as for any backend."""
        heads, keys, _ = k.shape
        return self.layer(q, k.flatten(0, 1), v.flatten(0, 1), (Span(heads, 0, keys, keys),))


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


# ----------------------------------------------------------------------------- sequences of different lengths


def varlen(call: Callable[..., Any]) -> LayerAttention:
    """A backend from a kernel for sequences of different lengths.

    Args:
        call: `(q, k, v, starts of q, starts of k, longest q, longest k)`, with tokens of all sequences one after
            another, `[tokens, 1, d]`, and int32 starts of the sequences and of what follows the last.
    """

    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        starts = sequence_starts(spans, q.shape[1], q.device)
        longest = max(span.room for span in spans)
        out = call(q.flatten(0, 1)[:, None], k[:, None], v[:, None], *starts, q.shape[1], longest)
        return out.view(q.shape)

    return LayerAttention(layer)


@functools.lru_cache(maxsize=256)  # the layers of two blocks: they change while contexts grow
def sequence_starts(spans: Spans, queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where sequences start in the queries and in the keys, `[sequences + 1]` int32 each.

    Every head is a sequence; the rows behind its keys, if there are any, are one without queries.
    """
    q_starts, k_starts = [0], [0]
    for span in spans:
        for head in range(span.heads):
            q_starts.append(q_starts[-1] + queries)
            k_starts.append(span.first + head * span.room + span.rows)
            if span.rows < span.room:
                q_starts.append(q_starts[-1])
                k_starts.append(span.first + (head + 1) * span.room)
    return _table(q_starts, device), _table(k_starts, device)


def _table(numbers: Sequence[int], device: torch.device) -> Tensor:
    return upload(torch.tensor(numbers, dtype=torch.int32), device)


def _flash_attn_3() -> AttentionFunction:
    from flash_attn_interface import flash_attn_varlen_func

    def call(*arguments: Any) -> Tensor:
        out = flash_attn_varlen_func(*arguments)
        return out[0] if isinstance(out, tuple) else out  # early versions return the log-sum-exp, too

    return varlen(call)


def _torch_varlen() -> AttentionFunction:
    from torch.nn.attention.varlen import varlen_attn

    return varlen(varlen_attn)


def _flash_attn_2() -> AttentionFunction:
    from flash_attn import flash_attn_varlen_func

    return varlen(flash_attn_varlen_func)


def _triton() -> AttentionFunction:
    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        return attend.kernel(q.contiguous(), k, v, *head_tables(spans, q.device)).transpose(0, 1)

    return LayerAttention(layer)


@functools.lru_cache(maxsize=256)
def head_tables(spans: Spans, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Every head's first row, how many rows it has, and the heads' order, `[heads]` int32 each."""
    starts = [span.first + head * span.room for span in spans for head in range(span.heads)]
    rows = [span.rows for span in spans for _ in range(span.heads)]
    return _table(starts, device), _table(rows, device), _table(range(len(rows)), device)


def _sage() -> AttentionFunction:
    from sageattention import sageattn

    return lambda q, k, v: sageattn(q[None], k[None], v[None], tensor_layout="HND")[0]


# ------------------------------------------------------------------------------------------------- the choice

BACKENDS: dict[str, Callable[[], AttentionFunction]] = {
    "flash_attn_3": _flash_attn_3,
    "torch_varlen": _torch_varlen,
    "flash_attn_2": _flash_attn_2,
    "sdpa": lambda: sdpa,
    "triton": _triton,
    "explicit": lambda: explicit,
    "sage": _sage,
}
AUTO = ("flash_attn_3", "torch_varlen", "flash_attn_2", "sdpa", "triton", "explicit")
AUTO_ON_CPU = ("sdpa", "explicit")  # the others are compiled for graphics cards alone
AUTO_WITHOUT_FLASH = ("flash_attn_3", "torch_varlen", "flash_attn_2", "triton", "sdpa", "explicit")
ATTENTION_HELP = (
    "auto, the fastest that works here; flash_attn_3, torch_varlen or flash_attn_2, all heads of a layer in one call; "
    "sdpa, PyTorch's; triton, the pack's own kernel; explicit, slow and exact; sage, which rounds to 8 bits (auto)"
)


def attention_function(
    name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, head_dim: int = 128
) -> AttentionFunction:
    """The backend of that name, tried on this device; `auto` is the first of `AUTO` that works there."""
    device = torch.device(device)
    if name == "auto":
        return first_working(auto_order(device, dtype, head_dim), device, dtype, head_dim)
    if name not in BACKENDS:
        raise HeadForcingError(f"attention must be one of auto, {', '.join(BACKENDS)}, got {name!r}")
    try:
        return _tried(name, device, dtype, head_dim)
    except Exception as error:
        raise HeadForcingError(
            f"attention {name!r} cannot be used on {device} in {dtype} with heads of {head_dim}: "
            f"{first_sentence(error)}; choose auto"
        ) from error


def auto_order(device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[str, ...]:
    """The order to try backends in: without a flash kernel, PyTorch's dense one stands behind the pack's own."""
    if device.type == "cpu":
        return AUTO_ON_CPU
    half = dtype in (torch.float16, torch.bfloat16)
    return AUTO_WITHOUT_FLASH if half and not flash_in_sdpa(device, dtype, head_dim) else AUTO


def flash_in_sdpa(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether PyTorch's dense attention runs flash or cuDNN kernels there. Some builds for Windows have neither."""
    cuda = torch.backends.cuda
    try:
        q = torch.empty(1, 1, 64, head_dim, device=device, dtype=dtype)
        params = cuda.SDPAParams(q, q, q, None, 0.0, False, False)
        return cuda.can_use_flash_attention(params) or cuda.can_use_cudnn_attention(params)
    except (AttributeError, TypeError, RuntimeError):  # another version of PyTorch, or no CUDA: it knows best
        return True


@functools.cache
def first_working(names: tuple[str, ...], device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionFunction:
    """The first of these backends that passes the self-test; what was passed over and why is one line in the log."""
    passed_over = []
    for name in names:
        try:
            found = _tried(name, device, dtype, head_dim)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # not installed, not for this device, wrong: never the user's problem
            passed_over.append(f"not {name} ({first_sentence(error)})")
            continue
        if passed_over:
            log.info("Head Forcing: attention on %s in %s is %s, %s", device, dtype, name, ", ".join(passed_over))
        return found
    raise HeadForcingError(f"no attention works on {device} in {dtype}: {', '.join(passed_over)}")


class _Wrong(Exception):
    """A backend gave something that is not attention."""


def _tried(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionFunction:
    attention = BACKENDS[name]()
    allowed = 0.1 if name == "sage" else 5e-3 if dtype == torch.float32 else 2e-2
    off = self_test(attention, device, dtype, head_dim)
    if not off < allowed:
        raise _Wrong(f"it is off by {off:.2g} in a self-test")
    return attention


@torch.no_grad()
def self_test(attention: AttentionFunction, device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """How far a backend is from `explicit` on three short heads of two lengths, one with room for more keys."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, head_dim, generator=generator).to(device, dtype) for n in (3 * 72, 480, 480))
    q, spans = q.unflatten(0, (3, 72)), (Span(1, 0, 160, 160), Span(2, 160, 160, 88))
    parts = [_views(span, k, v) for span in spans]
    expected = torch.cat([explicit(x, *part) for x, part in zip(q.split([1, 2]), parts, strict=True)])
    if isinstance(attention, LayerAttention):
        found = attention.layer(q, k, v, spans)
    else:
        found = torch.cat([attention(x, *part) for x, part in zip(q.split([1, 2]), parts, strict=True)])
    if found.shape != expected.shape:
        return float("inf")
    return float((found.float() - expected.float()).abs().max())


def _views(span: Span, *buffers: Tensor) -> list[Tensor]:
    """The rows in use of a span's heads in each buffer, `[heads, rows, d]`."""
    return [
        buffer[span.first : span.first + span.heads * span.room].unflatten(0, (span.heads, -1))[:, : span.rows]
        for buffer in buffers
    ]
