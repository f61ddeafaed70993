"""Kernels, attention and linear layers alone: whether they compute what they should on this device,
and how fast.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from pkgutil import iter_modules
from typing import Any

import torch
from headforcing import kernels as package
from headforcing.headforcing_core.model.attention import BACKENDS, AttentionFunction, explicit
from headforcing.headforcing_core.model.attention_backends import (
    Operands,
    attend_layer,
    by_span,
    load_attention,
)
from headforcing.headforcing_core.model.fp8 import Fp8Linear, scaled_product
from headforcing.kernels.dispatch import TOLERANCE, Operation
from headforcing.kernels.quantise import quantise
from torch import Tensor, nn

from .apart import refusal
from .case import HEAD_DIM, SEED, Case
from .rows import HEAD_FORCING
from .stopwatch import fastest


def kernels(case: Case) -> dict[str, Any]:
    """Every kernel of the pack against its reference: the largest difference, or the traceback."""
    modules = [
        importlib.import_module(f"{package.__name__}.{found.name}")
        for found in iter_modules(package.__path__)
    ]
    operations: set[Operation] = set()
    for module in modules:
        operations |= {value for value in vars(module).values() if isinstance(value, Operation)}
    found: dict[str, Any] = {}
    for operation in sorted(operations, key=lambda operation: operation.name):
        try:
            difference = operation.difference(case.device, case.dtype)
            found[operation.name] = {
                "difference": difference,
                "right": difference <= TOLERANCE[case.dtype],
            }
        except Exception:  # whatever a compiler raises: the others still count
            found[operation.name] = {"right": False, "traceback": traceback.format_exc()}
    return found


def attention(case: Case, name: str) -> dict[str, Any]:
    """One backend on one layer at the case's sizes: milliseconds, TFLOP/s, and its error beside
    float64.
    """
    sizes = case.shape(HEAD_FORCING, 40).layer_sizes
    rows = sum(heads * keys for heads, keys in sizes.groups)
    generator = torch.Generator(case.device).manual_seed(SEED)
    options: Any = dict(generator=generator, device=case.device, dtype=case.dtype)
    q = torch.randn(sum(heads for heads, _ in sizes.groups), sizes.queries, HEAD_DIM, **options)
    k, v = torch.randn(2, rows, HEAD_DIM, **options)
    few = q[:, :64].contiguous()  # of every head
    exact = by_span(explicit, few.double(), k.double(), v.double(), sizes.spans)

    def error(function: AttentionFunction) -> float:
        return float((attend_layer(function, few, k, v, sizes.spans).double() - exact).abs().max())

    try:
        function = load_attention(name, Operands(case.device, case.dtype, HEAD_DIM))
        with torch.no_grad():
            ms = fastest(case.device, lambda: attend_layer(function, q, k, v, sizes.spans))
            off = error(function)
    except Exception as failure:
        return refusal(failure)
    tflops = 4 * sizes.queries * HEAD_DIM * rows / ms / 1e9
    return {
        "ms": ms,
        "tflops": tflops,
        "error": off,
        "times_rounding": off / max(error(explicit), 1e-30),
    }


def backends(case: Case) -> list[str]:
    """What `attention` is asked about."""
    slow = ("explicit", "sage")
    return (
        [name for name in BACKENDS if name not in slow] if case.device.type == "cuda" else ["sdpa"]
    )


@torch.no_grad()
def linear_layers(case: Case) -> list[dict[str, Any]]:
    """Of a block's tokens, a square one and both of the feed-forward network: TFLOP/s in the case's
    dtype and in fp8.

    In fp8 as the engine does it, rounding tokens in every call, and the product alone; the last one
    also with sums of fewer bits (`use_fast_accum`), which the engine does not use.
    """
    tokens = 3 * case.frame_tokens
    dim = case.dim
    ffn = case.config.ffn_dim
    return [_linear_layer(case, tokens, *shape) for shape in ((dim, dim), (dim, ffn), (ffn, dim))]


def _linear_layer(case: Case, rows: int, inner: int, columns: int) -> dict[str, Any]:
    x = torch.randn(rows, inner, device=case.device).to(case.dtype)
    linear = nn.Linear(inner, columns, device=case.device, dtype=case.dtype)

    def tflops(run: Callable[[], Tensor]) -> float:
        return 2.0 * rows * inner * columns / fastest(case.device, run, repetitions=20) / 1e9

    found: dict[str, Any] = {"shape": [rows, inner, columns], "tflops": tflops(lambda: linear(x))}
    try:
        small = Fp8Linear(linear, native=True)
        a, a_scale = quantise(x)
        exact = linear(x).float()
        found["relative_error"] = float((small(x).float() - exact).norm() / exact.norm())
        found["fp8_tflops"] = tflops(lambda: small(x.view_as(x)))  # another input in every call
        weights = small.weight, small.scale, case.dtype, small.bias
        found["fp8_product_tflops"] = tflops(lambda: scaled_product(a, a_scale, *weights))
    except (RuntimeError, AttributeError, NotImplementedError) as failure:
        found["fp8_not_available"] = str(failure).splitlines()[0]
    return found
