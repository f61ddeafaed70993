"""One render, thought through before anything heavy happens: what is asked, whether it fits, what it will cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cache.method import Method
from ..cache.roles import Roles, arrange_roles
from ..cache.shape import Shape
from ..errors import HeadForcingError
from ..head_profiles.auto import AutoPolicy, AutoProfile, warm_up_frames
from ..head_profiles.profile import HeadProfile, default_profile
from ..model.attention import AttentionFunction, sdpa
from ..model.wan import WanConfig
from ..rollout.overlap import Overlap
from ..rollout.schedule import Schedule
from ..timeline.clock import MAX_SECONDS, BlockClock, format_time, video_frames_of
from ..timeline.switch import Blend, BlendedEmbeddings, Switch
from ..timeline.timeline import Timeline, fit_timeline, format_timeline, lay_out_prompts, parse_timeline

MAX_SIDE = 4096
LATENT_CHANNELS = 16


@dataclass(frozen=True)
class RenderPlan:
    """A checked render.

    Attributes:
        prompts: per block the number of its text embedding, see `embeddings`: that of its timeline segment, or of a
            blend. Start blocks are read under the first prompt, whatever they were made with.
        start_frames: latent frames that are given; they come before everything that is made.
        pictures: how many pictures were asked for, start frames included; what the last block adds is trimmed.
        blends: embeddings on the way from one prompt to the next, in the order of the blocks.
    """

    config: WanConfig
    shape: Shape
    schedule: Schedule
    timeline: Timeline
    prompts: tuple[int, ...]
    width: int
    height: int
    start_frames: int
    video_frames: int
    profile_name: str
    auto: AutoProfile | None = None
    blends: tuple[Blend, ...] = ()

    @classmethod
    def make(
        cls,
        config: WanConfig,
        policy: Method,
        schedule: Schedule,
        timeline: Timeline,
        width: int,
        height: int,
        seconds: float = 0.0,
        profile: HeadProfile | AutoProfile | None = None,
        start_frames: int = 0,
        roles: str = "profile",
        seed: int = 0,
        family: str | None = None,
    ) -> RenderPlan:
        """Check everything a user can get wrong, with one clear error for the first thing that is.

        Args:
            seconds: length of what is made; 0 takes the timeline's. A shorter one cuts the timeline, a longer one
                holds its last prompt.
            profile: `AutoProfile` finds the roles while sampling. None takes the bundled profile that fits the model
                (and `family`, where there are several); without one the roles are found, too.
            roles: an arrangement of `policy.arrange_roles`.
        """
        check_size("width", width)
        check_size("height", height)
        frames_per_block = schedule.frames_per_block
        timeline, wanted = _fitted(timeline, seconds, frames_per_block, start_frames)
        numbers, blends = lay_out_prompts(timeline)
        prompts = [0] * (start_frames // frames_per_block) + numbers

        source = "profile"
        if profile is None and policy.needs_profile:
            source, profile = "bundled profile", _bundled_or_auto(config, family)
        name, head_roles, auto = _head_roles(config, policy, profile, source, roles, seed)
        sizes = (height // 8, width // 8, frames_per_block, len(prompts) * frames_per_block)
        for segment in timeline.segments[1:]:
            policy.own_switch(segment.switch)
        policy.check_video(schedule, len(prompts), start_frames)
        shape = policy.for_video(seed, len(timeline.segments)).shape(config, head_roles, *sizes)
        video_frames = video_frames_of(start_frames) + wanted
        if auto is not None and start_frames > (most := warm_up_frames(frames_per_block) - frames_per_block):
            raise HeadForcingError(
                f"head roles cannot be found while going on from {start_frames} start frames, at most {most}; "
                "load or measure a head profile"
            )
        return cls(
            config,
            shape,
            schedule,
            timeline,
            tuple(prompts),
            width,
            height,
            start_frames,
            video_frames,
            name,
            auto,
            tuple(blends),
        )

    def check_warm_up(self) -> None:
        """Refuse to change the past while it is what head roles are found from.

        For the plan that is rendered: a first one may still get roles that were found earlier.
        """
        warm_up = warm_up_frames(self.schedule.frames_per_block) // self.schedule.frames_per_block
        early = min(self.switches, default=warm_up)
        if self.auto is not None and early < warm_up:
            clock, first = self.timeline.clock, warm_up - (self.blocks - self.new_blocks)
            raise HeadForcingError(
                f"head roles are found in the first {warm_up} blocks, {self.switches[early]!s} would change in block "
                f"{early} what they are found from; load or measure a head profile, or move this prompt to "
                f"{format_time(clock.start_seconds(first))} or later"
            )

    def embeddings(self, embeds: Sequence[Tensor]) -> Sequence[Tensor]:
        """The embeddings that `prompts` numbers, `[tokens, text_dim]` each, from one per timeline segment."""
        return BlendedEmbeddings(embeds[: len(self.timeline.segments)], self.blends)

    @property
    def policy(self) -> Method:
        """The method's settings, as the shape has them."""
        return self.shape.policy

    def method(self, known: HeadProfile | None = None) -> Method:
        """The method that makes the cache and drives it: its settings, and where the head roles come from.

        `known` is what an earlier render of the video found, where roles are found while sampling.
        """
        return self.policy if self.auto is None else AutoPolicy(**vars(self.policy), auto=self.auto, known=known)

    @property
    def switches(self) -> dict[int, Switch]:
        """What is done to the cache before which block; nothing where only the prompt changes."""
        start_blocks, later = self.blocks - self.new_blocks, self.timeline.segments[1:]
        switches = {start_blocks + part.start_block: self.policy.own_switch(part.switch) for part in later}
        return {block: switch for block, switch in switches.items() if switch.changes_cache}

    @property
    def novelty_threshold(self) -> float | None:
        """Below which similarity a frame is remembered; None where there is no episodic memory."""
        return self.policy.novelty_threshold

    def segment_index(self, block: int) -> int:
        """Index of the timeline's segment that drives a block; the first one drives start blocks."""
        return self.timeline.prompt_index(max(0, block - (self.blocks - self.new_blocks)))

    @property
    def start_video_frames(self) -> list[int]:
        """Per prompt the first picture that was made with it, counted in the finished video."""
        before, clock = video_frames_of(self.start_frames), self.timeline.clock
        return [before + clock.start_video_frame(segment.start_block) for segment in self.timeline.segments]

    @property
    def blocks(self) -> int:
        """All blocks, start blocks included."""
        return len(self.prompts)

    @property
    def new_blocks(self) -> int:
        """Blocks to be made."""
        return self.blocks - self.start_frames // self.schedule.frames_per_block

    @property
    def frames(self) -> int:
        """All latent frames, start frames included."""
        return self.blocks * self.schedule.frames_per_block

    @property
    def steps(self) -> int:
        """Denoising steps in all, for a progress bar."""
        return sum(self.steps_of(block) for block in range(self.blocks - self.new_blocks, self.blocks))

    def steps_of(self, block: int) -> int:
        """Denoising steps of a block that is made; `block` counts start blocks."""
        return len(self.schedule.for_block(block - (self.blocks - self.new_blocks)))

    @property
    def block_shape(self) -> tuple[int, int, int, int]:
        """Shape of one block's latents, `(frames, channels, h, w)`."""
        return (self.schedule.frames_per_block, LATENT_CHANNELS, self.height // 8, self.width // 8)

    def make_cache(
        self,
        dtype: torch.dtype,
        device: torch.device | str,
        attention: AttentionFunction = sdpa,
        known: HeadProfile | None = None,
    ) -> Any:
        """The cache of this render; `known` is what an earlier one found, where roles are found while sampling."""
        return self.method(known).make_cache(self.shape, dtype, device, attention)

    def cache_bytes(self, dtype: torch.dtype) -> int:
        """The most that the cache holds at any time."""
        return self.method().cache_bytes(self.shape, dtype, bool(self.switches))

    @property
    def frames_per_pass(self) -> int:
        """The most frames that go through the model together."""
        recached = self.policy.recached_frames() if self.switches else 0
        return max(self.schedule.frames_per_block * self.blocks_per_pass, min(recached, self.frames))

    @property
    def blocks_per_pass(self) -> int:
        """How many blocks are denoised together; each depends on the next ones, and on whether they are there."""
        return self.policy.blocks_per_pass(self.schedule)

    @property
    def overlap(self) -> Overlap | None:
        """How the video is made of several rollouts; None where it is one."""
        return self.policy.overlap(self.schedule.frames_per_block)

    @property
    def restart_frames(self) -> tuple[int, ...]:
        """The latent frames that its rollouts after the first begin with, see `restarts.RestartingDecoder`."""
        return () if self.overlap is None else self.overlap.restart_frames(self.blocks)

    def check_encoder(self, given: bool, remedy: str) -> None:
        """Refuse a video of several rollouts where no VAE is `given` that encodes a picture between them."""
        if self.overlap is not None and self.restart_frames and not given:
            most = self.timeline.clock.video_frames(self.overlap.blocks) / self.timeline.clock.fps
            raise HeadForcingError(
                f"vae: this method encodes a picture anew after each rollout of {self.overlap.frames} latent frames "
                f"and got no VAE for that; {remedy}, or make at most {most:.2f} s"
            )


def check_size(name: str, value: int) -> None:
    """Refuse a width or height in pixels that Wan's patches do not divide."""
    if value % 16 or not 16 <= value <= MAX_SIDE:
        raise HeadForcingError(f"{name} must be a multiple of 16 between 16 and {MAX_SIDE}, got {value}")


def _fitted(timeline: Timeline, seconds: float, frames_per_block: int, start_frames: int) -> tuple[Timeline, int]:
    """The timeline in the blocks and the length of the render, and how many video frames are to be made."""
    seconds = seconds or timeline.seconds
    if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
        raise HeadForcingError(f"seconds must be above 0 and at most {MAX_SECONDS:.0f}, got {seconds}")
    if start_frames % frames_per_block:
        raise HeadForcingError(
            f"start frames must fill whole blocks of {frames_per_block} latent frames, got {start_frames}"
        )
    clock = BlockClock(frames_per_block, continues=start_frames > 0)
    if timeline.clock != clock:
        timeline = parse_timeline(format_timeline(timeline), timeline.seconds, clock)
    return fit_timeline(timeline, clock.blocks_for(seconds), seconds), math.ceil(seconds * clock.fps - 1e-6)


def _bundled_or_auto(config: WanConfig, family: str | None) -> HeadProfile | AutoProfile:
    try:
        return default_profile(config.num_layers, config.num_heads, family)
    except HeadForcingError:
        return AutoProfile()


def _head_roles(
    config: WanConfig,
    policy: Method,
    profile: HeadProfile | AutoProfile | None,
    source: str,
    arrangement: str,
    seed: int,
) -> tuple[str, Roles, AutoProfile | None]:
    """What the roles are called in the report, the roles, and how they are found where they are not measured."""
    policy.check_roles(arrangement, measured=not isinstance(profile, AutoProfile))
    if profile is None or not policy.needs_profile:
        return "one cache for every head", [["memory"] * config.num_heads] * config.num_layers, None
    if isinstance(profile, AutoProfile):
        if arrangement != "profile":
            raise HeadForcingError(f"roles = {arrangement!r} rearranges a head profile; load one instead of auto")
        return "to be found in the first seconds", profile.expected_roles(config.num_layers, config.num_heads), profile
    profile.check_model(config.num_layers, config.num_heads)
    name = f"{source} {profile.name!r}"
    if arrangement != "profile":
        name += f", roles {arrangement}"
    return name, arrange_roles(profile.roles, arrangement, seed), None
