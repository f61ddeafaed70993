"""One video of a plan, made on a MODEL of ComfyUI."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...headforcing_core.cache.memory import MemoryEvent
from ...headforcing_core.drift.latents import RunReport
from ...headforcing_core.head_profiles.profile import HeadProfile
from ...headforcing_core.render import block_keys
from ...headforcing_core.render.block_keys import setup_hash, video_keys
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.render.provenance import attention_name
from ...headforcing_core.render.video_rollout import VideoRollout
from ...headforcing_core.rollout.loop import Block
from ...headforcing_core.runs.folder import RunFolder
from . import folders, helpers, vae
from .bridge import HostedModel, compute_dtype, fingerprint, host, wan_config
from .growing_video import GrowingVideo


@dataclass(frozen=True)
class RenderJob:
    """What all videos of a batch are made from and with.

    Attributes:
        embeds: the plan's text embeddings, see `RenderPlan.embeddings`.
        start_latents: `[videos, frames, 16, h, w]` as a LATENT holds them; used in turn.
        runs: folder for finished blocks; None keeps nothing.
        state_seconds: how often the cache is stored there; 0 never.
        about: what to note there.
        vae: decodes blocks as they are finished, to a file of that prefix with those tags; None decodes nothing.
    """

    model: Any
    embeds: Sequence[Tensor]
    seed: int
    start_latents: Tensor | None = None
    runs: Path | None = None
    state_seconds: float = 0.0
    about: dict[str, Any] = field(default_factory=dict)
    vae: Any = None
    filename_prefix: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    decode_in_background: bool = False

    def start(self, video: int) -> Tensor | None:
        """The start frames of one video `[frames, 16, h, w]`, as the model sees them."""
        if self.start_latents is None:
            return None
        latents = self.start_latents[video % len(self.start_latents)]
        return self.model.model.process_latent_in(latents.transpose(0, 1)[None])[0].transpose(0, 1)

    def keys(self, plan: RenderPlan, video: int) -> tuple[str, list[str]]:
        """The hash of the setup of one video, and the key of each of its blocks."""
        dtype, weights = compute_dtype(self.model), fingerprint(self.model)
        setup = setup_hash(plan, weights, self.seed, video, dtype, self.start(video))
        autoencoder = vae.codec_of(self.vae).fingerprint() if plan.restart_frames else ""
        return setup, video_keys(plan, setup, self.embeds, autoencoder)

    def reencode(self, latents: Tensor) -> Tensor:
        """The last picture of `[frames, 16, h, w]`, as the model sees them, as the first frame of a video."""
        inner, codec = self.model.model, vae.codec_of(self.vae)
        outside = inner.process_latent_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)
        frame = codec.reencode(outside).to(latents)
        return inner.process_latent_in(frame.transpose(0, 1)[None])[0].transpose(0, 1)

    def finished(self, plan: RenderPlan, video: int) -> int:
        """How many blocks of a video are in the folder of runs. One that began by finding roles goes on so."""
        return 0 if self.runs is None else block_keys.finished_blocks(self.runs, *self.keys(plan, video))


class Watcher(Protocol):
    """Somebody who follows a render; may raise to stop it."""

    def begin(self, rollout: VideoRollout, growing: GrowingVideo | None) -> None:
        """Called before the first block, with what is reused and with the file it is decoded to."""

    def __call__(self, block: int, step: int, latents: Tensor | None) -> None:
        """Called as `rollout.StepCallback`."""

    def finished(self, block: Block) -> None:
        """Called after each block."""


@dataclass(frozen=True)
class Sampled:
    """A video's latents `[frames, 16, h, w]` as a LATENT holds them, start latents included, and what happened.

    `seconds` is wall time, decoding included; `seconds_per_block` leaves it out. `saved` is the video file; where there
    is none, `failure` says why, or nothing was to be decoded. `problems` names what was damaged in the run folder,
    `attention` the backend.
    """

    latents: Tensor
    events: list[MemoryEvent]
    found_profile: HeadProfile | None
    reused_blocks: int
    found_now: bool
    report: RunReport
    seconds: float
    saved: folders.OutputFile | None = None
    failure: str | None = None
    seconds_per_block: float | None = None
    problems: Sequence[str] = ()
    attention: str = ""


def sample(job: RenderJob, plan: RenderPlan, video: int, watcher: Watcher) -> Sampled:
    """Make one video of a plan. Each block is stored, then decoded, before the next one is begun."""
    begun = time.perf_counter()
    model, start = job.model, job.start(video)
    dtype, (setup, keys) = compute_dtype(model), job.keys(plan, video)
    growing = None
    if job.vae is not None:
        to_latent = model.model.process_latent_out
        growing = GrowingVideo(
            job.vae,
            job.filename_prefix,
            plan,
            to_latent,
            keys[-1][:8],
            {**job.tags, **helpers.video_tags(job.about)},
            model.load_device,
            job.decode_in_background,
        )
    done: list[tuple[VideoRollout, str]] = []
    block_seconds: list[float | None] = []

    def body(hosted: HostedModel, device: torch.device) -> Tensor:
        with ExitStack() as stack:
            attention = hosted.attention.or_better(dtype, device, wan_config(model).head_dim)
            options: dict[str, Any] = {"dtype": dtype, "device": device, "attention": attention, "start_latents": start}
            options["reencode"] = None if job.vae is None else job.reencode
            name = attention_name(attention, "auto", device, dtype, wan_config(model).head_dim)
            if job.runs is not None:
                about = {**job.about, "attention": name}
                run = stack.enter_context(RunFolder(job.runs, setup, about))
                run.save_video(keys, about)
                options |= {"run": run, "keys": keys, "state_seconds": job.state_seconds}
            rollout = VideoRollout(plan, job.seed, video, **options)
            if growing is not None:
                stack.enter_context(growing)
            watcher.begin(rollout, growing)
            blocks = [] if start is None else [start.to(device)]
            for latents in blocks:
                if growing is not None:
                    growing.add(latents)
            for block in rollout.blocks(hosted, watcher):
                blocks.append(block.latents.to(device))
                watcher.finished(block)
                if growing is not None:
                    growing.add(blocks[-1])
            if growing is not None:
                growing.finish()
            done.append((rollout, name))
            block_seconds.append(rollout.seconds_per_block)
        return torch.cat(blocks).transpose(0, 1)[None]

    also = () if growing is None else [job.vae.patcher]
    extra_bytes = plan.cache_bytes(dtype) + (0 if growing is None else growing.decode_bytes)
    one_pass = (plan.frames_per_pass, *plan.block_shape[1:])
    latents = host(model, job.embeds, plan.schedule, one_pass, extra_bytes, body, also)[0].transpose(0, 1)
    ((rollout, attention),), (seconds_per_block,) = done, block_seconds
    saved, failure = (None, None) if growing is None else (growing.saved, growing.failure)
    return Sampled(
        latents,
        rollout.events,
        rollout.found_profile,
        rollout.reused,
        rollout.found_now,
        rollout.report(),
        time.perf_counter() - begun,
        saved,
        failure,
        seconds_per_block,
        rollout.problems,
        attention,
    )
