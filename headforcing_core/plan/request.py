"""`RenderRequest`: the inputs of a render, the same type for command line, nodes, batches,
comparisons and live edits. `RenderJob`: one video of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..devices import free_memory
from ..errors import HeadForcingError
from ..files import Fields
from ..hashing import SHORT, digest
from ..head_profiles.auto import ProfileChoice
from ..head_profiles.line import roles_note
from ..head_profiles.profile import HeadProfile
from ..methods.head_forcing import HeadForcing
from ..methods.options import pairs_text
from ..model.wan import WanConfig
from ..rollout.rows import Embeddings, KnownKeys, Picture, Script
from ..runs.folder import count_blocks
from ..timeline.timeline import Timeline
from .conditions import Conditions, no_conditions
from .options import RenderOptions
from .plan import RenderPlan
from .remedies import too_large
from .resources import MemorySavings, Needs, check_scenes

if TYPE_CHECKING:
    from ..video.restarts import FrameCodec
    from ..video.soundtrack import Soundtrack  # which imports PyAV

_KEYS_VERSION = 3  # of what is hashed in block keys; another one makes all stored blocks unusable
# notes in video files
_IN_FILES = ("seed", "method", "prompts", "starts_seconds", "frames_per_block", "story", "heads")


@dataclass(frozen=True)
class StartLatents:
    """Given latents that videos begin with.

    Attributes:
        latents: `[videos, frames, channels, h, w]`, normalised; the videos of a batch use them in
            turn.
        key: in the keys of blocks in place of the latents, if it is not empty.
        about: what the video begins with, for notes.
    """

    latents: Tensor
    key: str = ""
    about: str = ""


@dataclass(frozen=True)
class RenderRequest:
    """The inputs of a render: options and story, with the text embeddings, start latents and
    pictures that are encoded for them.

    Attributes:
        config: of the model.
        embeds: the text embeddings of `Timeline.texts`, by text; empty for a plan or an estimate.
        start: None begins with noise.
        pictures: those of `Timeline.references`, by name.
        dtype: of the computation.
        weights: the fingerprint of the model's weights; empty if nothing is stored under it.
        codec: the VAE, for methods that use it while blocks are made (`RenderPlan.vae_use`).
        runs: folder for finished blocks; None stores none.
        patience: seconds to wait for another process that writes to the same run folder.
        until_seconds: time of the story at which the render ends; 0: at its end. A later render
            continues.
        soundtrack: the sound of the videos; no block depends on it.
        conditions: what drives the videos besides noise and prompts, for models with
            `config.is_driven`.
        latent_format: ComfyUI's name for the scale of the latents, for notes.
        about: further notes on the videos, for `RenderJob.about`.
    """

    config: WanConfig
    options: RenderOptions
    timeline: Timeline
    embeds: Embeddings = field(default_factory=dict)
    start: StartLatents | None = None
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    weights: str = ""
    codec: FrameCodec | None = None
    runs: Path | None = None
    patience: float = 0.0
    until_seconds: float = 0.0
    soundtrack: Soundtrack | None = None
    conditions: Conditions | None = None
    latent_format: str | None = None
    about: Fields = field(default_factory=dict)

    def plan(self, profile: ProfileChoice = None) -> RenderPlan:
        """The checked plan; `profile`, if given, replaces that of the options."""
        start_frames = 0 if self.start is None else self.start.latents.shape[1]
        plan = RenderPlan.of(self.config, self.options, self.timeline, start_frames, profile)
        self.check_conditions(plan)
        return plan

    def check_conditions(self, plan: RenderPlan) -> None:
        """Refuse conditions that do not fit a plan or its model, and none for a model that needs
        them.
        """
        if self.conditions is not None:
            self.conditions.check(plan)
        elif plan.config.is_driven:
            raise no_conditions()

    def job(self, plan: RenderPlan | None = None, video: int = 0) -> RenderJob:
        """A video of this request's plan, or of `plan`."""
        return RenderJob(self, plan or self.plan(), video)

    def check_needs(
        self, needs: Needs, plan: RenderPlan, room: int | None, savings: MemorySavings
    ) -> None:
        """Refuse the render of a plan if what it needs does not fit on the device, whose free
        memory is `room` bytes (None: not known), or if kept scenes do not fit in main memory.
        """
        if room is not None and needs.wanted(savings) > room:
            raise too_large(needs, plan, dtype=self.dtype, room=room, savings=savings)
        if needs.scenes:
            check_scenes(needs, free_memory("cpu"))

    def check_finite(self) -> None:
        """Refuse embeddings, start latents, pictures and conditions that hold NaN or infinity."""
        if self.conditions is not None:
            self.conditions.check_finite()
        encoded = {}
        for name, picture in self.pictures.items():
            encoded[f"the picture @{name}"] = (picture.latents, "VAE")
        if self.start is not None:
            encoded["the start latents"] = (self.start.latents, "VAE")
        for text, embed in self.embeds.items():
            encoded[f"the embedding of the prompt {text[:40]!r}"] = (embed, "text encoder")
        for name, (values, model) in encoded.items():
            if not torch.isfinite(values).all():
                raise HeadForcingError(
                    f"{name}: NaN or infinity; encode again, with the {model} in bf16 or float32 "
                    "instead of fp16"
                )


