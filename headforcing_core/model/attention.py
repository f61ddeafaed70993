"""Attention where the heads of a layer have different numbers of keys. The only module that knows attention backends.

A backend is a function `(q [heads, queries, d], k [heads, keys, d], v [heads, keys, d]) -> [heads, queries, d]` without
a mask: every query attends to every key. It is called once for each group of heads with equally many keys. A
`LayerAttention` can also compute all heads of a layer in one call, which uses a GPU better than several short calls.
`auto` selects the first backend that passes a self-test; an optional package is imported only when it is tested.
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
    """Adjacent heads of a layer with equally many keys, as rows of the layer's key and value buffers `[all rows, d]`.

    Attributes:
        heads: number of heads.
        first: first row of the first head.
        room: rows allocated per head.
        rows: rows in use per head, the first of its `room`.
    """

    heads: int
    first: int
    room: int
    rows: int


Spans = tuple[Span, ...]  # all heads of a layer, contiguous, in the order of the queries


@dataclass(frozen=True)
class LayerAttention:
    """A backend that can compute all heads of a layer in one call.

    Attributes:
        layer: `(q [heads, queries, d], k [rows, d], v [rows, d], spans) -> [heads, queries, d]`.
    """

    layer: Callable[[Tensor, Tensor, Tensor, Spans], Tensor]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of heads with equally many keys: the signature of every backend."""
        heads, keys, _ = k.shape
        return self.layer(q, k.flatten(0, 1), v.flatten(0, 1), (Span(heads, 0, keys, keys),))


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


# ----------------------------------------------------------------------------- sequences of different lengths


