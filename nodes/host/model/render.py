"""One video of a plan, made on a MODEL of ComfyUI: its job, and the file that grows meanwhile."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import comfy.model_management
import torch
from torch import Tensor

from ....headforcing_core.demo import assets
from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import is_disk_full
from ....headforcing_core.hashing import digest
from ....headforcing_core.head_profiles.profile import default_profile
from ....headforcing_core.model.wan import WanConfig
from ....headforcing_core.plan.options import RenderOptions
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.plan.remedies import check_decoder
from ....headforcing_core.plan.request import RenderJob, RenderRequest, StartLatents
from ....headforcing_core.plan.resources import COMFYUI, NO_DECODER, Needs, needs_of
from ....headforcing_core.render.live_story import LiveEdits
from ....headforcing_core.render.render import Listener, Place, Render, make_video
from ....headforcing_core.render.result import RenderResult
from ....headforcing_core.render.sinks import KeptLatents, VideoFile
from ....headforcing_core.rollout.loop import Block
from ....headforcing_core.rollout.rows import Embeddings, Picture
from ....headforcing_core.timeline.timeline import Timeline
from ....headforcing_core.video.memory import DecoderMemory
from ....headforcing_core.video.pictures import PictureSheets
from ....headforcing_core.video.restarts import FrameCodec
from ....headforcing_core.video.soundtrack import Soundtrack
from ....headforcing_core.video.writer import VideoInfo
from ..browser.live_story import LiveStory
from ..browser.player import growing
from ..browser.progress import RenderProgress
from ..browser.runs import link_file, linked_file
from ..graph import folders, video_files
from ..graph.part import WHOLE, Part, skipped_video_frames
from . import bridge, memory, vae
from .loaded_model import NO_NAME, ModelName, compute_dtype, inexact, wan_config
from .native_model import is_toy_model

FOUND_PROFILES = folders.user_folder("found_profiles")
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
    notes: Mapping[str, Any] = MappingProxyType({}),
    soundtrack: Soundtrack | None = None,
) -> RenderRequest:
    """The request of a render with a MODEL of ComfyUI.

    Args:
        start, pictures: with latents as a LATENT holds them.
        named: the model's name, by which stored blocks and roles are known again.
        resume: read and store finished blocks.
        notes: more notes on the videos.
        soundtrack: their sound.
    """
    inner = model.model
    if not named.is_known:
        options = without_measuring(options, wan_config(model))
    if start is not None:
        start = replace(
            start, latents=torch.stack([_to_model(inner, video) for video in start.latents])
        )
    about = dict(notes)
    if part.draft:
        about["draft"] = True
    if lines := inexact(model):
        about["inexact"] = lines
    return RenderRequest(
        wan_config(model),
        options,
        timeline,
        embeds,
        start=start,
        pictures=model_pictures(model, pictures),
        dtype=compute_dtype(model),
        weights=named.weights,
        codec=None if vae is None else ModelCodec.of(inner, vae),
        runs=RUNS if resume and named.is_known else None,
        found_profiles=FOUND_PROFILES if named.is_known else None,
        until_seconds=part.until_seconds,
        soundtrack=soundtrack,
        latent_format=type(inner.latent_format).__name__,
        notes=about,
    )


def without_measuring(options: RenderOptions, config: WanConfig) -> RenderOptions:
    """The options with a bundled head profile in place of none, for a model whose measured roles
    could not be kept: each render would measure them again. The same if none fits.
    """
    if options.profile is not None or options.cache_policy.heads_by != "roles":
        return options
    try:
        bundled = default_profile(config.num_layers, config.num_heads, options.model_family)
    except HeadForcingError:
        return options
    return replace(options, profile=bundled)


def model_pictures(model: Any, pictures: Mapping[str, Picture]) -> dict[str, Picture]:
    """Pictures with latents as the MODEL sees them."""
    inner = model.model
    return {
        name: replace(picture, latents=_to_model(inner, picture.latents))
        for name, picture in pictures.items()
    }


@dataclass(frozen=True)
class HostRender:
    """A request with the MODEL that carries it out, and where its videos go.

    Attributes:
        vae: decodes blocks as they are finished, to a file of that prefix; None decodes nothing.
        hidden: the hidden inputs of the node, whose graph the file carries.
        story: asked for other prompts during the render.
        part: of each video that is made and decoded.
    """

    model: Any
    request: RenderRequest
    vae: Any = None
    filename_prefix: str = ""
    hidden: Any = None
    decode_in_background: bool = False
    story: LiveStory | None = None
    part: Part = WHOLE

    def video_tags(self, about: Mapping[str, Any]) -> dict[str, str]:
        """The tags of the file, from what is noted `about` the video."""
        tags: dict[str, str] = {}
        if self.hidden is not None:
            tags |= video_files.graph_tags(self.hidden)
        if self.part == WHOLE:
            tags |= video_files.video_tags(about)
        return tags

    def decoder(self, plan: RenderPlan) -> DecoderMemory:
        """Bytes that decoding takes on the device that samples."""
        if self.vae is None or self.vae.device != self.model.load_device:
            return NO_DECODER
        return vae.decoder_memory(self.vae, plan.block_shape[-2:])

    def needs(self, plan: RenderPlan) -> Needs:
        """Bytes that a video takes on the device that samples, besides all weights."""
        return needs_of(plan, self.request.dtype, 0, decoder=self.decoder(plan))

    def check_needs(self, plan: RenderPlan, videos: int = 1) -> Needs:
        """Estimate what that many videos take; refuses what cannot be rendered or cannot fit on the
        device.
        """
        model = self.model
        if is_toy_model(model) and (plan.width, plan.height) != assets.SIZE:
            wanted = "x".join(map(str, assets.SIZE))
            raise HeadForcingError(
                f"the demo model makes videos of {wanted} only, got {plan.width}x{plan.height}"
            )
        if self.vae is not None:
            vae.check_vae(self.vae, plan.config.latents)
            if self.vae.device not in (model.load_device, torch.device("cpu")):
                decoder = vae.decoder_memory(self.vae, plan.block_shape[-2:])
                check_decoder(
                    decoder, f"{plan.width}x{plan.height}", memory.room_on(self.vae.patcher)
                )
        return self.request.check_needs(
            plan,
            int(model.model_size()),
            memory.room_on(model),
            replace(COMFYUI, streams_weights=model.load_device.type != "cpu"),
            encodes=self.vae is not None,
            remedy="connect the Wan 2.1 VAE to the sampler",
            decoder=self.decoder(plan),
            writes_video=self.vae is not None,
            videos=videos,
            finished_blocks=sum(
                self.request.job(plan, video).finished_blocks for video in range(videos)
            ),
        )


@dataclass(frozen=True)
class ModelCodec(FrameCodec):
    """A VAE for latents as `model` sees them."""

    model: Any = None

    @classmethod
    def of(cls, model: Any, used: Any) -> ModelCodec:
        codec = vae.codec_of(used)
        return cls(codec.new_decoder, codec.network, codec.encode, codec.dtype, model=model)

    def reencode(self, latents: Tensor) -> Tensor:
        return _to_model(self.model, super().reencode(_to_latent(self.model, latents)).to(latents))


def _to_model(model: Any, latents: Tensor) -> Tensor:
    """`[frames, 16, h, w]` as a LATENT holds them to the same as the model sees them."""
    return model.process_latent_in(latents.transpose(0, 1)[None])[0].transpose(0, 1)


def _to_latent(model: Any, latents: Tensor) -> Tensor:
    """`[frames, 16, h, w]` as the model sees them to the same as a LATENT holds them."""
    return model.process_latent_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)


class GrowingVideo(VideoFile):
    """Decodes blocks as they are finished and writes them to a file in the output folder that plays
    at any time.

    A decoder or a disk that fails ends the video, not the sampling: the latents are what took the
    time. Decodes in a
    thread of its own, if it is asked for, where the VAE is on another GPU than the model: on the
    same one they would take turns, and ComfyUI's weight streaming is not made for two threads.

    Attributes:
        growing: the file that grows; set when the render begins. The same video made again replaces
            it.
        is_disk_full: whether it ended early because there was no space left.
    """

    passes = (comfy.model_management.InterruptProcessingException,)

    def __init__(self, render: HostRender, job: RenderJob):
        used = render.vae
        device = render.model.load_device
        vae.check_vae(used)
        self.render = render
        self.name = job.keys[-1][:8]
        self.first = render.part.first(job.plan)
        # a render that goes on writes the file of that name from its beginning
        self.id = uuid.uuid4().hex
        self.growing: folders.OutputFile
        self.sheets: PictureSheets | None = None
        self.is_disk_full = False
        shares_device = used.device == device and device.type != "cpu"
        super().__init__(
            None,  # see `claim`
            lambda plan: vae.codec_of(used).decoder(plan.restart_frames),
            background=used.device if render.decode_in_background and not shares_device else None,
            losable=True,
            while_waiting=comfy.model_management.throw_exception_if_processing_interrupted,
        )

    @property
    def shown(self) -> dict[str, Any]:
        """The growing file for the player in the editor, see `player.growing`.

        None of it before the first video frame is written: until then a file of that name is that
        of an earlier render.
        """
        has_sound = self.render.request.soundtrack is not None
        about = growing(self.growing, self.id, has_sound)
        if not self.video.video_frames:
            about["bytes"] = 0
        if self.sheets is not None and self.sheets.count:
            about["pictures"] = self.sheets.count
        return about

    def claim(self, stack: ExitStack, plan: RenderPlan) -> tuple[Path, Path]:
        file = folders.growing_file(self.render.filename_prefix, self.name, plan.width, plan.height)
        self.growing = stack.enter_context(file)
        return self.growing.path, self.growing.path  # until it gets its number

    def __exit__(self, *error: Any) -> None:
        with suppress(Exception):  # something else ended the render already
            super().__exit__(*error)

    def begin(self, render: Render) -> None:
        self._render = render
        super().begin(render)

    def tags(self, job: RenderJob) -> dict[str, str]:
        return self.render.video_tags(job.about)

    def length(self, plan: RenderPlan) -> int:
        return plan.video_frames - skipped_video_frames(plan, self.first)

    def pictures(self, plan: RenderPlan) -> PictureSheets | None:
        self.sheets = PictureSheets(folders.pictures_folder(), self.id, plan.timeline.clock.fps)
        return self.sheets

    def begins_at(self, plan: RenderPlan) -> float:
        skipped = skipped_video_frames(plan, self.first)
        return super().begins_at(plan) + skipped / plan.timeline.clock.fps

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
        job = self._render.job
        # the graph has been written anew since `change`
        self.video.settings = replace(self.video.settings, tags=self.tags(job))
        # numbered now, not at the beginning: others may have come since
        with folders.output_file(
            self.render.filename_prefix, ".mp4", job.plan.width, job.plan.height
        ) as file:
            self.video.settings = replace(self.video.settings, path=file.path)
            super().complete()


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
    begun = time.perf_counter()
    job = render.request.job(plan, video)
    kept = KeptLatents()
    results = list[RenderResult]()
    listeners: list[Listener] = [progress, kept]
    earlier = _earlier_file(render, job)
    if render.vae is not None and earlier is None:
        progress.growing = GrowingVideo(render, job)
        listeners.append(progress.growing)
    progress.earlier = earlier

    def missing() -> int:
        """Memory that is not allocated: before the first block is made, also what stays
        afterwards.
        """
        if kept.blocks:
            return needs.temporary
        return needs.temporary + needs.prompt + needs.held

    def body(hosted: bridge.HostedModel, device: torch.device) -> None:
        attention = hosted.attention.or_better(render.request.dtype, device, plan.shape)
        if render.story is not None and earlier is None:  # the file is that of the story as it was
            load = hosted.reload  # not the hosted model, which refers to the cache
            render.story.reload = lambda: load(memory=missing())
            listeners.append(LiveEdits(render.story))
        results.append(make_video(job, hosted, Place(device, attention), listeners))

    one_pass = (plan.frames_per_pass, *plan.block_shape[1:])
    bridge.host(
        render.model,
        job.script.embedding(0),
        plan.schedule,
        one_pass,
        memory=needs.working,
        body=body,
        also=[] if render.vae is None else [render.vae.patcher],
    )
    latents = _to_latent(render.model.model, torch.cat(kept.blocks)).to(
        comfy.model_management.intermediate_device()
    )
    made = replace(results[0], latents=latents, seconds=time.perf_counter() - begun)
    if earlier is not None:
        return replace(made, video=earlier)
    if (file := progress.growing) is None:
        return made
    made = replace(made, advice=vae.advice(render.vae, render.model.load_device))
    # else the latents would be lost with the error
    if file.is_disk_full and render.request.runs is not None:
        raise HeadForcingError(
            f"{file.failure}; all blocks are kept: make room and press Run again"
        )
    if file.info is not None and made.job.folder is not None and not file.first:
        link_file(made.job.folder, made.job.keys[-1], file.info.path, _file_key(render, made.job))
    return replace(made, video=file.info, failure=file.failure)


def _file_key(render: HostRender, job: RenderJob) -> str:
    """A hash of what the file of a take depends on: its blocks, the decoder, the length it is cut
    to, and the sound.
    """
    codec = render.request.codec
    assert codec is not None
    decoder = [type(render.vae.first_stage_model).__name__, codec.fingerprint()]
    soundtrack = render.request.soundtrack
    sound = [] if soundtrack is None else [soundtrack.identity]
    return digest(job.keys[-1], decoder, job.plan.video_frames, *sound)


def _earlier_file(render: HostRender, job: RenderJob) -> VideoInfo | None:
    """The file of a finished take that would be made again, byte for byte but for its graph; None
    to make one.
    """
    plan = job.plan
    if (
        render.vae is None
        or render.part != WHOLE
        or job.folder is None
        or job.finished_blocks < plan.new_blocks
    ):
        return None
    if render.story is not None and render.story.waits:
        return None
    path = linked_file(job.folder, job.keys[-1], _file_key(render, job))
    if path is None or not folders.has_prefix(
        path, render.filename_prefix, plan.width, plan.height
    ):
        return None
    seconds = plan.video_frames / plan.timeline.clock.fps
    return VideoInfo(path, plan.video_frames, seconds, width=plan.width, height=plan.height)
