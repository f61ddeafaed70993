"""Head Forcing Sampler: a minute-long video, block by block, on any Wan MODEL."""

import functools
from typing import Any

import torch
from comfy_api.latest import InputImpl, io, ui
from comfy_execution.graph_utils import ExecutionBlocker

from ..headforcing_core.drift.latents import describe_events
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.head_profiles.auto import AutoProfile, recall
from ..headforcing_core.head_profiles.profile import HeadProfile
from ..headforcing_core.methods.registry import describe_method, method_policy, method_schedule
from ..headforcing_core.render.describe import describe
from ..headforcing_core.render.plan import RenderPlan, check_size
from ..headforcing_core.rollout.schedule import schedule
from .host import bridge, checks, folders, helpers
from .host.conditioning import timeline_of
from .host.job import FOUND_PROFILES, RUNS, about_run, keep_roles, sample_one
from .host.progress import RenderProgress
from .host.render import RenderJob, Sampled
from .sampler_inputs import sampler_inputs


class HeadForcingSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        schema = io.Schema(
            node_id="HeadForcingSampler",
            display_name="Head Forcing Sampler",
            category=helpers.CATEGORY,
            description=(
                "Makes long videos with a five-second autoregressive Wan model: every attention head keeps the frames "
                "its role needs, so memory stays the same at any length. No negative prompt: these models are "
                "distilled to run without guidance."
            ),
            inputs=sampler_inputs(),
            outputs=[
                io.Latent.Output(display_name="latents"),
                io.String.Output(display_name="report"),
                io.Video.Output(display_name="video", is_output_list=True, tooltip="Needs a vae."),
            ],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )
        return helpers.aliases(schema, "long video", "minute", "autoregressive", "self forcing", "KV cache")

    @classmethod
    def validate_inputs(
        cls,
        width: int | None = None,
        height: int | None = None,
        model_family: str | None = "self_forcing",
        sigmas: str | None = "",
        filename_prefix: str | None = "video/HeadForcing",
    ) -> bool | str:
        """Refuse when the graph is queued, before any model is loaded; a linked value is None."""
        try:
            for name, value in (("width", width), ("height", height)):
                if value is not None:
                    check_size(name, value)
            if model_family is not None and sigmas is not None:
                schedule(model_family, sigmas)
            if filename_prefix is not None:
                folders.output_file(filename_prefix, ".mp4", 16, 16)
        except HeadForcingError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls,
        model: Any,
        positive: list[Any],
        width: int,
        height: int,
        seconds: float,
        seed: int,
        head_profile: HeadProfile | AutoProfile | None = None,
        start_frames: dict[str, Any] | None = None,
        method: str = "head_forcing",
        model_family: str = "self_forcing",
        sigmas: str = "",
        episodic_frames: int = 5,
        recent_frames: int = 3,
        novelty_threshold: float = 0.95,
        memory_every_blocks: int = 3,
        roles: str = "profile",
        batch_size: int = 1,
        resume: bool = True,
        checkpoint_seconds: float = 300.0,
        vae: Any = None,
        filename_prefix: str = "video/HeadForcing",
        decode_in_background: bool = False,
    ) -> io.NodeOutput:
        timeline, texts = timeline_of(positive, seconds)
        policy = method_policy(method)
        chosen = method_schedule(policy, model_family, sigmas)
        start, dropped = checks.start_latents(start_frames, chosen.frames_per_block)
        if start is not None:
            height, width = start.shape[-2] * 8, start.shape[-1] * 8
        make_plan = functools.partial(
            RenderPlan.make,
            bridge.wan_config(model),
            policy.with_memory(episodic_frames, recent_frames, novelty_threshold, memory_every_blocks),
            chosen,
            timeline,
            width,
            height,
            seconds,
            start_frames=0 if start is None else start.shape[1],
            roles=roles,
            seed=seed,
            family=model_family,
        )
        plan = make_plan(profile=head_profile)
        checks.check_text_width(model, texts)
        job = RenderJob(
            model,
            plan.embeddings(texts),
            seed,
            start,
            RUNS if resume else None,
            checkpoint_seconds,
            about_run(model, plan, method, seed),
            vae,
            filename_prefix,
            helpers.graph_tags(cls.hidden),
            decode_in_background,
        )
        weights = bridge.fingerprint(model)
        if plan.auto is not None and not job.finished(plan, 0):
            plan = make_plan(profile=recall(FOUND_PROFILES, weights, plan.auto) or plan.auto)
        count = batch_size if start is None else max(batch_size, len(start))
        needs = checks.check_needs(job, plan, count)
        checks.check_room([needs])
        report = [*describe_method(method), describe(plan, bridge.compute_dtype(model)), "", needs.describe()]
        if dropped:
            report.append(f"start_frames: left out the last {dropped} latent frames, which do not fill a block")
        progress = RenderProgress(model, [plan] * count, cls.hidden.unique_id)
        videos: list[Sampled] = []
        for video in range(count):
            progress.next_video(video, plan)
            made = sample_one(job, plan, video, progress, needs)
            videos.append(made)
            took = f"sampled in {made.seconds:.1f} s, attention {made.attention}"
            report += ["", f"video {video + 1} of {count}: {took}", *_told(made)]
            if made.found_profile is not None:
                plan = make_plan(profile=made.found_profile)  # the other videos of a batch have the same roles
                report.append(keep_roles(made, weights))
        progress.completed()
        trim = {"pictures": plan.video_frames, "frames": plan.frames, "restart_frames": list(plan.restart_frames)}
        trim["about"] = job.about
        samples = torch.stack([made.latents.transpose(0, 1) for made in videos])
        return io.NodeOutput(
            {"samples": samples, "head_forcing": trim},
            "\n".join(report).rstrip(),
            [_video(made) for made in videos],
            ui=_preview(videos),
        )


def _told(made: Sampled) -> list[str]:
    """What happened while a video was made, for the report."""
    lines = [f"reused {made.reused_blocks} blocks of an earlier render"] if made.reused_blocks else []
    lines += [f"damaged: {problem}" for problem in made.problems]
    if made.events:
        lines.append(describe_events(made.events))
    lines.append(made.report.text())
    if made.saved is not None:
        lines.append(f"wrote output/{made.saved.label}")
    if made.failure is not None:
        lines.append(f"no video: {made.failure}; the latents are complete, use Decode Latents to Video")
    return lines


def _video(made: Sampled) -> Any:
    """The file as a VIDEO; where there is none, what tells whoever wants it why."""
    if made.saved is not None:
        return InputImpl.VideoFromFile(str(made.saved.path))
    reason = "connect a vae to Head Forcing Sampler"
    if made.failure is not None:
        reason = f"the video could not be written ({made.failure}); the latents are complete"
    return ExecutionBlocker(f"No video: {reason}, or use Decode Latents to Video.")


def _preview(videos: list[Sampled]) -> Any:
    """The files, shown on the node."""
    files = [made.saved for made in videos if made.saved is not None]
    results = [ui.SavedResult(file.name, file.subfolder, io.FolderType.output) for file in files]
    return ui.PreviewVideo(results) if results else None
