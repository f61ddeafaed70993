"""Block keys: the hash of everything that a stored block depends on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..hashing import SHORT, digest
from ..rollout.rows import Script
from ..runs.folder import count_blocks
from .plan import RenderPlan

_KEYS_VERSION = 3  # of what is hashed here; another one makes all stored blocks unusable


def setup_hash(
    plan: RenderPlan,
    fingerprint: str,
    video: int,
    dtype: torch.dtype,
    start_latents: Tensor | None,
    start_key: str = "",
) -> str:
    """The hash of everything a block depends on, except the rows of the video.

    `start_key` stands for the start latents where these were encoded from video frames.
    """
    parts: list[Any] = [
        _KEYS_VERSION,
        fingerprint,
        str(dtype),
        "auto" if plan.auto is not None else [list(layer) for layer in plan.shape.roles],
        None if plan.auto is None else plan.auto.key,
        plan.policy.key,
        plan.schedule.key,
        [plan.width, plan.height],
        [plan.seed, video],
    ]
    if start_latents is not None:
        parts += ["start", start_key] if start_key else [start_latents]
    return digest(*parts)


def going_on(plan: RenderPlan) -> str:
    """Say how an unfinished video is resumed, as the end of a sentence."""
    if "blocks" in plan.policy.resumes_from:
        return "go on"
    return "go on from where the cache was last stored, or begin again without that"


def finished_blocks(parent: Path, setup: str, keys: Sequence[str]) -> int:
    """Number of this video's blocks that are stored."""
    return count_blocks(parent / setup[:SHORT], keys)


def video_keys(plan: RenderPlan, setup: str, script: Script, autoencoder: str = "") -> list[str]:
    """The key of every block after the start blocks.

    In a video of several rollouts, those after the first depend on the `autoencoder`, which is given as
    `FrameCodec.fingerprint`.
    """
    more = {} if plan.overlap is None else {plan.overlap.blocks: autoencoder}
    return script.keys(setup, plan.blocks_per_pass - 1, more)
