"""A render plan: checked settings and everything derived from them, before weights are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import torch

from ..cache.base import Cache
from ..cache.scenes import number_recalls
from ..cache.shape import Shape
from ..devices import Device
from ..errors import HeadForcingError
from ..files import Fields
from ..head_profiles.auto import ProfileChoice
from ..methods.method import Method, VaeUse
from ..methods.registry import check_model
from ..model.attention import AttentionFunction, sdpa
from ..model.wan import WanConfig
from ..rollout.rows import BlockRow, Embeddings, Picture, Script
from ..rollout.schedule import SCHEDULES, Schedule, known_family
from ..timeline.clock import video_frames_of
from ..timeline.switch import Switch
from ..timeline.timeline import Timeline
from .layout import HeadRoles, Layout, check_size, head_roles, lay_out
from .options import RenderOptions


@dataclass(frozen=True)
class RenderPlan:
    """A checked render.

    Attributes:
        layout: the prompts on the blocks, start frames included.
        rows: one per block. Start blocks get the first prompt, because the prompts they were made
            with are not known. Their switches name no recalled scenes yet; see `script`.
        seed: of the noise, where the timeline sets no other.
        held_frames: of the first block that is made, the first frames that are given, see
            `Schedule.holds_image`.
        heads: their roles, or how these are to be measured before the render.
    """

    layout: Layout
    config: WanConfig
    shape: Shape
    rows: tuple[BlockRow, ...]
    seed: int
    width: int
    height: int
    heads: HeadRoles
    held_frames: int = 0

    @classmethod
    def of(
        cls,
        config: WanConfig,
        options: RenderOptions,
        timeline: Timeline,
        start_frames: int = 0,
        profile: ProfileChoice = None,
    ) -> RenderPlan:
        """Check all settings and derive the plan; raises HeadForcingError for the first setting
        that is wrong.

        Args:
            start_frames: number of latent frames that the video begins with.
            profile: replaces that of the options. `AutoProfile` leaves the roles to be measured
                before the render. None in both is an `AutoProfile` for Head Forcing, unless a
                bundled profile was measured on a model of these dimensions; for other methods the
                bundled profile that fits.
        """
        method = options.method
        schedule = options.schedule
        check_model(method, schedule)
        stride = schedule.latents.stride
        _check_family(config, schedule, known_family(options.model_family))
        check_size("height", options.height, stride * config.patch_size[1])
        check_size("width", options.width, stride * config.patch_size[2])
        frames_per_block = schedule.frames_per_block
        held = 1 if start_frames == 1 and schedule.holds_image else 0
        start_frames -= held
        layout = lay_out(
            timeline, options.seconds, schedule=schedule, method=method, start_frames=start_frames
        )
        heads = head_roles(config, method, profile or options.profile, options)
        method = method.for_video(replace(layout.facts, seed=options.seed))
        rows = layout.make_rows(method, options.seed)
        shape = method.shape(
            config,
            heads.roles,
            latent_height=options.height // stride,
            latent_width=options.width // stride,
            frames_per_block=frames_per_block,
            total_frames=len(rows) * frames_per_block,
        )
        return cls(
            layout,
            config,
            shape=shape,
            rows=rows,
            seed=options.seed,
            width=options.width,
            height=options.height,
            heads=heads,
            held_frames=held,
        )

    def with_timeline(self, timeline: Timeline, seconds: float = 0.0) -> RenderPlan:
        """The plan with other prompts and another length; raises HeadForcingError for prompt
        switches that the method cannot do, and for a length that needs other caches."""
        layout = lay_out(
            timeline,
            seconds,
            schedule=self.schedule,
            method=self.method,
            start_frames=self.layout.start_frames,
        )
        rows = layout.make_rows(self.method, self.seed, before=self.layout, known=self.rows)
        shape = replace(self.shape, total_frames=len(rows) * self.schedule.frames_per_block)
        depends_on_length = self.method.fixed_length or shape.frame_slots != self.shape.frame_slots
        if depends_on_length and len(rows) != self.blocks:
            raise HeadForcingError(
                "the passes or caches of this video depend on its length, which cannot change "
                f"during the render: it has {self.timeline.seconds:g} s, the new story "
                f"{layout.timeline.seconds:g} s; make the new story as long as the video"
            )
        if self.method.for_video(layout.facts).key != self.method.key:
            raise HeadForcingError(
                "this method caches a video with one prompt differently from one with several; "
                "render the new story from the beginning"
            )
        return replace(self, layout=layout, shape=shape, rows=rows)

    def script(
        self, embeds: Embeddings, pictures: Mapping[str, Picture] = MappingProxyType({})
    ) -> Script:
        """The rows with the scenes that their switches bring back; `embeds` has those of
        `Timeline.texts`, `pictures` those of `Timeline.references`."""
        script = Script(self.rows, embeds, self.timeline.alike, pictures)
        if self.timeline.recalls or self.timeline.references:
            script = number_recalls(script, self.method.recalled(script))
        return script

    @cached_property
    def schedule(self) -> Schedule:
        """Noise levels and blocks of the model."""
        return self.layout.schedule

    @cached_property
    def timeline(self) -> Timeline:
        """The prompts, with the block length and the duration of the video."""
        return self.layout.timeline

    @cached_property
    def video_frames(self) -> int:
        """Length of the video in video frames, start frames included."""
        return self.layout.video_frames

    @property
    def size_text(self) -> str:
        """Width and height in pixels, as in `832x480`."""
        return f"{self.width}x{self.height}"

    @property
    def method(self) -> Method:
        """The method's settings."""
        assert isinstance(self.shape.method, Method)
        return self.shape.method

    @property
    def rebuilds_cache(self) -> bool:
        """Whether the cache of an unfinished video can be rebuilt from its blocks; else one must be
        stored.
        """
        return "blocks" in self.method.resumes_from

    @cached_property
    def switches(self) -> dict[int, Switch]:
        """The prompt switches of the rows, by the number of the block before which they happen."""
        return {block: row.switch for block, row in enumerate(self.rows) if row.switch is not None}

    def segment_index(self, block: int) -> int:
        """Index of a block's timeline segment; 0 for start blocks."""
        return self.timeline.prompt_index(max(0, block - self.layout.start_blocks))

    def start_seconds(self, block: int) -> float:
        """The second of the story at which a block begins; 0 for start blocks."""
        return self.timeline.clock.start_seconds(max(0, block - self.layout.start_blocks))

    @cached_property
    def prompt_video_frames(self) -> list[int]:
        """Per prompt the first video frame that is made with it, start frames included in the
        count.
        """
        before = video_frames_of(self.layout.start_frames)
        clock = self.timeline.clock
        return [
            before + clock.video_frames(segment.start_block) for segment in self.timeline.segments
        ]

    @property
    def blocks(self) -> int:
        """Number of blocks, start blocks included."""
        return len(self.rows)

    def blocks_until(self, seconds: float) -> int:
        """Number of blocks up to a time of the story, start blocks included; of all if it is 0."""
        if seconds == 0:
            return self.blocks
        return min(self.blocks, self.layout.start_blocks + self.timeline.clock.blocks_for(seconds))

    @property
    def new_blocks(self) -> int:
        """Number of blocks to be made."""
        return self.blocks - self.layout.start_blocks

    @property
    def frames(self) -> int:
        """Number of latent frames, start frames included."""
        return self.blocks * self.schedule.frames_per_block

    @cached_property
    def steps(self) -> int:
        """Total number of denoising steps, for a progress bar."""
        return sum(len(row.sigmas) for row in self.rows)

    @property
    def block_shape(self) -> tuple[int, int, int, int]:
        """Shape of one block's latents, `(frames, channels, h, w)`."""
        stride = self.schedule.latents.stride
        return (
            self.schedule.frames_per_block,
            self.config.out_dim,
            self.height // stride,
            self.width // stride,
        )

    def make_cache(
        self,
        dtype: torch.dtype,
        device: Device,
        attention: AttentionFunction = sdpa,
    ) -> Cache:
        """An empty cache for this render."""
        return self.method.make_cache(self.shape, dtype, device, attention)

    def cache_bytes(self, dtype: torch.dtype) -> int:
        """Peak size of the cache in bytes."""
        return self.shape.peak_bytes(dtype, bool(self.switches))

    @property
    def largest_pass(self) -> int:
        """The largest number of latent frames in one model call."""
        recached = self.method.recached_frames if self.switches else 0
        blocks = self.schedule.frames_per_block * (1 + self.blocks_ahead)
        return max(blocks, min(recached, self.frames))

    @cached_property
    def blocks_ahead(self) -> int:
        """Number of next blocks that a block depends on, see `Method.blocks_ahead`."""
        return self.method.blocks_ahead(self.schedule)

    @cached_property
    def vae_use(self) -> VaeUse | None:
        """The method's use of the VAE while blocks are made; None if it does not use it."""
        return self.method.vae_use(self.schedule.frames_per_block, self.blocks)

    @property
    def vae_notes(self) -> Fields:
        """Notes on the video by which it is decoded, see `video.restarts`."""
        return {} if self.vae_use is None else self.vae_use.notes

    def check_encoder(self, given: bool, remedy: str) -> None:
        """Refuse a video whose method uses the VAE without one; `remedy` is what the error tells
        the user to do."""
        use = self.vae_use
        if use is not None and not given:
            clock = self.timeline.clock
            raise HeadForcingError(
                f"vae: this method {use.does} and got no VAE for that; {remedy}, or make at most "
                f"{clock.video_frames(use.first_block) / clock.fps:.2f} s"
            )


def _check_family(config: WanConfig, schedule: Schedule, family: str) -> None:
    """Refuse the schedule of a model family whose latents or inputs are others than the model's."""
    is_driven = config.is_driven
    fits = [
        name
        for name, row in SCHEDULES.items()
        if row.latents is config.latents and row.is_driven == is_driven
    ]
    if config.latents is not schedule.latents:
        differs = (
            f"has {config.out_dim} latent channels, models of the family {family} have "
            f"{schedule.latents.channels}"
        )
    elif is_driven != schedule.is_driven:
        driven = "is driven" if is_driven else "is not driven"
        differs = f"{driven} by speech, other than those of the family {family}"
    else:
        return
    raise HeadForcingError(
        f"model_family: the model {differs}; choose auto or one of {', '.join(fits)}"
    )
