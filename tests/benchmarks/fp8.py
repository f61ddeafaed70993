"""What linear layers in 8-bit floating point give: the engine's layer and its product, at the shapes of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from headforcing.headforcing_core.model.fp8 import Fp8Linear, scaled_product
from headforcing.kernels.quantise import quantise
from torch import nn

from .case import Case
from .stopwatch import fastest

REPETITIONS = 20


def products(case: Case) -> list[dict[str, Any]]:
    """TFLOP/s of linear layers of a block's tokens: a square one and both of the feed-forward network."""
    tokens, dim, ffn = 3 * case.frame_tokens, case.dim, case.config.ffn_dim
    return [_layer(case, *shape) for shape in ((tokens, dim, dim), (tokens, dim, ffn), (tokens, ffn, dim))]


@torch.no_grad()
def _layer(case: Case, rows: int, inner: int, columns: int) -> dict[str, Any]:
    """In the case's dtype, in fp8 as the engine does it, rounding tokens in every call, and the product of it alone.

    The last one also with sums of fewer bits (`use_fast_accum`), which the engine does not use.
    """
    x = torch.randn(rows, inner, device=case.device).to(case.dtype)
    linear = nn.Linear(inner, columns, device=case.device, dtype=case.dtype)
    flops = 2.0 * rows * inner * columns
    found: dict[str, Any] = {"shape": [rows, inner, columns], "tflops": _speed(case, lambda: linear(x), flops)}
    try:
        small, (a, a_scale) = Fp8Linear(linear, native=True), quantise(x)
        error = (small(x).float() - linear(x).float()).norm() / linear(x).float().norm()
        found["relative_error"] = float(error)
        found["fp8_tflops"] = _speed(case, lambda: small(x.view_as(x)), flops)  # another input in every call
        weights = small.weight, small.scale, case.dtype, small.bias
        for name, fast in (("fp8_product_tflops", False), ("fp8_fast_product_tflops", True)):
            found[name] = _speed(case, lambda fast=fast: scaled_product(a, a_scale, *weights, fast), flops)
    except (RuntimeError, AttributeError, NotImplementedError) as failure:
        found["fp8_not_available"] = str(failure).splitlines()[0]
    return found


def _speed(case: Case, run: Callable[[], Any], flops: float) -> float:
    return flops / fastest(case.device, run, REPETITIONS) / 1e9
