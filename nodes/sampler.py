"""Head Forcing Sampler: a minute-long video, block by block, on any Wan MODEL."""

import functools
import time
from collections.abc import Sequence
from typing import Any

import torch
from comfy_api.latest import io

from ..headforcing_core.auto_profile import AutoProfile, recall, remember
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.plan import RenderPlan, check_size, describe_events
from ..headforcing_core.policy import PRESETS, ROLE_ARRANGEMENTS, preset
from ..headforcing_core.profile import HeadProfile
from ..headforcing_core.schedule import SCHEDULES, schedule
from . import comfy_bridge, folders, node_helpers
from .load_profile import HeadProfileType
from .prompt_timeline import timeline_of
from .render_progress import RenderProgress

FOUND_PROFILES = folders.user_folder("found_profiles")
RUNS = folders.runs_folder()


class HeadForcingSampler(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        schema = io.Schema(
            node_id="HeadForcingSampler",
            display_name="Head Forcing Sampler",
            category=node_helpers.CATEGORY,
            description=(
                "Makes long videos with a five-second autoregressive Wan model: every attention head keeps the frames "
                "its role needs, so memory stays the same at any length. No negative prompt: these models are "
                "distilled to run without guidance."
            ),
            inputs=[
                io.Model.Input("model", tooltip="Self Forcing or a relative, from Load Self Forcing or any loader."),
                io.Conditioning.Input(
                    "positive", tooltip="Prompt Timeline for several prompts, CLIP Text Encode for one."
                ),
                io.Int.Input(
                    "width",
                    default=832,
                    min=16,
                    max=4096,
                    step=16,
                    tooltip="In pixels; trained at 832.",
                ),
                io.Int.Input(
                    "height",
                    default=480,
                    min=16,
                    max=4096,
                    step=16,
                    tooltip="In pixels; trained at 480.",
                ),
                io.Float.Input(
                    "seconds",
                    default=0.0,
                    min=0.0,
                    max=3600.0,
                    step=0.25,
                    tooltip="Length of what is made. 0: the timeline's, or 10 for a plain prompt. A shorter value cuts "
                    "the timeline, a longer one holds its last prompt.",
                ),
                io.Int.Input(
                    "seed",
                    default=0,
                    min=0,
                    max=2**64 - 1,
                    control_after_generate=True,
                    tooltip="Every block's noise depends on this and the block's number alone: changing a later prompt "
                    "leaves earlier blocks as they were.",
                ),
                HeadProfileType.Input(
                    "head_profile",
                    optional=True,
                    tooltip="Roles of the heads. Not connected: the bundled profile that fits the model; without one "
                    "they are found while the first seconds are made.",
                ),
                io.Latent.Input(
                    "start_frames",
                    optional=True,
                    tooltip="Latents of a video to go on from (VAE Encode). The result begins with them and has their "
                    "width and height.",
                ),
                node_helpers.advanced(
                    io.Combo.Input(
                        "method",
                        options=list(PRESETS),
                        default="head_forcing",
                        optional=True,
                        tooltip="Which frames heads keep. Besides Head Forcing: its ablations, and plain windows.",
                    )
                ),
                node_helpers.advanced(
                    io.Combo.Input(
                        "model_family",
                        options=list(SCHEDULES),
                        default="self_forcing",
                        optional=True,
                        tooltip="Which weights: sets noise levels, frames per block and the bundled head profile.",
                    )
                ),
                node_helpers.advanced(
                    io.String.Input(
                        "sigmas",
                        default="",
                        optional=True,
                        tooltip="Other noise levels, such as 1, 0.9375, 0.8333, 0.625. Empty: the family's.",
                    )
                ),
                node_helpers.advanced(
                    io.Int.Input(
                        "episodic_frames",
                        default=5,
                        min=0,
                        max=21,
                        optional=True,
                        tooltip="Remembered frames in memory heads, the summary included. 0: no episodic memory.",
                    )
                ),
                node_helpers.advanced(
                    io.Int.Input(
                        "recent_frames",
                        default=3,
                        min=0,
                        max=63,
                        step=3,
                        optional=True,
                        tooltip="Frames before the current block in memory heads (fast memory), in whole blocks.",
                    )
                ),
                node_helpers.advanced(
                    io.Float.Input(
                        "novelty_threshold",
                        default=0.95,
                        min=0.0,
                        max=1.0,
                        step=0.005,
                        optional=True,
                        tooltip="A frame is remembered when it is less similar than this to all remembered ones. Lower "
                        "admits only very different frames; 0.90 to 0.97 is stable in the paper. See the report.",
                    )
                ),
                node_helpers.advanced(
                    io.Int.Input(
                        "memory_every_blocks",
                        default=3,
                        min=1,
                        max=100,
                        optional=True,
                        tooltip="A frame is considered for memory every this many blocks.",
                    )
                ),
                node_helpers.advanced(
                    io.Combo.Input(
                        "roles",
                        options=list(ROLE_ARRANGEMENTS),
                        default="profile",
                        optional=True,
                        tooltip="The paper's ablations of head roles: merged into memory, or shuffled by the seed.",
                    )
                ),
                node_helpers.advanced(
                    io.Int.Input(
                        "batch_size",
                        default=1,
                        min=1,
                        max=64,
                        optional=True,
                        tooltip="Videos to make, one after another, each with noise of its own.",
                    )
                ),
                io.Boolean.Input(
                    "resume",
                    default=True,
                    optional=True,
                    tooltip="Keep every finished block in ComfyUI/output/head_forcing. The same graph queued again "
                    "goes on where it stopped, a longer one extends it, one with another prompt begins at that prompt.",
                ),
                node_helpers.advanced(
                    io.Float.Input(
                        "checkpoint_seconds",
                        default=300.0,
                        min=0.0,
                        max=36000.0,
                        step=10.0,
                        optional=True,
                        tooltip="How often the cache itself is stored, up to 2.7 GB at 832x480, so that going on is "
                        "immediate. 0: never, it is rebuilt from the blocks in a fifth of the time they took.",
                    )
                ),
            ],
            outputs=[io.Latent.Output(display_name="latents"), io.String.Output(display_name="report")],
            hidden=[io.Hidden.unique_id],
        )
        return node_helpers.aliases(schema, "long video", "minute", "autoregressive", "self forcing", "KV cache")

    @classmethod
    def validate_inputs(
        cls,
        width: int | None = None,
        height: int | None = None,
        model_family: str | None = "self_forcing",
        sigmas: str | None = "",
    ) -> bool | str:
        """Refuse when the graph is queued, before any model is loaded; a linked value is None."""
        try:
            for name, value in (("width", width), ("height", height)):
                if value is not None:
                    check_size(name, value)
            if model_family is not None and sigmas is not None:
                schedule(model_family, sigmas)
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
    ) -> io.NodeOutput:
        timeline, texts = timeline_of(positive, seconds)
        chosen = schedule(model_family, sigmas)
        start, dropped = _start_latents(start_frames, chosen.frames_per_block)
        if start is not None:
            height, width = start.shape[-2] * 8, start.shape[-1] * 8
        weights = comfy_bridge.fingerprint(model)
        make_plan = functools.partial(
            RenderPlan.make,
            comfy_bridge.wan_config(model),
            preset(method).with_memory(episodic_frames, recent_frames, novelty_threshold, memory_every_blocks),
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
        embeds = plan.embeddings(texts)
        if plan.auto is not None and not (resume and comfy_bridge.has_run(model, plan, embeds, seed, start, RUNS)):
            plan = make_plan(profile=recall(FOUND_PROFILES, weights, plan.auto) or plan.auto)
        _check_text_width(model, embeds)
        report = [plan.describe(comfy_bridge.compute_dtype(model))]
        if dropped:
            report.append(f"start_frames: left out the last {dropped} latent frames, which do not fill a block")
        count = batch_size if start is None else max(batch_size, len(start))
        progress = RenderProgress(model, plan, count, cls.hidden.unique_id)
        videos = []
        for video in range(count):
            begun = time.perf_counter()
            given = None if start is None else start[video % len(start)]
            progress.next_video(video)
            try:
                sampled = comfy_bridge.sample(
                    model,
                    plan,
                    embeds,
                    seed,
                    video,
                    given,
                    progress,
                    RUNS if resume else None,
                    checkpoint_seconds,
                    _about(model, plan, method, seed),
                    progress.begin,
                )
            except BaseException:  # a cancel is no Exception in newer versions
                if resume:
                    progress.stopped()
                raise
            videos.append(sampled.latents.transpose(0, 1))
            took = time.perf_counter() - begun
            if sampled.reused_blocks:
                report.append(f"reused {sampled.reused_blocks} blocks of an earlier render")
            report += ["", f"video {video + 1} of {count}: sampled in {took:.1f} s", describe_events(sampled.events)]
            if sampled.found_profile is not None:
                plan = make_plan(profile=sampled.found_profile)  # the other videos of a batch have the same roles
                counts = ", ".join(f"{n} {role}" for role, n in sampled.found_profile.counts().items())
                found = f"found {counts} heads"
                if sampled.found_now:
                    path = remember(FOUND_PROFILES, weights, sampled.found_profile)
                    found += f"; kept for the next run with this model in {path.name}"
                report.append(found)
        trim = {"pictures": plan.pictures, "frames": plan.frames}
        samples = {"samples": torch.stack(videos), "head_forcing": trim}
        return io.NodeOutput(samples, "\n".join(report).rstrip())


def _about(model: Any, plan: RenderPlan, method: str, seed: int) -> dict[str, Any]:
    """What to note in the run folder, for people and for Load Head Forcing Run."""
    return {
        "method": method,
        "seed": seed,
        "size": f"{plan.width}x{plan.height}",
        "prompts": [segment.text for segment in plan.timeline.segments],
        "latent_format": type(model.model.latent_format).__name__,
    }


def _start_latents(start_frames: dict[str, Any] | None, frames_per_block: int) -> tuple[torch.Tensor | None, int]:
    """`[videos, frames, 16, h, w]` of a LATENT in whole blocks, and how many frames at its end were left out."""
    if start_frames is None:
        return None, 0
    latents = start_frames["samples"]
    if latents.ndim != 5 or latents.shape[1] != 16 or latents.shape[2] < frames_per_block:
        raise HeadForcingError(
            f"start_frames: expected Wan 2.1 video latents [videos, 16, frames, h, w] of at least {frames_per_block} "
            f"frames, got {list(latents.shape)}"
        )
    height, width = latents.shape[3] * 8, latents.shape[4] * 8
    if height % 16 or width % 16:
        raise HeadForcingError(
            f"start_frames: the video is {width}x{height}; crop it so that width and height are multiples of 16"
        )
    dropped = latents.shape[2] % frames_per_block
    return latents.transpose(1, 2)[:, : latents.shape[2] - dropped], dropped


def _check_text_width(model: Any, embeds: Sequence[torch.Tensor]) -> None:
    expected, found = model.model.diffusion_model.text_dim, embeds[0].shape[-1]
    if found != expected:
        raise HeadForcingError(
            f"positive: the model reads text embeddings of width {expected}, got {found}; use the CLIP that belongs to "
            "it (umt5_xxl with type wan, or the demo model's own)"
        )
