"""Layer norm with per-frame scale and shift, and the residual sum before it, in one pass over the tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .dispatch import Operation
from .language import kernel, power_of_2, tl
from .layout import LayoutError


def norm_modulate_reference(x: Tensor, scale: Tensor, shift: Tensor, eps: float, base: float = 1.0) -> Tensor:
    """`LN(x) * (base + scale) + shift` with one scale and shift per frame, in float32, rounded once.

    Args:
        x: `[tokens, dim]`, frame after frame.
        scale, shift: `[frames, dim]`, rows of any stride; one row serves every frame.
        base: 1 for modulation; 0 makes scale and shift the weight and bias of an ordinary layer norm.
    """
    y = F.layer_norm(x.float(), x.shape[1:], eps=eps).unflatten(0, (len(scale), -1))
    return (y * (base + scale.float()[:, None]) + shift.float()[:, None]).flatten(0, 1).to(x.dtype)


def residual_norm_modulate_reference(
    x: Tensor, y: Tensor, gate: Tensor | None, scale: Tensor, shift: Tensor, eps: float, base: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`z = x + y * gate`, and `norm_modulate(z)`.

    Args:
        y: `[tokens, dim]`, output of a layer.
        gate: `[frames, dim]` like scale and shift, or None for a plain sum.

    Returns:
        z `[tokens, dim]` rounded to its dtype, and `norm_modulate` of the rounded z.
    """
    added = y.float()
    if gate is not None:
        added = (added.unflatten(0, (len(gate), -1)) * gate.float()[:, None]).flatten(0, 1)
    z = (x.float() + added).to(x.dtype)
    return z, norm_modulate_reference(z, scale, shift, eps, base)


@kernel
def _norm_kernel(
    x, y, gate, scale, shift, z, out, gate_stride, scale_stride, shift_stride, gate_tokens, frame_tokens,
    dim, eps, base,
    RESIDUAL: tl.constexpr, GATED: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    frame = tl.program_id(0) // frame_tokens
    channel = tl.arange(0, DIM)
    inside = channel < dim
    row = tl.load(x + token * dim + channel, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        added = tl.load(y + token * dim + channel, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            place = gate + (tl.program_id(0) // gate_tokens) * gate_stride + channel
            added *= tl.load(place, mask=inside, other=0.0).to(tl.float32)
        rounded = (row + added).to(z.dtype.element_ty)
        tl.store(z + token * dim + channel, rounded, mask=inside)
        row = rounded.to(tl.float32)
    mean = tl.sum(row, axis=0) / dim
    centred = tl.where(inside, row - mean, 0.0)
    normed = centred / tl.sqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    factor = base + tl.load(scale + frame * scale_stride + channel, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(shift + frame * shift_stride + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * dim + channel, normed * factor + offset, mask=inside)


def _check_rows(name: str, rows: Tensor, x: Tensor) -> int:
    """Check per-frame rows `[frames, dim]`; returns how many tokens share a row."""
    fits = rows.ndim == 2 and rows.shape[1] == x.shape[1] and rows.stride(1) == 1 and len(rows) > 0
    if not fits or len(x) % len(rows):
        raise LayoutError(f"{name} must be [frames, {x.shape[1]}] for {len(x)} tokens, got {list(rows.shape)}")
    return len(x) // len(rows)


def _run(
    x: Tensor, y: Tensor | None, gate: Tensor | None, scale: Tensor, shift: Tensor, eps: float, base: float
) -> tuple[Tensor, Tensor]:
    if x.ndim != 2 or not x.is_contiguous() or (y is not None and (y.shape != x.shape or not y.is_contiguous())):
        raise LayoutError(f"tokens must be contiguous [tokens, dim], got {list(x.shape)}")
    frame_tokens = _check_rows("scale", scale, x)
    if _check_rows("shift", shift, x) != frame_tokens:
        raise LayoutError(f"scale and shift must have as many rows, got {len(scale)} and {len(shift)}")
    gate_tokens = frame_tokens if gate is None else _check_rows("gate", gate, x)
    out = torch.empty_like(x)
    z = x if y is None else torch.empty_like(x)
    _norm_kernel[(len(x),)](
        x, x if y is None else y, x if gate is None else gate, scale, shift, z, out,
        0 if gate is None else gate.stride(0), scale.stride(0), shift.stride(0), gate_tokens, frame_tokens,
        x.shape[1], eps, float(base),
        RESIDUAL=y is not None, GATED=gate is not None, DIM=power_of_2(x.shape[1]), num_warps=4,
    )  # fmt: skip
    return z, out


def _launch_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float, base: float = 1.0) -> Tensor:
    return _run(x, None, None, scale, shift, eps, base)[1]


def _launch_residual(
    x: Tensor, y: Tensor, gate: Tensor | None, scale: Tensor, shift: Tensor, eps: float, base: float = 1.0
) -> tuple[Tensor, Tensor]:
    return _run(x, y, gate, scale, shift, eps, base)


def _example(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x, rows = torch.randn(30, 200, generator=generator), torch.randn(3, 6, 200, generator=generator)
    # a mean other than 0 tests the subtraction; small factors, because they magnify differences in rounding
    x, rows = (1 + x).to(device, dtype), (0.5 * rows).to(device, dtype)
    return dict(x=x, scale=rows[:, 1], shift=rows[:, 0], eps=1e-6)


def _example_residual(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    y, gate = torch.randn(30 + 3, 200, generator=torch.Generator().manual_seed(1)).to(device, dtype).split((30, 3))
    return _example(device, dtype) | dict(y=y, gate=gate)


norm_modulate = Operation(norm_modulate_reference, _launch_norm, _example)
residual_norm_modulate = Operation(residual_norm_modulate_reference, _launch_residual, _example_residual)
