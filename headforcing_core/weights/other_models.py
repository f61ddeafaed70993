"""Files that are no Wan text-to-video model: what they are, in one sentence each."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from ..errors import HeadForcingError
from ..model.latents import WAN21, WAN22
from ..model.wan import WanConfig
from .layouts import Weights, is_lora, is_quantised, probe

_IMAGE_PARTS = ("img_emb.", "condition_embedder.image_embedder.")
_EXPERTS = ("high_noise", "low_noise", "transformer_2")
_MAX_INDEX = 1 << 16
NEED = "choose a Self Forcing (Wan2.1 text-to-video) checkpoint"
_OTHER_MODELS = (  # prefixes of names, and the kind of model that has them
    (("input_blocks.", "output_blocks.", "middle_block."), "a Stable Diffusion image model"),
    (("double_blocks.", "single_blocks.", "single_transformer_blocks."), "a Flux or Hunyuan model"),
    (("joint_blocks.",), "a Stable Diffusion 3 image model"),
    (("decoder.conv1.", "encoder.conv1.", "decoder.conv_in.", "encoder.conv_in.", "decoder.middle."), "a VAE"),
    (("shared.weight", "token_embedding.weight", "encoder.block.", "text_model."), "a text encoder"),
    (("vision_model.", "visual."), "a CLIP vision model"),
)


def reject_look_alikes(tensors: Weights, file: str) -> None:
    """Raise HeadForcingError that names the kind of model if the renamed tensors are no Wan text-to-video model."""
    if is_lora(tensors):
        raise HeadForcingError(
            f"{file} is a LoRA, not a model: load its base model, and connect the LoRA with a LoRA loader node "
            "(command line: --lora)"
        )
    if any(name.startswith(("vace_blocks.", "vace_patch_embedding.")) for name in tensors):
        raise HeadForcingError(f"{file} is a VACE model, which is not supported: {NEED}")
    for beginnings, what in _OTHER_MODELS:
        if any(name.startswith(beginnings) for name in tensors):
            raise HeadForcingError(f"{file} is {what}, not a Wan video model: {NEED}")
    if any("memory_" in name for name in tensors):
        raise HeadForcingError(
            f"{file} holds Self Gradient Forcing+, whose clean passes have weights of their own, which is not built "
            "here: use the weights of Self Gradient Forcing"
        )
    if "patch_embedding.weight" not in tensors:
        first = next(iter(tensors), "nothing")
        raise HeadForcingError(f"{file} is not a Wan video model (it begins with {first!r}): {NEED}")
    channels = probe(tensors, "patch_embedding.weight", 5, file)[1]
    images = any(n.startswith(_IMAGE_PARTS) or ".k_img." in n or ".add_k_proj." in n for n in tensors)
    if images or not _is_text_to_video(tensors, channels):
        raise HeadForcingError(f"{file} is {other_wan(channels, images)}: {NEED}")
    if any(name.endswith(".quantized_weight_values") for name in tensors):
        raise HeadForcingError(
            f"{file} holds LongLive 2.0 in NVFP4, which is not built here: use its model_bf16.pt; --fp8-linears makes "
            "that smaller"
        )
    if is_quantised(tensors):
        raise HeadForcingError(
            f"{file} is quantised, which only ComfyUI can run: load it with ComfyUI's Load Diffusion Model node and "
            "connect its MODEL"
        )


def _is_text_to_video(tensors: Weights, channels: int) -> bool:
    """Whether input and output are the latents of a known VAE alone; Fun Control takes 48 channels and makes 16."""
    made = tensors.get("head.head.weight")
    return channels == WAN21.channels or (
        channels == WAN22.channels and (made is None or len(made) == 4 * WAN22.channels)
    )


def other_wan(channels: int, images: bool) -> str:
    """Name a Wan model of other input channels, or one that reads CLIP's embeddings of images, in an error."""
    if images:
        return "an image-to-video (I2V) model of Wan 2.1, which is not supported"
    if channels == 36:
        return "an expert of Wan2.2 I2V A14B, an image-to-video model of two experts, which is not built here"
    return (
        f"a Wan model with {channels} input channels (Fun Control, inpainting, camera) where text-to-video takes 16, "
        "or 48 with Wan2.2 5B"
    )


def reject_experts(path: str | Path, config: WanConfig) -> None:
    """Raise HeadForcingError for one expert of Wan 2.2 A14B, whose tensors have the names and shapes of Wan 2.1 14B.

    The pipeline's configuration tells (model_index.json of diffusers), or the names of its folder and of the file,
    which are all that there is where ComfyUI's repackaged files lie.
    """
    path = Path(path)
    if config.dim != 5120:
        return
    found: object = {}
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads((path.resolve().parent.parent / "model_index.json").read_text("utf-8")[:_MAX_INDEX])
    index = found if isinstance(found, dict) else {}
    names = (path.resolve().parent.name.lower(), path.name.lower())
    if (
        index.get("boundary_ratio") is not None
        or index.get("transformer_2") not in (None, [None, None])
        or any(part in name for name in names for part in _EXPERTS)
    ):
        raise HeadForcingError(
            f"{path.name} is one expert of Wan2.2 A14B, which changes between two at a noise level; that is not built "
            f"here: {NEED}"
        )
