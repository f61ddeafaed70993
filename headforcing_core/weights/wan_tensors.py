"""Tensors of a Wan text-to-video model under Wan's names: their shapes, the model's dimensions, and
models that only look alike.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ..errors import HeadForcingError
from ..model.latents import WAN21, WAN22
from ..model.wan import WanConfig, WanModel
from .containers import Weights
from .layouts import LORA_SUFFIX, is_lora

# few digits: a malicious name must not claim a billion layers
_BLOCK = re.compile(r"blocks\.(\d{1,3})\.")
_QUANTISED = (
    "scale_weight weight_scale weight_scale_2 scale_input input_scale comfy_quant scaled_fp8"
).split()
_NEED = "choose a Self Forcing (Wan2.1 text-to-video) checkpoint"
_IMAGE_PARTS = re.compile(
    r"^img_emb\.|^condition_embedder\.image_embedder\.|\.k_img\.|\.add_k_proj\."
)
_EXPERT = re.compile(r"(?:high|low)[-_ ]?noise|transformer_2|a14b.*(?:high|low)|(?:high|low).*a14b")
_MOST_LINKS = 20
_OTHER_MODELS = (  # pattern of a name, and what a file with such a tensor is
    (
        r"vace_(blocks|patch_embedding)\.",
        f"is a VACE model, which is not supported, not a Wan video model: {_NEED}",
    ),
    (r"(en|de)coder\.conv(1|_in)\.|decoder\.middle\.", f"is a VAE, not a Wan video model: {_NEED}"),
    (
        r"(shared|token_embedding)\.weight|encoder\.block\.|text_model\.",
        f"is a text encoder, not a Wan video model: {_NEED}",
    ),
    (
        ".*memory_",
        "holds Self Gradient Forcing+, whose clean passes have weights of their own, which is not "
        "supported: use the weights of Self Gradient Forcing",
    ),
    (
        r".*\.quantized_weight_values$",
        "holds LongLive 2.0 in NVFP4, which is not supported: use its model_bf16.pt; "
        "--fp8-linears makes that smaller",
    ),
)


def reject_other_models(tensors: Weights, file: str) -> None:
    """Raise HeadForcingError that names the kind of model if the renamed tensors are no Wan
    text-to-video model.
    """
    if is_lora(tensors):
        raise HeadForcingError(
            f"{file} is a LoRA, not a model: load its base model, and connect the LoRA with a LoRA "
            "loader node (command line: --lora)"
        )
    for pattern, what in _OTHER_MODELS:
        if any(re.match(pattern, name) for name in tensors):
            raise HeadForcingError(f"{file} {what}")
    if "patch_embedding.weight" not in tensors:
        first = next(iter(tensors), "nothing")
        raise HeadForcingError(
            f"{file} is not a Wan video model (it begins with {first!r}): {_NEED}"
        )
    channels = _shape(tensors, "patch_embedding.weight", 5, file)[1]
    images = any(map(_IMAGE_PARTS.search, tensors))
    head = tensors.get("head.head.weight")
    known = channels == WAN21.channels
    if channels == WAN22.channels:  # which Fun Control takes, too, and makes 16
        known = head is None or len(head) == 4 * WAN22.channels
    if images or not known:
        raise HeadForcingError(f"{file} is {other_wan(channels, images)}: {_NEED}")
    for name, tensor in tensors.items():  # unscaled fp8 weights only need a cast
        whole_numbers = (
            _BLOCK.match(name) and name.endswith("weight") and not tensor.dtype.is_floating_point
        )
        if whole_numbers or name.rsplit(".", 1)[-1] in _QUANTISED:
            raise HeadForcingError(
                f"{file} is quantised, which only ComfyUI can run: load it with ComfyUI's Load "
                "Diffusion Model node and connect its MODEL"
            )


def other_wan(channels: int, images: bool) -> str:
    """Name a Wan model of other input channels, or one that reads CLIP's embeddings of images, in
    an error.
    """
    if images:
        return "an image-to-video (I2V) model of Wan 2.1, which is not supported"
    if channels == 36:
        return (
            "an expert of Wan2.2 I2V A14B, an image-to-video model of two experts, which is not "
            "supported"
        )
    return (
        f"a Wan model with {channels} input channels (Fun Control, inpainting, camera) where "
        "text-to-video takes 16, or 48 with Wan2.2 5B"
    )


def reject_experts(path: str | Path, config: WanConfig) -> None:
    """Refuse an expert of Wan 2.2 A14B by the names of file and folder: its tensors are as those of
    Wan 2.1 14B.
    """
    path = Path(path)
    if config.dim == 5120 and any(
        _EXPERT.search(name.lower()) for name in _names_through_links(path)
    ):
        raise HeadForcingError(
            f"{path.name} is one expert of Wan2.2 A14B, which changes between two at a noise "
            f"level; that is not supported: {_NEED}"
        )


def _names_through_links(path: Path) -> list[str]:
    """The names of a file and its folder: as they were given, of every link on the way, and of the
    file itself.
    """
    place = Path(os.path.abspath(path))
    hops = [place]
    while place.is_symlink() and len(hops) < _MOST_LINKS:
        place = Path(os.path.normpath(place.parent / os.readlink(place)))
        hops.append(place)
    hops.append(path.resolve())
    return [*(hop.parent.name for hop in hops), *(hop.name for hop in hops)]


def expected_shapes(config: WanConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all parameters of a Wan text-to-video model: 27 per layer and 15
    others.
    """
    with torch.device("meta"):
        model = WanModel(replace(config, num_layers=1))
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters():
        shapes[name] = tuple(parameter.shape)
        if name.startswith("blocks.0."):
            for layer in range(1, config.num_layers):
                shapes[name.replace("blocks.0.", f"blocks.{layer}.")] = tuple(parameter.shape)
    return shapes


