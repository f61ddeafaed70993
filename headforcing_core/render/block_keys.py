"""Block keys: the hash of everything that a stored block depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..hashing import SHORT, digest
from ..runs.folder import count_blocks
from .plan import RenderPlan

_KEYS_VERSION = 2  # of what is hashed here; another one makes all stored blocks unusable


def block_keys(setup: str, prompts: Sequence[str]) -> list[str]:
    """The key of every block: the setup's hash, chained with the hashes of the prompts and switches up to the block."""
    keys, key = [], setup
    for prompt in prompts:
        key = digest(key, prompt)
        keys.append(key)
    return keys


END = "end"  # stands in a block's key for the prompt of a block after the end of the video


def setup_hash(
    plan: RenderPlan,
    fingerprint: str,
    seed: int,
    video: int,
    dtype: torch.dtype,
    start_latents: Tensor | None,
    start_key: str = "",
) -> str:
    """The hash of everything a block depends on, except the prompts with their switches and seeds, and the length.

    `start_key` stands for the start latents where these were encoded from video frames.
    """
    shape, policy = plan.shape, fields(plan.policy)
    left_out = {field.name for field in policy if not field.compare or field.metadata.get("in_key_parts")}
    parts: list[Any] = [
        _KEYS_VERSION,
        fingerprint,
        str(dtype),
        "auto" if plan.auto is not None else [list(layer) for layer in shape.roles],
        None if plan.auto is None else asdict(plan.auto),
        {name: value for name, value in asdict(plan.policy).items() if name not in left_out},
        asdict(plan.schedule),
        [plan.width, plan.height],
        [seed, video],
        *plan.policy.key_parts,
    ]
    if start_latents is not None:
        parts += ["start", start_key] if start_key else [start_latents]
    return digest(*parts)


def going_on(plan: RenderPlan) -> str:
    """How an unfinished video is resumed, as the end of a sentence."""
    return "go on" if plan.policy.replays else "go on from where the cache was last stored, or begin again without that"


def finished_blocks(parent: Path, setup: str, keys: Sequence[str]) -> int:
    """How many blocks of this video are stored."""
    return count_blocks(parent / setup[:SHORT], keys)


def video_keys(
    plan: RenderPlan, setup: str, embeds: Sequence[Tensor], autoencoder: str = "", seed: int | None = None
) -> list[str]:
    """The key of every block after the start blocks, from the plan's embeddings (`RenderPlan.embeddings`).

    With a method that denoises several blocks together, a block depends on the prompts of the next ones, too, and near
    the end of the video on how many of them there are. In a video of several rollouts, those after the first depend on
    the `autoencoder`, which is given as `FrameCodec.fingerprint`. A seed in the timeline counts where it differs from
    the one before it, at first the render's `seed`.
    """
    hashes = [digest(embed) for embed in embeds]
    recalled = plan.policy.recalled(embeds, plan.prompts, plan.switches)
    switches, seeds = plan.switches, plan.later_seeds(seed)
    parts = []
    for block in range(plan.blocks - plan.new_blocks, plan.blocks):
        part = hashes[plan.prompts[block]]
        if block in switches and switches[block].changes_cache:
            part = digest(part, switches[block].kind, switches[block].re_anchor)
        if block in recalled:
            scenes = [start for start in sorted(switches) if start <= block]  # a number alone could mean others
            part = digest(part, "recall", recalled[block], scenes)
        if block in seeds:
            part = digest(part, "seed", seeds[block])
        if plan.overlap is not None and block == plan.overlap.blocks:
            part = digest(part, autoencoder)
        parts.append(part)
    ahead = plan.blocks_per_pass - 1
    return block_keys(setup, [*parts, *[END] * ahead])[ahead:]
