"""Memory of a render where ComfyUI shares it out: how much there is, how it is kept free, and what
is said without.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import comfy.model_management as management
import torch
from comfy.controlnet import ControlBase

from ....headforcing_core.files import Fields
from ....headforcing_core.plan.resources import Needs, check_disk
from .. import folders
from .model_contents import KEY


def room_on(model: Any) -> int:
    """Memory in bytes that a render can have on a MODEL's device: what is free there, or taken by
    models of ComfyUI.

    ComfyUI moves other models out of the way; what it reserves for other programs is left to them.
    """
    device = model.load_device
    free = management.get_free_memory(device)
    if device.type == "cpu":
        return int(free + model.model_size())  # the weights are there already
    for loaded in management.current_loaded_models:
        if loaded.device == device and loaded.model is not None:  # None: the graph has dropped it
            free += loaded.model_loaded_memory()
    room = min(free, management.get_total_memory(device))
    return int(room - management.extra_reserved_memory() - _kept_for_weights(model, room))


def _kept_for_weights(model: Any, room: float) -> float:
    """Bytes of a MODEL's weights that ComfyUI loads whatever a render asks for: on GPUs that are
    not NVIDIA's a share of the memory, unless their layers bring them.
    """
    state = management.VRAMState
    if is_dynamic(model) or management.vram_state not in (state.LOW_VRAM, state.NORMAL_VRAM):
        return 0.0
    share = room * management.MIN_WEIGHT_MEMORY_RATIO
    return max(0.0, min(share, room - management.minimum_inference_memory(), model.model_size()))


def is_dynamic(patcher: Any) -> bool:
    """Whether ComfyUI brings a model's weights to the GPU as its layers run (dynamic VRAM, of newer
    versions).
    """
    return getattr(patcher, "is_dynamic", bool)()


def free_on(model: Any) -> int:
    """Memory in bytes that is free on a MODEL's device while a render is under way."""
    return int(management.get_free_memory(model.load_device) - management.extra_reserved_memory())


def check_disk_room(renders: Sequence[Needs]) -> None:
    """Refuse renders, made one after another, whose files do not fit on the disk."""
    folder = folders.output_folder()
    check_disk(renders, folder, folder, "remove folders of old renders from output/head_forcing")


class _Room(ControlBase):
    """In a prompt, memory that ComfyUI keeps free while it samples: it counts that of ControlNets
    as it is stated.
    """

    def __init__(self, size: float):
        super().__init__()
        self.size = size

    def inference_memory_requirements(self, dtype: torch.dtype) -> float:
        return self.size

    def get_models(self) -> list[Any]:
        return []

    def deepclone_multigpu(self, load_device: torch.device, autoregister: bool = False) -> _Room:
        self.multigpu_clones[load_device] = self
        return self


def load_with_room(
    executor: Any,
    model: Any,
    one_pass: Sequence[int],
    conds: Fields,
    *args: Any,
    memory: int,
    **kwargs: Any,
) -> Any:
    """ComfyUI's `prepare_sampling`, which loads a MODEL, with `memory` bytes free for the render.

    What ComfyUI asks for a pass, `[1, 16, frames, h, w]`, is part of `memory`; it asks once more
    where there is room.
    """
    missing = max(0.0, memory - float(model.model.memory_required(list(one_pass))))
    asked = {**conds, KEY: [{"control": _Room(missing)}]}
    real_model, _, models = executor(model, list(one_pass), asked, *args, **kwargs)
    return real_model, conds, models


@contextmanager
def explained(needs: Needs, kept: bool) -> Iterator[None]:
    """Put remedies into errors of memory that runs out in the `with` block; `kept`: finished blocks
    are stored.

    Their class stays: ComfyUI unloads its models only for errors of that class.
    """
    try:
        yield
    except Exception as error:
        is_oom = getattr(management, "is_oom", None)  # since 0.16; knows more kinds
        if not (is_oom(error) if is_oom else isinstance(error, management.OOM_EXCEPTION)):
            raise
        needed = needs.describe().splitlines()[0].partition("about ")[2]
        text = (
            f"out of memory: the render needs {needed}. Close other programs that use the GPU, "
            "decode afterwards instead of while sampling, or choose a smaller size or fewer "
            "episodic_frames."
        )
        if kept:
            text += (
                " Finished blocks are kept: with the same size and frames, Run goes on from them."
            )
        with suppress(TypeError):  # an error class with other constructor arguments stays as it is
            raise type(error)(text) from error
        raise
