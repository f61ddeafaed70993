"""Compare Methods: one timeline and seed rendered with several methods, side by side."""

from dataclasses import replace
from typing import Any, NamedTuple

from comfy_api.latest import InputImpl, io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.head_profiles.auto import AutoProfile
from ..headforcing_core.head_profiles.profile import HeadProfile
from ..headforcing_core.methods.registry import method_names
from ..headforcing_core.plan.options import DEFAULTS, RenderOptions
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.resources import Needs
from ..headforcing_core.render.comparison import (
    ComparisonRow,
    Entry,
    entries_of,
    grid,
    measure_video,
    names_all,
    plan_entries,
    report_text,
)
from .host import folders
from .host.browser import player
from .host.browser.progress import RenderProgress, stop_where_asked
from .host.graph import schema, video_files
from .host.graph.conditioning import Conditioning, read_conditioning
from .host.graph.schema import HeadProfileType
from .host.model.loaded_model import name_model, options_for
from .host.model.memory import check_disk_room
from .host.model.model_contents import check_contents, contents
from .host.model.native_model import size_for
from .host.render.host_render import HostRender
from .host.render.roles import with_roles
from .host.render.sample import model_pictures, request_of, sample
from .host.render.start import pictures_of

EXAMPLE = "head_forcing, self_forcing_window_21, infinity_rope"


class CompareMethods(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingCompareMethods",
            "Compare Methods",
            "research",
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
                *schema.size_inputs(),
                schema.seconds_input(),
                schema.seed_input(),
                io.String.Input("filename_prefix", default="video/Compare"),
                HeadProfileType.Input("head_profile", optional=True),
                schema.family_input(),
                io.Boolean.Input("resume", default=True, optional=True),
            ],
            advanced="model_family",
            outputs={"video": io.Video, "table": io.String},
            makes_video=True,
        )

    @classmethod
    def validate_inputs(cls, methods: str | None = None) -> bool | str:
        """Refuse names of methods that are not there when the graph is queued, see
        `schema.refusal`.
        """
        return schema.refusal(entries_of, methods)

    @classmethod
    @player.shows_errors
    def execute(
        cls,
        model: Any,
        positive: Conditioning,
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
        chosen, notes = options_for(model, RenderOptions(model_family=model_family))
        width, height = size_for(model, width, height)
        chosen = replace(
            chosen, width=width, height=height, seconds=seconds, seed=seed, profile=head_profile
        )
        read = read_conditioning(model, positive, chosen)
        check_contents(model)
        named = name_model(model)
        request = request_of(
            model, chosen, read.timeline, read.embeds, vae=vae, named=named, resume=resume
        )
        shared = HostRender(
            model,
            request,
            vae=vae,
            filename_prefix=filename_prefix,
            hidden=cls.hidden,
            keeps_roles=named.is_known,
        )
        todo, left_out = plan_entries(
            entries, lambda entry: _plan(entry, shared, read.positive), names_all(methods)
        )
        check_disk_room([video.needs for video in todo])
        progress = RenderProgress(model, [video.plan for video in todo], cls.hidden, previews=False)
        rows = [_compare(video, place, progress) for place, video in enumerate(todo)]
        progress.completed()
        with folders.output_file(filename_prefix, width, height) as file:
            grid(
                file.path,
                rows,
                fps=todo[0].plan.timeline.clock.fps,
                metadata=video_files.tags_of(cls.hidden),
                on_progress=stop_where_asked,
            )
        video = InputImpl.VideoFromFile(str(file.path))
        notes += [*contents(model).lines(), *named.notes]
        text = "\n".join([report_text(rows, left_out), *notes])
        return io.NodeOutput(video, text, ui=progress.player.output([file]))


class _Video(NamedTuple):
    """One method's planned video."""

    entry: Entry
    render: HostRender
    plan: RenderPlan
    needs: Needs


def _plan(entry: Entry, shared: HostRender, positive: Conditioning) -> _Video:
    """Plan and check the video of an entry."""
    common = shared.request.options
    options = entry.options(common, common.seed)
    pictures = model_pictures(shared.model, pictures_of(options, positive, shared.vae))
    request = replace(shared.request, options=options, pictures=pictures)
    render = replace(
        shared, request=request, filename_prefix=_prefix(shared.filename_prefix, entry)
    )
    plan = request.plan()
    return _Video(entry, render, plan, render.check_needs(plan))


def _compare(video: _Video, place: int, progress: RenderProgress) -> ComparisonRow:
    """Render and measure one method's video."""
    entry = video.entry
    render = video.render
    job, _ = with_roles(render)
    plan = job.plan
    progress.next_video(place, plan, entry.label)
    made = sample(render, plan, 0, progress)
    if made.video is None:
        kept = ""
        if render.request.runs is not None:
            kept = "; its finished blocks are kept, Run goes on from there"
        raise HeadForcingError(
            f"{entry.label}: the video could not be written ({made.failure}){kept}"
        )
    return measure_video(entry, plan, render.request.dtype, made, on_progress=stop_where_asked)


def _prefix(filename_prefix: str, entry: Entry) -> str:
    return f"{filename_prefix}_{entry.key}"
