"""The choice of the attention backend. The backends are in `attention_backends.py`.

`auto` tests which backends work on the device and times them there at the sizes of the render (`attention_timing.py`).
On a CPU, and where the sizes are not known, it takes the first that works.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace

import torch

from ..errors import HeadForcingError, first_sentence, unknown_name
from . import attention_timing
from .attention_backends import BACKENDS as BACKENDS
from .attention_backends import AttentionFunction as AttentionFunction
from .attention_backends import GroupedAttention, load_attention, sparing_plans
from .attention_backends import LayerAttention as LayerAttention
from .attention_backends import Span as Span
from .attention_backends import Spans as Spans
from .attention_backends import explicit as explicit
from .attention_backends import sdpa as sdpa
from .attention_timing import LayerSizes as LayerSizes

log = logging.getLogger(__name__)

AUTO = ("flash_attn_3", "torch_varlen", "flash_attn_2", "sdpa", "triton", "explicit")  # where nothing is timed
AUTO_ON_CPU = ("sdpa", "explicit")  # the other kernels exist for GPUs only
# all heads of a layer in one call, in the order of the time that they take to load
ONE_CALL = ("torch_varlen", "flash_attn_2", "flash_attn_3", "flash_attn_4", "triton", "cudnn_varlen")
TIMED = ("sdpa", "cudnn", *ONE_CALL)  # streams are left out until a GPU has run them


def attention_function(
    name: str,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    head_dim: int = 128,
    sizes: LayerSizes | None = None,
) -> AttentionFunction:
    """Return the backend `name` after a self-test on this device; `auto` returns the fastest at these sizes.

    On a CPU or without `sizes`, `auto` returns the first that passes. Raises HeadForcingError for an unknown name and
    for a backend that is not installed, fails or is inaccurate there.
    """
    device = torch.device(device)
    if name == "auto":
        timed = None
        if sizes is not None and device.type == "cuda":
            timed = fastest_backend(TIMED, device, dtype, head_dim, sizes)
        return timed or first_working(AUTO_ON_CPU if device.type == "cpu" else AUTO, device, dtype, head_dim)
    if name not in BACKENDS:
        raise unknown_name("attention", name, ["auto", *BACKENDS])
    try:
        return sparing_plans(name, load_attention(name, device, dtype, head_dim))
    except Exception as error:
        raise HeadForcingError(
            f"attention {name!r} cannot be used on {device} in {dtype} with heads of {head_dim}: "
            f"{first_sentence(error)}; choose auto"
        ) from error


@functools.cache
def fastest_backend(
    names: tuple[str, ...], device: torch.device, dtype: torch.dtype, head_dim: int, sizes: LayerSizes
) -> AttentionFunction | None:
    """The fastest of these backends at these sizes, with its times as a name; None if none could be timed."""
    times = attention_timing.fastest(
        names, sizes, lambda name: load_attention(name, device, dtype, head_dim), device, dtype, head_dim
    )
    for best in list(times):
        try:
            attention = sparing_plans(best, load_attention(best, device, dtype, head_dim))
        except torch.OutOfMemoryError:
            return None
        except Exception as error:  # the times are stored ones, and something has changed since
            log.info("Head Forcing: attention %s no longer works: %s", best, first_sentence(error))
            del times[best]
            continue
        name = attention_timing.described(times)
        log.info("Head Forcing: attention on %s in %s is %s", device, dtype, name)
        if isinstance(attention, LayerAttention):
            return replace(attention, name=name)
        return GroupedAttention(attention, name)
    return None


@functools.cache
def first_working(names: tuple[str, ...], device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionFunction:
    """The first of these backends that passes the self-test; logs the rejected ones and why in one line.

    Raises HeadForcingError if none passes.
    """
    rejected = []
    for name in names:
        try:
            attention = load_attention(name, device, dtype, head_dim)
        except torch.OutOfMemoryError:
            raise  # says nothing about the backend: a later attempt may succeed
        except Exception as error:  # not installed, not for this device or inaccurate: try the next one
            rejected.append(f"not {name} ({first_sentence(error)})")
            continue
        if rejected:
            log.info("Head Forcing: attention on %s in %s is %s, %s", device, dtype, name, ", ".join(rejected))
        return attention
    raise HeadForcingError(f"no attention backend works on {device} in {dtype}: {', '.join(rejected)}")
