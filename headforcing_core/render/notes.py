"""What is noted about a video: for its run folder, its file, and reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..cache.policy import CachePolicy
from .plan import RenderPlan

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
