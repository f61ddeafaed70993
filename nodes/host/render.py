"""One video of a plan, made on a MODEL of ComfyUI: its job, and the file that grows meanwhile."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import comfy.model_management
import torch
from torch import Tensor

from ...headforcing_core.demo import assets
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import is_disk_full
from ...headforcing_core.hashing import SHORT
from ...headforcing_core.head_profiles.profile import HeadProfile
from ...headforcing_core.render.job import RenderJob, about_video
from ...headforcing_core.render.live_story import LiveEdits
from ...headforcing_core.render.options import RenderOptions
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.render.remedies import check_decoder
from ...headforcing_core.render.render import Listener, Place, Render, make_video
from ...headforcing_core.render.resources import COMFYUI, NO_DECODER, Needs, needs_of
from ...headforcing_core.render.result import RenderResult
from ...headforcing_core.render.sinks import KeptLatents, VideoFile
from ...headforcing_core.rollout.loop import Block
from ...headforcing_core.rollout.rows import Embeddings, Picture
from ...headforcing_core.timeline.timeline import Timeline
from ...headforcing_core.video.memory import DecoderMemory
from ...headforcing_core.video.restarts import FrameCodec
from . import bridge, folders, helpers, memory, vae
from .live_story import LiveStory
from .loaded_model import compute_dtype, inexact, wan_config
from .native_model import is_toy_model
from .player import growing
from .progress import RenderProgress
from .queued_graph import WHOLE, Part, skipped_video_frames
from .runs import link_file
from .vae import Given

FOUND_PROFILES = folders.user_folder("found_profiles")
RUNS = folders.runs_folder()


@dataclass(frozen=True)
class HostRender:
    """The inputs that all videos of a batch share.

    Attributes:
        embeds: the text embeddings of the timeline's texts, by text.
        start: what the videos begin with; its latents are used in turn.
        pictures: those that prompts can name, see `pictures_of`.
        runs, found_profiles: as for `RenderJob`.
        vae: decodes blocks as they are finished, to a file of that prefix; None decodes nothing.
        hidden: the hidden inputs of the node, whose graph the file carries.
        weights: the fingerprint of the model's, by which stored blocks and roles are known again.
        story: asked for other prompts during the render.
        part: of each video that is made and decoded.
    """

    model: Any
    options: RenderOptions
    timeline: Timeline
    embeds: Embeddings
    start: Given = Given()
    runs: Path | None = None
    found_profiles: Path | None = None
    vae: Any = None
    filename_prefix: str = ""
    hidden: Any = None
    decode_in_background: bool = False
    weights: str = ""
    story: LiveStory | None = None
    part: Part = WHOLE
    pictures: Mapping[str, Picture] = field(default_factory=dict)

    def plan(self, profile: HeadProfile | None = None) -> RenderPlan:
        """The checked render; `profile` in place of the one that was asked for."""
        start_frames = 0 if self.start.latents is None else self.start.latents.shape[1]
        return self.options.plan(wan_config(self.model), self.timeline, start_frames, profile)

    def planned(self) -> RenderPlan:
        """The checked render with roles that an earlier one has found."""
        return self.job(self.plan()).take_found_roles(self.plan)

    def job(self, plan: RenderPlan, video: int = 0) -> RenderJob:
        """One video of a plan."""
        inner, options, start = self.model.model, self.options, None
        if self.start.latents is not None:
            start = _to_model(inner, self.start.latents[video % len(self.start.latents)])
        about = about_video(plan, options.method_name, options.seed, type(inner.latent_format).__name__)
        about |= {} if self.story is None else self.story.about()
        found = {"draft": self.part.draft, "inexact": inexact(self.model), "start": self.start.about}
        about |= {name: value for name, value in found.items() if value}
        return RenderJob(
            plan,
            self.embeds,
            self.weights,
            compute_dtype(self.model),
            video,
            start,
            self.start.key,
            codec=None if self.vae is None else ModelCodec.of(inner, self.vae),
            runs=self.runs,
            state_seconds=options.state_seconds,
            found_profiles=self.found_profiles,
            until=self.part.until(plan) if self.part.until_seconds else None,
            about=about,
            pictures={
                name: replace(shown, latents=_to_model(inner, shown.latents)) for name, shown in self.pictures.items()
            },
        )

    def video_tags(self, about: Mapping[str, Any]) -> dict[str, str]:
        """The tags of the file, from what is noted `about` the video."""
        tags = {} if self.hidden is None else helpers.graph_tags(self.hidden)
        return tags | (helpers.video_tags(about) if self.part == WHOLE else {})

    def retold(self, made: RenderResult) -> HostRender:
        """The same for the next videos, with the story that `made` ended with."""
        timeline = made.plan.timeline
        options = replace(self.options, seconds=timeline.seconds)
        return replace(self, options=options, timeline=timeline, embeds=made.embeds)

    def decoder(self, plan: RenderPlan) -> DecoderMemory:
        """Bytes that decoding takes where the model samples."""
        if self.vae is None or self.vae.device != self.model.load_device:
            return NO_DECODER
        return vae.decoder_memory(self.vae, plan.block_shape[-2:])

    def needs(self, plan: RenderPlan) -> Needs:
        """Bytes that a video takes where the model samples, besides all weights."""
        return needs_of(plan, compute_dtype(self.model), 0, decoder=self.decoder(plan))

    def check_needs(self, plan: RenderPlan, videos: int = 1) -> Needs:
        """Estimate what that many videos take; refuses what cannot be rendered or cannot fit on the device."""
        model = self.model
        if is_toy_model(model) and (plan.width, plan.height) != assets.SIZE:
            wanted = "x".join(map(str, assets.SIZE))
            raise HeadForcingError(f"the demo model makes videos of {wanted} only, got {plan.width}x{plan.height}")
        if self.vae is not None:
            vae.check_vae(self.vae, plan.config.latents)
            if self.vae.device not in (model.load_device, torch.device("cpu")):
                taken, size = vae.decoder_memory(self.vae, plan.block_shape[-2:]), f"{plan.width}x{plan.height}"
                check_decoder(taken, size, memory.room_on(self.vae.patcher))
        return self.job(plan).check_needs(
            int(model.model_size()),
            memory.room_on(model),
            replace(COMFYUI, streams_weights=model.load_device.type != "cpu"),
            encodes=self.vae is not None,
            remedy="connect the Wan 2.1 VAE to the sampler",
            decoder=self.decoder(plan),
            writes_video=self.vae is not None,
            videos=videos,
            finished_blocks=sum(self.job(plan, video).finished_blocks for video in range(videos)),
        )


@dataclass(frozen=True)
class ModelCodec(FrameCodec):
    """A VAE for latents as `model` sees them."""

    model: Any = None

    @classmethod
    def of(cls, model: Any, used: Any) -> ModelCodec:
        codec = vae.codec_of(used)
        return cls(codec.new_decoder, codec.network, codec.encode, codec.dtype, model)

    def reencode(self, latents: Tensor) -> Tensor:
        return _to_model(self.model, super().reencode(_to_latent(self.model, latents)).to(latents))


def _to_model(model: Any, latents: Tensor) -> Tensor:
    """`[frames, 16, h, w]` as a LATENT holds them to the same as the model sees them."""
    return model.process_latent_in(latents.transpose(0, 1)[None])[0].transpose(0, 1)


def _to_latent(model: Any, latents: Tensor) -> Tensor:
    """`[frames, 16, h, w]` as the model sees them to the same as a LATENT holds them."""
    return model.process_latent_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)


class GrowingVideo(VideoFile):
    """Decodes blocks as they are finished and writes them to a file in the output folder that plays at any time.

    A decoder or a disk that fails ends the video, not the sampling: the latents are what took the time. Decodes in a
    thread of its own, if it is asked for, where the VAE is on another GPU than the model: on the same one they would
    take turns, and ComfyUI's weight streaming is not made for two threads.

    Attributes:
        growing: the file that grows; set when the render begins. The same video made again replaces it.
        is_disk_full: whether it ended early because there was no space left.
    """

    passes = (comfy.model_management.InterruptProcessingException,)

    def __init__(self, render: HostRender, job: RenderJob):
        used, plan, device = render.vae, job.plan, render.model.load_device
        vae.check_vae(used)
        self.render, self.name, self.first = render, job.keys[-1][:8], render.part.first(plan)
        self.id = uuid.uuid4().hex  # a render that goes on writes the file of that name from its beginning
        self.growing: folders.OutputFile
        self.is_disk_full = False
        self._about: Mapping[str, Any] = job.about
        shares_device = used.device == device and device.type != "cpu"
        super().__init__(
            None,  # see `claim`
            plan,
            lambda: vae.codec_of(used).decoder(plan.restart_frames),
            render.video_tags(job.about),
            background=used.device if render.decode_in_background and not shares_device else None,
            losable=True,
            while_waiting=comfy.model_management.throw_exception_if_processing_interrupted,
        )

    @property
    def shown(self) -> dict[str, Any]:
        """The growing file for the player in the editor, see `player.growing`.

        None of it before the first video frame is written: until then a file of that name is that of an earlier render.
        """
        return growing(self.growing, self.id) | ({} if self.video.video_frames else {"bytes": 0})

    def claim(self, stack: ExitStack) -> tuple[Path, Path]:
        size = self.plan.width, self.plan.height
        self.growing = stack.enter_context(folders.growing_file(self.render.filename_prefix, self.name, *size))
        return self.growing.path, self.growing.path  # until it gets its number

    def __exit__(self, *error: Any) -> None:
        with suppress(Exception):  # something else ended the render already
            super().__exit__(*error)

    def tags_of(self, about: Mapping[str, Any]) -> dict[str, str]:
        self._about = about
        return self.render.video_tags(about)

    def begin(self, render: Render) -> None:
        self._end_with(self.plan)

    def change(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        super().change(plan, about)
        self._attempt(lambda: self._end_with(plan))

    def add(self, block: Block) -> None:
        if block.index >= self.first:
            super().add(block)

    def to_decoder(self, latents: Tensor) -> Tensor:
        return _to_latent(self.render.model.model, latents)

    def sentence(self, error: Exception) -> str:
        self.is_disk_full = is_disk_full(error)
        if self.is_disk_full:
            return f"No space left on the disk for output/{self.growing.label}"
        return super().sentence(error).replace(str(folders.output_folder()), "output")

    def complete(self) -> None:
        self.video.metadata = self.render.video_tags(self._about)  # whose story is newer than at `change`
        # numbered now, not at the beginning: others may have come since
        with folders.output_file(self.render.filename_prefix, ".mp4", self.plan.width, self.plan.height) as file:
            self.video.path = file.path
            super().complete()

    def _end_with(self, plan: RenderPlan) -> None:
        self.video.end_after(plan.video_frames - skipped_video_frames(plan, self.first))


def sample(render: HostRender, plan: RenderPlan, video: int, progress: RenderProgress) -> RenderResult:
    """Make one video of a plan; the result has its latents as a LATENT holds them.

    Raises HeadForcingError where the video file found no space while all blocks were stored; says on the node what is
    kept when something ends the render early.
    """
    needs = render.needs(plan)
    try:
        with memory.explained(needs, kept=render.runs is not None):
            return _sample(render, plan, video, progress, needs)
    except BaseException:  # a cancel is no Exception in newer versions
        progress.stopped()
        raise


def _sample(render: HostRender, plan: RenderPlan, video: int, progress: RenderProgress, needs: Needs) -> RenderResult:
    begun, job = time.perf_counter(), render.job(plan, video)
    kept, results = KeptLatents(), list[RenderResult]()
    listeners: list[Listener] = [progress, kept]
    if render.vae is not None:
        progress.growing = GrowingVideo(render, job)
        listeners.append(progress.growing)

    def missing() -> int:
        """Memory that is not allocated: before the first block is made, also what stays afterwards."""
        return needs.temporary + (0 if kept.blocks else needs.prompt + needs.held)

    def body(hosted: bridge.HostedModel, device: torch.device) -> None:
        attention = hosted.attention.or_better(job.dtype, device, plan.shape)
        if render.story is not None:
            load = hosted.reload  # not the hosted model, which refers to the cache
            render.story.reload = lambda: load(memory=missing())
            listeners.append(LiveEdits(render.story))
        results.append(make_video(job, hosted, Place(device, attention), listeners))

    also = () if render.vae is None else [render.vae.patcher]
    one_pass = (plan.frames_per_pass, *plan.block_shape[1:])
    bridge.host(render.model, job.script.embedding(0), plan.schedule, one_pass, needs.working, body, also)
    latents = _to_latent(render.model.model, torch.cat(kept.blocks)).to(comfy.model_management.intermediate_device())
    made = replace(results[0], latents=latents, seconds=time.perf_counter() - begun)
    if (file := progress.growing) is None:
        return made
    if file.is_disk_full and render.runs is not None:  # else the latents would be lost with the error
        raise HeadForcingError(f"{file.failure}; all blocks are kept: make room and press Run again")
    if file.info is not None and render.runs is not None and not render.part.first(made.plan):
        told = render.retold(made).job(made.plan, video)
        link_file(render.runs / told.setup[:SHORT], told.keys[-1], file.info.path)
    return replace(made, video=file.info, failure=file.failure)
