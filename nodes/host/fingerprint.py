"""Identity of a MODEL: its weights and the patches (LoRA) on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...headforcing_core.weights.identity import identity


def fingerprint(model: Any) -> str:
    """16 hexadecimal digits that name every weight of a MODEL and every patch on it, with its strength.

    The same whether the model is loaded or not, with dynamic VRAM or without: where a LoRA was merged into a loaded
    weight, the original counts, and each weight counts in its `computed_dtype`.
    """
    return identity(_tensors(model))


def computed_dtype(module: Any, name: str, weight: Tensor) -> torch.dtype:
    """The dtype in which ComfyUI gives `weight`, a module's parameter or buffer of that name, to the device.

    With dynamic VRAM main memory holds the dtype of the file. Most weights are cast as they are copied to the device,
    others in place when the model is first loaded. Older versions of ComfyUI cast all while the file is read, and name
    no dtype. A quantised weight stays as it is.
    """
    named = getattr(module, f"{name}_comfy_model_dtype", None)
    return weight.dtype if named is None or _packing(weight) else named


def multiplies_fp8(model: Any) -> bool:
    """Whether ComfyUI computes products of linear layers in 8-bit floating point (fp8_e4m3fn_fast, --fast)."""
    layers = {type(layer) for layer in model.model.diffusion_model.modules()}
    return any(known.__qualname__ == "fp8_ops.Linear" for layer in layers for known in layer.__mro__)


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    net = model.model.diffusion_model
    modules = dict(net.named_modules())
    for name, held in _weights(net):
        original = model.backup.get(f"diffusion_model.{name}")
        weight = held if original is None else getattr(original, "weight", original)
        if isinstance(weight, Tensor) and not weight.is_meta:
            place, _, own_name = name.rpartition(".")
            dtype = computed_dtype(modules[place], own_name, weight)
            yield f"{name} {_packing(weight)}", weight if weight.dtype == dtype else weight.to(dtype)
    if multiplies_fp8(model):  # the same weights with another arithmetic
        yield "products in 8-bit floating point", torch.empty(0)
    for name, patches in sorted(model.patches.items()):
        for number, patch in enumerate(patches):
            yield from _of_patch(f"patch {name} {number}", patch)


def _weights(net: Any) -> Iterator[tuple[str, Any]]:
    """All weights, those included that a loader of quantised files keeps as plain attributes."""
    seen = set()
    for name, weight in (*net.named_parameters(), *net.named_buffers()):
        seen.add(name)
        yield name, weight
    for place, module in net.named_modules():
        for kind in ("weight", "bias"):
            name, weight = f"{place}.{kind}", getattr(module, kind, None)
            if name not in seen and isinstance(weight, Tensor):
                yield name, weight


def _packing(weight: Tensor) -> str:
    """How a quantised weight is stored; nothing for a plain one."""
    if type(weight) in (Tensor, torch.nn.Parameter):
        return ""
    return f"{type(weight).__name__} {getattr(weight, 'tensor_type', '')}"  # the type of ComfyUI-GGUF


def _of_patch(name: str, patch: Any) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a patch, and every plain value in a name: strengths, offsets, kinds of adapters."""
    parts = getattr(patch, "weights", patch)  # of a weight adapter; else tuples of tensors and settings
    if isinstance(parts, Tensor):
        yield name, parts
    elif isinstance(parts, (list, tuple)):
        for number, part in enumerate(parts):
            yield from _of_patch(f"{name} {type(patch).__name__} {number}", part)
    elif isinstance(parts, (bool, int, float, str)):
        yield f"{name} {parts!r}", torch.empty(0)
