"""Residual sums and layer norms between the layers of the transformer, by a fused kernel where one
may be used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...kernels.modulate import norm_modulate


def add_norm(
    x: Tensor,
    added: tuple[Tensor, Tensor | None] | None,
    norm: nn.Module,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The residual sum `x + y * gate` and its modulated norm `norm(...) * (1 + scale) + shift`,
    fused where possible.

    Args:
        x: `[1, tokens, dim]`, tokens ordered by frame.
        added: `y` like x and `gate [frames, dim]` (None for 1); None to add nothing.
        scale, shift: `[frames, dim]`; None where the norm has its own weights.
    """
    if (
        isinstance(norm, nn.LayerNorm)
        and norm_modulate.usable(x.device, x.dtype)
        and untouched(norm, x)
    ):
        base = 1.0
        if scale is None or shift is None:
            scale = norm.weight.to(x.dtype)[None]
            shift = norm.bias.to(x.dtype)[None]
            base = 0.0
        y = gate = None
        if added is not None:
            y, gate = added
            y = y[0].contiguous()
        x, y = norm_modulate(x[0].contiguous(), y, gate, scale, shift, norm.eps, base)
        return x[None], y[None]
    if added is not None:
        y, gate = added
        x = x + y if gate is None else _add_product(_by_frame(x, gate), y, gate)
    y = norm(x)
    if scale is not None and shift is not None:
        y = _add_product(shift[:, None], y, 1 + scale)
    return x, y


def _add_product(base: Tensor, y: Tensor, rows: Tensor) -> Tensor:
    """`base + y * rows`, `[1, tokens, dim]`, with one of the rows for every frame."""
    return torch.addcmul(base, _by_frame(y, rows), rows[:, None]).flatten(0, 1)[None]


def _by_frame(x: Tensor, rows: Tensor) -> Tensor:
    """View `x [1, tokens, dim]` as `[frames, tokens per frame, dim]`; `rows` has one row per
    frame.
    """
    return x[0].unflatten(0, (len(rows), -1))


def untouched(norm: nn.Module, x: Tensor) -> bool:
    """Whether a norm of `x` uses its stored weights in the dtype of `x`: no host moves or patches
    them at run time.

    ComfyUI's dynamic VRAM has layers cast their weights (`comfy_cast_weights`), but for small ones:
    they have no `_v`.
    """
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return False
    if norm.weight is None:
        return True
    if getattr(norm, "weight_function", None) or getattr(norm, "bias_function", None):
        return False
    if any(parameter.device != x.device for parameter in norm.parameters(recurse=False)):
        return False
    return not (getattr(norm, "comfy_cast_weights", False) and hasattr(norm, "_v"))
