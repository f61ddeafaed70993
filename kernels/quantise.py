"""Rows in 8-bit floating point, each with a scale of its own: largest value, scale and rounding in
one launch.

`quantise_gelu` applies GELU before, in the same launch.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from .dispatch import Arguments, Operation, noise
from .language import interpreting, kernel, tl
from .layout import check_layout
from .rows import load_float

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
SMALLEST = 1e-12  # of a row's largest value: a row of zeros is not divided by zero
COLUMNS = 2048  # of a tile; rows are wider, and are read twice


def quantise_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows `[n, d]` in 8 bits, and the scale `[n, 1]` float32 of each that brings its largest value
    to 448.

    A row with NaN becomes NaN; one with infinity has an infinite scale and NaN in its place.
    Neither becomes large numbers, and products with both are NaN.
    """
    peak = torch.linalg.vector_norm(x, torch.inf, dim=-1, keepdim=True).float().clamp(min=SMALLEST)
    # by a number, CUDA would multiply with its rounded reciprocal
    scale = peak / torch.full_like(peak, LARGEST)
    return (x / scale).to(DTYPE), scale


def quantise_gelu_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """`quantise` of GELU, by its approximation with tanh, of `x`, in float32 and not rounded in
    between.
    """
    return quantise_reference(F.gelu(x.float(), approximate="tanh"))


@kernel
def _load_values(x, place, inside, GELU: tl.constexpr):
    value = load_float(x + place, inside)
    if GELU:  # (1 + tanh u) / 2 is the logistic function of 2 u
        value = value / (
            1 + tl.exp(-1.5957691216057308 * (value + 0.044715 * value * value * value))
        )
    return value


@kernel
def _quantise_kernel(
    x, rounded, scale, dim, largest, smallest, GELU: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    # bits of absolute values have their order, with NaN above infinity; a maximum of numbers would
    # drop NaN
    bits = tl.zeros((COLUMNS,), tl.int32)
    for start in range(0, dim, COLUMNS):
        inside = start + column < dim
        value = _load_values(x, row * dim + start + column, inside, GELU)
        bits = tl.maximum(bits, tl.abs(value).to(tl.int32, bitcast=True))
    peak = tl.max(bits, axis=0).to(tl.float32, bitcast=True)
    factor = tl.div_rn(tl.where(peak < smallest, smallest, peak), largest)
    tl.store(scale + row, factor)
    for start in range(0, dim, COLUMNS):
        inside = start + column < dim
        value = _load_values(x, row * dim + start + column, inside, GELU)
        tl.store(
            rounded + row * dim + start + column,
            tl.div_rn(value, factor).to(rounded.dtype.element_ty),
            inside,
        )


def _launch(x: Tensor, gelu: bool = False) -> tuple[Tensor, Tensor]:
    check_layout(x.ndim == 2 and x.is_contiguous(), "rows must be contiguous [n, d]", x)
    rounded = torch.empty_like(x, dtype=torch.float32 if interpreting() else DTYPE)
    rows = x.shape[0]  # `len` of a tensor is a function of Python
    scale = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    if rows:
        _quantise_kernel[(rows,)](
            x,
            rounded,
            scale,
            x.shape[1],
            LARGEST,
            SMALLEST,
            GELU=gelu,
            COLUMNS=COLUMNS,
            num_warps=4,
        )
    return rounded.to(DTYPE), scale


def _example(device: torch.device, dtype: torch.dtype) -> Arguments:
    x = noise(7, 2 * COLUMNS + 40)
    x *= torch.tensor([1e-3, 1, 30, 1, 1, 0, 1])[:, None]
    x[0, -1] = 1
    x[3, 5] = torch.nan
    x[4, COLUMNS] = torch.inf
    x[6, 0] = -torch.inf
    return dict(x=x.to(device, dtype))


def _example_gelu(device: torch.device, dtype: torch.dtype) -> Arguments:
    # few values, none near the middle between two numbers of 8 bits: an exponential is not the same
    # everywhere
    x = (
        torch.linspace(-4, 6, 23).repeat(3, 100)[:, : COLUMNS + 40]
        * torch.tensor([1, 0.5, 1])[:, None]
    )
    x[1, 7] = torch.nan
    x[2, -1] = torch.inf
    return dict(x=x.to(device, dtype))


quantise = Operation(quantise_reference, _launch, _example)
quantise_gelu = Operation(quantise_gelu_reference, partial(_launch, gelu=True), _example_gelu)
