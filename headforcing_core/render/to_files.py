"""Run a planned render outside ComfyUI: rollout, streaming decode to an MP4, latents to a file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..cache.memory import MemoryEvent
from ..drift.latents import RunReport, describe_events
from ..errors import HeadForcingError
from ..files import replacing
from ..head_profiles.profile import HeadProfile
from ..rollout.loop import JointModel, StepCallback
from ..video.stream import StreamingDecoder, VideoInfo, write_video
from .plan import LATENT_CHANNELS
from .video_rollout import VideoRollout


@dataclass(frozen=True)
class RenderResult:
    """What a render made. `seconds` is wall time, decoding included."""

    video: VideoInfo | None
    latents: Path | None
    events: list[MemoryEvent]
    cache_bytes: int
    seconds: float
    found_profile: HeadProfile | None = None
    found_now: bool = False
    reused_blocks: int = 0
    run: RunReport | None = None
    seconds_per_block: float | None = None
    problems: Sequence[str] = ()
    attention: str | None = None  # name of the backend

    def report(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "video": None if self.video is None else str(self.video.path),
            "latents": None if self.latents is None else str(self.latents),
            "pictures": None if self.video is None else self.video.video_frames,
            "memory_events": [event.to_dict() for event in self.events],
            "cache_bytes": self.cache_bytes,
            "reused_blocks": self.reused_blocks,
            "problems": list(self.problems),
            "attention": self.attention,
            "seconds": round(self.seconds, 2),
            "run": None if self.run is None else self.run.to_dict(),
        }

    def describe(self) -> str:
        """Plain text for people: what episodic memory did and where the files are."""
        lines = [describe_events(self.events)] if self.events else []
        if self.run is not None:
            lines += ["", self.run.text(), ""]
        if self.video is not None:
            lines.append(f"video    {self.video.path} ({self.video.video_frames} pictures)")
        if self.latents is not None:
            lines.append(f"latents  {self.latents}")
        if self.found_profile is not None:
            counts = ", ".join(f"{count} {role}" for role, count in self.found_profile.counts().items())
            lines.append(f"found    {counts} heads")
        if self.reused_blocks:
            lines.append(f"reused   {self.reused_blocks} blocks of an earlier render")
        lines += [f"damaged  {problem}" for problem in self.problems]
        attention = "" if self.attention is None else f", attention {self.attention}"
        lines.append(f"took     {self.seconds:.1f} s{attention}")
        return "\n".join(lines)


def render(
    model: JointModel,
    video: VideoRollout,
    *,
    mp4: tuple[Path, StreamingDecoder] | None = None,
    latents: Path | None = None,
    scale: int = 1,
    crf: int = 18,
    metadata: Mapping[str, str] | None = None,
    on_step: StepCallback = lambda block, step, latents: None,
) -> RenderResult:
    """Make one video; blocks are decoded and written as they are finished.

    Args:
        mp4: where to write the video, and the decoder.
        latents: where to write `latents [frames, 16, h, w]` float32, normalised, as safetensors.
    """
    begun = time.perf_counter()
    plan = video.plan
    kept: list[Tensor] = []

    def blocks() -> Iterator[Tensor]:
        if video.start_latents is not None:
            yield from video.start_latents.split(plan.schedule.frames_per_block)
        for block in video.blocks(model, on_step):
            yield block.latents

    def kept_blocks() -> Iterator[Tensor]:
        for block in blocks():
            if latents is not None:
                kept.append(block.cpu())
            yield block

    info = None
    if mp4 is None:
        for _ in kept_blocks():
            pass
    else:
        path, decoder = mp4
        fps = plan.timeline.clock.fps
        options: dict[str, Any] = {"crf": crf, "partial": partial_path(path)}
        info = write_video(path, kept_blocks(), decoder, fps, plan.video_frames, scale, metadata, **options)
    if latents is not None:
        about = {"pictures": plan.video_frames, "restart_frames": plan.restart_frames}
        tags = {"head_forcing": json.dumps(about)}
        with replacing(latents) as temporary:
            save_file({"latents": torch.cat(kept).float().contiguous()}, temporary, metadata=tags)
    took = time.perf_counter() - begun
    return RenderResult(
        info,
        latents,
        video.events,
        video.cache.bytes,
        took,
        video.found_profile,
        video.found_now,
        video.reused,
        video.report(),
        video.seconds_per_block,
        video.problems,
    )


def partial_path(path: Path) -> Path:
    """Where a video grows until it is finished; it plays at any time."""
    return path.with_name(f"{path.stem}.part.mp4")


def load_latents(path: Path, plan_size: tuple[int, int] | None = None) -> Tensor:
    """Latents `[frames, 16, h, w]` written by `render`, checked against `(width, height)` in pixels."""
    try:
        latents = load_file(path)["latents"]
    except (OSError, KeyError, ValueError, RuntimeError) as error:
        raise HeadForcingError(f"{path} is not a latents file written by this program: {error}") from error
    except Exception as error:  # safetensors raises its own class, which is not exported at every version
        raise HeadForcingError(f"{path} is not a readable safetensors file: {error}") from error
    if latents.ndim != 4 or latents.shape[1] != LATENT_CHANNELS:
        raise HeadForcingError(f"{path}: expected latents [frames, 16, h, w], got {list(latents.shape)}")
    if plan_size is not None:
        width, height = plan_size
        if tuple(latents.shape[-2:]) != (height // 8, width // 8):
            raise HeadForcingError(
                f"{path}: latents are for {latents.shape[-1] * 8}x{latents.shape[-2] * 8} pictures, "
                f"the render is {width}x{height}"
            )
    return latents
