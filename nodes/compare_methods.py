"""Compare Methods: one timeline and one seed through several methods, side by side."""

import functools
from typing import Any

import comfy.model_management
from comfy_api.latest import InputImpl, io, ui

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.head_profiles.auto import AutoProfile, recall
from ..headforcing_core.head_profiles.profile import HeadProfile
from ..headforcing_core.methods.registry import method_names, method_schedule
from ..headforcing_core.render.plan import RenderPlan, check_size
from ..headforcing_core.render.resources import Needs
from ..headforcing_core.rollout.schedule import SCHEDULES
from ..headforcing_core.studies.comparison import NOTE, Compared, Entry, entries_of, grid, measured, method_notes, table
from .host import bridge, checks, folders, helpers
from .host.conditioning import timeline_of
from .host.helpers import HeadProfileType
from .host.job import FOUND_PROFILES, RUNS, about_run, keep_roles, sample_one
from .host.progress import RenderProgress
from .host.render import RenderJob

EXAMPLE = "head_forcing, self_forcing_window_21, infinity_rope"


class CompareMethods(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        schema = io.Schema(
            node_id="HeadForcingCompareMethods",
            display_name="Compare Methods",
            category=helpers.CATEGORY,
            description=(
                "Makes one video per method from the same prompts and the same noise, shows them side by side, and "
                "says in one table what each keeps, how long a block takes and how the video drifts. The numbers are "
                "not VBench scores."
            ),
            inputs=[
                io.Model.Input("model", tooltip="Self Forcing or a relative, from Load Self Forcing or any loader."),
                io.Conditioning.Input("positive", tooltip="Prompt Timeline or CLIP Text Encode, for all methods."),
                io.Vae.Input("vae", tooltip="Decodes each video while it is made."),
                io.String.Input(
                    "methods",
                    default=EXAMPLE,
                    multiline=True,
                    tooltip="Names, separated by commas or one a line: " + ", ".join(method_names()) + ".",
                ),
                io.Int.Input("width", default=832, min=16, max=4096, step=16, tooltip="In pixels; trained at 832."),
                io.Int.Input("height", default=480, min=16, max=4096, step=16, tooltip="In pixels; trained at 480."),
                io.Float.Input(
                    "seconds",
                    default=0.0,
                    min=0.0,
                    max=3600.0,
                    step=0.25,
                    tooltip="Length of every video. 0: the timeline's, or 10 for a plain prompt.",
                ),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=2**64 - 1,
                    control_after_generate=True,
                    tooltip="All methods get the same noise.",
                ),
                io.String.Input(
                    "filename_prefix",
                    default="video/Compare",
                    tooltip="Name of the files under ComfyUI's output folder; the method's name and a counter are "
                    "added.",
                ),
                HeadProfileType.Input(
                    "head_profile",
                    optional=True,
                    tooltip="Roles of the heads, for methods that use them. Not connected: the bundled profile that "
                    "fits the model.",
                ),
                helpers.advanced(
                    io.Combo.Input(
                        "model_family",
                        options=list(SCHEDULES),
                        default="self_forcing",
                        optional=True,
                        tooltip="Which weights: sets noise levels, frames per block and the bundled head profile.",
                    )
                ),
                io.Boolean.Input(
                    "resume",
                    default=True,
                    optional=True,
                    tooltip="Keep every finished block in ComfyUI/output/head_forcing: a comparison that was stopped "
                    "goes on where it stopped, and a method that was added later is all that is made.",
                ),
            ],
            outputs=[io.Video.Output(display_name="video"), io.String.Output(display_name="table")],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )
        return helpers.aliases(schema, "compare", "side by side", "grid", "ablation", "benchmark")

    @classmethod
    def validate_inputs(
        cls,
        methods: str | None = EXAMPLE,
        width: int | None = None,
        height: int | None = None,
        filename_prefix: str | None = "video/Compare",
    ) -> bool | str:
        """Refuse when the graph is queued, before any model is loaded; a linked value is None."""
        try:
            entries = [] if methods is None else entries_of(methods)
            for name, value in (("width", width), ("height", height)):
                if value is not None:
                    check_size(name, value)
            if filename_prefix is not None:
                for prefix in (filename_prefix, *(_prefix(filename_prefix, entry) for entry in entries)):
                    folders.output_file(prefix, ".mp4", 16, 16)
        except HeadForcingError as error:
            return str(error)
        return True

    @classmethod
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
        model_family: str = "self_forcing",
        resume: bool = True,
    ) -> io.NodeOutput:
        timeline, texts = timeline_of(positive, seconds)
        checks.check_text_width(model, texts)
        weights, tags = bridge.fingerprint(model), helpers.graph_tags(cls.hidden)
        make_plan = functools.partial(
            RenderPlan.make,
            bridge.wan_config(model),
            timeline=timeline,
            width=width,
            height=height,
            seconds=seconds,
            seed=seed,
            family=model_family,
        )

        def planned(entry: Entry, profile: HeadProfile | AutoProfile | None) -> RenderPlan:
            try:
                chosen = method_schedule(entry.policy, model_family)
                return make_plan(policy=entry.policy, schedule=chosen, profile=profile)
            except HeadForcingError as error:
                raise HeadForcingError(f"{entry.label}: {error}") from error

        def job_of(entry: Entry, plan: RenderPlan) -> RenderJob:
            about = about_run(model, plan, entry.method, seed)
            files = {"vae": vae, "filename_prefix": _prefix(filename_prefix, entry), "tags": tags}
            return RenderJob(model, plan.embeddings(texts), seed, runs=RUNS if resume else None, about=about, **files)

        todo: list[tuple[Entry, RenderPlan, RenderJob, Needs]] = []
        for entry in entries_of(methods):  # all are checked before the first is made
            plan = planned(entry, head_profile)
            job = job_of(entry, plan)
            todo.append((entry, plan, job, checks.check_needs(job, plan, 1)))
        checks.check_room([needs for *_, needs in todo])
        progress = RenderProgress(model, [plan for _, plan, *_ in todo], cls.hidden.unique_id, previews=False)
        rows: list[Compared] = []
        for place, (entry, plan, job, needs) in enumerate(todo):
            if plan.auto is not None and not job.finished(plan, 0):
                plan = planned(entry, recall(FOUND_PROFILES, weights, plan.auto) or plan.auto)
            progress.next_video(place, plan, entry.label)
            rows.append(_compared(entry, job, plan, progress, needs, weights))
        progress.completed()
        file = folders.output_file(filename_prefix, ".mp4", width, height)
        grid(file.path, rows, fps=timeline.clock.fps, metadata=tags, on_progress=_stop_where_asked)
        shown = ui.PreviewVideo([ui.SavedResult(file.name, file.subfolder, io.FolderType.output)])
        text = "\n".join([table(rows), "", NOTE, "", *method_notes(rows)])
        return io.NodeOutput(InputImpl.VideoFromFile(str(file.path)), text, ui=shown)


def _compared(
    entry: Entry, job: RenderJob, plan: RenderPlan, progress: RenderProgress, needs: Needs, weights: str
) -> Compared:
    """Make and measure one method's video; roles that were found are kept for those that follow."""
    made = sample_one(job, plan, 0, progress, needs)
    if made.found_profile is not None:
        keep_roles(made, weights)
    if made.saved is None:
        kept = "; its finished blocks are kept, queue again to go on" if job.runs is not None else ""
        raise HeadForcingError(f"{entry.label}: the video could not be written ({made.failure}){kept}")
    dtype = bridge.compute_dtype(job.model)
    took, reused = made.seconds_per_block, made.reused_blocks
    return measured(entry, job.seed, plan, dtype, made.saved.path, made.report, took, reused, _stop_where_asked)


def _prefix(filename_prefix: str, entry: Entry) -> str:
    return f"{filename_prefix}_{entry.key}"


def _stop_where_asked(*_: int) -> None:
    comfy.model_management.throw_exception_if_processing_interrupted()
