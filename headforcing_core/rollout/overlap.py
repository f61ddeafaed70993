"""The lengths of overlapping rollouts that together make one video."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import HeadForcingError


@dataclass(frozen=True)
class Overlap:
    """The length of a rollout and of its overlap with the one before.

    Attributes:
        frames: latent frames of one rollout; the cache's `shape.total_frames`.
        overlap: latent frames that a rollout after the first takes from the one before; whole blocks.
    """

    frames: int = 21
    overlap: int = 3
    frames_per_block: int = 3

    def __post_init__(self) -> None:
        if self.frames % self.frames_per_block:
            raise HeadForcingError(f"frames must be whole blocks of {self.frames_per_block}, got {self.frames}")
        if self.overlap % self.frames_per_block or not 0 < self.overlap < self.frames:
            raise HeadForcingError(
                f"overlap must be whole blocks of {self.frames_per_block} latent frames, at least one and less than "
                f"the {self.frames} of a rollout, got {self.overlap}"
            )

    @property
    def blocks(self) -> int:
        """Blocks of one rollout, its overlap included."""
        return self.frames // self.frames_per_block

    @property
    def given_blocks(self) -> int:
        """Blocks of the overlap."""
        return self.overlap // self.frames_per_block

    @property
    def stride(self) -> int:
        """Blocks from the first block of one rollout to the first block of the next."""
        return self.blocks - self.given_blocks

    @property
    def finished_frames(self) -> int:
        """Latent frames of a rollout up to the one whose last video frame is encoded for the next rollout: 19 of 21.

        The authors drop that video frame and all after it: 72 of 81 remain, and the next rollout continues from there.
        They drop them at the end of a video, too; here the last rollout is kept whole.
        """
        return self.frames - self.overlap + 1

    def rollouts(self, blocks: int) -> int:
        """Number of rollouts of a video of `blocks` blocks; the last one may be shorter than the others."""
        return max(1, -(-(blocks - self.given_blocks) // self.stride))

    def restart_frames(self, blocks: int) -> tuple[int, ...]:
        """First latent frame of every rollout after the first, in a video of `blocks` blocks: 18, 36 ..."""
        return tuple(number * self.stride * self.frames_per_block for number in range(1, self.rollouts(blocks)))
