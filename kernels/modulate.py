"""Layer norm with per-frame scale and shift, and the residual sum before it, in one pass over the
tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .dispatch import Arguments, Operation, noise
from .language import kernel, power_of_2, tl
from .layout import check_layout
from .rows import load_float


def norm_modulate_reference(
    x: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    base: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """`z = x + y * gate` rounded, and `LN(z) * (base + scale) + shift`, each computed in float32
    and rounded once.

    Args:
        x: `[tokens, dim]`, frame after frame.
        y: of the same shape, output of a layer. None: z is x.
        gate, scale, shift: `[frames, dim]`, rows of any stride; one row serves every frame. Without
            gate: a plain sum.
        base: 1 for modulation; 0 makes scale and shift the weight and bias of an ordinary layer
            norm.
    """

    def by_frame(tokens: Tensor, rows: Tensor) -> Tensor:
        return tokens.unflatten(0, (len(rows), -1))

    if y is not None:
        added = (
            y.float()
            if gate is None
            else (by_frame(y.float(), gate) * gate.float()[:, None]).flatten(0, 1)
        )
        x = (x.float() + added).to(x.dtype)
    normed = by_frame(F.layer_norm(x.float(), x.shape[1:], eps=eps), scale)
    return x, (normed * (base + scale.float()[:, None]) + shift.float()[:, None]).flatten(0, 1).to(
        x.dtype
    )


@kernel
def _norm_kernel(
    x,
    y,
    gate,
    scale,
    shift,
    z,
    out,
    gate_stride,
    scale_stride,
    shift_stride,
    gate_tokens,
    frame_tokens,
    dim,
    eps,
    base,
    RESIDUAL: tl.constexpr,
    GATED: tl.constexpr,
    DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    frame = tl.program_id(0) // frame_tokens
    channel = tl.arange(0, DIM)
    inside = channel < dim
    row = load_float(x + token * dim + channel, inside)
    if RESIDUAL:
        added = load_float(y + token * dim + channel, inside)
        if GATED:
            place = gate + (tl.program_id(0) // gate_tokens) * gate_stride + channel
            added *= load_float(place, inside)
        rounded = (row + added).to(z.dtype.element_ty)
        tl.store(z + token * dim + channel, rounded, mask=inside)
        row = rounded.to(tl.float32)
    mean = tl.sum(row, axis=0) / dim
    centred = tl.where(inside, row - mean, 0.0)
    normed = centred / tl.sqrt(tl.sum(centred * centred, axis=0) / dim + eps)
    factor = base + load_float(scale + frame * scale_stride + channel, inside)
    offset = load_float(shift + frame * shift_stride + channel, inside)
    tl.store(out + token * dim + channel, normed * factor + offset, mask=inside)


def _launch(
    x: Tensor,
    y: Tensor | None,
    gate: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    eps: float,
    base: float = 1.0,
) -> tuple[Tensor, Tensor]:
    some_y = x if y is None else y
    some_gate = scale if gate is None else gate
    tokens, dim = x.shape  # `len` of a tensor is a function of Python
    for part in (x, some_y):
        fits = part.shape == x.shape and part.is_contiguous()
        check_layout(fits, "tokens must be contiguous [n, d]", part)
    for rows in (some_gate, scale, shift):
        fits = rows.shape[1] == dim and rows.stride(1) == 1 and tokens % rows.shape[0] == 0
        check_layout(fits, f"rows must be [frames, {dim}] for {tokens} tokens", rows)
    z = x if y is None else torch.empty_like(x)
    out = torch.empty_like(x)
    _norm_kernel[(tokens,)](
        x,
        some_y,
        some_gate,
        scale,
        shift,
        z,
        out,
        some_gate.stride(0),
        scale.stride(0),
        shift.stride(0),
        tokens // some_gate.shape[0],
        tokens // scale.shape[0],
        dim,
        eps,
        float(base),
        RESIDUAL=y is not None,
        GATED=gate is not None,
        DIM=power_of_2(dim),
        num_warps=4,
    )
    return z, out


def _example(device: torch.device, dtype: torch.dtype) -> Arguments:
    # a mean other than 0 tests the subtraction; small factors, because they magnify differences in
    # rounding
    x, y = (1 + noise(2, 30, 200)).to(device, dtype)
    shift, scale, gate = (0.5 * noise(3, 6, 200)).to(device, dtype).unbind(1)[:3]
    return dict(x=x, y=y, gate=gate, scale=scale, shift=shift, eps=1e-6)


norm_modulate = Operation(norm_modulate_reference, _launch, _example)
