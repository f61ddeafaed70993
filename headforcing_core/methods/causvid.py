"""CausVid's long videos: rollouts of the training length, each beginning with the last latent
frames of the one before.

In Wan's VAE the first latent frame of a video decodes to one video frame, every other one to four.
So the last video frame of a latent frame from the middle of a rollout is encoded as the first
latent frame of the next one (arXiv 2412.07772; details as in the authors' code).
`video/restarts.py` decodes the blocks of all rollouts and provides the encoder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.head_cache import HeadCache
from ..cache.roles import RolePolicy
from ..cache.shape import CacheShape, Shape
from ..devices import Device, upload
from ..errors import HeadForcingError
from ..model.attention import AttentionFunction
from ..model.wan import KeyValueCache
from ..rollout.loop import Block, RolloutInputs, VideoModel, rollout
from ..rollout.schedule import Schedule
from ..rollout.solvers import predict_at
from .base import BaseMethod, MethodShape, WrappedModel, check_beginning
from .head_forcing import HeadForcing
from .method import VaeUse, VideoFacts

POLICY = HeadForcing.uniform(RolePolicy(recent_frames=None), rope="absolute")
# CausVid was distilled for the timesteps 757 and 522; 280 and 120 at shift 8 are the nearest noise
# levels
SCHEDULE = Schedule.warped([1000, 280, 120], shift=8.0)


class WholeTimesteps(WrappedModel):
    """Wraps a model to round its timesteps to integers, as in the authors' three unwarped steps:
    757 for 0.756757.
    """

    def denoise(self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache) -> Tensor:
        level = round(1000 * float(sigma)) / 1000
        return predict_at(self.model, latents, sigma=float(sigma), level=level, cache=cache)


@dataclass(frozen=True)
class Overlap:
    """Overlapping rollouts that together make one video."""

    frames: int = 21  # latent frames of one rollout; the cache's `shape.total_frames`
    overlap: int = 3  # latent frames that a rollout after the first takes from the one before
    frames_per_block: int = 3

    def __post_init__(self) -> None:
        block = self.frames_per_block
        if self.frames % block or self.overlap % block or not 0 < self.overlap < self.frames:
            raise HeadForcingError(
                f"rollout_frames and overlap_frames must be whole blocks of {block} latent frames, "
                f"and the overlap less than a rollout, got {self.frames} and {self.overlap}"
            )

    @property
    def blocks(self) -> int:
        """Blocks of one rollout, its overlap (`given_blocks`) included."""
        return self.frames // self.frames_per_block

    @property
    def given_blocks(self) -> int:
        return self.overlap // self.frames_per_block

    @property
    def stride(self) -> int:
        """Blocks from the first block of one rollout to the first block of the next."""
        return self.blocks - self.given_blocks

    @property
    def finished_frames(self) -> int:
        """Latent frames of a rollout up to the one whose last video frame is encoded for the next
        rollout: 19 of 21.
        """
        return self.frames - self.overlap + 1

    def parts(self, blocks: int) -> list[range]:
        """The new blocks of every rollout in a video of `blocks` blocks; those of its overlap lie
        before them.
        """
        starts = [0, *range(self.blocks, blocks, self.stride)]
        return [range(start, end) for start, end in pairwise([*starts, blocks])]

    def restart_frames(self, blocks: int) -> tuple[int, ...]:
        """First latent frame of every rollout after the first, in a video of `blocks` blocks: 18,
        36 ...
        """
        stride = self.stride * self.frames_per_block
        return tuple(range(stride, len(self.parts(blocks)) * stride, stride))


@dataclass(frozen=True)
class CausVid(BaseMethod):
    """CausVid's settings, in latent frames."""

    own_schedule: ClassVar[Schedule | None] = SCHEDULE
    fixed_length: ClassVar[bool] = True

    rollout_frames: int = 21  # the training length; attention covers all of them
    overlap_frames: int = 3  # that a rollout after the first takes from the one before

    def overlap(self, frames_per_block: int) -> Overlap:
        return Overlap(self.rollout_frames, self.overlap_frames, frames_per_block)

    def vae_use(self, frames_per_block: int, blocks: int) -> VaeUse | None:
        layout = self.overlap(frames_per_block)
        restarts = layout.restart_frames(blocks)
        if not restarts:
            return None
        return VaeUse(
            f"encodes a video frame after each rollout of {layout.frames} latent frames",
            layout.blocks,
            {"restart_frames": list(restarts)},
            f"{1 + len(restarts)} rollouts of {layout.frames} latent frames; each after the first "
            "begins with a video frame of the one before, decoded and encoded again",
        )

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        return self.rollout_frames

    def for_video(self, video: VideoFacts) -> CausVid:
        # raises if rollout and overlap are no whole blocks
        self.overlap(video.schedule.frames_per_block)
        check_beginning(video)
        return self

    def make_cache(
        self,
        shape: Shape,
        dtype: torch.dtype,
        device: Device,
        attention: AttentionFunction,
    ) -> HeadCache:
        sizes = (
            shape.rows,
            shape.columns,
            shape.head_dim,
            shape.frames_per_block,
            self.rollout_frames,
            shape.rope_axes,
        )
        return HeadCache(CacheShape(shape.roles, POLICY, *sizes), dtype, device, attention)

    def rollout(  # type: ignore[override]  # its own cache
        self, model: VideoModel, cache: HeadCache, video: RolloutInputs
    ) -> Iterator[Block]:
        """Yield the finished blocks of one video, numbered over all rollouts; overlaps are not
        yielded again.

        The cache is for one rollout, with `POLICY`; it is emptied for each. Between two rollouts
        `video.reencode` gets the first `finished_frames` of the finished one, also where its blocks
        are given; it is not needed where all blocks of the video are.
        """
        script = video.script
        layout = self.overlap(cache.shape.frames_per_block)
        if script.rows[0].sigmas == SCHEDULE.sigmas:
            model = WholeTimesteps(model)
        latents: list[Tensor] = []  # of the current rollout
        for part in layout.parts(len(script)):
            overlap: Sequence[Tensor] = ()
            if part.start and len(video.given) < len(script):
                assert video.reencode is not None
                finished, rest = torch.cat(latents).tensor_split((layout.finished_frames,))
                restart = torch.cat((video.reencode(finished).to(rest), rest))
                overlap = restart.split(layout.frames_per_block)
            latents = list(overlap)
            for block in _make_part(model, cache, video, part, overlap):
                latents.append(block.latents)
                yield block


def _make_part(
    model: VideoModel,
    cache: HeadCache,
    video: RolloutInputs,
    part: range,
    overlap: Sequence[Tensor],
) -> Iterator[Block]:
    """The blocks of a part: the given ones if they are all of it, else those of a rollout with an
    empty cache, which begins with the `overlap`.
    """
    if part.stop <= len(video.given):
        for number in part:
            yield Block(number, upload(video.given[number], cache.device))
        return
    cache.rewind(cache.block)  # all of it: this method has neither sinks nor memory
    video = replace(video, given=[*overlap, *video.given[part.start : part.stop]])
    for block in rollout(model, cache, video, range(part.start - len(overlap), part.stop)):
        if block.index in part:
            yield block
