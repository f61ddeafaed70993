"""Make a native MODEL of ComfyUI from weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import comfy.latent_formats
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import torch
from torch import Tensor

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.model.latents import WAN21, WAN22
from ...headforcing_core.model.wan import WanConfig
from .loaded_model import computed_dtype

# fields of a WanConfig that ComfyUI's network and its configuration call the same
SAME_NAMES = ("dim", "ffn_dim", "num_heads", "in_dim", "out_dim", "freq_dim", "text_dim", "text_len")


def reloadable(load: Callable[..., Any], *args: Any) -> Any:
    """The MODEL of `load(*args, disable_dynamic=...)`, which ComfyUI can load once more, such as on another device."""
    model = load(*args)
    model.cached_patcher_init = (load, args)  # read by Select Model Device and MultiGPU CFG Split
    return model


def native_model(state_dict: dict[str, Tensor], dtype: torch.dtype | None, disable_dynamic: bool = False) -> Any:
    """A native MODEL from original Wan names, marked as autoregressive where this ComfyUI knows such models."""
    wan21 = state_dict["patch_embedding.weight"].shape[1] == WAN21.channels  # only those are known as autoregressive
    metadata = {"config": json.dumps({"transformer": {"causal_ar": True}})} if wan21 else {}
    options = {} if dtype is None else {"dtype": dtype}
    on_cpu = comfy.model_management.get_torch_device().type == "cpu"  # a GPU copies from memory that can be pinned
    # ComfyUI copies what it is given: on a CPU zeros that take no memory, and the weights themselves come after
    given = {
        name: tensor.new_zeros(1).expand(tensor.shape) if on_cpu else tensor for name, tensor in state_dict.items()
    }
    plainly = {"disable_dynamic": True} if disable_dynamic else {}  # an argument that older versions lack
    model = comfy.sd.load_diffusion_model_state_dict(given, model_options=options, metadata=metadata, **plainly)
    if model is None:
        raise HeadForcingError("ComfyUI does not recognise these weights as a Wan model")
    if on_cpu:
        use_weights(model.model.diffusion_model, state_dict)
    else:
        cast_to_16_bits(model.model)
    return model


def cast_to_16_bits(inner: Any) -> None:
    """Cast float32 weights that ComfyUI would cast to 16 bits each time it copies them to the device, to the same bits.

    This is so with dynamic VRAM, where half of the bytes then need to be copied. Weights stay as they are if ComfyUI
    stores them in one dtype and computes in another: it casts small ones to the second only. Small weights that a LoRA
    patches are rounded to 16 bits, as without dynamic VRAM.
    """
    if inner.manual_cast_dtype is not None:
        return
    for module in inner.diffusion_model.modules():
        for name, held in list(module.named_parameters(recurse=False)):
            dtype = computed_dtype(module, name, held)
            if held.dtype == torch.float32 and dtype in (torch.float16, torch.bfloat16):
                setattr(module, name, torch.nn.Parameter(held.to(dtype), requires_grad=False))


def use_weights(net: torch.nn.Module, state_dict: dict[str, Tensor]) -> None:
    """Put weights in place of a module's own one by one, in the dtype and on the device of those.

    Weights of that dtype and device are used where they lie, such as in a mapped file, and not copied.
    """
    for path, module in net.named_modules():
        for name, own in list(module.named_parameters(recurse=False)):
            given = state_dict[f"{path}.{name}" if path else name].to(own.device, own.dtype)
            setattr(module, name, torch.nn.Parameter(given, requires_grad=False))


def native_model_of_any_size(
    state_dict: dict[str, Tensor],
    config: WanConfig,
    latent_format: comfy.latent_formats.LatentFormat,
    disable_dynamic: bool = False,
) -> Any:
    """A native MODEL of dimensions that ComfyUI's detection does not cover (it expects heads of 128 channels)."""
    supported = comfy.supported_models
    kind = getattr(supported, "WAN21_CausalAR_T2V", supported.WAN21_T2V)
    if config.latents is WAN22:
        kind = supported.WAN22_T2V
    model_config = kind(
        {
            "image_model": "wan2.1",
            "model_type": "t2v",
            **{name: getattr(config, name) for name in ("num_layers", "patch_size", *SAME_NAMES)},
            "qk_norm": True,
            "cross_attn_norm": True,
        }
    )
    model_config.latent_format = latent_format
    model_config.set_inference_dtype(torch.float32, None)
    offload_device = comfy.model_management.unet_offload_device()
    model = model_config.get_model(state_dict, "", device=offload_device)
    plain = comfy.model_patcher.ModelPatcher
    patcher_class = plain if disable_dynamic else getattr(comfy.model_patcher, "CoreModelPatcher", plain)
    patcher = patcher_class(model, load_device=comfy.model_management.get_torch_device(), offload_device=offload_device)
    model.load_model_weights(dict(state_dict), "")
    return patcher
