"""Which attention backend is used. The backends are in `attention_backends.py`.

`auto` tests which backends work on the device and times them there at the sizes of the render (`attention_timing.py`).
On a CPU, and where the sizes are not known, it takes the first that works.
"""

from __future__ import annotations

import functools
import inspect
import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch

from ..errors import HeadForcingError, first_sentence, unknown_name
from . import attention_timing
from .attention_backends import BACKENDS as BACKENDS
from .attention_backends import AttentionFunction as AttentionFunction
from .attention_backends import GroupedAttention, tried
from .attention_backends import LayerAttention as LayerAttention
from .attention_backends import Span as Span
from .attention_backends import Spans as Spans
from .attention_backends import explicit as explicit
from .attention_backends import sdpa as sdpa
from .attention_timing import LayerSizes as LayerSizes

log = logging.getLogger(__name__)

AUTO = ("flash_attn_3", "torch_varlen", "flash_attn_2", "sdpa", "triton", "explicit")
AUTO_ON_CPU = ("sdpa", "explicit")  # the other kernels exist for GPUs only
AUTO_WITHOUT_FLASH = ("flash_attn_3", "torch_varlen", "flash_attn_2", "triton", "sdpa", "explicit")
TIMED = ("cudnn_varlen", "flash_attn_3", "torch_varlen", "sdpa", "flash_attn_2")
TIMED_WITHOUT_FLASH = (*TIMED, "triton")
ATTENTION_HELP = (
    "auto, the fastest of those that work here, by timing them on a GPU; cudnn_varlen, flash_attn_3, torch_varlen or "
    "flash_attn_2, all heads of a layer in one call; sdpa, PyTorch's; triton, the pack's own kernel; explicit, slow "
    "and exact; sage, which rounds to 8 bits (auto)"
)
_CUDNN_FIRST = (9, 10)  # compute capabilities for which PyTorch itself tries cuDNN's kernel first


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
        timed = _timed(device, dtype, head_dim, sizes) if sizes is not None and device.type == "cuda" else None
        return timed or first_working(auto_order(device, dtype, head_dim), device, dtype, head_dim)
    if name not in BACKENDS:
        raise unknown_name("attention", name, ["auto", *BACKENDS])
    try:
        return tried(name, device, dtype, head_dim)
    except Exception as error:
        raise HeadForcingError(
            f"attention {name!r} cannot be used on {device} in {dtype} with heads of {head_dim}: "
            f"{first_sentence(error)}; choose auto"
        ) from error


@functools.cache
def _timed(device: torch.device, dtype: torch.dtype, head_dim: int, sizes: LayerSizes) -> AttentionFunction | None:
    """The fastest backend at these sizes, with its times as a name; None if none could be timed."""
    names = TIMED if flash_in_sdpa(device, dtype, head_dim) else TIMED_WITHOUT_FLASH

    def try_backend(name: str) -> AttentionFunction:
        return tried(name, device, dtype, head_dim)

    times = attention_timing.fastest(names, sizes, try_backend, device, dtype, head_dim)
    while times:
        best = next(iter(times))
        try:
            attention = try_backend(best)
        except torch.OutOfMemoryError:
            return None
        except Exception as error:  # the times are remembered ones, and something has changed since
            log.info("Head Forcing: attention %s no longer works: %s", best, first_sentence(error))
            times = {name: ms for name, ms in times.items() if name != best}
            continue
        name = attention_timing.described(times)
        log.info("Head Forcing: attention on %s in %s is %s", device, dtype, name)
        if isinstance(attention, LayerAttention):
            return replace(attention, name=name)
        return GroupedAttention(attention, name)
    return None


def sdpa_priority(device: torch.device | str) -> AbstractContextManager[None]:
    """Have PyTorch's sdpa try cuDNN's kernel before the memory-efficient one, as ComfyUI does.

    Only where PyTorch would not: without a flash kernel, as in some Windows builds, the memory-efficient kernel is
    about half as fast as cuDNN's on consumer GPUs.
    """
    device = torch.device(device)
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] in _CUDNN_FIRST:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if "set_priority" not in inspect.signature(sdpa_kernel).parameters:  # before PyTorch 2.6
        return nullcontext()
    order = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
    return sdpa_kernel([getattr(SDPBackend, name) for name in order], set_priority=True)


def auto_order(device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[str, ...]:
    """The order in which `auto` tests backends on a device where it times none.

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
            attention = tried(name, device, dtype, head_dim)
        except torch.OutOfMemoryError:
            raise  # says nothing about the backend: a later attempt may succeed
        except Exception as error:  # not installed, not for this device or inaccurate: try the next one
            rejected.append(f"not {name} ({first_sentence(error)})")
            continue
        if rejected:
            log.info("Head Forcing: attention on %s in %s is %s, %s", device, dtype, name, ", ".join(rejected))
        return attention
    raise HeadForcingError(f"no attention backend works on {device} in {dtype}: {', '.join(rejected)}")
