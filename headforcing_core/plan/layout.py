"""The parts of a plan: prompts on the blocks of a video, one row for each block, and the roles of
heads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from ..cache.roles import HeadRole, Roles, arrange_roles
from ..errors import HeadForcingError
from ..head_profiles.auto import AutoProfile, ProfileChoice
from ..head_profiles.profile import HeadProfile, default_profile
from ..methods.head_forcing import HeadForcing
from ..methods.method import Method, VideoFacts
from ..model.wan import WanConfig
from ..rollout.rows import BlockRow, lay_out_rows
from ..rollout.schedule import Schedule, known_family
from ..timeline.clock import video_frames_of
from ..timeline.switch import Blend
from ..timeline.timeline import Timeline
from .settings import RenderSettings

MAX_SIDE = 4096


@dataclass(frozen=True)
class Layout:
    """A timeline on the blocks of a video.

    Attributes:
        schedule: noise levels and blocks of the model.
        timeline: with the block length and duration of the video, and a tag for every scene that
            comes back.
        start_frames: number of latent frames at the beginning of the video that are given, not
            made.
    """

    schedule: Schedule
    timeline: Timeline
    start_frames: int

    @cached_property
    def start_blocks(self) -> int:
        """The same in blocks."""
        return self.start_frames // self.schedule.frames_per_block

    @cached_property
    def video_frames(self) -> int:
        """Length of the video in video frames, start frames included; the last block is trimmed to
        it.
        """
        timeline = self.timeline
        return video_frames_of(self.start_frames) + math.ceil(
            timeline.seconds * timeline.clock.fps - 1e-6
        )

    @property
    def facts(self) -> VideoFacts:
        """The facts that the story decides."""
        timeline = self.timeline
        return VideoFacts(
            self.schedule,
            self.start_blocks + timeline.blocks,
            start_frames=self.start_frames,
            prompts=len(timeline.segments),
            recalls=timeline.recalls,
            pictures=bool(timeline.references),
        )

    def make_rows(
        self,
        method: Method,
        seed: int,
        before: Layout | None = None,
        known: Sequence[BlockRow] = (),
    ) -> tuple[BlockRow, ...]:
        """The row of every block; raises HeadForcingError for switches and pictures that the method
        cannot do.

        Args:
            before, known: another layout of the same model and start frames, and its rows. The rows
                of its first prompts are taken as far as the prompts are the same.
        """
        timeline = self.timeline
        same = 0 if before is None else _same_prompts(timeline, before.timeline)
        rows: list[BlockRow] = []
        if same:
            rows += known[: self.start_blocks + timeline.segments[same - 1].end_block]
            seed = rows[-1].seed
        for index in range(same, len(timeline.segments)):
            rows += self._rows_of(index, method, seed)
            seed = rows[-1].seed
        return tuple(method.own_rows(rows, self.schedule.frames_per_block))

    def _rows_of(self, index: int, method: Method, seed: int) -> list[BlockRow]:
        """The rows of one prompt, those of the first one with the start blocks; `seed` is that of
        the prompt before it.
        """
        timeline = self.timeline
        segment = timeline.segments[index]
        prompts = _block_prompts(timeline, index)
        rows = lay_out_rows(
            prompts,
            self.schedule,
            seed if segment.seed is None else segment.seed,
            start_blocks=self.start_blocks,
            first=self.start_blocks + segment.start_block,
        )
        if index:
            rows[0] = replace(rows[0], switch=method.own_switch(segment.switch))
        else:
            given = [prompts[0]] * self.start_blocks
            rows[:0] = lay_out_rows(given, self.schedule, seed, start_blocks=self.start_blocks)
        pictures = timeline.pictures(segment)
        if len(pictures) > method.most_pictures:
            named = ", ".join(f"@{name}" for name in pictures)
            raise HeadForcingError(
                f"prompt {index + 1} names {named}, but with this method a scene holds "
                f"{method.most_pictures or 'no'} pictures; leave some out, or choose head_forcing"
            )
        if pictures:  # start frames are written behind those of the first prompt
            rows[0] = replace(rows[0], pictures=pictures)
        return rows


def lay_out(
    timeline: Timeline, seconds: float, schedule: Schedule, method: Method, start_frames: int
) -> Layout:
    """Put a timeline on the blocks of a video.

    Args:
        seconds: of the new part of the video; 0 takes the timeline's. A shorter one cuts the
            timeline, a longer one extends its last prompt.
    """
    seconds = seconds or timeline.seconds
    if start_frames % schedule.frames_per_block:
        raise HeadForcingError(
            f"start frames must fill whole blocks of {schedule.frames_per_block} latent frames, "
            f"got {start_frames}"
        )
    clock = replace(schedule.clock, continues=start_frames > 0)
    timeline = timeline.on(clock)
    blocks = clock.blocks_for(seconds)
    segments = [segment for segment in timeline.segments if segment.start_block < blocks]
    segments[-1] = replace(segments[-1], end_block=blocks)
    timeline = replace(
        timeline,
        segments=tuple(segments),
        clock=clock,
        seconds=seconds,
        requested=timeline.requested[: len(segments)],
        shot_prefix=schedule.shot_prefix,
    )
    return Layout(schedule, method.with_scenes(timeline), start_frames)


def _same_prompts(timeline: Timeline, before: Timeline) -> int:
    """Number of first prompts that have the same words, blocks and tags in both."""
    if timeline.references != before.references:
        return 0
    pairs = zip(timeline.segments, before.segments, strict=False)
    for index, (segment, other) in enumerate(pairs):
        if segment is not other and segment != other:
            return index
    return min(len(timeline.segments), len(before.segments))


def _block_prompts(timeline: Timeline, index: int) -> list[str | Blend]:
    """The prompt of every block of the segment of this index, interpolated where it is blended
    in.
    """
    segment = timeline.segments[index]
    text = timeline.spoken(segment)
    blended = segment.blended_blocks
    prompts: list[str | Blend] = []
    if blended:
        before = timeline.spoken(timeline.segments[index - 1])
        for number in range(1, blended + 1):
            prompts.append(Blend(before, text, number / (blended + 1)))
    else:
        prompts.append(timeline.first_text(segment))
    prompts += [text] * (segment.end_block - segment.start_block - len(prompts))
    return prompts


def check_size(name: str, value: int, multiple: int = 16) -> None:
    """Refuse a width or height in pixels that is not a multiple of this: the stride of the VAE
    times the patch.
    """
    if value % multiple or not multiple <= value <= MAX_SIDE:
        raise HeadForcingError(
            f"{name} must be a multiple of {multiple} between {multiple} and {MAX_SIDE}, got "
            f"{value}"
        )


# --------------------------------------------------------------------------------------- head roles


class HeadRoles(NamedTuple):
    """The roles of a render's heads."""

    name: str  # of the profile, in reports
    roles: Roles
    auto: AutoProfile | None = None  # how they are to be measured; None if they are known
    profile: HeadProfile | None = None  # with these roles, unless they are arranged otherwise


