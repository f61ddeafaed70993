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
_FIELD = {"A": "down", "down": "down", "B": "up", "up": "up", "diff_b": "diff", "diff_m": "diff"}
_PARAMETER = {"diff_b": "bias", "diff_m": "modulation"}
_LAYER = re.compile(r"blocks[._](\d{1,3})[._]")
_MAX_LAYERS = 100  # Wan 2.1 14B has 40
_COMFYUI = {
    "A": "lora_A.weight",
    "down": "lora_A.weight",
    "B": "lora_B.weight",
    "up": "lora_B.weight",
    "diff_m": "diff",
}
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
        given: object = None if self.diff is None else tuple(self.diff.shape)
        if self.up is not None and self.down is not None and fits:
            given = f"{tuple(self.up.shape)} x {tuple(self.down.shape)}"
            fits = (
                min(self.up.ndim, self.down.ndim, len(shape)) >= 2
                and (
                    self.up.shape[0] == shape[0]
                    and math.prod(self.down.shape[1:]) == math.prod(shape[1:])
                    and math.prod(self.up.shape[1:]) == self.down.shape[0]
                    # no rank needs more; merging takes time and memory in proportion
                    and 0 < self.down.shape[0] <= max(shape[0], math.prod(shape[1:]))
                )
            )
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
            rank = self.down.shape[0]
            scale = strength if self.alpha is None else strength * float(self.alpha) / rank
            product = self.up.flatten(1).to(torch.float32) @ self.down.flatten(1).to(torch.float32)
            result = result + scale * product.reshape(weight.shape)
        if self.diff is not None:
            result = result + strength * self.diff.to(torch.float32)
        return result


def read_patches(
    state_dict: Mapping[str, Tensor], lora_state_dict: Mapping[str, Tensor], lora_name: str = "the LoRA"
) -> dict[str, LoraPatch]:
    """Group a LoRA's tensors by the parameter of `state_dict` (Wan names) that they change.

    Raises HeadForcingError if a tensor matches no parameter or has a wrong shape.
    """
    patches: dict[str, LoraPatch] = {}
    for key, tensor, kind, target in _match(lora_state_dict, state_dict, lora_name):
        patch, field = patches.setdefault(target, LoraPatch()), _FIELD.get(kind, kind)
        if vars(patch)[field] is not None:
            raise _changed_twice(lora_name, target, key)
        setattr(patch, field, tensor)
    if not patches:
        raise HeadForcingError(f"{lora_name} holds no LoRA tensors: choose a LoRA file")
    for target, patch in patches.items():
        patch.check(target, state_dict[target].shape, lora_name)
    return patches


def comfyui_names(lora_state_dict: Mapping[str, Tensor], lora_name: str = "the LoRA") -> dict[str, Tensor]:
    """The same LoRA under the names by which ComfyUI's LoRA loaders find the layers of a Wan model.

    They read neither PEFT's `base_model.model.` nor diffusers' names: such a LoRA changes nothing there. Raises
    HeadForcingError for tensors of no Wan model.
    """
    layers = 1 + max((int(found[1]) for key in lora_state_dict if (found := _LAYER.search(key))), default=0)
    names = dict.fromkeys(expected_shapes(WanConfig(num_layers=min(layers, _MAX_LAYERS))), torch.empty(0))
    renamed: dict[str, Tensor] = {}
    for key, tensor, kind, target in _match(lora_state_dict, names, lora_name):
        module = target.removesuffix(".weight").removesuffix(".bias")
        name = f"diffusion_model.{module}.{_COMFYUI.get(kind, kind)}"
        if name in renamed:
            raise _changed_twice(lora_name, target, key)
        renamed[name] = tensor
    return renamed


def check_strength(strength: float) -> None:
    if not math.isfinite(strength):
        raise HeadForcingError(f"lora_strength is {strength}, but must be a finite number such as 1.0")


def _match(lora: Mapping[str, Tensor], names: Collection[str], lora_name: str) -> list[tuple[str, Tensor, str, str]]:
    """Key, tensor, kind of tensor and changed parameter of all tensors of a LoRA; refuses those that belong to none."""
    # the names of weights by their modules' names in kohya's spelling
    flat = {name.removesuffix(".weight").replace(".", "_"): name for name in names if name.endswith(".weight")}
    matched, unknown = [], []
    for key, tensor in lora.items():
        match = _FACTOR.match(key) or _OTHER.match(key)
        target = _target(match[1], match[2], names, flat) if match else None
        if match is None or target is None:
            unknown.append(key)
        else:
            matched.append((key, tensor, match[2], target))
    if unknown:
        raise HeadForcingError(
            f"{lora_name} does not fit: {len(unknown)} of its {len(lora)} tensors belong to no layer of a Wan model "
            f"of this size (first: {unknown[0]}); use a LoRA made for Wan2.1 text-to-video of this size"
        )
    return matched


def _changed_twice(lora_name: str, target: str, key: str) -> HeadForcingError:
    return HeadForcingError(f"{lora_name} changes {target} twice (second time by {key}): use a file with one LoRA")


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