def infer_config(
    tensors: Weights, num_heads: int | None, text_len: int | None, file: str
) -> WanConfig:
    """Infer the dimensions from the shapes; `num_heads` (default: heads of 128) and `text_len`
    cannot be inferred.

    Raises HeadForcingError for missing tensors and impossible dimensions.
    """
    shape = partial(_shape, tensors, file=file)
    patch = shape("patch_embedding.weight", 5)
    numbers = [int(match[1]) for match in map(_BLOCK.match, tensors) if match is not None]
    dim = shape("head.modulation", 3)[-1]
    if num_heads is None and (dim == 0 or dim % 128):
        raise HeadForcingError(
            f"{file} is {dim} wide, which is no multiple of the usual 128 per head: give num_heads"
        )
    config = WanConfig(
        dim=dim,
        ffn_dim=shape("blocks.0.ffn.0.weight", 2)[0],
        num_layers=1 + max(numbers),
        num_heads=dim // 128 if num_heads is None else num_heads,
        in_dim=patch[1],
        out_dim=shape("head.head.weight", 2)[0] // max(1, math.prod(patch[2:])),
        freq_dim=shape("time_embedding.0.weight", 2)[1],
        text_dim=shape("text_embedding.0.weight", 2)[1],
        text_len=text_len or WanConfig.text_len,
        patch_size=(patch[2], patch[3], patch[4]),
    )
    sizes = (dim, config.ffn_dim, config.out_dim, config.freq_dim, config.text_dim)
    if min(*sizes, *config.patch_size) < 1:
        raise HeadForcingError(
            f"{file} is damaged: a size of its model is 0 ({config}); download it again"
        )
    return config


def _shape(tensors: Weights, name: str, dimensions: int, file: str) -> tuple[int, ...]:
    """The shape of a tensor that must be there with this many dimensions; raises HeadForcingError
    if it is not.
    """
    if name not in tensors:
        raise HeadForcingError(
            f"{file} is incomplete: {name} is missing; download the whole file again"
        )
    shape = tuple(tensors[name].shape)
    if len(shape) != dimensions:
        raise HeadForcingError(
            f"{file}: {name} has shape {shape}, not {dimensions} dimensions: it is no Wan 2.1 model"
        )
    return shape


def check_complete(tensors: Weights, config: WanConfig, file: str) -> list[str]:
    """Raise HeadForcingError unless every parameter exists with its shape; return the names of
    unrelated tensors.
    """
    expected = expected_shapes(config)
    missing = [name for name in expected if name not in tensors]
    if missing:
        shown = ", ".join(missing[:3])
        if len(missing) > 3:
            shown += ", ..."
        raise HeadForcingError(
            f"{file} is incomplete: {len(missing)} of {len(expected)} tensors are missing "
            f"({shown}); download the whole model, or join its parts into one file"
        )
    for name, shape in expected.items():
        found = tuple(tensors[name].shape)
        if found != shape:
            raise HeadForcingError(
                f"{file}: {name} has shape {found} where a Wan 2.1 model of width {config.dim} has "
                f"{shape}; download the file again or choose another one"
            )
    extra = [name for name in tensors if name not in expected]
    for name in extra:
        if name.startswith("blocks."):
            what = "is another Wan"
            if LORA_SUFFIX.search(name):
                what = "holds a LoRA beside its model that is not merged"
            raise HeadForcingError(
                f"{file} {what} (its layers have {name}, which Wan 2.1 text-to-video lacks): "
                "choose a Self Forcing (text-to-video) checkpoint, and give a LoRA as a file of "
                "its own"
            )
    return extra
