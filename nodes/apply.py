"""Apply Head Forcing: the rollout as a SAMPLER, inside the native samplers of ComfyUI, with their
noise and sigmas.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import comfy.samplers
import torch
from comfy_api.latest import io
from torch import Tensor

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.plan.request import RenderJob
from ..headforcing_core.plan.resources import Needs
from ..headforcing_core.render.measured_roles import (
    Measuring,
    with_found_roles,
    with_measured_roles,
)
from ..headforcing_core.render.render import Listener, Place, make_video
from ..headforcing_core.render.result import RenderResult
from ..headforcing_core.render.sinks import KeptLatents
from ..headforcing_core.rollout.rows import Embeddings
from ..headforcing_core.timeline.timeline import Timeline
from .host.browser.progress import stop_where_asked
from .host.graph import schema
from .host.graph.conditioning import TIMELINE, Conditioning, check_parts, read_conditioning
from .host.graph.schema import HeadProfileType
from .host.model import memory
from .host.model.loaded_model import NO_NAME, ModelName, check_text_width, name_model, options_for
from .host.model.model_contents import check_contents, contents, used_options
from .host.render import bridge
from .host.render.host_render import HostRender
from .host.render.roles import roles_folders
from .host.render.sample import request_of
from .sampler_inputs import HeadForcingOptions, sampler_options

log = logging.getLogger(__name__)

Callback = Callable[[int, Tensor, Tensor, int], None]
"""Of a native sampler: gets a step, its prediction, its latents, and the number of steps."""


class ApplyHeadForcing(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingApply",
            "Apply Head Forcing",
            "sampling",
            aliases=(
                "SamplerCustomAdvanced, custom sampler, long video, infinite, autoregressive, self "
                "forcing"
            ),
            inputs=[
                io.Model.Input("model"),
                io.Conditioning.Input("positive"),
                HeadProfileType.Input("head_profile", optional=True),
                HeadForcingOptions.Input("options", optional=True),
            ],
            outputs={
                "model": io.Model,
                "sampler": io.Sampler,
                "sigmas": io.Sigmas,
                "length": io.Int,
            },
        )

    @classmethod
    @schema.shows_errors
    def execute(
        cls,
        model: Any,
        positive: Conditioning,
        head_profile: Any = None,
        options: Fields | None = None,
    ) -> io.NodeOutput:
        chosen, lines = options_for(model, sampler_options({"head_profile": head_profile}, options))
        for line in lines:  # the node has no report
            log.warning("Apply Head Forcing: %s", line)
        read = read_conditioning(model, positive, chosen)
        if read.timeline.references:
            raise HeadForcingError(
                "Apply Head Forcing has no vae that could encode pictures: use Head Forcing "
                "Sampler, or disconnect references from Prompt Timeline"
            )
        request = NativeRequest(chosen, read.timeline, read.embeds)
        return io.NodeOutput(
            clone_for_rollout(model, request),
            RolloutSampler(request),
            request.sigmas(),
            request.length(),
        )


@dataclass(frozen=True)
class NativeRequest:
    """Settings of *Apply Head Forcing*; size, length, seed and noise levels come from the native
    nodes later.
    """

    options: RenderOptions
    timeline: Timeline
    embeds: Embeddings

    def sigmas(self) -> Tensor:
        """The noise levels of the method or the model family as SIGMAS, highest first, 0 at the
        end.
        """
        return torch.tensor([*self.options.schedule.sigmas, 0.0])

    def length(self) -> int:
        """Video frames of the blocks that the timeline fills: the `length` of the empty latent."""
        clock = self.options.schedule.clock
        return clock.video_frames(clock.blocks_for(self.timeline.seconds))

    def render(
        self,
        model: Any,
        shape: Sequence[int],
        sigmas: Tensor | None = None,
        seed: int = 0,
        named: ModelName = NO_NAME,
    ) -> HostRender:
        """The render of latents `[videos, 16, frames, h, w]` with these noise levels; None: those
        of `sigmas`.
        """
        clock = self.options.schedule.clock
        blocks, rest = divmod(shape[2], clock.frames_per_block)
        if rest:
            near = [str(clock.video_frames(n)) for n in (blocks, blocks + 1) if n]
            raise HeadForcingError(
                f"latent_image: its {shape[2]} latent frames are no whole number of blocks of "
                f"{clock.frames_per_block}; set the empty latent's length to {' or '.join(near)}"
            )
        width, height = self.options.schedule.latents.pixels(shape)
        options = replace(
            self.options,
            width=width,
            height=height,
            seed=seed,
            seconds=clock.start_seconds(blocks),
        )
        if sigmas is not None and not torch.equal(sigmas.cpu().float(), self.sigmas()):
            options = replace(options, sigmas=", ".join(map(repr, sigmas.tolist())))
        request = request_of(model, options, self.timeline, self.embeds, named=named)
        return HostRender(model, request, keeps_roles=named.is_known)


def clone_for_rollout(model: Any, request: NativeRequest) -> Any:
    """A clone of a MODEL for `RolloutSampler`: ComfyUI reserves memory for a block and caches, not
    for all blocks.
    """

    def prepare(executor: Any, patcher: Any, noise_shape: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            render = request.render(patcher, noise_shape)
            plan = render.request.plan()
        except ValueError:  # told when sampling begins, if it is with `RolloutSampler`
            return executor(patcher, noise_shape, *args, **kwargs)
        one_pass = (1, noise_shape[1], plan.largest_pass, *noise_shape[3:])
        return memory.load_with_room(
            executor, patcher, one_pass, *args, memory=render.needs(plan).working, **kwargs
        )

    return bridge.hosting(model, prepare)


class RolloutSampler(comfy.samplers.Sampler):
    """A SAMPLER that makes a video block by block; keeps no model.

    Of the native noise only its seed is used: as in Head Forcing Sampler, the noise of each block
    and step is a function of the seed and their numbers, so that the same seed gives the same
    latents.
    """

    def __init__(self, request: NativeRequest):
        self.request = request

    @schema.shows_errors
    def sample(
        self,
        model_wrap: Any,
        sigmas: Tensor,
        extra_args: Fields,
        callback: Callback | None,
        noise: Tensor,
        latent_image: Tensor | None = None,
        denoise_mask: Tensor | None = None,
        disable_pbar: bool = False,
    ) -> Tensor:
        """Called by a guider: latents as the model sees them, in the shape of `noise [videos, 16,
        frames, h, w]`.
        """
        _check_latent(
            noise, self.request.options.schedule.latents.channels, latent_image, denoise_mask
        )
        _check_guider(model_wrap, extra_args, self.request)
        if float(sigmas[-1]) != 0:
            raise HeadForcingError(
                f"sigmas must end with 0, got {sigmas.tolist()[-1]:g}; add it as the last value"
            )
        model = model_wrap.model_patcher
        check_text_width(model, self.request.embeds.values())
        check_contents(model)
        named = name_model(model)
        seed = extra_args.get("seed") or 0
        render = self.request.render(model, noise.shape, sigmas, seed=seed, named=named)
        job = with_found_roles(render.request.job(), roles_folders(render))
        if job.plan.vae_use is not None:
            raise HeadForcingError(
                f"method {render.request.options.method_name} {job.plan.vae_use.does}; use Head "
                "Forcing Sampler with a vae"
            )
        needs = render.check_needs(job.plan, len(noise))
        # what runs in each step is read there, from a copy that ComfyUI made for this sampling
        model_wrap.model_options = used_options(model_wrap.model_options)
        # there is no report to put it in, here and below
        for line in contents(model).lines(around=False):
            log.warning("Apply Head Forcing: %s", line)

        def hosted() -> bridge.HostedModel:
            return bridge.HostedModel(model_wrap, extra_args, noise.device)

        with memory.explained(needs, kept=False):
            job = _with_roles(job, hosted(), needs, roles_folders(render))
            progress = _Progress(callback, job.plan.steps * len(noise))
            videos = []
            for video in range(len(noise)):
                kept = KeptLatents()
                _make(replace(job, video=video), hosted(), noise.device, [progress, kept])
                videos.append(torch.cat(kept.blocks).transpose(0, 1))  # in main memory
        samples = torch.stack(videos).to(noise.device)  # where ComfyUI's sampler goes on with them
        progress.complete(samples)
        return samples


def _with_roles(
    job: RenderJob, hosted: bridge.HostedModel, needs: Needs, folders: Sequence[Path]
) -> RenderJob:
    """The job with the roles of the model's heads, measured now if they are not known."""
    attention = hosted.attention.or_better(job.request.dtype, hosted.device, job.plan.shape)
    measuring = Measuring(
        hosted.device,
        attention,
        needs,
        folders,
        on_step=stop_where_asked,
        while_waiting=stop_where_asked,
    )
    job, found = with_measured_roles(job, hosted, measuring)
    if found is not None:
        log.info("Apply Head Forcing: %s", found.line)
    return job


