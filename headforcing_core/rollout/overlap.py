"""How one video is made of several rollouts that overlap."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import HeadForcingError


@dataclass(frozen=True)
class Overlap:
    """How rollouts are laid over one another.

    Attributes:
        frames: latent frames of one rollout; the cache's `shape.total_frames`.
        overlap: how many of them a rollout after the first begins with; whole blocks.
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
        """Blocks of one rollout, those it begins with included."""
        return self.frames // self.frames_per_block

    @property
    def given_blocks(self) -> int:
        """Blocks that a rollout after the first begins with."""
        return self.overlap // self.frames_per_block

    @property
    def stride(self) -> int:
        """Blocks from the beginning of one rollout to that of the next."""
        return self.blocks - self.given_blocks

    @property
    def finished_frames(self) -> int:
        """Frames of a rollout up to the one whose last picture is encoded anew, 19 of 21: the next begins with it.

        The authors drop that picture and those after it: 72 of 81 stay, and the next rollout goes on there without a
        gap. They also drop them where none goes on, at the end of a video; here they stay.
        """
        return self.frames - self.overlap + 1

    def rollouts(self, blocks: int) -> int:
        """How many rollouts a video of `blocks` blocks takes; the last one may be shorter than the others."""
        return max(1, -(-(blocks - self.given_blocks) // self.stride))

    def restart_frames(self, blocks: int) -> tuple[int, ...]:
        """The frames of a video of `blocks` blocks that its rollouts after the first begin with: 18, 36 ..."""
        return tuple(number * self.stride * self.frames_per_block for number in range(1, self.rollouts(blocks)))
