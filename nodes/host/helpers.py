"""Shared parts of the nodes: inputs, and plots as IMAGE."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from comfy.cli_args import args
from comfy_api.latest import io, ui
from comfy_execution.utils import get_executing_context
from torch import Tensor

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.model.latents import WAN21, WAN22
from ...headforcing_core.render.job import file_tags
from ...headforcing_core.render.options import DEFAULTS
from ...headforcing_core.rollout.schedule import AUTO_FAMILY, SCHEDULES
from .folders import OutputFile, check_prefix, output_folder

log = logging.getLogger(__name__)

HeadProfileType = io.Custom("HEAD_PROFILE")

# ComfyUI shows an error's class with its module, which is the installation's path for a custom node; not for builtins
_ShownError = type("HeadForcingError", (HeadForcingError,), {"__module__": "builtins"})


def shows_errors(execute: Callable[..., Any]) -> Callable[..., Any]:
    """An `execute` whose HeadForcingErrors the editor shows as one sentence, without paths of the machine."""

    @functools.wraps(execute)
    def shown(*args: Any, **kwargs: Any) -> Any:
        try:
            return execute(*args, **kwargs)
        except HeadForcingError as error:
            raise _ShownError(str(error).replace(str(output_folder()), "output")) from error

    return shown


def refusal(check: Callable[[Any], object], value: Any) -> bool | str:
    """The answer of `validate_inputs`: True, or the sentence of the HeadForcingError that `check(value)` raises.

    A linked value is None and passes. `validate_inputs` names one input only, since ComfyUI repeats the answer on every
    input that is named there, wrong or not, and leaves their limits unchecked; what depends on several inputs is
    checked first thing when the node runs.
    """
    try:
        if value is not None:
            check(value)
    except HeadForcingError as error:
        return str(error)
    return True


def schema(
    node_id: str,
    name: str,
    folder: str,
    *,
    aliases: str,
    description: str,
    inputs: list[Any],
    outputs: list[Any],
    makes_video: bool = False,
    hidden: Sequence[Any] = (),
) -> io.Schema:
    """The schema of a node in a folder of the menu; `aliases` for the search are separated by commas.

    One that `makes_video` runs without another node after it, and gets the graph, which its files hold.
    """
    if makes_video:
        hidden = io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo
    made = io.Schema(
        node_id=node_id,
        display_name=name,
        category=f"Head Forcing/{folder}",
        description=description,
        inputs=inputs,
        outputs=outputs,
        hidden=list(hidden),
        is_output_node=makes_video,
    )
    if hasattr(made, "search_aliases"):  # not in 0.3.75
        made.search_aliases = aliases.split(", ")
    return made


class FileNode(io.ComfyNode):
    """A node that writes a video file of the name in its widget *filename_prefix*."""

    @classmethod
    def validate_inputs(cls, filename_prefix: str | None = None) -> bool | str:
        """Check when the graph is queued that the file name stays in the output folder."""
        return refusal(check_prefix, filename_prefix)


def explain(widget: Any, tooltip: str) -> Any:
    """The widget with a tooltip."""
    widget.tooltip = tooltip
    return widget


def advanced(widget: Any, tooltip: str) -> Any:
    """An optional widget, shown under "advanced" if the frontend supports it (older versions refuse `advanced=`)."""
    widget.optional, widget.extra_dict["advanced"] = True, True
    return explain(widget, tooltip)


def model_input() -> Any:
    return io.Model.Input("model", tooltip="Self Forcing or a relative, from Load Self Forcing or any loader.")


def positive_input() -> Any:
    tooltip = "Prompt Timeline for several prompts, CLIP Text Encode for one."
    return io.Conditioning.Input("positive", tooltip=tooltip)


def profile_input() -> Any:
    """The head profile of a sampler, which finds one by itself."""
    tooltip = (
        "Roles of the attention heads. Not connected: the bundled profile that fits the model, or, if none fits, roles "
        "found while the first seconds are sampled."
    )
    return HeadProfileType.Input("head_profile", optional=True, tooltip=tooltip)


def size_inputs() -> list[Any]:
    """Width and height, 0 for what the model was made for, see `native_model.size_for`."""
    tooltip = "In pixels, a multiple of 16. 0: what the model was made for, {} (Wan 2.2 {}, the demo model 64)."
    options: dict[str, Any] = {"default": 0, "min": 0, "max": 4096, "step": 16}
    sizes = zip(("width", "height"), WAN21.size, WAN22.size, strict=True)
    return [io.Int.Input(name, tooltip=tooltip.format(*made_for), **options) for name, *made_for in sizes]


def seed_input(tooltip: str) -> Any:
    """The seed of a render's noise; a new node keeps it from run to run, for resume to find what is stored."""
    controls = getattr(io, "ControlAfterGenerate", None)  # not in 0.3.75, where web/fixed_seed.js does the same
    keeps = True if controls is None else controls.fixed
    top = 2**64 - 1
    return io.Int.Input("seed", default=DEFAULTS.seed, min=0, max=top, control_after_generate=keeps, tooltip=tooltip)


