"""One video of a plan, made on a MODEL of ComfyUI, and what it begins with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import comfy.model_management
import torch
from torch import Tensor

from ...headforcing_core.demo import assets
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.hashing import SHORT
from ...headforcing_core.head_profiles.profile import HeadProfile
from ...headforcing_core.model.latents import WAN21
from ...headforcing_core.names import DEFAULT_START_SECONDS
from ...headforcing_core.render.job import RenderJob, about_video
from ...headforcing_core.render.live_story import LiveEdits
from ...headforcing_core.render.options import RenderOptions
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.render.remedies import check_decoder
from ...headforcing_core.render.render import Listener, Place, make_video
from ...headforcing_core.render.resources import COMFYUI, NO_DECODER, Needs, needs_of
from ...headforcing_core.render.result import RenderResult
from ...headforcing_core.render.sinks import KeptLatents
from ...headforcing_core.render.start import Start, image_frames
from ...headforcing_core.rollout.rows import Embeddings, Picture
from ...headforcing_core.timeline.timeline import Timeline
from ...headforcing_core.video.memory import DecoderMemory
from ...headforcing_core.video.restarts import FrameCodec
from ...headforcing_core.video.section import read_section
from . import bridge, checks, folders, helpers, native_model, vae
from .conditioning import node_of
from .live_story import LiveStory
from .loaded_model import inexact
from .player import GrowingVideo
from .progress import RenderProgress
from .queued_graph import WHOLE, Part
from .runs import link_file

STARTS = ("start_frames", "start_image", "start_video")


@dataclass(frozen=True)
class Given:
    """The start of a render.

    Attributes:
        latents: `[videos, frames, 16, h, w]` as a LATENT holds them; None: it begins with noise.
        key: as for `RenderJob.start_key`.
        about: what it is, where it was encoded here.
        notes: lines for the report.
    """

    latents: Tensor | None = None
    key: str = ""
    about: str = ""
    notes: tuple[str, ...] = ()


def start_of(options: RenderOptions, inputs: dict[str, Any], used: Any) -> Given:
    """The one of `STARTS` that is connected, the others being None; `used` is the VAE."""
    connected = [name for name in STARTS if inputs[name] is not None]
    if len(connected) > 1:
        raise HeadForcingError(f"{' and '.join(connected)}: a video begins with one of these; disconnect the others")
    if not connected:
        return Given()
    (name,), value = connected, inputs[connected[0]]
    if name == "start_frames":
        latents, dropped = checks.start_latents(value, options.schedule)
        note = f"start_frames: left out the last {dropped} latent frames, which do not fill a block"
        return Given(latents, notes=(note,) if dropped else ())
    start = _image(options, value) if name == "start_image" else _video(options, value)
    _check_encoder(options, used, name)
    latents = used.encode(start.video_frames).transpose(1, 2)
    return Given(latents, start.key(vae.codec_of(used)), start.about, (f"starts with {start.about}",))


def pictures_of(options: RenderOptions, positive: list[Any], used: Any) -> dict[str, Picture]:
    """The pictures that the prompts of a CONDITIONING can name, with latents as a LATENT holds them."""
    node, shown = node_of(positive), {}
    for name, image in ({} if node is None else node.references).items():
        _check_encoder(options, used, "references")
        size, frames = (options.width, options.height), options.schedule.frames_per_block
        start = Start.image(image, size, f"the picture @{name}", frames)
        shown[name] = Picture(used.encode(start.video_frames)[0].transpose(0, 1), start.key(vae.codec_of(used)))
    return shown


def _check_encoder(options: RenderOptions, used: Any, name: str) -> None:
    """Refuse to encode an input without the VAE of the model."""
    if used is None or vae.is_draft(used):
        which = "2.1" if options.schedule.latents is WAN21 else "2.2"
        raise HeadForcingError(f"{name} is encoded by the Wan {which} VAE: connect it to vae")
    vae.check_vae(used, options.schedule.latents)


def _image(options: RenderOptions, images: Tensor) -> Start:
    """An IMAGE `[1, h, w, 1, 3 or 4 channels]`."""
    instead = "connect a short video to start_video"
    frames = image_frames(options.cache_policy, options.schedule, options.model_family, instead)
    picture = one_image(images, "start_image", f", or {instead}")
    return Start.image(picture, (options.width, options.height), "the start image", frames)


def one_image(images: Tensor, name: str, instead: str = "") -> Tensor:
    """The picture `[h, w, 3]` of an IMAGE of one; transparency is ignored, as ComfyUI does."""
    if len(images) != 1:
        raise HeadForcingError(
            f"{name}: expected one image, got {len(images)}; choose one (Get Image from Batch){instead}"
        )
    picture = images[0, ..., :3] if images.shape[-1] >= 3 else images[0, ..., :1].repeat(1, 1, 3)
    return picture.float().cpu()


def _video(options: RenderOptions, video: Any) -> Start:
    """The last seconds of a VIDEO, of what *Video Slice* left of it."""
    source, window = video.get_stream_source(), helpers.window_of(video)
    size, frames_per_block = (options.width, options.height), options.schedule.frames_per_block
    fps = options.schedule.latents.fps
    return Start(*read_section(source, size, DEFAULT_START_SECONDS, "last", frames_per_block, window, fps))


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
        weights: the fingerprint of the model's; computed if it is not given.
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

    def __post_init__(self) -> None:
        # computed once for all videos, since every weight is read for it
        object.__setattr__(self, "weights", self.weights or bridge.fingerprint(self.model))

    def plan(self, profile: HeadProfile | None = None) -> RenderPlan:
        """The checked render; `profile` in place of the one that was asked for."""
        start_frames = 0 if self.start.latents is None else self.start.latents.shape[1]
        return self.options.plan(bridge.wan_config(self.model), self.timeline, start_frames, profile)

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
            bridge.compute_dtype(self.model),
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
        return needs_of(plan, bridge.compute_dtype(self.model), 0, decoder=self.decoder(plan))

    def check_needs(self, plan: RenderPlan, videos: int = 1) -> Needs:
        """Estimate what that many videos take; refuses what cannot be rendered or cannot fit on the device."""
        model = self.model
        if native_model.is_toy_model(model) and (plan.width, plan.height) != assets.SIZE:
            wanted = "x".join(map(str, assets.SIZE))
            raise HeadForcingError(f"the demo model makes videos of {wanted} only, got {plan.width}x{plan.height}")
        if self.vae is not None:
            vae.check_vae(self.vae, plan.config.latents)
            if self.vae.device not in (model.load_device, torch.device("cpu")):
                taken, size = vae.decoder_memory(self.vae, plan.block_shape[-2:]), f"{plan.width}x{plan.height}"
                check_decoder(taken, size, checks.room_on(self.vae.patcher))
        return self.job(plan).check_needs(
            int(model.model_size()),
            checks.room_on(model),
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


def sample(render: HostRender, plan: RenderPlan, video: int, progress: Listener) -> RenderResult:
    """Make one video of a plan; the result has its latents as a LATENT holds them.

    Raises HeadForcingError where the video file found no space and all blocks are on another disk or were smaller.
    """
    begun = time.perf_counter()
    job = render.job(plan, video)
    growing = None if render.vae is None else GrowingVideo(render, job)
    kept, results, needs = KeptLatents(), list[RenderResult](), render.needs(plan)

    def missing() -> int:
        """Memory that is not allocated: before the first block is made, also what stays afterwards."""
        return needs.temporary + (0 if kept.blocks else needs.prompt + needs.held)

    def body(hosted: bridge.HostedModel, device: torch.device) -> None:
        listeners: list[Listener] = [progress, kept] if growing is None else [progress, kept, growing]
        attention = hosted.attention.or_better(job.dtype, device, plan.shape)
        if render.story is not None:
            load = hosted.reload  # not the hosted model, which refers to the cache
            render.story.reload = lambda: load(memory=missing())
            listeners.append(LiveEdits(render.story))
        results.append(make_video(job, hosted, Place(device, attention), listeners))

    also = () if growing is None else [render.vae.patcher]
    one_pass = (plan.frames_per_pass, *plan.block_shape[1:])
    bridge.host(render.model, job.script.embedding(0), plan.schedule, one_pass, needs.working, body, also)
    latents = _to_latent(render.model.model, torch.cat(kept.blocks)).to(comfy.model_management.intermediate_device())
    made = replace(results[0], latents=latents, seconds=time.perf_counter() - begun)
    if growing is None:
        return made
    if growing.is_disk_full and render.runs is not None:  # else the latents would be lost with the error
        raise HeadForcingError(f"{growing.failure}; all blocks are kept: make room and press Run again")
    if growing.info is not None and render.runs is not None and not render.part.first(made.plan):
        told = render.retold(made).job(made.plan, video)
        link_file(render.runs / told.setup[:SHORT], told.keys[-1], growing.info.path)
    return replace(made, video=growing.info, failure=growing.failure)


def sample_one(
    render: HostRender, plan: RenderPlan, video: int, progress: RenderProgress, needs: Needs
) -> RenderResult:
    """One video; says on the node what is kept when something ends it early."""
    try:
        return sample(render, plan, video, progress)
    except BaseException as error:  # a cancel is no Exception in newer versions
        progress.stopped()
        if checks.is_out_of_memory(error):
            raise checks.out_of_memory(error, needs, render.runs is not None) from error
        raise
