"""Video files as ComfyUI knows them: their names in messages, the part that is used, the graph in
their metadata.
"""

from __future__ import annotations

import json
from typing import Any

from comfy.cli_args import args
from comfy_api.latest import io, ui

from ....headforcing_core.files import Fields
from ....headforcing_core.plan.request import file_tags
from ..folders import OutputFile
from .queued_graph import extra_of, prompt_id, workflow_of

HEADS = "head_forcing_heads"  # in the extra data of a workflow


def heads_in(hidden: Any) -> Any:
    """The head roles in the workflow of a video that was dropped on the canvas; None for none."""
    extra = workflow_of(hidden).get("extra")
    return extra.get(HEADS) if isinstance(extra, dict) else None


def saved(file: OutputFile) -> ui.SavedResult:
    """A file in the output folder as ComfyUI names it."""
    folder, _, name = file.label.rpartition("/")
    return ui.SavedResult(name, folder, io.FolderType.output)


def window_of(video: Any) -> tuple[float, float]:
    """The part of a VIDEO's file that *Video Slice* left, its beginning and length in seconds;
    zeros for all.
    """
    return getattr(video, "get_active_trim_window", lambda: (0.0, 0.0))()  # not in 0.3.75


def tags_of(hidden: Any, about: Fields | None = None, fps: float | None = None) -> dict[str, str]:
    """Metadata tags of a file: the graph, which ComfyUI restores when the file is dropped on the
    canvas, and the prompts and times that *Video Drift Report* reads, see `plan.request.file_tags`.

    The graph names its run, so that a page shows no video of a later run of the same workflow on
    it, and has the head roles, so that it renders with them where others were measured.
    """
    if args.disable_metadata:
        return {}
    tags = dict(extra_of(hidden))
    if (workflow := workflow_of(hidden)) and (run := prompt_id()):
        extra = workflow.get("extra")
        if not isinstance(extra, dict):  # another program may have written it
            extra = {}
        extra = {**extra, "head_forcing_run": run}
        if about and "heads" in about:
            extra[HEADS] = about["heads"]
        tags["workflow"] = {**workflow, "extra": extra}
    if hidden.prompt is not None:
        tags["prompt"] = hidden.prompt
    own = file_tags(about, fps) if about else {}
    return {key: json.dumps(value) for key, value in tags.items()} | own
