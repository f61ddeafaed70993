"""What linear layers in 8-bit floating point would give: the product of the two largest shapes of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .case import Case
from .stopwatch import Stopwatch

REPETITIONS = 20


def products(case: Case) -> list[dict[str, Any]]:
    """TFLOP/s of a block's tokens times a square and a feed-forward weight, in the case's dtype and in fp8."""
    tokens = 3 * case.frame_tokens
    shapes = ((tokens, case.dim, case.dim), (tokens, case.dim, case.config.ffn_dim))
    return [_product(case, *shape) for shape in shapes]


def _product(case: Case, rows: int, inner: int, columns: int) -> dict[str, Any]:
    x = torch.randn(rows, inner, device=case.device).to(case.dtype)
    weight = torch.randn(columns, inner, device=case.device).to(case.dtype)
    found: dict[str, Any] = {"shape": [rows, inner, columns]}
    exact = x @ weight.T
    found["tflops"] = _speed(case, lambda: x @ weight.T, 2.0 * rows * inner * columns)
    try:
        small = [_quantised(a) for a in (x, weight)]

        def scaled() -> torch.Tensor:
            (a, a_scale), (b, b_scale) = small
            return torch._scaled_mm(a, b.T, scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16)

        error = (scaled().float() - exact.float()).norm() / exact.float().norm()
        found["relative_error"] = float(error)
        found["fp8_tflops"] = _speed(case, scaled, 2.0 * rows * inner * columns)
    except (RuntimeError, AttributeError, NotImplementedError) as failure:
        found["fp8_not_available"] = str(failure).splitlines()[0]
    return found


def _quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor in fp8 and the factor that brings it back."""
    dtype = torch.float8_e4m3fn
    scale = (x.abs().amax().float() / torch.finfo(dtype).max).reshape(())
    return (x.float() / scale).to(dtype), scale


def _speed(case: Case, run: Callable[[], Any], flops: float) -> float:
    watch, times = Stopwatch(case.device), []
    for _ in range(3 + REPETITIONS):
        with watch.stage("call"):
            run()
        times.append(watch.lap()["call"])
    return flops / min(times[3:]) / 1e9
