"""LoRA files for Wan, read as patches of parameters that are merged in float32.

Merged are LoRA (Hu et al. 2021), rsLoRA, DoRA (Liu et al. 2024), and LyCORIS' LoHa and LoKr (Yeh et al. 2023), whole
differences and replaced weights. Other kinds are refused with their name.
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
from .layouts import expected_shapes
from .lora_names import OTHER_KINDS, Targets, is_of_images, split_key
from .lora_scale import StatedAlpha

log = logging.getLogger(__name__)

_LAYER = re.compile(r"blocks[._](\d{1,3})[._]")
_MAX_LAYERS = 100  # Wan 2.1 14B has 40
_COMFYUI = {"down": "lora_A.weight", "up": "lora_B.weight", "set": "set_weight", "magnitude": "dora_scale"}
_HADA = ("hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b")
_LOKR = ("lokr_w1", "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b")


@dataclass
class LoraPatch:
    """Change of one parameter: its tensors by what they are, see `lora_names.SPELLINGS`, and the module's own name."""

    module: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    stated: StatedAlpha | None = None  # where the file states alpha other than by tensors

    def check(self, target: str, shape: torch.Size, lora_name: str) -> None:
        """Raise HeadForcingError if the patch is incomplete or does not fit a parameter of this shape."""
        alpha = self.tensors.get("alpha")
        if alpha is not None and (alpha.numel() != 1 or not torch.isfinite(alpha.float()).all()):
            raise HeadForcingError(f"{lora_name} is damaged: the alpha of {target} is not a number")
        if not self._is_complete():
            raise HeadForcingError(f"{lora_name} is incomplete: half of its tensors for {target} are missing")
        if not self._fits(shape):
            given = [tuple(tensor.shape) for what, tensor in self.tensors.items() if what not in ("alpha", "rank")]
            raise HeadForcingError(
                f"{lora_name} was made for a model of another size: {target} is {tuple(shape)} here, its tensors are "
                f"{given}; use a LoRA for this model"
            )

    def _is_complete(self) -> bool:
        has = self.tensors.keys()
        whole = [("down" in has) == ("up" in has)]
        if any(name in has for name in _HADA):
            whole.append(all(name in has for name in _HADA))
        if any(name in has for name in _LOKR):
            for part in ("lokr_w1", "lokr_w2"):
                whole.append(part in has or {f"{part}_a", f"{part}_b"} <= has)
        changes = {"up", "hada_w1_a", "lokr_w1", "lokr_w1_a", "diff", "set"} & has
        return all(whole) and bool(changes)

    def _fits(self, shape: torch.Size) -> bool:
        """Whether the change has the size of the parameter; no rank is larger than it needs to be."""
        get = self.tensors.get
        outputs = shape[0] if shape else 1
        inputs = math.prod(shape[1:])
        most = max(outputs, inputs)
        if any(value is not None and value.shape != shape for value in (get("diff"), get("set"))):
            return False
        up, down = get("up"), get("down")
        if up is not None and down is not None:
            rank = math.prod(up.shape[1:])
            if min(up.ndim, down.ndim, len(shape)) < 2 or not 0 < rank <= most:
                return False
            if up.shape[0] != outputs or math.prod(down.shape[1:]) != inputs or down.shape[0] != rank:
                return False
        if all(name in self.tensors for name in _HADA):
            for a, b in (("hada_w1_a", "hada_w1_b"), ("hada_w2_a", "hada_w2_b")):
                if not _is_product(self.tensors[a], self.tensors[b], outputs, inputs, most):
                    return False
        if any(name in self.tensors for name in _LOKR):
            sizes = [self._kronecker_size(part, most) for part in ("lokr_w1", "lokr_w2")]
            if None in sizes or len(shape) != 2:
                return False
            (rows, columns), (more_rows, more_columns) = sizes  # type: ignore[misc]
            if (rows * more_rows, columns * more_columns) != (outputs, inputs):
                return False
        magnitude = get("magnitude")
        return magnitude is None or magnitude.numel() in (outputs, inputs)

    def _kronecker_size(self, part: str, most: int) -> tuple[int, int] | None:
        """Rows and columns of a factor of LoKr; None for tensors that are no matrices."""
        whole = self.tensors.get(part)
        if whole is not None:
            return (whole.shape[0], whole.shape[1]) if whole.ndim == 2 else None
        a, b = self.tensors[f"{part}_a"], self.tensors[f"{part}_b"]
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.shape[1] > most:
            return None
        return a.shape[0], b.shape[1]

    def apply(self, weight: Tensor, strength: float) -> Tensor:
        """The changed weight in float32."""
        before = weight.to(torch.float32)
        given = self.tensors
        if "set" in given:
            before = given["set"].to(torch.float32)
        result = before
        delta = self._delta(weight.shape)
        magnitude = given.get("magnitude")
        if delta is not None and magnitude is not None:
            result = before + strength * (_decomposed(before + delta, magnitude) - before)
        elif delta is not None:
            result = before + strength * delta
        if "diff" in given:
            result = result + strength * given["diff"].to(torch.float32)
        return result

    def _delta(self, shape: torch.Size) -> Tensor | None:
        """The difference at strength 1, without what DoRA adds; None if there is only a whole difference."""
        given = {what: tensor.to(torch.float32) for what, tensor in self.tensors.items()}
        if "up" in given:
            product = given["up"].flatten(1) @ given["down"].flatten(1)
            return (self.scale(len(given["down"])) * product).reshape(shape)
        if "hada_w1_a" in given:
            product = (given["hada_w1_a"] @ given["hada_w1_b"]) * (given["hada_w2_a"] @ given["hada_w2_b"])
            return (self.scale(len(given["hada_w1_b"])) * product).reshape(shape)
        if "lokr_w1" in given or "lokr_w1_a" in given:
            rank = None  # of the factor that is divided; alpha has no meaning without one
            factors = []
            for part in ("lokr_w1", "lokr_w2"):
                if part in given:
                    factors.append(given[part])
                else:
                    factors.append(given[f"{part}_a"] @ given[f"{part}_b"])
                    rank = len(given[f"{part}_b"])
            scale = 1.0 if rank is None else self.scale(rank)
            return scale * torch.kron(factors[0], factors[1])
        return None

    def scale(self, rank: int) -> float:
        """The factor of the product: alpha by rank, 1 if the file states no alpha."""
        alpha = self.tensors.get("alpha")
        if alpha is not None:
            return float(alpha) / rank
        return 1.0 if self.stated is None else self.stated.scale(self.module, rank)


