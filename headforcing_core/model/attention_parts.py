"""Attention to parts of the keys one after another, and the share of attention of each part.

A backend that also gives the log-sum-exp of the scores attends to every part by itself. The
outputs, weighted by the parts' sums of exponentials, add up to the output for all keys, and the
weights are the shares: the work of one attention.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ...kernels.attend import attend
from ..errors import HeadForcingError, first_sentence
from .attention_backends import (
    AttentionFunction,
    LayerAttention,
    Operands,
    Span,
    allowed_error,
    head_table,
)

log = logging.getLogger(__name__)

SummedAttention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""`(q, k, v)` of an `AttentionFunction` -> its output, and the log-sum-exp `[heads, queries]` of
the scores."""


def attend_in_parts(
    attention: SummedAttention, q: Tensor, k: Tensor, v: Tensor, ends: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The output for all keys, and the mean share of attention of every part, `[heads, parts]`.

    A part ends before each key of `ends`, the last one after all keys; it may be empty. Shares are
    float64 where the device supports it (mps does not), and sum to 1.
    """
    outputs = []
    sums = []
    for start, end in pairwise((0, *ends, k.shape[1])):
        if start < end:
            output, summed = attention(q, k[:, start:end], v[:, start:end])
        else:
            output = torch.zeros_like(q)
            summed = torch.full_like(q[..., 0], -torch.inf)
        outputs.append(output)
        sums.append(summed.to(torch.promote_types(q.dtype, torch.float32)))
    weights = torch.stack(sums, dim=-1).softmax(dim=-1)
    combined = torch.zeros_like(q, dtype=weights.dtype)
    for output, weight in zip(outputs, weights.unbind(-1), strict=True):
        combined += weight[..., None] * output
    exact = torch.float64 if q.device.type in ("cpu", "cuda") else torch.float32
    return combined.to(q.dtype), weights.to(exact).mean(dim=1)


def with_sums(attention: AttentionFunction, operands: Operands) -> SummedAttention:
    """The backend of `attention` with sums; if it gives none, the first of `ORDER` that passes a
    self-test on this device.
    """
    if isinstance(attention, LayerAttention):
        return _first_working(attention.backend, operands)
    return _first_working(getattr(attention, "__name__", ""), operands)


# -------------------------------------------------------------------------- backends that give sums


def _explicit(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(q.dtype, torch.float32)
    out = torch.empty_like(q)
    sums = torch.empty(q.shape[:2], dtype=dtype, device=q.device)
    for head in range(len(q)):
        scores = q[head].to(dtype) @ k[head].to(dtype).T / q.shape[-1] ** 0.5
        sums[head] = scores.logsumexp(dim=-1)
        out[head] = ((scores - sums[head][:, None]).exp() @ v[head].to(dtype)).to(q.dtype)
    return out, sums


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The kernels that PyTorch chooses from, by their operators."""
    batch = q[None], k[None], v[None]
    if q.device.type == "cpu":
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*batch)
    elif q.dtype != torch.float32 and torch.backends.cuda.is_flash_attention_available():
        found = torch.ops.aten._scaled_dot_product_flash_attention(*batch)
    else:
        return _efficient(q, k, v)
    return found[0][0], found[1][0]


def _efficient(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The memory-efficient kernel of PyTorch, for GPUs that have no flash kernel."""
    operator = torch.ops.aten._scaled_dot_product_efficient_attention
    found = operator(q[None], k[None], v[None], None, compute_log_sumexp=True)
    return found[0][0], found[1][0, :, : q.shape[1]]  # the sums have more rows


def _cudnn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention
    found = operator(q[None], k[None], v[None], None, compute_log_sumexp=True)
    return found[0][0], found[1].reshape(q.shape[:2])


def _triton(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    heads, keys, _ = k.shape
    table = head_table((Span(heads, first=0, room=keys, rows=keys),), q.device)
    sums = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
    rows = k.flatten(0, 1).contiguous(), v.flatten(0, 1).contiguous()
    out = attend.kernel(q.contiguous(), *rows, table, sums)
    return out.transpose(0, 1), sums


SUMMED: dict[str, SummedAttention] = {
    "sdpa": _sdpa,
    "efficient": _efficient,
    "cudnn": _cudnn,
    "triton": _triton,
    "explicit": _explicit,
}
# where the backend gives no sums; `torch_varlen` and `flash_attn` have the kernel of `sdpa`
ORDER = ("sdpa", "efficient", "triton", "explicit")


@functools.cache
def _first_working(backend: str, operands: Operands) -> SummedAttention:
    rejected = []
    for name in dict.fromkeys((backend, *ORDER)):
        attention = SUMMED.get(name)
        if attention is None:
            continue
        try:
            difference = self_test(attention, operands)
            if not difference < allowed_error(name, operands.dtype):  # also true for NaN
                raise RuntimeError(f"its largest error in a self-test is {difference:.2g}")
        except torch.OutOfMemoryError:
            raise  # says nothing about the backend
        except Exception as error:  # not for this device, or inaccurate
            rejected.append(f"not {name} ({first_sentence(error)})")
            continue
        if rejected:
            log.info("Head Forcing: roles are measured by %s, %s", name, ", ".join(rejected))
        return attention
    raise HeadForcingError(
        f"no attention backend measures head roles on {operands.device}: {', '.join(rejected)}"
    )


@torch.no_grad()
def self_test(attention: SummedAttention, operands: Operands) -> float:
    """The largest difference of output and log-sum-exp from `explicit` ones; infinite for a wrong
    shape. The keys are views of a buffer, as parts of a cache are.
    """
    generator = torch.Generator().manual_seed(0)

    def noise(rows: int) -> Tensor:
        drawn = torch.randn(2, rows, operands.head_dim, generator=generator)
        return drawn.to(operands.device, operands.dtype)

    q = noise(72)
    k = noise(160)[:, 8:96]
    v = noise(160)[:, 8:96]
    differences = []
    for expected, found in zip(_explicit(q, k, v), attention(q, k, v), strict=True):
        if found.shape != expected.shape:
            return float("inf")
        differences.append(float((found.double() - expected.double()).abs().max()))
    return max(differences)
