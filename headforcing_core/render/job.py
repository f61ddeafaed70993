"""The job of a render: one video of a plan, with what its blocks depend on, and what is noted about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache.policy import CachePolicy
from ..errors import HeadForcingError
from ..files import check_writable
from ..hashing import SHORT, digest
from ..head_profiles.auto import load_found_profile
from ..head_profiles.profile import HeadProfile
from ..rollout.rows import Embeddings, Picture, Script
from ..runs.folder import count_blocks
from .plan import RenderPlan
from .remedies import too_large
from .resources import Host, Needs, needs_of

if TYPE_CHECKING:
    from ..video.restarts import FrameCodec

_KEYS_VERSION = 3  # of what is hashed in block keys; another one makes all stored blocks unusable


@dataclass(frozen=True)
class RenderJob:
    """One video of a plan, ready to be made by any `VideoModel`.

    Attributes:
        embeds: the text embeddings of `Timeline.texts`, by text.
        pictures: those of `Timeline.references`, by name.
        weights: the fingerprint of the model's; empty where nothing is kept under it.
        video: number of the video in a batch; each has noise of its own.
        start_latents: `[frames, 16, h, w]`, normalised; `start_key` is in block keys in place of them.
        codec: encodes a video frame between rollouts; needed where the plan has `restart_frames`.
        runs, found_profiles: folders for finished blocks and for roles that were found; None keeps none.
        patience: seconds to wait for another process that writes to `runs`.
        state_seconds: how often the cache is stored there; 0 never.
        about: what to note in the run folder, see `about_video`.
        until: number of blocks, start blocks included, after which the render ends; None: all. A later one goes on.
    """

    plan: RenderPlan
    embeds: Embeddings
    weights: str = ""
    dtype: torch.dtype = torch.float32
    video: int = 0
    start_latents: Tensor | None = None
    start_key: str = ""
    codec: FrameCodec | None = None
    runs: Path | None = None
    patience: float = 0.0
    state_seconds: float = 0.0
    found_profiles: Path | None = None
    about: dict[str, Any] = field(default_factory=dict)
    until: int | None = None
    pictures: Mapping[str, Picture] = field(default_factory=dict)

    @cached_property
    def setup(self) -> str:
        """The hash of everything a block depends on but prompts and length."""
        plan = self.plan
        parts: list[Any] = [
            _KEYS_VERSION,
            self.weights,
            str(self.dtype),
            "auto" if plan.auto is not None else [list(layer) for layer in plan.shape.roles],
            None if plan.auto is None else plan.auto.key,
            plan.policy.key,
            plan.schedule.key,
            [plan.width, plan.height],
            [plan.seed, self.video],
        ]
        if self.start_latents is not None:
            parts += ["start", self.start_key] if self.start_key else [self.start_latents]
        return digest(*parts)

    @cached_property
    def script(self) -> Script:
        """The rows of the plan with their embeddings; a render reads its own copy."""
        return self.plan.script(self.embeds, self.pictures)

    @cached_property
    def keys(self) -> list[str]:
        """The key of each block after the start blocks: the hash of everything that a stored block depends on."""
        plan, more, overlap = self.plan, dict[int, str](), self.plan.passes.overlap
        if overlap is not None and plan.restart_frames and self.codec is not None:  # for later rollouts
            more[overlap.blocks] = self.codec.fingerprint()
        return self.script.keys(self.setup, plan.passes.blocks_per_pass - 1, more)

    @property
    def folder(self) -> Path | None:
        """The run folder."""
        return None if self.runs is None else self.runs / self.setup[:SHORT]

    @property
    def finished_blocks(self) -> int:
        """Number of this video's blocks that are stored."""
        return 0 if self.folder is None else count_blocks(self.folder, self.keys)

    def take_found_roles(self, plan_with: Callable[[HeadProfile], RenderPlan]) -> RenderPlan:
        """The plan with the roles that were found for this model earlier, where the plan would find them."""
        plan = self.plan
        if plan.auto is None or self.found_profiles is None or self.finished_blocks:  # what began by finding goes on so
            return plan
        found = load_found_profile(self.found_profiles, self.weights, plan.auto)
        return plan if found is None else plan_with(found)

    def check_finite(self) -> None:
        """Refuse text embeddings, start latents and pictures that hold NaN or infinity."""
        start = {} if self.start_latents is None else {"the start latents": self.start_latents}
        pictures = {f"the picture @{name}": picture.latents for name, picture in self.pictures.items()}
        prompts = {f"the embedding of prompt {number}": embed for number, embed in enumerate(self.embeds.values(), 1)}
        for name, values in (start | pictures | prompts).items():
            if not torch.isfinite(values).all():
                model = "text encoder" if name in prompts else "VAE"
                raise HeadForcingError(
                    f"{name}: NaN or infinity; encode again, with the {model} in bf16 or float32 instead of fp16"
                )

    def check_needs(
        self, weights: int, room: int | None, host: Host, *, encodes: bool, remedy: str, **sizes: Any
    ) -> Needs:
        """Estimate what the render takes; refuses what cannot be rendered or does not fit on the device.

        Args:
            room: free memory of the device; None where it is not known.
            encodes, remedy: as for `RenderPlan.check_encoder`.
            sizes: the other arguments of `needs_of`.
        """
        self.plan.check_warm_up()
        if self.plan.auto is not None and self.found_profiles is not None:  # written when the video is finished
            check_writable(self.found_profiles / "probe")
        self.plan.check_encoder(encodes, remedy)
        kept, state = self.runs is not None, self.state_seconds > 0
        needs = needs_of(self.plan, self.dtype, weights, kept=kept, state=state, **sizes)
        if room is not None and needs.wanted(host) > room:
            raise too_large(needs, self.plan, self.dtype, room, host)
        return needs