def _is_product(a: Tensor, b: Tensor, rows: int, columns: int, most: int) -> bool:
    """Whether `a @ b` is a matrix of this size."""
    if a.ndim != 2 or b.ndim != 2:
        return False
    return a.shape[0] == rows and b.shape[1] == columns and a.shape[1] == b.shape[0] <= most


def _decomposed(merged: Tensor, magnitude: Tensor) -> Tensor:
    """DoRA (Eq. 5): the merged weight with each row, or column, at the length that was learned."""
    flat = merged.flatten(1)
    by_row = magnitude.numel() == len(flat) and not (magnitude.ndim > 1 and magnitude.shape[0] == 1 < len(flat))
    norm = flat.norm(dim=1 if by_row else 0, keepdim=True)
    learned = magnitude.to(torch.float32).reshape(norm.shape)
    return (flat * (learned / norm.clamp_min(torch.finfo(torch.float32).eps))).reshape(merged.shape)


def read_patches(
    state_dict: Mapping[str, Tensor],
    lora_state_dict: Mapping[str, Tensor],
    lora_name: str,
    stated: StatedAlpha | None = None,
) -> dict[str, LoraPatch]:
    """Group a LoRA's tensors by the parameter of `state_dict` (Wan names) that they change; refuse what fits none."""
    patches = _match(lora_state_dict, state_dict, lora_name, stated)
    for target, patch in patches.items():
        patch.check(target, state_dict[target].shape, lora_name)
    return patches


def comfyui_names(
    lora_state_dict: Mapping[str, Tensor], lora_name: str, stated: StatedAlpha | None = None
) -> dict[str, Tensor]:
    """The same LoRA under the names that ComfyUI's loaders read, with alpha as tensors.

    Raises HeadForcingError for tensors of no Wan model.
    """
    layers = 1 + max((int(found[1]) for key in lora_state_dict if (found := _LAYER.search(key))), default=0)
    names = expected_shapes(WanConfig(num_layers=min(layers, _MAX_LAYERS)))
    renamed: dict[str, Tensor] = {}
    for target, patch in _match(lora_state_dict, names, lora_name, stated).items():
        module = target.removesuffix(".weight").removesuffix(".bias")
        for what, tensor in patch.tensors.items():
            if what == "rank":  # that of the factors
                continue
            suffix = _COMFYUI.get(what, what)
            if what == "diff" and target.endswith(".bias"):
                suffix = "diff_b"
            if what == "magnitude" and tensor.ndim == 1:
                tensor = tensor[:, None]
            renamed[f"diffusion_model.{module}.{suffix}"] = tensor
        down = patch.tensors.get("down")
        if down is not None and "alpha" not in patch.tensors and stated is not None:
            alpha = torch.tensor(patch.scale(len(down)) * len(down))
            renamed[f"diffusion_model.{module}.alpha"] = alpha
    return renamed


def _match(
    lora: Mapping[str, Tensor], names: Collection[str], lora_name: str, stated: StatedAlpha | None
) -> dict[str, LoraPatch]:
    """The patches of a LoRA by the parameter that they change; refuses tensors that belong to none."""
    targets = Targets(names)
    patches: dict[str, LoraPatch] = {}
    unknown, images = [], []
    for key, tensor in lora.items():
        parts = split_key(key)
        module, what = parts or (key, "")
        if what in OTHER_KINDS and targets.find(module, "down") is not None:
            raise HeadForcingError(
                f"{lora_name} is {OTHER_KINDS[what]} (it has {one_line(key, 80)}), which --lora does not merge: "
                "connect it with ComfyUI's LoraLoaderModelOnly"
            )
        target = targets.find(module, what) if what else None
        if target is None:
            (images if is_of_images(key) else unknown).append(key)
            continue
        patch = patches.setdefault(target, LoraPatch(module, stated=stated))
        what = "diff" if what in ("diff_b", "diff_m") else what
        if what in patch.tensors:
            raise HeadForcingError(f"{lora_name} changes {target} twice (by {key}, too): use a file with one LoRA")
        patch.tensors[what] = tensor
    if unknown:
        raise HeadForcingError(
            f"{lora_name} does not fit: {len(unknown)} of its {len(lora)} tensors belong to no layer of a Wan model "
            f"of this size, or have names of an unknown program (first: {unknown[0]}); use a LoRA made for Wan2.1 "
            "text-to-video of this size"
        )
    if not patches:
        raise HeadForcingError(f"{lora_name} holds no LoRA tensors: choose a LoRA file")
    if images:
        log.warning("%s: left out %d tensors of layers for images (%s, ...)", lora_name, len(images), images[0])
    return patches
