"""LoRA files for Wan, read as patches of parameters that are merged in float32.

Merged are LoRA (Hu et al. 2021), rsLoRA, DoRA (Liu et al. 2024), and LyCORIS' LoHa and LoKr (Yeh et
al. 2023), whole differences and replaced weights. Other kinds are refused with their name.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import HeadForcingError, one_line
from ..model.wan import WanConfig
from .containers import Weights
from .layouts import expected_shapes
from .lora_names import (
    OF_IMAGES,
    OTHER_KINDS,
    find_parameter,
    parameters_by_layer,
    split_key,
)
from .lora_scale import StatedAlpha

log = logging.getLogger(__name__)

# few digits: a malicious name must not claim a billion layers; Wan 2.1 14B has 40
_LAYER = re.compile(r"blocks[._](\d{1,2})[._]")
_COMFYUI = {
    "down": "lora_A.weight",
    "up": "lora_B.weight",
    "set": "set_weight",
    "magnitude": "dora_scale",
}
_RANKED = (
    "down",
    "hada_w1_b",
    "hada_w2_b",
    "lokr_w2_b",
    "lokr_w1_b",
)  # with as many rows as the rank; alpha is by the first


@dataclass
class LoraPatch:
    """Change of one parameter: its tensors by what they are, see `lora_names.SPELLINGS`."""

    tensors: Weights = field(default_factory=dict)

    def check(self, target: str, shape: torch.Size, lora_name: str) -> None:
        """Raise HeadForcingError if the patch is incomplete or does not fit a parameter of this
        shape.
        """
        alpha = self.tensors.get("alpha")
        if alpha is not None and (alpha.numel() != 1 or not torch.isfinite(alpha.float()).all()):
            raise HeadForcingError(f"{lora_name} is damaged: the alpha of {target} is not a number")
        if not self._fits(shape):
            given = [f"{what} {tuple(tensor.shape)}" for what, tensor in self.tensors.items()]
            raise HeadForcingError(
                f"{lora_name} does not fit: {target} is {tuple(shape)} here, of its change it has "
                f"{', '.join(given)}; it was made for a model of another size, or half of it is "
                "missing"
            )

    def _fits(self, shape: torch.Size) -> bool:
        """Whether the change is complete and has the size of the parameter; tried with tensors
        that hold no numbers.
        """
        size = (shape[0] if shape else 1, math.prod(shape[1:]))
        for what, tensor in self.tensors.items():
            if what in ("diff", "set") and tensor.shape != shape:
                return False
            if what in _RANKED and not 0 < tensor.shape[:1].numel() <= max(size):
                return False
        try:
            product = self._product("meta")
        except (KeyError, RuntimeError, IndexError):  # not all are there, or they do not fit
            return False
        if product is None:
            return bool(self.tensors.keys() & {"diff", "set"})
        if len(shape) < 2 or product.shape != size:
            return False
        return "magnitude" not in self.tensors or self.tensors["magnitude"].numel() in size

    def apply(self, weight: Tensor, strength: float) -> Tensor:
        """The changed weight in float32."""
        before = self.tensors.get("set", weight).to(torch.float32)
        result = before
        product = self._product()
        if product is not None:
            delta = (self.scale() * product).reshape(weight.shape)
            magnitude = self.tensors.get("magnitude")
            if magnitude is not None:
                delta = _decomposed(before + delta, magnitude) - before
            result = before + strength * delta
        if "diff" in self.tensors:
            result = result + strength * self.tensors["diff"].to(torch.float32)
        return result

    def _product(self, device: str | None = None) -> Tensor | None:
        """The matrix that is scaled and added, without what DoRA adds; None if there is only a
        whole difference.
        """
        given = {what: tensor.to(device, torch.float32) for what, tensor in self.tensors.items()}
        if given.keys() & {"up", "down"}:
            return given["up"].flatten(1) @ given["down"].flatten(1)
        kinds = {what.partition("_")[0] for what in given}
        if "hada" in kinds:
            first = _factor(given, "hada_w1")
            second = _factor(given, "hada_w2")
            if first.shape != second.shape:
                raise RuntimeError("the factors of a LoHa have two sizes")
            return first * second
        if "lokr" in kinds:
            return torch.kron(_factor(given, "lokr_w1"), _factor(given, "lokr_w2"))
        return None

    @property
    def rank(self) -> int:
        """Of the factor that alpha is by; 0 of LoKr without one that is divided, and of others,
        where alpha has no meaning.
        """
        sizes = [len(self.tensors[part]) for part in _RANKED if part in self.tensors]
        return sizes[0] if sizes else 0

    def scale(self) -> float:
        """The factor of the product at strength 1: alpha by rank, 1 without alpha."""
        if self.rank and "alpha" in self.tensors:
            return float(self.tensors["alpha"]) / self.rank
        return 1.0


def _factor(given: Weights, part: str) -> Tensor:
    """A factor of LyCORIS, whole or divided in two; KeyError if it is missing."""
    if part in given:
        return given[part]
    return given[f"{part}_a"] @ given[f"{part}_b"]


def _decomposed(merged: Tensor, magnitude: Tensor) -> Tensor:
    """DoRA (Eq. 5): the merged weight with each row, or column, at the length that was learned."""
    flat = merged.flatten(1)
    one_row = magnitude.ndim > 1 and magnitude.shape[0] == 1 and len(flat) > 1
    by_row = magnitude.numel() == len(flat) and not one_row
    norm = flat.norm(dim=1 if by_row else 0, keepdim=True)
    learned = magnitude.to(torch.float32).reshape(norm.shape)
    smallest = torch.finfo(torch.float32).eps
    scaled: Tensor = flat * (learned / norm.clamp_min(smallest))
    return scaled.view_as(merged)


def read_patches(
    state_dict: Weights,
    lora_state_dict: Weights,
    lora_name: str,
    stated: StatedAlpha | None = None,
) -> dict[str, LoraPatch]:
    """Group a LoRA's tensors by the parameter of `state_dict` (Wan names) that they change; refuse
    what fits none.
    """
    patches = _match(lora_state_dict, state_dict, lora_name, stated)
    for target, patch in patches.items():
        patch.check(target, state_dict[target].shape, lora_name)
    return patches


def comfyui_names(
    lora_state_dict: Weights, lora_name: str, stated: StatedAlpha | None = None
) -> Weights:
    """The same LoRA under the names that ComfyUI's loaders read, with alpha as tensors.

    Raises HeadForcingError for tensors of no Wan model.
    """
    numbered = [found for found in map(_LAYER.search, lora_state_dict) if found is not None]
    layers = 1 + max((int(found[1]) for found in numbered), default=0)
    names = expected_shapes(WanConfig(num_layers=layers))
    renamed: Weights = {}
    for target, patch in _match(lora_state_dict, names, lora_name, stated).items():
        module = target.removesuffix(".weight").removesuffix(".bias")
        tensors = dict(patch.tensors)
        tensors.pop("rank", None)  # that of the factors
        for what, tensor in tensors.items():
            suffix = _COMFYUI.get(what, what)
            if what == "diff" and target.endswith(".bias"):
                suffix = "diff_b"
            if what == "magnitude" and tensor.ndim == 1:
                tensor = tensor[:, None]
            renamed[f"diffusion_model.{module}.{suffix}"] = tensor
    return renamed


def _match(
    lora: Weights, names: Collection[str], lora_name: str, stated: StatedAlpha | None
) -> dict[str, LoraPatch]:
    """The patches of a LoRA by the parameter that they change; refuses tensors that belong to
    none.
    """
    table = parameters_by_layer(names)
    patches: dict[str, LoraPatch] = {}
    modules = {}
    unknown = []
    images = []
    for key, tensor in lora.items():
        module, what = split_key(key) or (key, "")
        if what in OTHER_KINDS and find_parameter(table, module, "down") is not None:
            raise HeadForcingError(
                f"{lora_name} is {OTHER_KINDS[what]} (it has {one_line(key, 80)}), which --lora "
                "does not merge: connect it with ComfyUI's LoraLoaderModelOnly"
            )
        target = find_parameter(table, module, what) if what else None
        if target is None and OF_IMAGES.search(key):
            images.append(key)
            continue
        if target is None:
            unknown.append(key)
            continue
        patch = patches.setdefault(target, LoraPatch())
        modules[target] = module
        if what in ("diff_b", "diff_m"):
            what = "diff"
        if what in patch.tensors:
            raise HeadForcingError(
                f"{lora_name} changes {target} twice (by {key}, too): use a file with one LoRA"
            )
        patch.tensors[what] = tensor
    if unknown:
        raise HeadForcingError(
            f"{lora_name} does not fit: {len(unknown)} of its {len(lora)} tensors belong to no "
            "layer of a Wan model of this size, or have names of an unknown program (first: "
            f"{unknown[0]}); use a LoRA made for Wan2.1 text-to-video of this size"
        )
    if not patches:
        raise HeadForcingError(f"{lora_name} holds no LoRA tensors: choose a LoRA file")
    if images:
        log.warning(
            "%s: left out %d tensors of layers for images (%s, ...)",
            lora_name,
            len(images),
            images[0],
        )
    if stated is not None:
        for target, patch in patches.items():
            if patch.rank and "alpha" not in patch.tensors:
                patch.tensors["alpha"] = stated.of(modules[target], patch.rank)
    _scale_biases(patches, lora_name)
    return patches


def _scale_biases(patches: Mapping[str, LoraPatch], lora_name: str) -> None:
    """Turn the biases that PEFT trains with a LoRA into whole differences: they have the scale of
    its product.
    """
    for target, patch in patches.items():
        bias = patch.tensors.pop("up_bias", None)
        if bias is None:
            continue
        product = patches.get(f"{target.removesuffix('.bias')}.weight")
        if product is None or "down" not in product.tensors:
            raise HeadForcingError(
                f"{lora_name} is incomplete: it has a bias for {target} without its matrices"
            )
        if "diff" in patch.tensors:
            raise HeadForcingError(f"{lora_name} changes {target} twice: use a file with one LoRA")
        patch.tensors["diff"] = product.scale() * bias.to(torch.float32)