@dataclass(frozen=True)
class RenderJob:
    """One video of a request, ready to be made by any `VideoModel`.

    Attributes:
        plan: of the request, perhaps with another head profile.
        video: number of the video in a batch; each has noise of its own.
        known: as for `Script.keys`.
    """

    request: RenderRequest
    plan: RenderPlan
    video: int = 0
    known: KnownKeys | None = field(default=None, compare=False, repr=False)

    @cached_property
    def start_latents(self) -> Tensor | None:
        """The latents that this video begins with, `[frames, channels, h, w]`."""
        start = self.request.start
        return None if start is None else start.latents[self.video % len(start.latents)]

    @cached_property
    def end_block(self) -> int:
        """Number of blocks, start blocks included, after which the render ends."""
        return self.plan.blocks_until(self.request.until_seconds)

    @cached_property
    def about(self) -> Fields:
        """Notes on the video, for people, *Load Head Forcing Run*, files and reports."""
        plan = self.plan
        request = self.request
        clock = plan.timeline.clock
        method = plan.method
        options = request.options
        method_line = options.method_name
        if options.method_options:
            method_line += f" ({pairs_text(options.method_options)})"
        threshold = None
        if isinstance(method, HeadForcing) and method.memory.episodic_frames:
            threshold = method.episodic.novelty_threshold
        about = {
            "method": method_line,  # as in `longlive (window_frames=9)`
            "seed": options.seed,
            "size": plan.size_text,
            **about_story(plan),
            "fps": clock.fps,
            "frames_per_block": clock.frames_per_block,
            "start_frames": plan.layout.start_frames,
            **plan.vae_notes,
            "novelty_threshold": threshold,
            "latent_format": request.latent_format,
        }
        profile = plan.heads.profile
        if profile is not None:
            about["heads"] = roles_note(profile, request.weights, options.profile)
        if plan.held_frames:
            about["held_frames"] = plan.held_frames
        if request.start is not None and request.start.about:
            about["start"] = request.start.about
        return {**about, **request.about}

    @cached_property
    def setup_key(self) -> str:
        """The hash of what all blocks of the video share; `keys` adds what is of one block."""
        plan = self.plan
        request = self.request
        parts: list[Any] = [
            _KEYS_VERSION,
            request.weights,
            str(request.dtype),
            [list(layer) for layer in plan.shape.roles],
            None,  # unused; kept so that the keys of stored blocks stay the same
            plan.method.key,
            plan.schedule.key,
            [plan.width, plan.height],
            [plan.seed, self.video],
        ]
        if request.start is not None and request.start.key:
            parts += ["start", request.start.key]
        elif request.start is not None:
            parts.append(self.start_latents)
        return digest(*parts)

    @cached_property
    def script(self) -> Script:
        """The rows of the plan with their embeddings. A render has a copy of the job, whose script
        gets other rows when its story changes.
        """
        return self.plan.script(self.request.embeds, self.request.pictures)

    @cached_property
    def keys(self) -> list[str]:
        """The key of each block after the start blocks: the hash of everything that a stored block
        depends on.
        """
        plan = self.plan
        codec = self.request.codec
        more: dict[int, str] = {}
        if plan.vae_use is not None and codec is not None:
            more[plan.vae_use.first_block] = codec.fingerprint()
        conditions = self.request.conditions
        if conditions is not None:
            frames = plan.schedule.frames_per_block
            for block in range(plan.blocks):
                key = conditions.block_key(block * frames, frames)
                more[block] = digest(more[block], key) if block in more else key
        return self.script.keys(self.setup_key, plan.blocks_ahead, more, self.known)

    @property
    def folder(self) -> Path | None:
        """The run folder."""
        runs = self.request.runs
        return None if runs is None else runs / self.setup_key[:SHORT]

    @property
    def finished_blocks(self) -> int:
        """Number of this video's blocks that are stored."""
        return 0 if self.folder is None else count_blocks(self.folder, self.keys)

    def with_request(self, **changes: Any) -> RenderJob:
        """The job with other fields of its request, which do not change the plan."""
        return replace(self, request=replace(self.request, **changes))

    def with_profile(self, profile: HeadProfile) -> RenderJob:
        """The job with the head roles of this profile."""
        return replace(self, plan=self.request.plan(profile))


# --------------------------------------------------------------------------------- notes on a video


def about_story(plan: RenderPlan) -> Fields:
    """Notes that prompts and length decide, start frames included in times and frames."""
    segments = plan.timeline.segments
    fps = plan.timeline.clock.fps
    return {
        "prompts": [segment.text for segment in segments],
        "starts_seconds": [video_frame / fps for video_frame in plan.prompt_video_frames],
        "switches": [str(segment.switch) for segment in segments],
        "seeds": [segment.seed for segment in segments],
        "video_frames": plan.video_frames,
    }


def file_tags(about: Mapping[str, Any], fps: float | None = None) -> dict[str, str]:
    """The metadata tag of a video file, see `report.video_tags.read_tags`; `fps` is the file's, if
    not the plan's.
    """
    tags = {name: about[name] for name in _IN_FILES if name in about}
    if fps is not None and "starts_seconds" in tags:
        tags["starts_seconds"] = [
            start * about.get("fps", fps) / fps for start in tags["starts_seconds"]
        ]
    return {"head_forcing": json.dumps(tags)}


def story_begins(about: Mapping[str, Any], fps: float | None = None) -> float:
    """The second of a video file at which its story begins, after start frames; `fps` as in
    `file_tags`.
    """
    start = next(iter(about.get("starts_seconds", ())), 0.0)
    if fps is not None:
        start *= about.get("fps", fps) / fps
    return start
