"""One video of a plan, made on a MODEL of ComfyUI: its job, and the file that grows meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from comfy import model_management

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import is_disk_full
from ....headforcing_core.model.wan import WanConfig
from ....headforcing_core.plan.conditions import Conditions
from ....headforcing_core.plan.layout import bundled_profile
from ....headforcing_core.plan.options import RenderOptions
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.plan.request import RenderRequest, StartLatents
from ....headforcing_core.plan.resources import Needs
from ....headforcing_core.render.render import Listener, Place, make_video
from ....headforcing_core.render.result import INEXACT, RenderResult
from ....headforcing_core.render.sinks import KeptLatents, VideoFile
from ....headforcing_core.rollout.rows import Embeddings, Picture
from ....headforcing_core.timeline.timeline import Timeline
from ....headforcing_core.video.soundtrack import Soundtrack
from .. import folders
from ..browser.forecast import Remember
from ..browser.progress import RenderProgress
from ..graph.part import WHOLE, Part
from ..model import memory, vae
from ..model.loaded_model import NO_NAME, ModelName, approximations, compute_dtype, wan_config
from ..model.vae import codec_of, to_model
from . import bridge
from .growing_video import growing_video
from .host_render import HostRender
from .take_file import earlier_file, link_file

RUNS = folders.runs_folder()


def request_of(
    model: Any,
    options: RenderOptions,
    timeline: Timeline,
    embeds: Embeddings,
    *,
    start: StartLatents | None = None,
    pictures: Mapping[str, Picture] = MappingProxyType({}),
    vae: Any = None,
    named: ModelName = NO_NAME,
    resume: bool = False,
    part: Part = WHOLE,
    about: Mapping[str, Any] = MappingProxyType({}),
    soundtrack: Soundtrack | None = None,
    conditions: Conditions | None = None,
) -> RenderRequest:
    """The request of a render with a MODEL of ComfyUI.

    Args:
        start, pictures: with latents as a LATENT holds them.
        named: the model's name, by which stored blocks and roles are known again.
        resume: read and store finished blocks.
        about: further notes on the videos.
        soundtrack: their sound.
        conditions: what drives the videos besides noise and prompts.
    """
    latent_format = model.model.latent_format
    if not named.is_known:
        options = without_measuring(options, wan_config(model))
    if start is not None:
        latents = [to_model(latent_format, video) for video in start.latents]
        start = replace(start, latents=torch.stack(latents))
    about = dict(about)
    if part.draft:
        about["draft"] = True
    if lines := approximations(model):
        about[INEXACT] = lines
    return RenderRequest(
        wan_config(model),
        options,
        timeline,
        embeds,
        start=start,
        pictures=model_pictures(model, pictures),
        dtype=compute_dtype(model),
        weights=named.weights,
        codec=None if vae is None else codec_of(vae, latent_format),
        runs=RUNS if resume and named.is_known else None,
        until_seconds=part.until_seconds,
        soundtrack=soundtrack,
        conditions=conditions,
        latent_format=type(latent_format).__name__,
        about=about,
    )


def without_measuring(options: RenderOptions, config: WanConfig) -> RenderOptions:
    """The options with a bundled head profile in place of none, for a model whose measured roles
    could not be kept: each render would measure them again. The same if none fits.
    """
    if options.profile is not None or options.method.heads_by != "roles":
        return options
    try:
        bundled = bundled_profile(config, options.method, options.model_family)
    except HeadForcingError:
        return options
    return replace(options, profile=bundled)


def model_pictures(model: Any, pictures: Mapping[str, Picture]) -> dict[str, Picture]:
    """Pictures with latents as the MODEL sees them."""
    return {
        name: replace(picture, latents=to_model(model.model.latent_format, picture.latents))
        for name, picture in pictures.items()
    }


def sample(
    render: HostRender, plan: RenderPlan, video: int, progress: RenderProgress
) -> RenderResult:
    """Make one video of a plan; the result has its latents as a LATENT holds them.

    Raises HeadForcingError where the video file found no space while all blocks were stored; says
    on the node what is kept when something ends the render early.
    """
    needs = render.needs(plan)
    try:
        with memory.explained(needs, kept=render.request.runs is not None):
            return _sample(render, plan, video, progress=progress, needs=needs)
    except BaseException:  # a cancel is no Exception in newer versions
        progress.stopped()
        raise


def _sample(
    render: HostRender, plan: RenderPlan, video: int, progress: RenderProgress, needs: Needs
) -> RenderResult:
    """`sample` without remedies in errors."""
    begun = time.perf_counter()
    job = render.request.job(plan, video)
    kept = KeptLatents()
    listeners: list[Listener] = [progress]
    story = render.story
    if story is None or story.keeps_latents:
        listeners.append(kept)
    if story is not None:
        if not story.has_end:
            progress.without_end()
        listeners.append(Remember(story))
    progress.earlier = earlier_file(render, job)
    if progress.earlier is not None:
        # its blocks are read for the latents and the report; it is of the story as it was
        story = None
    elif render.vae is not None:
        progress.growing = growing_video(render, job, progress)
        listeners.append(progress.growing)

    def body(hosted: bridge.HostedModel, device: torch.device) -> RenderResult:
        attention = hosted.attention.or_better(render.request.dtype, device, plan.shape)
        if story is not None:
            story.reload = _reload(hosted, progress, needs)
            listeners.append(story.edits(render.scale))
        return make_video(job, hosted, Place(device, attention), listeners)

    one_pass = (plan.largest_pass, *plan.block_shape[1:])
    made = bridge.host(
        render.model,
        job.script.embedding(0),
        plan.schedule,
        one_pass,
        memory=needs.working,
        body=body,
        also=[vae.patcher for vae in render.vaes],
    )
    latents = None
    if kept.blocks:
        latents = vae.to_latent(render.model.model.latent_format, torch.cat(kept.blocks))
        latents = latents.to(model_management.intermediate_device())
    made = replace(
        made,
        latents=latents,
        seconds=time.perf_counter() - begun,
        video=progress.earlier,
    )
    return made if progress.growing is None else _with_file(render, made, progress.growing)


def _reload(
    hosted: bridge.HostedModel, progress: RenderProgress, needs: Needs
) -> Callable[[], None]:
    """A function that loads the weights again after new texts were encoded, beside what the render
    has allocated.
    """
    load = hosted.reload  # not the hosted model, which refers to the cache

    def reload() -> None:
        free = needs.temporary
        if progress.block is None:  # what stays from the first block on is not allocated yet
            free += needs.prompt + needs.held
        load(memory=free)

    return reload


def _with_file(render: HostRender, made: RenderResult, file: VideoFile) -> RenderResult:
    """The result with its file, which is noted beside the stored blocks, or with why there is
    none.
    """
    # without stored blocks the latents would be lost with the error
    if is_disk_full(file.error) and render.request.runs is not None:
        raise HeadForcingError(
            f"{file.failure}; all blocks are kept: make room and press Run again"
        )
    if file.info is not None:
        link_file(render, made.job, file.info.path, render.vae)
    advice = vae.advice(render.vae, render.model.load_device, render.request.dtype)
    return replace(made, video=file.info, failure=file.failure, advice=advice)