def head_roles(
    config: WanConfig,
    method: Method,
    profile: ProfileChoice,
    settings: RenderSettings,
) -> HeadRoles:
    """The roles from the arguments of `RenderPlan.of`; raises HeadForcingError where they do not
    fit together.
    """
    arrangement = settings.roles
    if arrangement != "profile" and method.heads_by != "roles":
        raise HeadForcingError(
            f"roles = {arrangement!r} rearranges head roles, but this method uses "
            f"{method.heads_by or 'none'}; choose roles = 'profile'"
        )
    if not method.heads_by:
        every_head = [[HeadRole.MEMORY] * config.num_heads] * config.num_layers
        return HeadRoles("one cache for every head", every_head)
    source = "profile"
    if profile is None:
        source = "bundled profile"
        profile = profile_without_choice(config, method, known_family(settings.model_family))
    auto = None
    if isinstance(profile, AutoProfile):
        auto = profile
        profile = auto.expected(config.num_layers, config.num_heads)
        name = "to be measured before the render"
    else:
        profile.check_model(config.num_layers, config.num_heads)
        name = f"{source} {profile.name!r}"
    if method.heads_by != "roles":
        kinds, note = profile.kinds(method.heads_by)
        return HeadRoles(name + note, kinds, auto)
    if arrangement == "profile":
        return HeadRoles(name, profile.roles, auto, profile=None if auto else profile)
    name += f", roles {arrangement}"
    if arrangement == "shuffled":
        name += f" ({settings.shuffle})"
    return HeadRoles(name, arrange_roles(profile.roles, arrangement, settings.shuffle), auto)


def profile_without_choice(
    config: WanConfig, method: Method, family: str | None = None
) -> HeadProfile | AutoProfile:
    """The bundled profile that fits; for Head Forcing only one that was measured on these weights
    here, since roles of other weights are not theirs.
    """
    try:
        bundled = bundled_profile(config, method, family)
    except HeadForcingError:
        return AutoProfile()
    if isinstance(method, HeadForcing) and not bundled.measured:
        return AutoProfile()
    return bundled


def bundled_profile(config: WanConfig, method: Method, family: str | None = None) -> HeadProfile:
    """The bundled profile that fits a method: one with its labels, of three roles, or of two kinds
    of heads. Raises HeadForcingError if there is none for a model of this size.
    """
    return default_profile(
        config.num_layers,
        config.num_heads,
        family=family,
        heads_by=method.heads_by,
        two_way=not isinstance(method, HeadForcing),
    )
