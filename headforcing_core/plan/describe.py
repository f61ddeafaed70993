"""A render plan as text, sizes, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from ..cache.shape import CacheShape
from ..head_profiles.rules import remark_on_rule
from ..rollout.schedule import TRAINED_FRAMES
from ..timeline.clock import video_frames_of
from .plan import RenderPlan


def describe(plan: RenderPlan, dtype: torch.dtype) -> str:
    """Plain text: length, head roles, cache size, and the table of prompts of a render."""
    lines = [
        f"{plan.size_text}, {_length(plan)}",
        f"head roles: {_roles(plan)} ({plan.heads.name}); rotary positions {plan.method.rope}",
        _cache(plan, dtype),
        *_notes_on_roles(plan),
        *_notes_on_cache(plan, dtype),
    ]
    if plan.config.is_driven:
        lines.append("the portrait is the first latent frame; it and the speech drive every block")
    elif plan.held_frames:
        lines.append(
            "the image is the first latent frame, held while the rest of its block is made; the "
            "authors of LongLive 2.0 say that its released weights saw no such training, so that "
            "quality may be lower"
        )
    timeline = plan.timeline
    for name in timeline.references:
        prompts = [
            str(number)
            for number, segment in enumerate(timeline.segments, 1)
            if name in timeline.pictures(segment)
        ]
        where = f"held in prompts {', '.join(prompts)}" if prompts else "no prompt names it"
        lines.append(f"picture @{name}: {where}")
    start_frames = plan.layout.start_frames
    lines += ["", timeline.table(video_frames_of(start_frames))]
    if start_frames:
        lines.append(
            f"Times and blocks are counted from the end of the {start_frames} start frames, "
            "video frames from the start of the video."
        )
    return "\n".join(lines)


def _length(plan: RenderPlan) -> str:
    """Video frames, seconds, blocks and denoising steps."""
    fps = plan.timeline.clock.fps
    schedule = plan.schedule
    blocks = f"{plan.new_blocks} blocks of {schedule.frames_per_block} latent frames to make"
    start_frames = plan.layout.start_frames
    if start_frames:
        blocks += f" after {start_frames} start frames"
    if plan.held_frames:
        blocks += " from a start image"
    first = len(schedule.for_block(0))
    later = len(schedule.sigmas)
    steps = f"{later} steps each"
    if first != later:
        steps = f"{first} steps for the first and {later} for every later one"
    seconds = plan.video_frames / fps
    return f"{plan.video_frames} frames = {seconds:.2f} s at {fps:g} fps, {blocks}, {steps}"


def _roles(plan: RenderPlan) -> str:
    """Numbers of heads by role, or "none" if the method does not tell heads apart."""
    if not plan.method.heads_by:
        return "none"
    heads = [role for layer in plan.shape.roles for role in layer]
    return ", ".join(
        f"{heads.count(role)} {role}" for role in ("local", "anchor", "memory") if role in heads
    )


def _cache(plan: RenderPlan, dtype: torch.dtype) -> str:
    """Size of the KV cache, beside that of keeping all frames."""
    shape = plan.shape
    size = shape.bytes(dtype)
    cache = f"KV cache: {shape.frame_slots:,} frame-slots = {format_bytes(size)}"
    everything = plan.frames * shape.layers * shape.heads
    if shape.frame_slots < everything:
        cache += (
            f", the most at any length (keeping all {plan.frames} latent frames in every head "
            f"would take {everything:,} = {format_bytes(size * everything / shape.frame_slots)})"
        )
    return cache


def _notes_on_roles(plan: RenderPlan) -> Iterator[str]:
    """Positions beyond the trained range, and the rule that named the roles."""
    shape = plan.shape
    if isinstance(shape, CacheShape) and plan.method.rope == "contiguous":
        longest = max(shape.slots.values())
        if longest > TRAINED_FRAMES and not plan.schedule.shot_prefix:
            yield (
                f"note: contexts grow to {longest} latent frames, and the model was trained on "
                f"{TRAINED_FRAMES}; positions leave the trained range"
            )
    profile = plan.heads.profile
    if profile is not None:
        rule = profile.provenance.get("rule", "a published list")
        yield f"{profile.counted} heads, named by: {rule}"
        for remark in remark_on_rule(profile):
            yield f"note: {remark}"


def _notes_on_cache(plan: RenderPlan, dtype: torch.dtype) -> Iterator[str]:
    """Frames that are kept besides the cache, and the beginning of a resumed or a new rollout."""
    shape = plan.shape
    if isinstance(shape, CacheShape) and shape.scene_slots:
        kept = format_bytes(shape.bytes_of(shape.scene_slots, dtype))
        yield (
            "kept of scenes that may come back, in main memory: latent frames of "
            f"{shape.method.kept_scenes} scenes in anchor and memory heads, up to "
            f"{shape.scene_slots:,} frame-slots = {kept}"
        )
    if not plan.rebuilds_cache:
        yield (
            "this cache cannot be rebuilt from blocks: an interrupted or longer render "
            "goes on where the cache was last stored, or starts from the beginning"
        )
    if plan.vae_use is not None:
        yield plan.vae_use.report


def going_on(plan: RenderPlan) -> str:
    """Say how an unfinished video is resumed, as the end of a sentence."""
    if plan.rebuilds_cache:
        return "go on"
    return "go on from where the cache was last stored, or begin again without that"


def format_bytes(count: float) -> str:
    """A size as text with three significant digits in decimal units: `2.47 GB`."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with these headings and rows."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
