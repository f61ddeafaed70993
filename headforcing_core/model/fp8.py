"""Linear layers in 8-bit floating point: half the memory of bf16, and faster where a device multiplies it. Inexact.

Weights have one scale per output channel and activations one per token. With one scale for all tokens a token's keys
would depend on the other tokens of its pass, and a recache or a pass over more blocks would give other numbers.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels.quantise import DTYPE, quantise
from ..errors import HeadForcingError
from .wan import WanConfig, WanModel

INEXACT = "linear layers in 8-bit floating point"
IDENTITY = "fp8 linears, e4m3, a scale per row, 1"  # part of a model's identity; another number for other arithmetic
_MULTIPLE = 16  # of both sizes of a product in 8 bits


class Fp8Linear(nn.Module):
    """A linear layer whose product is computed in 8-bit floating point, summed in float32.

    Args:
        linear: the layer to replace; its weight is rounded once.
        native: whether `torch._scaled_mm` computes the product; otherwise the same numbers are multiplied in bf16 or
            float32.
    """

    weight: Tensor  # [out, in], 8 bits
    scale: Tensor  # [out, 1] float32

    def __init__(self, linear: nn.Linear, native: bool):
        super().__init__()
        weight, scale = quantise(linear.weight.detach().contiguous())
        self.native, self.bias = native, linear.bias
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        """`x [..., in]` -> `[..., out]` in the dtype of `x`."""
        rows, scale = quantise(x.flatten(0, -2).contiguous())
        product = scaled_product if self.native and x.dtype != torch.float32 else emulated_product
        out = product(rows, scale, self.weight, self.scale, x.dtype)
        out = out if self.bias is None else out + self.bias
        return out.unflatten(0, x.shape[:-1])


def emulated_product(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The reference: `a [n, d]` times `b [m, d]` transposed, each row with its scale, `[n, m]`."""
    wide = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32  # both hold every number of 8 bits
    return (F.linear(a.to(wide), b.to(wide)).float() * a_scale * b_scale.T).to(dtype)


def scaled_product(a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """`emulated_product` by the device's own product of 8-bit numbers."""
    return torch._scaled_mm(a, b.T, scale_a=a_scale, scale_b=b_scale.T, out_dtype=torch.bfloat16).to(dtype)


@cache
def has_product(device: torch.device) -> bool:
    """Whether the device multiplies 8-bit numbers with a scale per row, found by trying; a CPU only pretends to."""
    if device.type != "cuda":
        return False
    a, b = (torch.linspace(-3, 3, rows * 64, device=device).view(rows, 64).sin() for rows in (40, 48))
    (a, a_scale), (b, b_scale) = quantise(a), quantise(b)
    try:
        found = scaled_product(a, a_scale, b, b_scale, torch.bfloat16)
    except (RuntimeError, NotImplementedError, AttributeError, TypeError, ValueError):
        return False
    return torch.allclose(found.float(), emulated_product(a, a_scale, b, b_scale, torch.float32), rtol=0.02, atol=0.05)


def use_fp8_linears(model: WanModel, native: bool = False) -> int:
    """Replace the linear layers of all transformer blocks in place; returns how many.

    The embeddings of text and time and the head stay as they are: they take a hundredth of the time.
    """
    replaced = 0
    for block in model.blocks:
        for parent in block.modules():
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    if child.in_features % _MULTIPLE or child.out_features % _MULTIPLE:
                        raise HeadForcingError(
                            f"--fp8-linears needs layers whose sizes are multiples of {_MULTIPLE}, got "
                            f"{child.in_features}x{child.out_features}; leave it out for this model"
                        )
                    setattr(parent, name, Fp8Linear(child, native))
                    replaced += 1
    return replaced


def saved_bytes(config: WanConfig, dtype: torch.dtype) -> int:
    """How much less memory the weights take with 8-bit linear layers than in `dtype`."""
    dim, ffn = config.dim, config.ffn_dim
    numbers, rows = 8 * dim * dim + 2 * dim * ffn, 9 * dim + ffn
    return config.num_layers * (numbers * (dtype.itemsize - DTYPE.itemsize) - 4 * rows)