def _make(
    job: RenderJob, hosted: bridge.HostedModel, device: torch.device, listeners: Sequence[Listener]
) -> RenderResult:
    """Make one video, and log what a report would say of it."""
    attention = hosted.attention.or_better(job.request.dtype, device, job.plan.shape)
    made = make_video(job, hosted, Place(device, attention), listeners)
    for line in [*(recall.describe() for recall in made.recalls), made.kernels]:
        if line:
            log.info("Apply Head Forcing, video %d: %s", job.video + 1, line)
    return made


@dataclass
class _Progress(Listener):
    """Progress and previews through the callback of a native sampler; stops within one model call
    on cancel.
    """

    callback: Callback | None
    steps: int
    done: int = 0

    def step(self, block: int, step: int, latents: Tensor | None) -> None:
        stop_where_asked()
        if latents is None:
            return
        self.done += 1
        if self.done < self.steps:  # the last call gives the whole video
            self._call(latents.transpose(0, 1)[None])

    def complete(self, samples: Tensor) -> None:
        """Hand over the finished latents, which become the sampler's second output."""
        self.done = self.steps
        self._call(samples)

    def _call(self, latents: Tensor) -> None:
        if self.callback is not None:
            self.callback(self.done - 1, latents, latents, self.steps)


def _check_latent(
    noise: Tensor, channels: int, latent_image: Tensor | None, denoise_mask: Tensor | None
) -> None:
    if denoise_mask is not None:
        raise HeadForcingError(
            "latent_image: Head Forcing makes whole video frames; remove the noise mask"
        )
    if noise.ndim != 5 or noise.shape[1] != channels:
        raise HeadForcingError(
            f"latent_image: expected an empty video latent of the model's [videos, {channels}, "
            f"frames, h, w], got {list(noise.shape)}"
        )
    if latent_image is not None and latent_image.any():
        raise HeadForcingError(
            "latent_image must be empty; to continue a video use Head Forcing Sampler with "
            "start_frames"
        )
    if not noise.any():
        raise HeadForcingError("noise: connect RandomNoise; its seed sets the noise of every block")


