"""The choice of the attention backend, and the shares of attention. The backends are in
`attention_backends.py`.
"""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor

from ..errors import HeadForcingError, first_sentence, unknown_name
from ..names import backend_name
from . import attention_timing
from .attention_backends import (
    BACKENDS,
    PLANNED,
    AttentionFunction,
    LayerAttention,
    Operands,
    Span,
    Spans,
    attend_layer,
    explicit,
    load_attention,
    planned,
    sdpa,
)
from .attention_timing import LayerSizes

__all__ = [
    "BACKENDS",
    "AttentionFunction",
    "LayerAttention",
    "LayerSizes",
    "Span",
    "Spans",
    "explicit",
    "sdpa",
]

log = logging.getLogger(__name__)

AUTO = ("torch_varlen", "flash_attn", "sdpa", "triton", "explicit")  # where nothing is timed
AUTO_ON_CPU = ("sdpa", "explicit")  # the other kernels exist for GPUs only
# all heads of a layer, in the order of the time to load them
ONE_CALL = ("torch_varlen", "flash_attn", "triton")
TIMED = ("sdpa", PLANNED, *ONE_CALL)


def attention_function(
    name: str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    head_dim: int = 128,
    sizes: LayerSizes | None = None,
) -> AttentionFunction:
    """Return the backend `name` after a self-test on this device; `auto` returns the fastest at
    these sizes.

    On a CPU or without `sizes`, `auto` returns the first that passes. Raises HeadForcingError for
    an unknown name and for a backend that is not installed, fails or is inaccurate there.
    """
    device = torch.device(device)
    operands = Operands(device, dtype, head_dim)
    if name == "auto":
        timed = None
        if sizes is not None and device.type == "cuda":
            timed = fastest_backend(TIMED, operands, sizes)
        order = AUTO_ON_CPU if device.type == "cpu" else AUTO
        return timed or first_working(order, operands)[1]
    name = backend_name(name)
    if name not in BACKENDS:
        raise unknown_name("attention", name, ["auto", *BACKENDS])
    try:
        attention = load_attention(name, operands)
    except Exception as error:
        raise HeadForcingError(
            f"attention {name!r} cannot be used on {device} in {dtype} with heads of {head_dim}: "
            f"{first_sentence(error)}; choose auto"
        ) from error
    if name != PLANNED:
        return attention
    return until_full(attention, AUTO, operands, name)


@functools.cache
def fastest_backend(
    names: tuple[str, ...], operands: Operands, sizes: LayerSizes
) -> AttentionFunction | None:
    """The fastest of these backends at these sizes, with its times as a name; None if none could be
    timed.
    """
    times = attention_timing.fastest(names, sizes, operands)
    try:  # the times may be stored ones, and something may have changed since
        best, attention = first_working(tuple(times), operands)
        name = attention_timing.describe(
            {other: ms for other, ms in times.items() if ms >= times[best]}
        )
        if best == PLANNED:
            order = [other for other in times if other != PLANNED] or AUTO
            attention = until_full(attention, tuple(order), operands, name)
            name = attention.name
    except (torch.OutOfMemoryError, HeadForcingError):
        return None
    log.info("Head Forcing: attention on %s in %s is %s", operands.device, operands.dtype, name)
    return LayerAttention(functools.partial(attend_layer, attention), name, best)


def until_full(
    attention: AttentionFunction, order: tuple[str, ...], operands: Operands, name: str
) -> LayerAttention:
    """A backend that needs plans, with the first of `order` that works until contexts are full."""
    other, meanwhile = first_working(order, operands)
    return planned(attention, meanwhile, f"{name}, and {other} until contexts are full")


@functools.cache
def first_working(names: tuple[str, ...], operands: Operands) -> tuple[str, AttentionFunction]:
    """The first of these backends that passes the self-test, after its name; logs the rejected ones
    and why.

    Raises HeadForcingError if none passes.
    """
    rejected = []
    place = f"{operands.device} in {operands.dtype}"
    for name in names:
        try:
            attention = load_attention(name, operands)
        except torch.OutOfMemoryError:
            raise  # says nothing about the backend: a later attempt may succeed
        # not installed, not for this device or inaccurate: try the next one
        except Exception as error:
            rejected.append(f"not {name} ({first_sentence(error)})")
            continue
        if rejected:
            log.info("Head Forcing: attention on %s is %s, %s", place, name, ", ".join(rejected))
        return name, attention
    raise HeadForcingError(f"no attention backend works on {place}: {', '.join(rejected)}")


def end_shares(
    attention: AttentionFunction, q: Tensor, k: Tensor, first_tokens: int, last_tokens: int
) -> Tensor:
    """Shares of attention `[heads, 3]` that the first, the middle and the last keys receive (paper,
    Eq. 3), averaged over the queries, with so many `first_tokens` and `last_tokens`.

    One attention call whose values are one-hot vectors of the parts, as wide as keys because fast
    kernels need that. In float64 where the device supports it (mps does not), and scaled
    to sum to 1: in bfloat16 each share has an error of up to 0.2 %.
    """
    part = torch.ones(k.shape[1], dtype=torch.long, device=k.device)
    part[:first_tokens] = 0
    part[k.shape[1] - last_tokens :] = 2
    columns = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)[part]
    shares = attention(q, k, columns[None].expand_as(k))[..., :3]
    shares = shares.to(
        torch.float64 if shares.device.type in ("cpu", "cuda") else torch.float32
    ).mean(dim=1)
    return shares / shares.sum(dim=-1, keepdim=True)
