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

from .attention import attention_function
from .auto_profile import AutoProfileCache
from .errors import HeadForcingError
from .files import replacing
from .memory import MemoryEvent
from .noise import SeededNoise
from .plan import LATENT_CHANNELS, RenderPlan, describe_events
from .profile import HeadProfile
from .rollout import StepCallback, WanVideoModel, rollout
from .video import StreamingDecoder, VideoInfo, write_video


@dataclass(frozen=True)
class RenderResult:
    """What a render made. `seconds` is wall time, decoding included."""

    video: VideoInfo | None
    latents: Path | None
    events: list[MemoryEvent]
    cache_bytes: int
    seconds: float
    found_profile: HeadProfile | None = None

    def report(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "video": None if self.video is None else str(self.video.path),
            "latents": None if self.latents is None else str(self.latents),
            "pictures": None if self.video is None else self.video.pictures,
            "memory_events": [event.to_dict() for event in self.events],
            "cache_bytes": self.cache_bytes,
            "seconds": round(self.seconds, 2),
        }

    def describe(self) -> str:
        """Plain text for people: what episodic memory did and where the files are."""
        lines = [describe_events(self.events)] if self.events else []
        if self.video is not None:
            lines.append(f"video    {self.video.path} ({self.video.pictures} pictures)")
        if self.latents is not None:
            lines.append(f"latents  {self.latents}")
        if self.found_profile is not None:
            counts = ", ".join(f"{count} {role}" for role, count in self.found_profile.counts().items())
            lines.append(f"found    {counts} heads")
        lines.append(f"took     {self.seconds:.1f} s")
        return "\n".join(lines)


def render(
    backbone: Any,
    embeds: Sequence[Tensor],
    plan: RenderPlan,
    seed: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    attention: str = "auto",
    start_latents: Tensor | None = None,
    video: tuple[Path, StreamingDecoder] | None = None,
    latents: Path | None = None,
    batch_index: int = 0,
    scale: int = 1,
    crf: int = 18,
    metadata: Mapping[str, str] | None = None,
    on_step: StepCallback = lambda block, step, latents: None,
) -> RenderResult:
    """Make one video; blocks are decoded and written as they are finished.

    Args:
        embeds: one text embedding `[tokens, text_dim]` per timeline segment.
        start_latents: `[frames, 16, h, w]`, normalised.
        video: where to write the MP4, and the decoder.
        latents: where to write `latents [frames, 16, h, w]` float32, normalised, as safetensors.
    """
    begun = time.perf_counter()
    model = WanVideoModel(backbone, embeds, dtype, device)
    cache = plan.make_cache(dtype, device, attention_function(attention))
    noise = SeededNoise(seed, plan.block_shape, batch_index)
    events: list[MemoryEvent] = []
    kept: list[Tensor] = []

    def blocks() -> Iterator[Tensor]:
        if start_latents is not None:
            yield from start_latents.split(plan.schedule.frames_per_block)
        for block in rollout(model, cache, plan.schedule, noise, plan.prompts, start_latents, on_step):
            if block.event is not None:
                events.append(block.event)
            yield block.latents

    def kept_blocks() -> Iterator[Tensor]:
        for block in blocks():
            if latents is not None:
                kept.append(block.cpu())
            yield block

    info = None
    if video is None:
        for _ in kept_blocks():
            pass
    else:
        path, decoder = video
        fps = plan.timeline.clock.fps
        info = write_video(path, kept_blocks(), decoder, fps, plan.pictures, scale, metadata, crf=crf)
    if latents is not None:
        tags = {"head_forcing": json.dumps({"pictures": plan.pictures, "seed": seed})}
        with replacing(latents) as temporary:
            save_file({"latents": torch.cat(kept).float().contiguous()}, temporary, metadata=tags)
    found = None
    if isinstance(cache, AutoProfileCache):
        found, events[:0] = cache.profile, cache.earlier_events
    return RenderResult(info, latents, events, cache.bytes, time.perf_counter() - begun, found)


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
