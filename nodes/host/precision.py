"""What makes the numbers of a loaded MODEL others than those of its weights in full precision, for reports and keys."""

from __future__ import annotations

from typing import Any

from .fingerprint import computed_dtype, multiplies_fp8


def inexact(model: Any) -> list[str]:
    """Lines for the report; empty for a model in 16 or 32 bits."""
    layer = model.model.diffusion_model.blocks[0].self_attn.q
    kind = type(layer.weight).__name__
    dtype = str(computed_dtype(layer, "weight", layer.weight)).removeprefix("torch.")
    if multiplies_fp8(model):
        return [f"linear layers in 8-bit floating point ({dtype}, ComfyUI's products)"]
    if dtype.startswith("float8"):
        return [f"weights stored in 8-bit floating point ({dtype})"]
    return [f"quantised weights ({kind})"] if "Quantized" in kind or "GGML" in kind else []