def seconds_input(tooltip: str, default: float = DEFAULTS.seconds) -> Any:
    """The length of a render."""
    return io.Float.Input("seconds", default=default, min=0.0, max=3600.0, step=0.25, tooltip=tooltip)


def family_input(
    tooltip: str = "Kind of weights: sets noise levels, frames per block and the bundled head profile.",
    auto: bool = False,
) -> Any:
    """The model family, an advanced widget; with `auto` the weights file can decide, see `model_file`."""
    options = [*SCHEDULES, AUTO_FAMILY] if auto else list(SCHEDULES)
    return advanced(io.Combo.Input("model_family", options=options, default=DEFAULTS.model_family), tooltip)


def no_picture() -> Tensor:
    """An empty IMAGE."""
    return torch.zeros(1, 64, 64, 3)


def picture_or_nothing(draw: Callable[[], Any]) -> Tensor:
    """The plot that `draw` returns as an IMAGE; an empty one and a line in the log if matplotlib is missing."""
    try:
        return to_image(draw())
    except HeadForcingError as error:
        log.warning("Head Forcing: no plot, %s", error)
        return no_picture()


def to_image(picture: Any) -> Tensor:
    """A PIL image as an IMAGE, `[1, height, width, 3]` in 0..1."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255)[None]


def saved(file: OutputFile) -> ui.SavedResult:
    """A file in the output folder as ComfyUI names it."""
    return ui.SavedResult(file.name, file.subfolder, io.FolderType.output)


def filename_input(
    default: str, tooltip: str = "Name of the file under ComfyUI's output folder; a counter is added."
) -> Any:
    """The input *filename_prefix* of a node that writes a video file."""
    return io.String.Input("filename_prefix", default=default, tooltip=tooltip)


def crf_input() -> Any:
    """The input *crf* of a node that writes a video file."""
    return advanced(
        io.Int.Input("crf", default=18, min=0, max=51),
        "H.264 quality (CRF): lower values look better, higher values give smaller files.",
    )


def window_of(video: Any) -> tuple[float, float]:
    """The part of a VIDEO's file that *Video Slice* left, its beginning and length in seconds; zeros for all."""
    return getattr(video, "get_active_trim_window", lambda: (0.0, 0.0))()  # not in 0.3.75


def workflow_id(hidden: Any) -> str:
    """The id of the graph that was queued; empty where it has none, as when a script queued it."""
    workflow = (hidden.extra_pnginfo or {}).get("workflow")
    graph = str(workflow.get("id", "")) if isinstance(workflow, dict) else ""
    return graph if graph.strip("0-") else ""  # all zeros is that of a graph without one, until its page is reloaded


def prompt_id() -> str:
    """The id of the run in which a node runs."""
    context = get_executing_context()
    return "" if context is None else context.prompt_id


def graph_tags(hidden: Any) -> dict[str, str]:
    """Metadata tags of a file from which ComfyUI restores the graph when the file is dropped on the canvas.

    The graph names its run, so that a page shows no video of a later run of the same workflow on it.
    """
    if args.disable_metadata:
        return {}
    tags = dict(hidden.extra_pnginfo or {})
    if isinstance(workflow := tags.get("workflow"), dict) and (run := prompt_id()):
        tags["workflow"] = {**workflow, "extra": {**(workflow.get("extra") or {}), "head_forcing_run": run}}
    if hidden.prompt is not None:
        tags["prompt"] = hidden.prompt
    return {key: json.dumps(value) for key, value in tags.items()}


def video_tags(about: Mapping[str, Any], fps: float | None = None) -> dict[str, str]:
    """The metadata tag from which *Video Drift Report* reads prompts and times, see `render.job.file_tags`."""
    return {} if args.disable_metadata or not about else file_tags(about, fps)
