"""LoRA files for Wan in PEFT, kohya and ComfyUI naming, read as patches of parameters that are merged in float32."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..model.wan import WanConfig
from .layouts import expected_shapes, strip_prefixes, wan_name

_FACTOR = re.compile(r"^(.+)\.lora_(A|B|down|up)(?:\.[^.]+)?\.weight$")  # PEFT may add the adapter's name
_OTHER = re.compile(r"^(.+)\.(alpha|diff|diff_b|diff_m)$")
_FIELD = {"A": "down", "B": "up", "diff_b": "diff", "diff_m": "diff"}  # of a `LoraPatch`, by the kind of tensor
_PARAMETER = {"diff_b": "bias", "diff_m": "modulation"}
_COMFYUI = {"down": "lora_A.weight", "up": "lora_B.weight", "alpha": "alpha", "diff": "diff"}
_LAYER = re.compile(r"blocks[._](\d{1,3})[._]")
_MAX_LAYERS = 100  # Wan 2.1 14B has 40
_KOHYA = ("lora_unet_", "lora_transformer_")


@dataclass
class LoraPatch:
    """Change of one parameter by a LoRA: alpha/rank * up @ down (scale 1 without alpha), or a difference `diff`."""

    down: Tensor | None = None
    up: Tensor | None = None
    alpha: Tensor | None = None
    diff: Tensor | None = None

    def check(self, target: str, shape: torch.Size, lora_name: str) -> None:
        """Raise HeadForcingError if the patch is incomplete or does not fit a parameter of this shape."""
        if (self.down is None) != (self.up is None) or (self.down is None and self.diff is None):
            raise HeadForcingError(f"{lora_name} is incomplete: half of its tensors for {target} are missing")
        fits = self.diff is None or self.diff.shape == shape
        given = [tuple(tensor.shape) for tensor in (self.diff, self.up, self.down) if tensor is not None]
        if self.up is not None and self.down is not None:
            fits = fits and min(self.up.ndim, self.down.ndim, len(shape)) >= 2
            inputs, rank = math.prod(shape[1:]), math.prod(self.up.shape[1:])
            fits = fits and self.up.shape[0] == shape[0] and math.prod(self.down.shape[1:]) == inputs
            # no rank needs more; merging takes time and memory in proportion
            fits = fits and self.down.shape[0] == rank and 0 < rank <= max(shape[0], inputs)
        if not fits:
            raise HeadForcingError(
                f"{lora_name} was made for a model of another size: {target} is {tuple(shape)} here, its tensors are "
                f"{given}; use a LoRA for this model"
            )
        if self.alpha is not None and (self.alpha.numel() != 1 or not torch.isfinite(self.alpha.float()).all()):
            raise HeadForcingError(f"{lora_name} is damaged: the alpha of {target} is not a number")

    def apply(self, weight: Tensor, strength: float) -> Tensor:
        """`weight + strength * delta` in float32."""
        result = weight.to(torch.float32)
        if self.up is not None and self.down is not None:
            scale = strength if self.alpha is None else strength * float(self.alpha) / self.down.shape[0]
            product = self.up.flatten(1).to(torch.float32) @ self.down.flatten(1).to(torch.float32)
            result = result + scale * product.reshape(weight.shape)
        if self.diff is not None:
            result = result + strength * self.diff.to(torch.float32)
        return result


def read_patches(
    state_dict: Mapping[str, Tensor], lora_state_dict: Mapping[str, Tensor], lora_name: str
) -> dict[str, LoraPatch]:
    """Group a LoRA's tensors by the parameter of `state_dict` (Wan names) that they change; refuse what fits none."""
    patches: dict[str, LoraPatch] = {}
    for (target, field), tensor in _match(lora_state_dict, state_dict, lora_name).items():
        setattr(patches.setdefault(target, LoraPatch()), field, tensor)
    if not patches:
        raise HeadForcingError(f"{lora_name} holds no LoRA tensors: choose a LoRA file")
    for target, patch in patches.items():
        patch.check(target, state_dict[target].shape, lora_name)
    return patches


def comfyui_names(lora_state_dict: Mapping[str, Tensor], lora_name: str) -> dict[str, Tensor]:
    """The same LoRA under the names that ComfyUI's loaders read; they leave out PEFT's and diffusers' names.

    Raises HeadForcingError for tensors of no Wan model.
    """
    layers = 1 + max((int(found[1]) for key in lora_state_dict if (found := _LAYER.search(key))), default=0)
    names = expected_shapes(WanConfig(num_layers=min(layers, _MAX_LAYERS)))
    renamed: dict[str, Tensor] = {}
    for (target, field), tensor in _match(lora_state_dict, names, lora_name).items():
        module = target.removesuffix(".weight").removesuffix(".bias")
        suffix = "diff_b" if target.endswith(".bias") else _COMFYUI[field]
        renamed[f"diffusion_model.{module}.{suffix}"] = tensor
    return renamed


def _match(lora: Mapping[str, Tensor], names: Collection[str], lora_name: str) -> dict[tuple[str, str], Tensor]:
    """The tensors of a LoRA by the parameter that they change and their field; refuses those that belong to none."""
    # the names of weights by their modules' names in kohya's spelling
    flat = {name.removesuffix(".weight").replace(".", "_"): name for name in names if name.endswith(".weight")}
    matched: dict[tuple[str, str], Tensor] = {}
    unknown = []
    for key, tensor in lora.items():
        match = _FACTOR.match(key) or _OTHER.match(key)
        target = _target(match[1], match[2], names, flat) if match else None
        if match is None or target is None:
            unknown.append(key)
            continue
        field = _FIELD.get(match[2], match[2])
        if (target, field) in matched:
            raise HeadForcingError(f"{lora_name} changes {target} twice (by {key}, too): use a file with one LoRA")
        matched[target, field] = tensor
    if unknown:
        raise HeadForcingError(
            f"{lora_name} does not fit: {len(unknown)} of its {len(lora)} tensors belong to no layer of a Wan model "
            f"of this size (first: {unknown[0]}); use a LoRA made for Wan2.1 text-to-video of this size"
        )
    return matched


def _target(module: str, kind: str, names: Collection[str], flat: Mapping[str, str]) -> str | None:
    """The parameter that a LoRA key for `module` changes, or None."""
    parameter = _PARAMETER.get(kind, "weight")
    kohya = next((prefix for prefix in _KOHYA if module.startswith(prefix)), None)
    if kohya:
        weight = flat.get(module.removeprefix(kohya))
        candidates = [weight.removesuffix("weight") + parameter] if weight else []
    else:
        candidates = [wan_name(f"{module}.{parameter}")]
        if kind == "diff":  # a full difference of a parameter without ".weight", such as a modulation
            candidates.append(wan_name(strip_prefixes(module)))
    return next((candidate for candidate in candidates if candidate in names), None)
