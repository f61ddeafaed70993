"""The file of a umT5 encoder: its tensors under transformers' names, their scales, and the sizes they imply.

ComfyUI's files (`umt5_xxl_*.safetensors`) and Wan's own (`models_t5_umt5-xxl-enc-bf16.pth`) hold the same weights.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError
from .containers import read_tensors

MAX_LAYERS = 100  # umT5-xxl has 24
_SCALES = (".scale_weight", ".weight_scale")  # of fp8 weights, in ComfyUI's older and newer files
_NOT_NEEDED = (".scale_input", ".input_scale")  # for products computed in fp8

# Names in Wan's own `models_t5_umt5-xxl-enc-bf16.pth` -> names in transformers (and in ComfyUI's files).
_WAN_TOP = {"token_embedding.weight": "shared.weight", "norm.weight": "encoder.final_layer_norm.weight"}
_WAN_BLOCK = {
    "norm1.weight": "layer.0.layer_norm.weight",
    "attn.q.weight": "layer.0.SelfAttention.q.weight",
    "attn.k.weight": "layer.0.SelfAttention.k.weight",
    "attn.v.weight": "layer.0.SelfAttention.v.weight",
    "attn.o.weight": "layer.0.SelfAttention.o.weight",
    "pos_embedding.embedding.weight": "layer.0.SelfAttention.relative_attention_bias.weight",
    "norm2.weight": "layer.1.layer_norm.weight",
    "ffn.gate.0.weight": "layer.1.DenseReluDense.wi_0.weight",
    "ffn.fc1.weight": "layer.1.DenseReluDense.wi_1.weight",
    "ffn.fc2.weight": "layer.1.DenseReluDense.wo.weight",
}


def read_umt5(path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor | None]:
    """The mapped weights of a umT5 encoder under transformers' names, the scales of those in fp8 by the name of their
    layer, and the sentencepiece model in the file, as bytes.

    Of the weights only names and shapes are read; raises HeadForcingError for other files.
    """
    if not os.path.isfile(path):
        raise HeadForcingError(f"There is no text encoder at {path}.")
    try:
        tensors = read_tensors(path)
    except HeadForcingError as error:
        raise HeadForcingError(f"{path} cannot be read as text encoder weights ({error}).") from error
    tokenizer = tensors.pop("spiece_model", None)
    return *_without_scales(_to_transformers_names(tensors, path), path), tokenizer


def _without_scales(tensors: Mapping[str, Tensor], path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights, and the scales of those in fp8 by the name of their layer; refuses other quantised weights."""
    weights: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        layer, dot, kind = name.rpartition(".")
        if dot + kind in _SCALES:
            scales[layer] = tensor
        elif kind == "comfy_quant":
            _check_format(tensor, path)
        elif dot + kind not in _NOT_NEEDED:
            weights[name] = tensor
    for layer, scale in scales.items():
        weight = weights.get(f"{layer}.weight")
        fits = weight is not None and scale.dtype.is_floating_point and scale.numel() in (1, len(weight))
        if not fits or not bool(torch.isfinite(scale.float()).all()):
            raise HeadForcingError(f"{path.name} is damaged: the scale of {layer} does not belong to a weight.")
    return weights, scales


def _check_format(description: Tensor, path: Path) -> None:
    """Refuse weights that are packed in another way than fp8; `description` is JSON, as bytes."""
    try:
        stored = json.loads(description.numpy().tobytes())["format"]
    except (ValueError, LookupError, TypeError, RecursionError):
        stored = "an unknown format"
    if stored not in ("float8_e4m3fn", "float8_e5m2"):
        raise HeadForcingError(
            f"{path.name} holds weights quantised as {stored!s:.40}, of which only fp8 is supported here; use "
            "umt5_xxl_fp8_e4m3fn_scaled.safetensors, umt5_xxl_fp16.safetensors or models_t5_umt5-xxl-enc-bf16.pth."
        )


def _to_transformers_names(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    if "shared.weight" in tensors:
        return {name: tensor for name, tensor in tensors.items() if name.startswith(("shared.", "encoder."))}
    if "token_embedding.weight" not in tensors:
        raise HeadForcingError(
            f"{path.name} is not a umT5 encoder: expected a tensor shared.weight (ComfyUI's file) or "
            f"token_embedding.weight (Wan's file), found {', '.join(sorted(tensors)[:3]) or 'no tensors'}."
        )
    renamed = {}
    for name, tensor in tensors.items():
        block = re.fullmatch(r"blocks\.(\d+)\.(.+)", name)
        new = f"encoder.block.{block[1]}.{_WAN_BLOCK.get(block[2], block[2])}" if block else _WAN_TOP.get(name, name)
        renamed[new] = tensor
    return renamed


def sizes_of(weights: Mapping[str, Tensor], path: Path) -> dict[str, Any]:
    """Arguments of transformers' `UMT5Config`, inferred from the shapes of weights with its names."""
    first = "encoder.block.0.layer."
    layers = len([name for name in weights if name.endswith(".SelfAttention.q.weight")])
    biases = len([name for name in weights if name.endswith(".relative_attention_bias.weight")])
    if layers == 0 or biases != layers:
        raise HeadForcingError(
            f"{path.name} is not a umT5 encoder: umT5 has a position bias in every layer, found {biases} in {layers} "
            "layers (a plain T5, as other models use?)."
        )
    if layers > MAX_LAYERS:
        raise HeadForcingError(f"{path.name} is not a umT5 encoder: it has {layers} layers where umT5-xxl has 24")
    try:
        vocab_size, d_model = weights["shared.weight"].shape
        buckets, heads = weights[first + "0.SelfAttention.relative_attention_bias.weight"].shape
        d_kv = weights[first + "0.SelfAttention.q.weight"].shape[0] // heads
        d_ff = weights[first + "1.DenseReluDense.wi_0.weight"].shape[0]
    except (LookupError, ValueError, ZeroDivisionError) as error:
        raise HeadForcingError(f"{path.name} is not a umT5 encoder: its first layer lacks tensors") from error
    return {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": d_kv,
        "d_ff": d_ff,
        "num_layers": layers,
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
        "feed_forward_proj": "gated-gelu",
    }
