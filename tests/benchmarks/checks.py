"""What comes before any speed: whether kernels and attention backends compute what they should, on this device."""

from __future__ import annotations

import importlib
import traceback
from pkgutil import iter_modules
from typing import Any

import torch
from headforcing import kernels as package
from headforcing.headforcing_core.model.attention import BACKENDS, AttentionFunction, explicit
from headforcing.headforcing_core.model.attention_backends import attend_layer, by_span, load_attention
from headforcing.kernels.dispatch import TOLERANCE, Operation

from .apart import refusal
from .case import HEAD_DIM, Case
from .rows import HEAD_FORCING
from .stopwatch import fastest

# arithmetic, not measurements: what an H200 may reach, in TFLOP/s
EXPECTED = {"torch_varlen": 340, "cudnn_varlen": 550, "cudnn": 440, "cudnn_streams": 540, "triton": 370}


def operations() -> list[Operation]:
    """All of the pack's."""
    modules = [importlib.import_module(f"{package.__name__}.{found.name}") for found in iter_modules(package.__path__)]
    named = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Operation)}
    return list(named.values())


def kernels(case: Case) -> dict[str, Any]:
    """Every kernel against its reference: the largest difference, or the traceback."""
    found: dict[str, Any] = {}
    for operation in operations():
        try:
            difference = operation.difference(case.device, case.dtype)
            found[operation.name] = {"difference": difference, "right": difference <= TOLERANCE[case.dtype]}
        except Exception:  # whatever a compiler raises: the others still count
            found[operation.name] = {"right": False, "traceback": traceback.format_exc()}
    return found


def layer(case: Case, name: str) -> dict[str, Any]:
    """One backend on one layer at the case's sizes: milliseconds, TFLOP/s, and its error beside float64."""
    sizes = case.shape(HEAD_FORCING, 40).layer_sizes
    rows = sum(heads * keys for heads, keys in sizes.groups)
    generator = torch.Generator(case.device).manual_seed(case.seed)
    options: Any = dict(generator=generator, device=case.device, dtype=case.dtype)
    q = torch.randn(sum(heads for heads, _ in sizes.groups), sizes.queries, HEAD_DIM, **options)
    k, v = torch.randn(2, rows, HEAD_DIM, **options)
    few = q[:, :64].contiguous()  # of every head
    exact = by_span(explicit, few.double(), k.double(), v.double(), sizes.spans)

    def error(attention: AttentionFunction) -> float:
        return float((attend_layer(attention, few, k, v, sizes.spans).double() - exact).abs().max())

    try:
        attention = load_attention(name, case.device, case.dtype, HEAD_DIM)
        with torch.no_grad():
            ms = fastest(case.device, lambda: attend_layer(attention, q, k, v, sizes.spans))
            off = error(attention)
    except Exception as failure:
        return {"name": name, **refusal(failure)}
    speeds = {"ms": ms, "tflops": 4 * sizes.queries * HEAD_DIM * rows / ms / 1e9, "expected_tflops": EXPECTED.get(name)}
    return {"name": name, **speeds, "error": off, "times_rounding": off / max(error(explicit), 1e-30)}


def backends(case: Case) -> list[str]:
    """What `layer` is asked about."""
    slow = ("explicit", "sage")
    return [name for name in BACKENDS if name not in slow] if case.device.type == "cuda" else ["sdpa"]
