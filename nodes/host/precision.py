"""What makes the numbers of a loaded MODEL others than those of its weights in full precision, for reports and keys."""

from __future__ import annotations

from typing import Any

import comfy.ops


def multiplies_fp8(model: Any) -> bool:
    """Whether ComfyUI computes products of linear layers in 8-bit floating point (fp8_e4m3fn_fast, --fast)."""
    operations = getattr(comfy.ops, "fp8_ops", None)
    return operations is not None and isinstance(_layer(model), operations.Linear)


def inexact(model: Any) -> list[str]:
    """Lines for the report; empty for a model in 16 or 32 bits."""
    weight = _layer(model).weight
    kind, dtype = type(weight).__name__, str(weight.dtype).removeprefix("torch.")
    if multiplies_fp8(model):
        return [f"linear layers in 8-bit floating point ({dtype}, ComfyUI's products)"]
    if dtype.startswith("float8"):
        return [f"weights stored in 8-bit floating point ({dtype})"]
    return [f"quantised weights ({kind})"] if "Quantized" in kind or "GGML" in kind else []


def _layer(model: Any) -> Any:
    return model.model.diffusion_model.blocks[0].self_attn.q
