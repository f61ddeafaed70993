"""What comes before any speed: whether kernels and attention backends compute what they should, on this device."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from pkgutil import iter_modules
from typing import Any

import torch
from headforcing import kernels as package
from headforcing.headforcing_core.model.attention import (
    BACKENDS,
    AttentionFunction,
    LayerSizes,
    explicit,
)
from headforcing.headforcing_core.model.attention_backends import Spans, attend_layer, by_span, load_attention
from headforcing.kernels.dispatch import TOLERANCE, Operation
from torch import Tensor

from .case import HEAD_DIM, Case
from .rows import HEAD_FORCING
from .stopwatch import Stopwatch

# arithmetic, not measurements: what an H200 may reach, in TFLOP/s
EXPECTED = {"torch_varlen": 340, "cudnn_varlen": 550, "cudnn": 440, "cudnn_streams": 540, "triton": 370}
REPETITIONS = 10


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
    sizes = _sizes(case)
    try:
        attention = _plainly(_backend(case, name))
        q, k, v = _inputs(case, sizes)
        with torch.no_grad():
            ms = _milliseconds(case, lambda: attention(q, k, v, sizes.spans))
            error = _error(attention, q, k, v, sizes.spans)
    except Exception as failure:
        said = (str(failure).strip() or type(failure).__name__).splitlines()[0]
        return {"name": name, "not_available": said, "traceback": traceback.format_exc()}
    keys = sum(heads * count for heads, count in sizes.groups)
    flops = 4 * sizes.queries * HEAD_DIM * keys
    found = {"name": name, "ms": ms, "tflops": flops / ms / 1e9, "error": error, "expected_tflops": EXPECTED.get(name)}
    return found | {"times_rounding": error / max(_error(_plainly(explicit), q, k, v, sizes.spans), 1e-30)}


def backends(case: Case) -> list[str]:
    """What `layer` is asked about."""
    slow = ("explicit", "sage")
    return [name for name in BACKENDS if name not in slow] if case.device.type == "cuda" else ["sdpa"]


Layer = Callable[[Tensor, Tensor, Tensor, Spans], Tensor]


def _backend(case: Case, name: str) -> AttentionFunction:
    return load_attention(name, case.device, case.dtype, HEAD_DIM)


def _plainly(function: AttentionFunction) -> Layer:
    return lambda q, k, v, spans: attend_layer(function, q, k, v, spans)


def _sizes(case: Case) -> LayerSizes:
    return case.shape(HEAD_FORCING, 40).layer_sizes


def _inputs(case: Case, sizes: LayerSizes) -> tuple[Tensor, Tensor, Tensor]:
    heads, rows = sum(n for n, _ in sizes.groups), sum(n * keys for n, keys in sizes.groups)
    generator = torch.Generator(case.device).manual_seed(case.seed)
    options: Any = dict(generator=generator, device=case.device, dtype=case.dtype)
    q = torch.randn(heads, sizes.queries, HEAD_DIM, **options)
    return q, torch.randn(rows, HEAD_DIM, **options), torch.randn(rows, HEAD_DIM, **options)


def _milliseconds(case: Case, run: Callable[[], Any]) -> float:
    """Of a call, the fastest."""
    watch, times = Stopwatch(case.device), []
    for _ in range(3):
        run()
    for _ in range(REPETITIONS):
        with watch.stage("call"):
            run()
        times.append(watch.lap()["call"])
    return min(times)


def _error(attention: Layer, q: Tensor, k: Tensor, v: Tensor, spans: Spans) -> float:
    """The largest difference from float64, for a few queries of every head."""
    few = q[:, :64].contiguous()
    exact = by_span(explicit, few.double(), k.double(), v.double(), spans)
    return float((attention(few, k, v, spans).double() - exact).abs().max())
