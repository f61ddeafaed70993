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
        prompts: all prompts of the whole measurement, including those that other machines measure.
        blocks: number of blocks of every rollout; those from `first_block` on are measured.
        window_frames: latent frames in every head's context, sink and current block included.

    Raises HeadForcingError without prompts.
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
        model = (fingerprint, config.num_layers, config.num_heads)
        more = {"first_block_sigmas": family.first_block_sigmas, "solver": family.solver, **options}
        return cls(*model, prompts, blocks, family.sigmas, family.frames_per_block, *size, **more)

    @property
    def schedule(self) -> Schedule:
        """The noise levels of the rollout."""
        return Schedule(self.sigmas, self.frames_per_block, self.first_block_sigmas, self.solver)

    def shape(self, config: WanConfig) -> CacheShape:
        """The cache shape of one rollout, with the same policy for all heads."""
        every_head = [[HeadRole.MEMORY] * self.num_heads] * self.num_layers
        recent = self.window_frames - self.sink_frames - self.frames_per_block
        policy = CachePolicy.uniform(RolePolicy(self.sink_frames, recent), self.rope)
        sizes = (*self.latent_size(config), self.frames_per_block, self.blocks * self.frames_per_block)
        return CacheShape.for_model(config, every_head, policy, *sizes)

    def latent_size(self, config: WanConfig) -> tuple[int, int]:
        """Height and width of the latents."""
        return self.height // config.latents.stride, self.width // config.latents.stride

    @property
    def prompts_hash(self) -> str:
        """Hash of all prompts, which identifies them in a profile."""
        return hashlib.blake2b("\n".join(self.prompts).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class ReturnStory:
    """One return story of a measurement: a prompt of it for every block.

    Attributes:
        prompts: by block, numbers of prompts.
        visited: the latent frames of the visit that the prompt returns to.
        measured: the blocks after the return.
    """

    prompts: tuple[int, ...]
    visited: range
    measured: range

    @classmethod
    def of(cls, setup: ProfileSetup, number: int) -> ReturnStory:
        """The story of that number, as long as the window; raises HeadForcingError where none fits."""
        blocks, count = setup.window_frames // setup.frames_per_block, len(setup.prompts)
        visit = (blocks - 1) // 3
        if not visit or count < 3:
            raise HeadForcingError(
                f"a return story has three prompts in at least four blocks of a window of {setup.window_frames} latent "
                f"frames, got {count} prompts and blocks of {setup.frames_per_block}; give more prompts, or leave "
                "out --returns"
            )
        opening = blocks - 3 * visit
        before, scene, between = ((number + place) % count for place in range(3))
        prompts = (before,) * opening + (scene,) * visit + (between,) * visit + (scene,) * visit
        visited = range(opening * setup.frames_per_block, (opening + visit) * setup.frames_per_block)
        return cls(prompts, visited, range(blocks - visit, blocks))

    def even_share(self, frames_per_block: int) -> float:
        """The share of attention that the visit would get if all frames in the context got the same, mean over the
        measured blocks."""
        shares = [len(self.visited) / ((block + 1) * frames_per_block) for block in self.measured]
        return sum(shares) / len(shares)
