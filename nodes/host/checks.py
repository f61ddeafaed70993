"""Checks before sampling, and the error message when the device's memory runs out while sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import comfy.model_management
import torch

from ...headforcing_core.demo import assets
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.render.resources import Needs, check_disk, in_turn
from ...headforcing_core.rollout.schedule import Schedule
from . import bridge, folders, native_model


def start_latents(start_frames: dict[str, Any] | None, schedule: Schedule) -> tuple[torch.Tensor | None, int]:
    """`[videos, frames, channels, h, w]` of a LATENT in whole blocks, and the number of latent frames dropped at its
    end."""
    if start_frames is None:
        return None, 0
    latents, frames_per_block, kind = start_frames["samples"], schedule.frames_per_block, schedule.latents
    if latents.ndim != 5 or latents.shape[1] != kind.channels or latents.shape[2] < frames_per_block:
        raise HeadForcingError(
            f"start_frames: expected video latents of the model, [videos, {kind.channels}, frames, h, w], of at least "
            f"{frames_per_block} frames, got {list(latents.shape)}"
        )
    height, width = latents.shape[3] * kind.stride, latents.shape[4] * kind.stride
    if height % kind.side_multiple or width % kind.side_multiple:
        raise HeadForcingError(
            f"start_frames: the video is {width}x{height}; crop it so that width and height are multiples of "
            f"{kind.side_multiple}"
        )
    dropped = latents.shape[2] % frames_per_block
    return latents.transpose(1, 2)[:, : latents.shape[2] - dropped], dropped


def size_for(model: Any, width: int, height: int) -> tuple[int, int]:
    """Width and height in pixels, where 0 is replaced by what the model was made for."""
    made_for = assets.SIZE if native_model.is_toy_model(model) else bridge.wan_config(model).latents.size
    return width or made_for[0], height or made_for[1]


def check_text_width(model: Any, embeds: Iterable[torch.Tensor]) -> None:
    """Refuse text embeddings of another width than the MODEL reads, and models that are not Wan."""
    expected, found = bridge.wan_config(model).text_dim, next(iter(embeds)).shape[-1]
    if found != expected:
        raise HeadForcingError(
            f"positive: the model reads text embeddings of width {expected}, got {found}; use the CLIP that belongs to "
            "it (umt5_xxl with type wan, or the demo model's own)"
        )


def room_on(model: Any) -> int:
    """Memory in bytes that a render can have on a MODEL's device: what is free there, or taken by models of ComfyUI.

    ComfyUI moves other models out of the way; what it reserves for other programs is left to them.
    """
    device, management = model.load_device, comfy.model_management
    free = management.get_free_memory(device)
    if device.type == "cpu":
        return int(free + model.model_size())  # the weights are there already
    for loaded in management.current_loaded_models:
        if loaded.device == device and loaded.model is not None:  # None: the graph has dropped it
            free += loaded.model_loaded_memory()
    return int(min(free, management.get_total_memory(device)) - management.extra_reserved_memory())


def free_on(model: Any) -> int:
    """Memory in bytes that is free on a MODEL's device while a render is under way."""
    management = comfy.model_management
    return int(management.get_free_memory(model.load_device) - management.extra_reserved_memory())


def check_room(renders: Sequence[Needs]) -> None:
    """Refuse renders, made one after another, whose files do not fit on the disk."""
    folder = folders.output_folder()
    check_disk(in_turn(renders), folder, folder, "remove folders of old renders from output/head_forcing")


def is_out_of_memory(error: BaseException) -> bool:
    known = getattr(comfy.model_management, "is_oom", None)  # since 0.16; knows more kinds
    return known(error) if known is not None else isinstance(error, comfy.model_management.OOM_EXCEPTION)


def out_of_memory(error: BaseException, needs: Needs, kept: bool) -> BaseException:
    """An error of the same class with remedies; ComfyUI unloads its models only for errors of that class."""
    text = (
        f"out of memory: the render needs {needs.describe().splitlines()[0].partition('about ')[2]}. Close other "
        "programs that use the GPU, decode afterwards instead of while sampling, or choose a smaller size or fewer "
        "episodic_frames."
    )
    if kept:
        text += " Finished blocks are kept: with the same size and frames, queue again to go on."
    try:
        return type(error)(text)
    except TypeError:  # an error class with other constructor arguments
        return error
