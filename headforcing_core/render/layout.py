"""The layout of a story: its prompts on the blocks of a video, one row for each block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..cache.method import Method, VideoFacts
from ..errors import HeadForcingError
from ..rollout.rows import BlockRow, lay_out_rows
from ..rollout.schedule import Schedule
from ..timeline.clock import MAX_SECONDS, video_frames_of
from ..timeline.switch import Blend
from ..timeline.timeline import Timeline, format_timeline, parse_timeline

MAX_SIDE = 4096


@dataclass(frozen=True)
class Layout:
    """A timeline on the blocks of a video.

    Attributes:
        timeline: with the block length and duration of the video.
        story: the same with a tag for every scene that comes back, by itself or because a tag says so.
        alike: as for `Script`; empty if no prompt recalls a scene.
        start_frames, start_blocks: latent frames at the beginning of the video that are given, not made, and as blocks.
        video_frames: length of the video in video frames, start frames included; the last block is trimmed to it.
    """

    schedule: Schedule
    timeline: Timeline
    story: Timeline
    alike: Mapping[str, str]
    start_frames: int
    start_blocks: int
    video_frames: int

    @property
    def facts(self) -> VideoFacts:
        """The facts that the story decides."""
        story, blocks = self.story, self.start_blocks + self.timeline.blocks
        pictures = bool(story.references)
        return VideoFacts(
            self.schedule, blocks, self.start_frames, len(story.segments), story.recalls, pictures=pictures
        )

    def make_rows(self, policy: Method, seed: int) -> tuple[BlockRow, ...]:
        """The row of every block; raises HeadForcingError for switches and pictures that the method cannot do."""
        start_blocks, segments = self.start_blocks, self.story.segments
        switches = {
            start_blocks + segment.start_block: switch
            for segment in segments[1:]
            if (switch := policy.own_switch(segment.switch)) is not None
        }
        prompts = _block_prompts(self.story)
        rows = lay_out_rows([prompts[0]] * start_blocks + prompts, self.schedule, seed, switches, start_blocks)
        for number, segment in enumerate(segments, 1):
            first = start_blocks + segment.start_block
            if segment.seed is not None:
                rows[first:] = [replace(row, seed=segment.seed) for row in rows[first:]]
            if pictures := self.story.pictures(segment):
                _check_pictures(number, pictures, policy.most_pictures)
                first = first if segment.start_block else 0  # start frames are written behind those of the first prompt
                rows[first] = replace(rows[first], pictures=pictures)
        return tuple(rows)


def lay_out(timeline: Timeline, seconds: float, schedule: Schedule, policy: Method, start_frames: int) -> Layout:
    """Put a timeline on the blocks of a video; raises HeadForcingError for lengths that are out of range.

    Args:
        seconds: as for `RenderPlan.make`; the timeline is cut to it, or its last prompt extended.
    """
    prompts = len(timeline.segments) if timeline.recalls else 0
    alike = dict(zip(timeline.texts[:prompts], timeline.texts[prompts:], strict=False))
    seconds = seconds or timeline.seconds
    if not (math.isfinite(seconds) and 0 < seconds <= MAX_SECONDS):
        raise HeadForcingError(f"seconds must be above 0 and at most {MAX_SECONDS:.0f}, got {seconds}")
    start_blocks, rest = divmod(start_frames, schedule.frames_per_block)
    if rest:
        raise HeadForcingError(
            f"start frames must fill whole blocks of {schedule.frames_per_block} latent frames, got {start_frames}"
        )
    clock = replace(schedule.clock, continues=start_frames > 0)
    if timeline.clock != clock:
        timeline = parse_timeline(format_timeline(timeline), timeline.seconds, clock, references=timeline.references)
    blocks = clock.blocks_for(seconds)
    segments = [segment for segment in timeline.segments if segment.start_block < blocks]
    segments[-1] = replace(segments[-1], end_block=blocks)
    requested = list(timeline.requested[: len(segments)])
    requested[-1] = (requested[-1][0], seconds)
    timeline = Timeline(
        tuple(segments), clock, seconds, tuple(requested), schedule.shot_prefix, references=timeline.references
    )
    video_frames = video_frames_of(start_frames) + math.ceil(seconds * clock.fps - 1e-6)
    return Layout(schedule, timeline, policy.with_scenes(timeline), alike, start_frames, start_blocks, video_frames)


def _block_prompts(timeline: Timeline) -> list[str | Blend]:
    """The prompt of every block, interpolated where a prompt is blended in."""
    prompts: list[str | Blend] = []
    before = ""
    for segment in timeline.segments:
        n = segment.blended_blocks
        text = timeline.spoken(segment)
        prompts += [Blend(before, text, (i + 1) / (n + 1)) for i in range(n)]
        first = [] if n else [timeline.first_text(segment)]
        prompts += [*first, *[text] * (segment.end_block - segment.start_block - n - len(first))]
        before = text
    return prompts


def _check_pictures(number: int, pictures: tuple[str, ...], most: int) -> None:
    """Refuse more pictures in a prompt than a scene holds with the method."""
    if pictures and not most:
        raise HeadForcingError(
            f"prompt {number} names @{pictures[0]}, and this method holds no pictures; choose head_forcing, or "
            "leave pictures out"
        )
    if len(pictures) > most:
        raise HeadForcingError(
            f"prompt {number} names {len(pictures)} pictures, and with this method a scene holds up to {most}; name "
            "fewer"
        )


def check_size(name: str, value: int, multiple: int = 16) -> None:
    """Refuse a width or height in pixels that is not a multiple of this: the stride of the VAE times the patch."""
    if value % multiple or not multiple <= value <= MAX_SIDE:
        raise HeadForcingError(
            f"{name} must be a multiple of {multiple} between {multiple} and {MAX_SIDE}, got {value}"
        )
