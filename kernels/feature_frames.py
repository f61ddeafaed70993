"""The input of a causal convolution in the Wan VAE: residual sum, RMS norm, SiLU and the frames
before, in one pass.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .dispatch import Arguments, Operation, noise
from .language import kernel, power_of_2, tiles, tl
from .layout import check_layout
from .rows import load_float

PAST_FRAMES = 2  # that a causal convolution over three frames reads besides the current one
TILE = 2048  # numbers that a program has in registers at a time
_SMALLEST_LENGTH = 1e-12


def feature_frames_reference(
    x: Tensor,
    past: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """The frames `[2 + t, H, W, C]` that a causal convolution reads: two of the past, then
    `silu(norm(x))`.

    The norm divides a pixel by the root mean square of its channels, which is computed in float32.

    Args:
        x: `[t, H, W, C]`, channels last. Changed to `x + bias + residual`, which is what is normed.
        past: `[2, H, W, C]`, the last two frames of this convolution so far; changed to the last
            two of the result.
        gamma: `[C]`, the norm's weight.
        bias: `[C]` of the layer that gave x. None: 0.
        residual: of x's shape. None: 0.
    """
    if bias is not None:
        x.add_(bias)
    if residual is not None:
        x.add_(residual)
    frames = x.new_empty(PAST_FRAMES + len(x), *x.shape[1:])
    frames[:PAST_FRAMES] = past
    # in place and without a copy in float32: a GPU without Triton runs this, and waits for its
    # memory
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).clamp_min_(
        _SMALLEST_LENGTH
    )
    new = torch.mul(x, x.shape[-1] ** 0.5 / length, out=frames[PAST_FRAMES:])
    F.silu(new.mul_(gamma), inplace=True)
    past.copy_(frames[-PAST_FRAMES:])
    return frames


@kernel
def _frames_kernel(
    x,
    past,
    gamma,
    bias,
    residual,
    out,
    pixels,
    dim,
    root_dim,
    smallest_length,
    FRAMES: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
):
    pixel = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    channel = tl.arange(0, DIM)[None, :]
    inside = (pixel < pixels) & (channel < dim)
    first = pixel.to(tl.int64) * dim + channel
    second = (pixel + pixels).to(tl.int64) * dim + channel
    weight = load_float(gamma + channel, channel < dim)
    # both are read before either is replaced, and no other program reads these pixels
    older = tl.load(past + first, mask=inside)
    newer = tl.load(past + second, mask=inside)
    tl.store(out + first, older, mask=inside)
    tl.store(out + second, newer, mask=inside)
    for i in range(FRAMES):
        place = (pixel + i * pixels).to(tl.int64) * dim + channel
        row = load_float(x + place, inside)
        if BIAS:
            row += load_float(bias + channel, channel < dim)
        if RESIDUAL:
            row += load_float(residual + place, inside)
        if BIAS or RESIDUAL:
            rounded = row.to(x.dtype.element_ty)
            tl.store(x + place, rounded, mask=inside)
            row = rounded.to(tl.float32)
        length = tl.maximum(tl.sqrt(tl.sum(row * row, axis=1)), smallest_length)[:, None]
        normed = row * (root_dim / length) * weight
        older = newer
        newer = (normed / (1.0 + tl.exp(-normed))).to(out.dtype.element_ty)
        place = (pixel + (i + 2) * pixels).to(tl.int64) * dim + channel
        tl.store(out + place, newer, mask=inside)
    tl.store(past + first, older, mask=inside)
    tl.store(past + second, newer, mask=inside)


def _launch(
    x: Tensor,
    past: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    t, height, width, dim = x.shape
    some_bias = gamma if bias is None else bias
    some_residual = x if residual is None else residual
    for tensor in (x, past, gamma, some_bias, some_residual):
        check_layout(
            tensor.is_contiguous() and tensor.shape[-1] == dim,
            f"frames must be contiguous [.., {dim}]",
            tensor,
        )
    frames = x.new_empty(PAST_FRAMES + t, height, width, dim)
    rows = max(1, TILE // power_of_2(dim))
    _frames_kernel[(tiles(height * width, rows),)](
        x,
        past,
        gamma,
        some_bias,
        some_residual,
        frames,
        height * width,
        dim,
        dim**0.5,
        _SMALLEST_LENGTH,
        FRAMES=t,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        ROWS=rows,
        DIM=power_of_2(dim),
        num_warps=4,
    )
    return frames


def _example(device: torch.device, dtype: torch.dtype) -> Arguments:
    x, past, residual = noise(3 + 2 + 3, 3, 5, 24).to(device, dtype).split((3, 2, 3))
    gamma, bias = (0.5 * noise(2, 24)).to(device, dtype)
    return dict(x=x, past=past, gamma=gamma, bias=bias, residual=residual)


feature_frames = Operation(feature_frames_reference, _launch, _example)
