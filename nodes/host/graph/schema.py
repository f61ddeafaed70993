"""Schemas and inputs of the nodes, and errors as the editor shows them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from comfy_api.latest import io

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.plan.options import DEFAULTS
from ....headforcing_core.rollout.schedule import AUTO_FAMILY, SCHEDULES
from ..folders import NODE_TEXTS, check_prefix, output_folder

HeadProfileType = io.Custom("HEAD_PROFILE")

# ComfyUI shows an error's class with its module, which is the installation's path for a custom
# node; not for builtins
_ShownError = type("HeadForcingError", (HeadForcingError,), {"__module__": "builtins"})


def shows_errors(execute: Callable[..., Any]) -> Callable[..., Any]:
    """An `execute` whose HeadForcingErrors the editor shows as one sentence, without paths of the
    machine.
    """

    @functools.wraps(execute)
    def shown(*args: Any, **kwargs: Any) -> Any:
        try:
            return execute(*args, **kwargs)
        except HeadForcingError as error:
            raise _ShownError(str(error).replace(str(output_folder()), "output")) from error

    return shown


def refusal(check: Callable[[Any], object], value: Any) -> bool | str:
    """The answer of `validate_inputs`: True, or the sentence of the HeadForcingError that
    `check(value)` raises.

    A linked value is None and passes. `validate_inputs` names one input only, since ComfyUI repeats
    the answer on every input that is named there, wrong or not, and leaves their limits unchecked;
    what depends on several inputs is checked first thing when the node runs.
    """
    try:
        if value is not None:
            check(value)
    except HeadForcingError as error:
        return str(error)
    return True


@functools.cache
def _texts() -> Fields:
    """The English descriptions and tooltips of all nodes, as ComfyUI reads them for its
    frontend.
    """
    return json.loads(NODE_TEXTS.read_text(encoding="utf-8"))


def node_schema(
    node_id: str,
    name: str,
    folder: str,
    *,
    aliases: str,
    inputs: list[Any],
    outputs: Fields,
    output_list: str = "",
    advanced: str = "",
    makes_video: bool = False,
    hidden: Sequence[Any] = (),
) -> io.Schema:
    """The schema of a node in a folder of the menu; `aliases` for the search are separated by
    commas.

    `outputs` are types by their names; the one named `output_list` gives a list.
    Widgets named in `advanced`, separated by spaces, are optional, and shown under "advanced" if
    the frontend supports it. Description and tooltips are those of `locales/en`, but for a tooltip
    that is given. A node that `makes_video` runs without another node after it, and gets the graph,
    which its files hold.
    """
    for widget in inputs:
        if widget.id in advanced.split():
            widget.optional = True
            widget.extra_dict["advanced"] = True  # older versions refuse `advanced=`
    slots = [
        kind.Output(display_name=output, is_output_list=output == output_list)
        for output, kind in outputs.items()
    ]
    texts = _texts().get(node_id, {})
    for part, places in (
        ("inputs", {each.id: each for each in inputs}),
        ("outputs", dict(enumerate(slots))),
    ):
        for place, slot in places.items():
            slot.tooltip = slot.tooltip or texts.get(part, {}).get(str(place), {}).get("tooltip")
    if makes_video:
        hidden = io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo
    made = io.Schema(
        node_id=node_id,
        display_name=name,
        category=f"Head Forcing/{folder}",
        description=texts.get("description", ""),
        inputs=inputs,
        outputs=slots,
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


def size_inputs() -> list[Any]:
    """Width and height, 0 for what the model was made for, see `native_model.size_for`."""
    return [io.Int.Input(name, default=0, min=0, max=4096, step=16) for name in ("width", "height")]


def seed_input() -> Any:
    """The seed of a render's noise; a new node keeps it from run to run, for resume to find what is
    stored.
    """
    # not in 0.3.75, where web/fixed_seed.js does the same
    controls = getattr(io, "ControlAfterGenerate", None)
    keeps = True if controls is None else controls.fixed
    return io.Int.Input(
        "seed", default=DEFAULTS.seed, min=0, max=2**64 - 1, control_after_generate=keeps
    )


def seconds_input(default: float = DEFAULTS.seconds) -> Any:
    """The length of a render."""
    return io.Float.Input("seconds", default=default, min=0.0, max=3600.0, step=0.25)


def family_input(auto: bool = False) -> Any:
    """The model family; with `auto` the weights file can decide, see `options_for`."""
    options = [*SCHEDULES, AUTO_FAMILY] if auto else list(SCHEDULES)
    return io.Combo.Input("model_family", options=options, default=DEFAULTS.model_family)


def theme_input() -> Any:
    """The colours of a plot."""
    return io.Combo.Input("theme", options=["dark", "light"], default="dark", optional=True)


def crf_input() -> Any:
    """H.264 quality; a node that writes a video file has it."""
    return io.Int.Input("crf", default=18, min=0, max=51)
