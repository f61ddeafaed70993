"""A render plan: checked settings and everything derived from them, before weights are loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..cache.method import Method
from ..cache.shape import Shape
from ..errors import HeadForcingError
from ..head_profiles.auto import AutoPolicy, AutoProfile, warm_up_frames
from ..head_profiles.profile import HeadProfile
from ..model.attention import AttentionFunction, sdpa
from ..model.wan import WanConfig
from ..rollout.overlap import Overlap
from ..rollout.schedule import Schedule
from ..timeline.clock import MAX_SECONDS, BlockClock, format_time, video_frames_of
from ..timeline.likeness import word_features
from ..timeline.switch import Blend, BlendedEmbeddings, Switch
from ..timeline.timeline import Timeline, fit_timeline, format_timeline, lay_out_prompts, parse_timeline
from .head_roles import head_roles

if TYPE_CHECKING:
    from ..parallel.peers import Peers

MAX_SIDE = 4096
LATENT_CHANNELS = 16


@dataclass(frozen=True)
class RenderPlan:
    """A checked render.

    Attributes:
        prompts: per block the number of its text embedding, see `embeddings`: that of its timeline segment, or of a
            blend. Start blocks get the first prompt, because the prompts they were made with are not known.
        start_frames: latent frames at the beginning of the video that are given, not made.
        video_frames: length of the video in video frames, start frames included; the last block is trimmed to it.
        auto: how head roles are found while sampling; None if they are known.
        blends: interpolations between the embeddings of two prompts, in the order of the blocks.
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
        shuffle: int = 0,
        seed: int = 0,
        family: str | None = None,
    ) -> RenderPlan:
        """Check all settings and derive the plan; raises HeadForcingError for the first setting that is wrong.

        Args:
            seconds: length of the new part of the video; 0 takes the timeline's. A shorter one cuts the timeline, a
                longer one extends its last prompt.
            profile: `AutoProfile` finds the roles while sampling. None takes the bundled profile that fits the model
                (and `family`, if there are several), or an `AutoProfile` if none fits.
            roles, shuffle: an arrangement of head roles, see `cache.roles.arrange_roles`.
        """
        check_size("width", width)
        check_size("height", height)
        frames_per_block = schedule.frames_per_block
        timeline, wanted = _fitted(timeline, seconds, frames_per_block, start_frames)
        prompts, blends = _numbered(timeline, start_frames // frames_per_block)

        name, by_head, auto, queries = head_roles(config, policy, profile, family, roles, shuffle)
        policy = policy.with_queries(queries, name)
        sizes = (height // 8, width // 8, frames_per_block, len(prompts) * frames_per_block)
        policy = policy.for_video(seed, len(timeline.segments), timeline.recalls)
        policy.check_switches([segment.switch for segment in timeline.segments[1:]])
        policy.check_video(schedule, len(prompts), start_frames)
        shape = policy.shape(config, by_head, *sizes)
        video_frames = video_frames_of(start_frames) + wanted
        if auto is not None and start_frames > (most := warm_up_frames(frames_per_block) - frames_per_block):
            raise HeadForcingError(
                f"head roles can be found after at most {most} start frames, got {start_frames}; load or measure a "
                "head profile"
            )
        return cls(
            config, shape, schedule, timeline, prompts, width, height, start_frames, video_frames, name, auto, blends
        )

    def with_timeline(self, timeline: Timeline, seconds: float = 0.0) -> RenderPlan:
        """The plan with other prompts and another length, and everything else as it is; `seconds` as for `make`.

        Raises HeadForcingError for prompt switches that the method cannot do, and for a length that needs other caches.
        """
        timeline, wanted = _fitted(timeline, seconds, self.schedule.frames_per_block, self.start_frames)
        self.policy.check_switches([segment.switch for segment in timeline.segments[1:]])
        if not self.policy.allows_prompts(len(self.timeline.segments), len(timeline.segments)):
            raise HeadForcingError(
                "this method caches a video of one prompt in another way than one of several; render the story anew"
            )
        prompts, blends = _numbered(timeline, self.blocks - self.new_blocks)
        video_frames = video_frames_of(self.start_frames) + wanted
        shape = self._shape_of(len(prompts) * self.schedule.frames_per_block, video_frames)
        changed = replace(
            self, shape=shape, timeline=timeline, prompts=prompts, blends=blends, video_frames=video_frames
        )
        changed.check_warm_up()
        return changed

    def _shape_of(self, frames: int, video_frames: int) -> Shape:
        """The shape of a video of another length whose caches are the same; raises HeadForcingError if they are not."""
        shape = replace(self.shape, total_frames=frames)
        if frames == self.frames:
            return shape
        if self.overlap is not None or self.blocks_per_pass > 1:
            why = "this method divides the whole video into passes"
        elif shape.frame_slots != self.shape.frame_slots:
            why = "the caches of a video this short are as long as the video"
        else:
            self.policy.check_video(self.schedule, frames // self.schedule.frames_per_block, self.start_frames)
            return shape
        given, fps = video_frames_of(self.start_frames), self.timeline.clock.fps
        raise HeadForcingError(
            f"{why}, so its length stays while it is made: it has {(self.video_frames - given) / fps:g} s, the new "
            f"story {(video_frames - given) / fps:g} s; end the story where the video ends"
        )

    def check_warm_up(self) -> None:
        """Refuse prompt switches that change the cache during the first blocks, in which head roles are found.

        Not part of `make`, because a plan may be replaced by one with roles that an earlier render found.
        """
        warm_up = warm_up_frames(self.schedule.frames_per_block) // self.schedule.frames_per_block
        early = min((block for block, switch in self.switches.items() if switch.changes_cache), default=warm_up)
        if self.auto is not None and early < warm_up:
            clock, first = self.timeline.clock, warm_up - (self.blocks - self.new_blocks)
            raise HeadForcingError(
                f"head roles are found in the first {warm_up} blocks, in which no prompt switch may change the cache, "
                f"got {self.switches[early]!s} in block {early}; load or measure a head profile, or move this prompt "
                f"to {format_time(clock.start_seconds(first))} or later"
            )

    def embeddings(self, embeds: Sequence[Tensor]) -> BlendedEmbeddings:
        """The embeddings that `prompts` refers to, `[tokens, text_dim]` each: one per segment, then the blends.

        Args:
            embeds: of `Timeline.texts`; that timeline may have later prompts, too, after the end of the video.
        """
        prompts, given = len(self.timeline.segments), len(embeds) // 2
        compared = embeds[given : given + prompts] if self.timeline.recalls and given >= prompts else ()
        words = word_features([segment.text for segment in self.timeline.segments]) if compared else ()
        return BlendedEmbeddings(embeds[:prompts], self.blends, compared, words)

    @property
    def policy(self) -> Method:
        """The method's settings."""
        return self.shape.policy

    def method(self, known: HeadProfile | None = None) -> Method:
        """The method that makes the cache and runs the rollout; it finds head roles while sampling if `auto` is set.

        `known` are the roles that an earlier render of this video found.
        """
        return self.policy if self.auto is None else AutoPolicy(**vars(self.policy), auto=self.auto, known=known)

    @property
    def switches(self) -> dict[int, Switch]:
        """Prompt switches that change the cache, by the number of the block before which they happen; where scenes are
        kept all of them, because each begins a scene.
        """
        start_blocks, later = self.blocks - self.new_blocks, self.timeline.segments[1:]
        switches = {start_blocks + part.start_block: self.policy.own_switch(part.switch) for part in later}
        return {block: switch for block, switch in switches.items() if switch.changes_cache or self.policy.keeps_scenes}

    def later_seeds(self, seed: int | None) -> dict[int, int]:
        """By block number, the noise seed from there on, where the timeline changes the render's `seed`."""
        seeds: dict[int, int] = {}
        start_blocks = self.blocks - self.new_blocks
        for segment in self.timeline.segments:
            if segment.seed is not None and segment.seed != seed:
                seed = seeds[start_blocks + segment.start_block] = segment.seed
        return seeds

    @property
    def novelty_threshold(self) -> float | None:
        """Similarity below which a candidate is admitted to episodic memory; None without episodic memory."""
        return self.policy.novelty_threshold

    def segment_index(self, block: int) -> int:
        """Index of a block's timeline segment; 0 for start blocks."""
        return self.timeline.prompt_index(max(0, block - (self.blocks - self.new_blocks)))

    @property
    def start_video_frames(self) -> list[int]:
        """Per prompt the first video frame that is made with it, start frames included in the count."""
        before, clock = video_frames_of(self.start_frames), self.timeline.clock
        return [before + clock.start_video_frame(segment.start_block) for segment in self.timeline.segments]

    @property
    def blocks(self) -> int:
        """Number of blocks, start blocks included."""
        return len(self.prompts)

    @property
    def new_blocks(self) -> int:
        """Number of blocks to be made."""
        return self.blocks - self.start_frames // self.schedule.frames_per_block

    @property
    def frames(self) -> int:
        """Number of latent frames, start frames included."""
        return self.blocks * self.schedule.frames_per_block

    @property
    def steps(self) -> int:
        """Total number of denoising steps, for a progress bar."""
        return sum(self.steps_of(block) for block in range(self.blocks - self.new_blocks, self.blocks))

    def steps_of(self, block: int) -> int:
        """Denoising steps of a block that is made; `block` counts start blocks, too."""
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
        peers: Peers | None = None,
    ) -> Any:
        """An empty cache for this render, with `peers` this rank's part of it; `known` as in `method`."""
        if peers is not None:
            from ..parallel.cache import ParallelCache

            return ParallelCache(peers, self.shape, dtype, device, attention)
        return self.method(known).make_cache(self.shape, dtype, device, attention)

    def cache_bytes(self, dtype: torch.dtype) -> int:
        """Peak size of the cache in bytes."""
        return self.method().cache_bytes(self.shape, dtype, bool(self.switches))

    @property
    def frames_per_pass(self) -> int:
        """The largest number of latent frames in one model call."""
        recached = self.policy.recached_frames() if self.switches else 0
        return max(self.schedule.frames_per_block * self.blocks_per_pass, min(recached, self.frames))

    @property
    def blocks_per_pass(self) -> int:
        """How many consecutive blocks one model call denoises together."""
        return self.policy.blocks_per_pass(self.schedule)

    @property
    def overlap(self) -> Overlap | None:
        """The lengths of overlapping rollouts that make up the video; None for a method with one rollout."""
        return self.policy.overlap(self.schedule.frames_per_block)

    @property
    def restart_frames(self) -> tuple[int, ...]:
        """First latent frame of every rollout after the first, see `video.restarts.RestartingDecoder`."""
        return () if self.overlap is None else self.overlap.restart_frames(self.blocks)

    def check_encoder(self, given: bool, remedy: str) -> None:
        """Refuse a video of several rollouts without a VAE, which encodes a video frame between them.

        Args:
            given: whether there is a VAE.
            remedy: what the error tells the user to do.
        """
        if self.overlap is not None and self.restart_frames and not given:
            most = self.timeline.clock.video_frames(self.overlap.blocks) / self.timeline.clock.fps
            raise HeadForcingError(
                f"vae: this method encodes a video frame after each rollout of {self.overlap.frames} latent frames "
                f"and got no VAE for that; {remedy}, or make at most {most:.2f} s"
            )


def check_size(name: str, value: int) -> None:
    """Refuse a width or height in pixels that is not a multiple of 16 (VAE 8, patch 2)."""
    if value % 16 or not 16 <= value <= MAX_SIDE:
        raise HeadForcingError(f"{name} must be a multiple of 16 between 16 and {MAX_SIDE}, got {value}")


def _fitted(timeline: Timeline, seconds: float, frames_per_block: int, start_frames: int) -> tuple[Timeline, int]:
    """The timeline with the render's block length and duration, and the number of new video frames."""
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


def _numbered(timeline: Timeline, start_blocks: int) -> tuple[tuple[int, ...], tuple[Blend, ...]]:
    """The number of every block's text embedding, and the blends."""
    numbers, blends = lay_out_prompts(timeline)
    return (*[0] * start_blocks, *numbers), tuple(blends)