def _check_guider(guider: Any, extra_args: Fields, request: NativeRequest) -> None:
    """Refuse what a rollout would not do: guidance, another model or conditioning than those of the
    node.
    """
    patcher = getattr(guider, "model_patcher", None)
    conds = getattr(guider, "conds", {})
    if patcher is None or not bridge.is_hosting(patcher):
        raise HeadForcingError("guider: connect the model of Apply Head Forcing to it")
    if (
        not math.isclose(getattr(guider, "cfg", 1.0), 1.0)
        or not conds.keys() <= {"positive", "negative"}
        or extra_args["model_options"].get("disable_cfg1_optimization")
    ):
        raise HeadForcingError(
            "guider: Head Forcing runs without guidance and negative prompt; use BasicGuider, or "
            "CFGGuider at cfg 1"
        )
    positive = conds.get("positive", [])
    text = positive[0].get("cross_attn") if len(positive) == 1 else None
    expected = request.embeds[request.timeline.texts[0]]
    same = (
        text is not None
        and text.shape[1:] == expected.shape
        and torch.equal(text[0].to(expected), expected)
    )
    if not same or positive[0].get(TIMELINE, {}).get("timeline") not in (None, request.timeline):
        raise HeadForcingError(
            "guider: connect the same conditioning to it as to Apply Head Forcing"
        )
    check_parts(positive[0], "guider: its conditioning")
