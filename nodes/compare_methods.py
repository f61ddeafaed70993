"""Compare Methods: one timeline and seed rendered with several methods, side by side."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import comfy.model_management
from comfy_api.latest import InputImpl, io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.head_profiles.auto import AutoProfile
from ..headforcing_core.head_profiles.profile import HeadProfile
from ..headforcing_core.methods.registry import method_names
from ..headforcing_core.render.comparison import (
    NOTE,
    Compared,
    Entry,
    entries_of,
    grid,
    left_out_notes,
    measured,
    method_notes,
    names_all,
    table,
)
from ..headforcing_core.render.options import DEFAULTS, RenderOptions
from ..headforcing_core.render.plan import RenderPlan
from ..headforcing_core.render.resources import Needs
from .host import folders, helpers, player
from .host.conditioning import read_prompts
from .host.helpers import HeadProfileType
from .host.loaded_model import compute_dtype, name_model, options_for
from .host.memory import check_disk_room
from .host.model_contents import check_contents, contents
from .host.native_model import size_for
from .host.progress import RenderProgress
from .host.render import FOUND_PROFILES, RUNS, HostRender, sample
from .host.vae import pictures_of

EXAMPLE = "head_forcing, self_forcing_window_21, infinity_rope"


class CompareMethods(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return helpers.schema(
            "HeadForcingCompareMethods",
            "Compare Methods",
            "sampling",
            aliases="compare, side by side, grid, ablation, benchmark, XY plot",
            inputs=[
                io.Model.Input("model"),
                io.Conditioning.Input("positive"),
                io.Vae.Input("vae"),
                io.String.Input(
                    "methods",
                    default=EXAMPLE,
                    multiline=True,
                    tooltip="Names, separated by commas or one per line: "
                    + ", ".join(method_names())
                    + ". all: every published one that the weights allow.",
                ),
                *helpers.size_inputs(),
                helpers.seconds_input(),
                helpers.seed_input(),
                io.String.Input("filename_prefix", default="video/Compare"),
                HeadProfileType.Input("head_profile", optional=True),
                helpers.family_input(),
                io.Boolean.Input("resume", default=True, optional=True),
            ],
            outputs=[io.Video.Output(display_name="video"), io.String.Output(display_name="table")],
            makes_video=True,
        )

    @classmethod
    def validate_inputs(cls, methods: str | None = None) -> bool | str:
        """Refuse names of methods that are not there when the graph is queued, see `helpers.refusal`."""
        return helpers.refusal(entries_of, methods)

    @classmethod
    @player.shows_errors
    def execute(
        cls,
        model: Any,
        positive: list[Any],
        vae: Any,
        methods: str,
        width: int,
        height: int,
        seconds: float,
        seed: int,
        filename_prefix: str,
        head_profile: HeadProfile | AutoProfile | None = None,
        model_family: str = DEFAULTS.model_family,
        resume: bool = True,
    ) -> io.NodeOutput:
        entries = entries_of(methods)
        for prefix in (filename_prefix, *(_prefix(filename_prefix, entry) for entry in entries)):
            folders.check_prefix(prefix)
        chosen, _ = options_for(model, RenderOptions(model_family=model_family))
        width, height = size_for(model, width, height)
        chosen = replace(chosen, width=width, height=height, seconds=seconds, seed=seed, profile=head_profile)
        positive, timeline, embeds = read_prompts(model, positive, chosen)
        check_contents(model)
        named = name_model(model)
        shared = HostRender(
            model,
            chosen,
            timeline,
            embeds,
            runs=named.keeps(RUNS) if resume else None,
            found_profiles=named.keeps(FOUND_PROFILES),
            vae=vae,
            filename_prefix=filename_prefix,
            hidden=cls.hidden,
            weights=named.weights,
        )
        todo, left_out = _planned(entries, shared, positive, skip=names_all(methods))
        if not todo:
            raise HeadForcingError(f"none of the methods can be rendered: {next(iter(left_out.values()))}")
        check_disk_room([video.needs for video in todo])
        progress = RenderProgress(model, [video.plan for video in todo], cls.hidden, previews=False)
        rows = [_compare(video, place, progress) for place, video in enumerate(todo)]
        progress.completed()
        with folders.output_file(filename_prefix, ".mp4", width, height) as file:
            tags = helpers.graph_tags(cls.hidden)
            grid(file.path, rows, fps=todo[0].plan.timeline.clock.fps, metadata=tags, on_progress=_stop_where_asked)
        notes = [*method_notes(rows), *left_out_notes(left_out), *contents(model).lines(), *named.notes]
        text = "\n".join([table(rows), "", NOTE, "", *notes])
        return io.NodeOutput(InputImpl.VideoFromFile(str(file.path)), text, ui=progress.player.output([file]))


class _Video(NamedTuple):
    """One method's planned video."""

    entry: Entry
    render: HostRender
    plan: RenderPlan
    needs: Needs


def _planned(
    entries: Sequence[Entry], shared: HostRender, positive: list[Any], skip: bool
) -> tuple[list[_Video], dict[str, str]]:
    """All videos, checked before the first is rendered; with `skip` also why others cannot be, by their labels."""
    todo: list[_Video] = []
    left_out: dict[str, str] = {}
    for entry in entries:
        options = entry.options(shared.options, shared.options.seed)
        pictures = pictures_of(options, positive, shared.vae)
        prefix = _prefix(shared.filename_prefix, entry)
        render = replace(shared, options=options, filename_prefix=prefix, pictures=pictures)
        try:
            plan = entry.planned(render.plan)
            todo.append(_Video(entry, render, plan, render.check_needs(plan)))
        except HeadForcingError as error:
            if not skip:
                raise
            left_out[entry.label] = str(error).removeprefix(f"{entry.label}: ")
    return todo, left_out


def _compare(video: _Video, place: int, progress: RenderProgress) -> Compared:
    """Render and measure one method's video; roles that were found are stored for the methods after it."""
    entry, render = video.entry, video.render
    plan = render.job(video.plan).take_found_roles(render.plan)
    progress.next_video(place, plan, entry.label)
    made = sample(render, plan, 0, progress)
    if made.video is None:
        kept = "; its finished blocks are kept, queue again to go on" if render.runs is not None else ""
        raise HeadForcingError(f"{entry.label}: the video could not be written ({made.failure}){kept}")
    return measured(entry, render.options.seed, plan, compute_dtype(render.model), made, _stop_where_asked)


def _prefix(filename_prefix: str, entry: Entry) -> str:
    return f"{filename_prefix}_{entry.key}"


def _stop_where_asked(*_: int) -> None:
    comfy.model_management.throw_exception_if_processing_interrupted()
