"""What other nodes have set on a MODEL and a rollout does not run, as lines for the report.

A rollout calls the layers of the diffusion model one by one (`model.wan.forward_block`). What is set on a layer works:
LoRA, quantisation, offloading, an attention override. What replaces or wraps the whole forward pass or a whole block
of layers is not called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_COMPILED = "torch.compile"  # key of the wrapper that ComfyUI's TorchCompileModel and others add


def ignored(model: Any, own_key: str) -> list[str]:
    """One line per thing on this MODEL that is not run; `own_key` is the key of our wrapper."""
    return [f"not used in a rollout: {what}" for what in _found(model, own_key)]


def _found(model: Any, own_key: str) -> Iterator[str]:
    options = model.model_options.get("transformer_options", {})
    kinds = sorted({*options.get("patches", {}), *options.get("patches_replace", {})})
    if kinds:
        yield f"patches of attention or blocks ({', '.join(map(str, kinds))})"
    wrappers = options.get("wrappers", {}).get("diffusion_model", {})
    names = sorted({*wrappers, *getattr(model, "wrappers", {}).get("diffusion_model", {})} - {own_key}, key=str)
    if names:
        yield f"wrappers of the whole forward pass ({', '.join(map(str, names))})"
    if _COMPILED in getattr(model, "wrappers", {}).get("apply_model", {}):
        yield "torch.compile"
    net = model.model.diffusion_model
    replaced = [name for name in getattr(model, "object_patches", {}) if name.startswith("diffusion_model.")]
    replaced += [f"diffusion_model.{name}" for name in ("forward", "_forward", "forward_orig") if name in vars(net)]
    if replaced:
        yield f"replaced parts of the model ({', '.join(sorted(set(replaced)))})"
    hooked = sum(bool(block._forward_hooks or block._forward_pre_hooks) for block in net.blocks)
    if hooked:
        yield f"hooks on {hooked} blocks of layers, such as those of a block swap"


def uncompiled(options: Mapping[str, Any]) -> dict[str, Any]:
    """`transformer_options` without what compiles the model: Dynamo would follow a pass into the KV cache, and fail."""
    wrappers = options.get("wrappers", {})
    kept = {name: value for name, value in wrappers.get("apply_model", {}).items() if name != _COMPILED}
    return {**options, "wrappers": {**wrappers, "apply_model": kept}}
