"""CausVid's long videos: block-wise rollouts of one training length, each begun with the end of the one before.

The first frame of a video is special to Wan's autoencoder: it holds one picture, all others hold four. So a rollout
cannot begin with a latent from the middle of the one before, and one decoded picture is encoded anew as a first frame
("From Slow Bidirectional to Fast Autoregressive Video Diffusion Models"; details as in the authors' code).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ..clock import PICTURES_PER_FRAME, pictures_of
from ..errors import HeadForcingError
from ..noise import NoiseSource
from ..policy import CachePolicy, RolePolicy
from ..rollout import Block, BlockCache, StepCallback, VideoModel, WanVideoModel, rollout
from ..schedule import Schedule
from ..wan import KeyValueCache

POLICY = CachePolicy.uniform(RolePolicy(recent_frames=None), rope="absolute")
SCHEDULES = {
    # 280 and 120 at shift 8 are the levels nearest to the timesteps 757 and 522 that CausVid was distilled for
    "3_steps": Schedule.warped([1000, 280, 120], shift=8.0),
    "4_steps": Schedule.warped([1000, 750, 500, 250], shift=8.0),
}


class RewindableCache(BlockCache, Protocol):
    """A cache that can give up its last blocks."""

    def rewind(self, blocks: int) -> None:
        """Forget that many of the last blocks."""


class CausVidWanModel(WanVideoModel):
    """A Wan backbone that is told whole timesteps, as the authors' unwarped three steps are: 757 at level 0.756757.

    The quarter of a step moves the tiny recorded videos by a tenth of their spread. Warped steps are not rounded.
    """

    def flow(self, latents: Tensor, sigma: float, cache: KeyValueCache, write_only: bool = False) -> Tensor | None:
        return super().flow(latents, round(1000 * sigma) / 1000, cache, write_only)


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
    def kept_pictures(self) -> int:
        """Pictures that a rollout adds to the video: all but its last `4 * (overlap - 1) + 1`, 72 of 81.

        The first one that is cut, number `kept_pictures` counted from 0, is encoded anew: the next rollout begins with
        it, so the pictures of the video follow one another without a gap. The authors cut the last rollout, too.
        """
        return pictures_of(self.frames) - pictures_of(self.overlap)

    def rollouts(self, blocks: int) -> int:
        """How many rollouts a video of `blocks` blocks takes; the last one may be shorter than the others."""
        return max(1, -(-(blocks - self.given_blocks) // self.stride))

    def pictures(self, blocks: int) -> int:
        """Pictures of a video of `blocks` blocks whose last rollout is cut like the others: 72 for 7 blocks."""
        return max(0, PICTURES_PER_FRAME * (blocks * self.frames_per_block - self.overlap))


@dataclass(frozen=True)
class OverlapBlock(Block):
    """A finished block of rollout number `rollout`.

    `given [overlap, channels, h, w]` comes with the first new block of a rollout that began with start latents: they
    are decoded before it, as the beginning of a video of its own.
    """

    rollout: int = 0
    given: Tensor | None = None


class LaterNoise:
    """The noise of a video from block `first` on."""

    def __init__(self, noise: NoiseSource, first: int):
        self._noise, self._first = noise, first

    def initial(self, block: int) -> Tensor:
        return self._noise.initial(self._first + block)

    def renoise(self, block: int, step: int) -> Tensor:
        return self._noise.renoise(self._first + block, step)


def overlapping_rollouts(
    model: VideoModel,
    cache: RewindableCache,
    schedule: Schedule,
    noise: NoiseSource,
    prompts: Sequence[int],
    reencode: Callable[[int, int], Tensor],
    layout: Overlap | None = None,
    made: Sequence[Tensor] = (),
    on_step: StepCallback = lambda block, step, latents: None,
) -> Iterator[OverlapBlock]:
    """Yield the finished blocks of one video, numbered through all rollouts; overlaps are not yielded again.

    Args:
        cache: for one rollout, with `POLICY`; it is emptied for each.
        prompts: for every block of the video the number of its prompt.
        reencode: called as `(rollout, picture)` once a rollout is finished and another one follows. Returns the latent
            `[1, channels, h, w]` of that one of its pictures, encoded as the first frame of a video.
        layout: 21 frames with an overlap of 3 where none is given.
        made: the first blocks of the video, made before; they are yielded as they are.
        on_step: as in `rollout`.
    """
    layout = layout or Overlap(frames_per_block=schedule.frames_per_block)
    if layout.frames_per_block != schedule.frames_per_block:
        raise HeadForcingError(
            f"the overlap counts blocks of {layout.frames_per_block} latent frames, the schedule makes "
            f"{schedule.frames_per_block}"
        )
    if not prompts:
        raise HeadForcingError("a video needs a prompt for every block")
    latents: list[Tensor] = []  # of one rollout
    for number in range(layout.rollouts(len(prompts))):
        first, given = number * layout.stride, None
        if number:
            new = reencode(number - 1, layout.kept_pictures)
            given = torch.cat((new.to(latents[-1]), torch.cat(latents)[layout.frames - layout.overlap + 1 :]))
        latents = [] if given is None else [given]
        begin = first + (0 if given is None else layout.given_blocks)
        end = min(first + layout.blocks, len(prompts))
        blocks: Iterator[Block]
        if end <= len(made):
            blocks = (Block(block - first, prompts[block], made[block], None) for block in range(begin, end))
        else:
            cache.rewind(cache.block)
            later, step = LaterNoise(noise, first), partial(_from, first, on_step)
            blocks = rollout(model, cache, schedule, later, prompts[first:end], given, made[begin:end], step)
        for block in blocks:
            latents.append(block.latents)
            at_start = block.index == begin - first
            yield OverlapBlock(
                first + block.index, block.prompt, block.latents, None, number, given if at_start else None
            )


def _from(first: int, on_step: StepCallback, block: int, step: int, latents: Tensor | None) -> None:
    on_step(first + block, step, latents)