# -------------------------------------------------------------------------------------------- notes on a video


_IN_FILES = ("seed", "method", "prompts", "starts_seconds", "frames_per_block", "story")


def about_video(plan: RenderPlan, method: str, seed: int, latent_format: str | None) -> dict[str, Any]:
    """Metadata of a video for people, *Load Head Forcing Run* and reports; `latent_format` is ComfyUI's name for the
    scale of the latents."""
    clock, policy = plan.timeline.clock, plan.policy
    episodic = policy.episodic if isinstance(policy, CachePolicy) and policy.memory.episodic_frames else None
    return {
        "method": method,
        "seed": seed,
        "size": f"{plan.width}x{plan.height}",
        **about_story(plan),
        "fps": clock.fps,
        "frames_per_block": clock.frames_per_block,
        "start_frames": plan.start_frames,
        **({"held_frames": plan.held_frames} if plan.held_frames else {}),
        "restart_frames": list(plan.restart_frames),
        "novelty_threshold": episodic.novelty_threshold if episodic is not None else None,
        "latent_format": latent_format,
    }


def about_story(plan: RenderPlan) -> dict[str, Any]:
    """The part of `about_video` that prompts and length decide, start frames included in times and frames."""
    segments = plan.timeline.segments
    return {
        "prompts": [segment.text for segment in segments],
        "starts_seconds": [video_frame / plan.timeline.clock.fps for video_frame in plan.start_video_frames],
        "switches": [str(segment.switch) for segment in segments],
        "seeds": [segment.seed for segment in segments],
        "video_frames": plan.video_frames,
    }


def file_tags(about: Mapping[str, Any], fps: float | None = None) -> dict[str, str]:
    """The metadata tag of a video file, see `report.video_tags.read_tags`; `fps` is the file's, if not the plan's."""
    tags = {name: about[name] for name in _IN_FILES if name in about}
    if fps is not None and "starts_seconds" in tags:
        tags["starts_seconds"] = [start * about.get("fps", fps) / fps for start in tags["starts_seconds"]]
    return {"head_forcing": json.dumps(tags)}
