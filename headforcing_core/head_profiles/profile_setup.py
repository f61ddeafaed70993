"""Setup of a measurement of attention shares: model, prompts, rollout; equal setups can be merged."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from ..cache.head_cache import CacheShape
from ..cache.policy import CachePolicy, HeadRole, RolePolicy
from ..errors import HeadForcingError
from ..model.wan import WanConfig
from ..rollout.schedule import Schedule


@dataclass(frozen=True)
class ProfileSetup:
    """Everything that a measurement depends on; measurements with equal setups can be merged.

    Attributes:
        fingerprint: of the model's weights.
        prompts: all prompts of the whole measurement, including those that other machines measure.
        blocks: number of blocks of every rollout; those from `first_block` on are measured.
        sigmas: noise levels of the denoising steps.
        width, height: in pixels.
        window_frames: latent frames in every head's context, sink and current block included.

    Raises HeadForcingError for impossible values.
    """

    fingerprint: str
    num_layers: int
    num_heads: int
    prompts: tuple[str, ...]
    blocks: int
    sigmas: tuple[float, ...]
    frames_per_block: int
    width: int
    height: int
    rope: str = "absolute"
    window_frames: int = 21
    sink_frames: int = 1
    first_block: int = 2
    seed: int = 0
    first_block_sigmas: tuple[float, ...] | None = None
    solver: str = "renoise"

    def __post_init__(self) -> None:
        if not self.prompts:
            raise HeadForcingError("profiling needs at least one prompt")
        if self.first_block < 1:
            raise HeadForcingError(f"first_block must be at least 1 (block 0 has no context), got {self.first_block}")
        if self.blocks <= self.first_block:
            raise HeadForcingError(
                f"profiling measures from block {self.first_block + 1} on, but the rollout has only {self.blocks} "
                "blocks; make it longer"
            )
        if self.window_frames < self.sink_frames + 2 * self.frames_per_block:
            raise HeadForcingError(f"window_frames must hold a sink and two blocks, got {self.window_frames}")

    @classmethod
    def of(
        cls,
        fingerprint: str,
        config: WanConfig,
        prompts: tuple[str, ...],
        blocks: int,
        family: Schedule,
        size: tuple[int, int],
        **options: Any,
    ) -> ProfileSetup:
        """The setup for a model's config and schedule, width and height in `size`; `options` are other attributes."""
        return cls(
            fingerprint,
            config.num_layers,
            config.num_heads,
            prompts,
            blocks,
            family.sigmas,
            family.frames_per_block,
            *size,
            first_block_sigmas=family.first_block_sigmas,
            solver=family.solver,
            **options,
        )

    @property
    def schedule(self) -> Schedule:
        """The noise levels of the rollout."""
        return Schedule(self.sigmas, self.frames_per_block, self.first_block_sigmas, self.solver)

    @property
    def policy(self) -> CachePolicy:
        """The cache policy of the rollout, equal for all heads."""
        recent = self.window_frames - self.sink_frames - self.frames_per_block
        return CachePolicy.uniform(RolePolicy(self.sink_frames, recent), self.rope)

    def shape(self, config: WanConfig) -> CacheShape:
        """The cache shape of one rollout."""
        every_head = [[HeadRole.MEMORY] * self.num_heads] * self.num_layers
        sizes = (*self.latent_size(config), self.frames_per_block, self.blocks * self.frames_per_block)
        return CacheShape.for_model(config, every_head, self.policy, *sizes)

    def latent_size(self, config: WanConfig) -> tuple[int, int]:
        """Height and width of the latents."""
        return self.height // config.latents.stride, self.width // config.latents.stride

    @property
    def prompts_hash(self) -> str:
        """Hash of all prompts, which identifies them in a profile."""
        return hashlib.blake2b("\n".join(self.prompts).encode(), digest_size=8).hexdigest()
