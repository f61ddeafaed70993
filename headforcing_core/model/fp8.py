"""Linear layers in 8-bit floating point: half the memory of bf16, and faster where a device
multiplies it. Inexact.

Weights have one scale per output channel and activations one per token: a token's keys depend on no
other token.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels.quantise import DTYPE, quantise, quantise_gelu
from ..errors import HeadForcingError
from .wan import WanConfig, WanModel

INEXACT = "linear layers in 8-bit floating point"
# part of a model's identity; another number for other arithmetic
IDENTITY = "fp8 linears, e4m3, a scale per row, 2"
_MULTIPLE = 16  # of both sizes of a product in 8 bits


class Rounding:
    """Rounds the input of all layers of a model; once where layers one after another have the same
    one.
    """

    def __init__(self) -> None:
        self._last: tuple[Tensor, tuple[Tensor, Tensor]] | None = None

    def __call__(self, x: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
        """`x [..., in]`, or its GELU, as rows `[n, in]` in 8 bits and their scales `[n, 1]`."""
        if gelu:  # of one layer alone, and large
            self._last = None
            return quantise_gelu(x.flatten(0, -2).contiguous())
        if self._last is None or self._last[0] is not x:
            self._last = x, quantise(x.flatten(0, -2).contiguous())
        return self._last[1]


class Fp8Linear(nn.Module):
    """A linear layer whose product is computed in 8-bit floating point, summed in float32.

    Args:
        linear: the layer to replace; its weight is rounded once.
        native: whether `torch._scaled_mm` computes the product; otherwise the same numbers are
            multiplied in bf16 or float32.
        rounding: that of the model, shared by its layers.
        gelu: whether GELU comes before it.
    """

    weight: Tensor  # [out, in], 8 bits
    scale: Tensor  # [out, 1] float32

    def __init__(
        self, linear: nn.Linear, native: bool, rounding: Rounding | None = None, gelu: bool = False
    ):
        super().__init__()
        weight, scale = quantise(linear.weight.detach().contiguous())
        self.native = native
        self.bias = linear.bias
        self.gelu = gelu
        self.rounding = rounding or Rounding()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """`x [..., in]` -> `[..., out]` in the dtype of `x`."""
        rows, scale = self.rounding(x, self.gelu)
        product = scaled_product if self.native and x.dtype != torch.float32 else emulated_product
        return product(rows, scale, self.weight, self.scale, x.dtype, self.bias).unflatten(
            0, x.shape[:-1]
        )


def emulated_product(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """The reference: `a [n, d]` times `b [m, d]` transposed, each row with its scale, and `bias
    [m]`, `[n, m]`.
    """
    # both hold every number of 8 bits
    wide = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    out = F.linear(a.to(wide), b.to(wide)).float().mul_(a_scale).mul_(b_scale.T)
    if bias is not None:
        out.add_(bias)
    return out.to(dtype)


def scaled_product(
    a: Tensor,
    a_scale: Tensor,
    b: Tensor,
    b_scale: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """`emulated_product` by the device's own product of 8-bit numbers."""
    out = torch._scaled_mm(
        a,
        b.T,
        scale_a=a_scale,
        scale_b=b_scale.T,
        bias=None if bias is None else bias.to(torch.bfloat16),
        out_dtype=torch.bfloat16,
    )
    return out.to(dtype)


@cache
def has_product(device: torch.device) -> bool:
    """Whether the device multiplies 8-bit numbers with a scale per row, found by trying."""
    if device.type != "cuda":
        return False
    waves = torch.linspace(-3, 3, 48 * 64, device=device).view(48, 64).sin()
    a, a_scale = quantise(waves[:40])
    b, b_scale = quantise(waves)
    try:
        found = scaled_product(a, a_scale, b=b, b_scale=b_scale, dtype=torch.bfloat16)
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError):
        return False
    return torch.allclose(
        found.float(),
        emulated_product(a, a_scale, b=b, b_scale=b_scale, dtype=torch.float32),
        rtol=0.02,
        atol=0.05,
    )


def use_fp8_linears(model: WanModel, native: bool = False) -> None:
    """Replace the linear layers of all transformer blocks in place."""
    rounding = Rounding()
    block: Any
    for block in model.blocks:
        block.ffn[1] = nn.Identity()  # GELU is applied when its result is rounded
        block.self_attn.joined = None  # each of its layers is rounded by itself
        for parent in block.modules():
            for name, child in list(parent.named_children()):
                if not isinstance(child, nn.Linear):
                    continue
                if child.in_features % _MULTIPLE or child.out_features % _MULTIPLE:
                    raise HeadForcingError(
                        f"--fp8-linears needs layers whose sizes are multiples of {_MULTIPLE}, got "
                        f"{child.in_features}x{child.out_features}; leave it out for this model"
                    )
                setattr(
                    parent, name, Fp8Linear(child, native, rounding, gelu=child is block.ffn[2])
                )


def saved_bytes(config: WanConfig, dtype: torch.dtype) -> int:
    """Bytes that the weights take less with 8-bit linear layers than in `dtype`."""
    dim = config.dim
    ffn = config.ffn_dim
    numbers = 8 * dim * dim + 2 * dim * ffn
    rows = 9 * dim + ffn
    return config.num_layers * (numbers * (dtype.itemsize - DTYPE.itemsize) - 4 * rows)


def emulated_bytes(config: WanConfig) -> int:
    """Bytes that a pass takes more for each token if its device does not multiply 8-bit numbers:
    the widest product in float32.
    """
    return config.ffn_dim * torch.float32.itemsize