def varlen(call: Callable[..., Any]) -> LayerAttention:
    """A backend from a variable-length (varlen) kernel. Each head is passed as one sequence with a single head.

    Args:
        call: `(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)` with q, k and v
            `[tokens of all sequences, 1, d]` and the cumulative sequence lengths as int32 `[sequences + 1]`.
    """

    def layer(q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> Tensor:
        starts = sequence_starts(spans, q.shape[1], q.device)
        longest = max(span.room for span in spans)
        out = call(q.flatten(0, 1)[:, None], k[:, None], v[:, None], *starts, q.shape[1], longest)
        return out.view(q.shape)

    return LayerAttention(layer)


@functools.lru_cache(maxsize=256)  # enough for all layers in two blocks; the spans change while contexts grow
def sequence_starts(spans: Spans, queries: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cumulative sequence lengths of the queries and of the keys, `[sequences + 1]` int32 each.

    Every head is a sequence. Allocated rows that hold no keys are one more sequence, without queries, so that the
    kernel skips them and the buffers need no copy.
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
        return out[0] if isinstance(out, tuple) else out  # early versions also return the log-sum-exp

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
    """Every head's first row, its number of keys, and the order in which heads are launched, `[heads]` int32 each."""
    starts = [span.first + head * span.room for span in spans for head in range(span.heads)]
    rows = [span.rows for span in spans for _ in range(span.heads)]
    return _table(starts, device), _table(rows, device), _table(range(len(rows)), device)


def _sage() -> AttentionFunction:
    from sageattention import sageattn

    return lambda q, k, v: sageattn(q[None], k[None], v[None], tensor_layout="HND")[0]


# ------------------------------------------------------------------------------------- choosing a backend

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
AUTO_ON_CPU = ("sdpa", "explicit")  # the other kernels exist for GPUs only
AUTO_WITHOUT_FLASH = ("flash_attn_3", "torch_varlen", "flash_attn_2", "triton", "sdpa", "explicit")
ATTENTION_HELP = (
    "auto, the fastest that works here; flash_attn_3, torch_varlen or flash_attn_2, all heads of a layer in one call; "
    "sdpa, PyTorch's; triton, the pack's own kernel; explicit, slow and exact; sage, which rounds to 8 bits (auto)"
)


def attention_function(
    name: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, head_dim: int = 128
) -> AttentionFunction:
    """Return the backend `name` after a self-test on this device; `auto` returns the first that passes.

    Raises HeadForcingError for an unknown name and for a backend that is not installed, fails or is inaccurate there.
    """
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
    """The order in which `auto` tests backends on a device.

    Where PyTorch's sdpa has no flash kernel, the pack's Triton kernel is faster and comes before it.
    """
    if device.type == "cpu":
        return AUTO_ON_CPU
    half = dtype in (torch.float16, torch.bfloat16)
    return AUTO_WITHOUT_FLASH if half and not flash_in_sdpa(device, dtype, head_dim) else AUTO


def flash_in_sdpa(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether PyTorch's sdpa has a flash or cuDNN kernel for this device, dtype and head_dim.

    Some Windows builds of PyTorch have neither. True if PyTorch cannot be asked.
    """
    cuda = torch.backends.cuda
    try:
        q = torch.empty(1, 1, 64, head_dim, device=device, dtype=dtype)
        params = cuda.SDPAParams(q, q, q, None, 0.0, False, False)
        return cuda.can_use_flash_attention(params) or cuda.can_use_cudnn_attention(params)
    except (AttributeError, TypeError, RuntimeError):  # another PyTorch version, or no CUDA: keep the default order
        return True


@functools.cache
def first_working(names: tuple[str, ...], device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionFunction:
    """The first of these backends that passes the self-test; logs the rejected ones and why in one line.

    Raises HeadForcingError if none passes.
    """
    rejected = []
    for name in names:
        try:
            attention = _tried(name, device, dtype, head_dim)
        except torch.OutOfMemoryError:
            raise  # says nothing about the backend: a later attempt may succeed
        except Exception as error:  # not installed, not for this device or inaccurate: try the next one
            rejected.append(f"not {name} ({first_sentence(error)})")
            continue
        if rejected:
            log.info("Head Forcing: attention on %s in %s is %s, %s", device, dtype, name, ", ".join(rejected))
        return attention
    raise HeadForcingError(f"no attention backend works on {device} in {dtype}: {', '.join(rejected)}")


class _Inaccurate(Exception):
    """A backend's result differs too much from the reference."""


def _tried(name: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionFunction:
    """The backend `name` after its self-test; raises whatever its import or its kernel raises, or _Inaccurate."""
    attention = BACKENDS[name]()
    # sage computes in 8 bits; the others only round differently
    allowed = 0.1 if name == "sage" else 5e-3 if dtype == torch.float32 else 2e-2
    error = self_test(attention, device, dtype, head_dim)
    if not error < allowed:  # also true for NaN
        raise _Inaccurate(f"its largest error in a self-test is {error:.2g}")
    return attention


@torch.no_grad()
def self_test(attention: AttentionFunction, device: torch.device, dtype: torch.dtype, head_dim: int) -> float:
    """Largest absolute difference from `explicit`, infinite for a wrong shape.

    Tests three heads with two numbers of keys (160 and 88), one group with allocated rows that hold no keys.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(n, head_dim, generator=generator).to(device, dtype) for n in (3 * 72, 480, 480))
    q, spans = q.unflatten(0, (3, 72)), (Span(1, 0, 160, 160), Span(2, 160, 160, 88))
    parts = [_views(span, k, v) for span in spans]
    expected = torch.cat([explicit(x, *part) for x, part in zip(q.split([1, 2]), parts, strict=True)])
    if isinstance(attention, LayerAttention):
        out = attention.layer(q, k, v, spans)
    else:
        out = torch.cat([attention(x, *part) for x, part in zip(q.split([1, 2]), parts, strict=True)])
    if out.shape != expected.shape:
        return float("inf")
    return float((out.float() - expected.float()).abs().max())


def _views(span: Span, *buffers: Tensor) -> list[Tensor]:
    """The rows in use of a span's heads, a view `[heads, rows, d]` of each buffer."""
    return [
        buffer[span.first : span.first + span.heads * span.room].unflatten(0, (span.heads, -1))[:, : span.rows]
        for buffer in buffers
    ]
