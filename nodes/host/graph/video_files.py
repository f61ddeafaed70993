"""Video files as ComfyUI knows them: their names in messages, the part that is used, the graph in
their metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from comfy.cli_args import args
from comfy_api.latest import io, ui

from ....headforcing_core.plan.request import file_tags
from .folders import OutputFile
from .queued_graph import prompt_id


def saved(file: OutputFile) -> ui.SavedResult:
    """A file in the output folder as ComfyUI names it."""
    return ui.SavedResult(file.name, file.subfolder, io.FolderType.output)


def window_of(video: Any) -> tuple[float, float]:
    """The part of a VIDEO's file that *Video Slice* left, its beginning and length in seconds;
    zeros for all.
    """
    return getattr(video, "get_active_trim_window", lambda: (0.0, 0.0))()  # not in 0.3.75


def graph_tags(hidden: Any) -> dict[str, str]:
    """Metadata tags of a file from which ComfyUI restores the graph when the file is dropped on the
    canvas.

    The graph names its run, so that a page shows no video of a later run of the same workflow on
    it.
    """
    if args.disable_metadata:
        return {}
    tags = dict(hidden.extra_pnginfo or {})
    if isinstance(workflow := tags.get("workflow"), dict) and (run := prompt_id()):
        tags["workflow"] = {
            **workflow,
            "extra": {**(workflow.get("extra") or {}), "head_forcing_run": run},
        }
    if hidden.prompt is not None:
        tags["prompt"] = hidden.prompt
    return {key: json.dumps(value) for key, value in tags.items()}


def video_tags(about: Mapping[str, Any], fps: float | None = None) -> dict[str, str]:
    """The metadata tag from which *Video Drift Report* reads prompts and times, see
    `plan.request.file_tags`.
    """
    return {} if args.disable_metadata or not about else file_tags(about, fps)
