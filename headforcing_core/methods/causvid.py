"""CausVid's long videos: rollouts of the training length, each beginning with the last latent frames of the one before.

In Wan's VAE the first latent frame of a video decodes to one video frame, every other one to four. A latent frame from
the middle of a rollout can therefore not be the first of the next one: instead its last video frame is encoded as a
first latent frame ("From Slow Bidirectional to Fast Autoregressive Video Diffusion Models"; details as in the authors'
code).

The blocks of all rollouts are numbered consecutively and make up the latents of the video. `video/restarts.py` decodes
them and provides the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..cache.head_cache import HeadCache
from ..cache.method import RolloutInputs
from ..cache.policy import CachePolicy, RolePolicy
from ..cache.shape import CacheShape
from ..devices import upload
from ..errors import HeadForcingError
from ..model.attention import AttentionFunction
from ..model.wan import KeyValueCache, PromptKV
from ..rollout.loop import Block, BlockCache, JointModel, StepCallback, VideoModel, rollout
from ..rollout.noise import NoiseSource
from ..rollout.overlap import Overlap
from ..rollout.schedule import Schedule
from .base import MethodPolicy, MethodShape

POLICY = CachePolicy.uniform(RolePolicy(recent_frames=None), rope="absolute")
SCHEDULES = {
    # CausVid was distilled for the timesteps 757 and 522; 280 and 120 at shift 8 are the nearest noise levels
    "3_steps": Schedule.warped([1000, 280, 120], shift=8.0),
    "4_steps": Schedule.warped([1000, 750, 500, 250], shift=8.0),
}


class RewindableCache(BlockCache, Protocol):
    """A cache that can drop its last blocks."""

    def rewind(self, blocks: int) -> None:
        """Drop this many of the last blocks."""


class WholeTimesteps:
    """Wraps a model to round its timesteps to integers, as in the authors' three unwarped steps: 757 for 0.756757.

    Without the rounding, recorded videos of a tiny model differ by a tenth of their standard deviation. The authors do
    not round warped steps.
    """

    def __init__(self, model: VideoModel):
        self._model = model

    @property
    def prompt(self) -> PromptKV:
        return self._model.prompt

    def use_prompt(self, prompt: int) -> None:
        self._model.use_prompt(prompt)

    def denoise(self, latents: Tensor, sigma: float, cache: BlockCache) -> Tensor:
        rounded = round(1000 * sigma) / 1000
        clean = self._model.denoise(latents, rounded, cache)
        return latents + (clean - latents) * (sigma / rounded)  # the predicted flow times the exact sigma

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        self._model.write_clean(latents, cache)


@dataclass(frozen=True)
class CausVid(MethodPolicy):
    """CausVid's settings.

    Attributes:
        rollout_frames: latent frames of one rollout, the training length; attention covers all of them.
        overlap_frames: latent frames that a rollout after the first takes from the one before.
    """

    own_schedule: ClassVar[Schedule | None] = SCHEDULES["3_steps"]

    rollout_frames: int = 21
    overlap_frames: int = 3

    def overlap(self, frames_per_block: int) -> Overlap:
        return Overlap(self.rollout_frames, self.overlap_frames, frames_per_block)

    def frames_per_head(self, layer: int, role: str, frames_per_block: int) -> float:
        return self.rollout_frames

    def check_video(self, schedule: Schedule, blocks: int, start_frames: int) -> None:
        self.overlap(schedule.frames_per_block)
        if start_frames:
            raise HeadForcingError(
                f"causvid does not support start frames, got {start_frames}; remove them or choose another method"
            )
        if schedule.first_block_sigmas is not None:
            raise HeadForcingError(
                "causvid needs the same noise levels for every block; choose a model family without separate ones for "
                "the first block"
            )

    def make_cache(
        self, shape: MethodShape, dtype: torch.dtype, device: torch.device | str, attention: AttentionFunction
    ) -> HeadCache:
        sizes = (shape.rows, shape.columns, shape.head_dim, shape.frames_per_block, self.rollout_frames)
        return HeadCache(CacheShape(shape.roles, POLICY, *sizes), dtype, device, attention)

    def rollout(self, model: JointModel, cache: HeadCache, video: RolloutInputs) -> Iterator[OverlapBlock]:
        inputs, layout = (video.schedule, video.noise, video.prompts), self.overlap(video.schedule.frames_per_block)
        encode: Any = video.reencode  # None only for a video of one rollout, where it is not called
        return overlapping_rollouts(
            model, cache, *inputs, lambda _, latents: encode(latents), layout, video.made, video.on_step
        )


@dataclass(frozen=True)
class OverlapBlock(Block):
    """A finished block of rollout number `rollout`.

    The first new block of a rollout after the first has `given [overlap, channels, h, w]`: the latents that the rollout
    began with, which are not part of the video's latents.
    """

    rollout: int = 0
    given: Tensor | None = None


class LaterNoise:
    """The noise of a video, with blocks counted from block `first`."""

    def __init__(self, noise: NoiseSource, first: int):
        self._noise, self._first = noise, first

    def initial(self, block: int) -> Tensor:
        return self._noise.initial(self._first + block)

    def renoise(self, block: int, step: int) -> Tensor:
        return self._noise.renoise(self._first + block, step)

    def ahead(self, block: int) -> None:
        self._noise.ahead(self._first + block)


def overlapping_rollouts(
    model: VideoModel,
    cache: RewindableCache,
    schedule: Schedule,
    noise: NoiseSource,
    prompts: Sequence[int],
    reencode: Callable[[int, Tensor], Tensor],
    layout: Overlap | None = None,
    made: Sequence[Tensor] = (),
    on_step: StepCallback = lambda block, step, latents: None,
) -> Iterator[OverlapBlock]:
    """Yield the finished blocks of one video, numbered over all rollouts; overlaps are not yielded again.

    Args:
        cache: for one rollout, with `POLICY`; it is emptied for each.
        prompts: for every block of the video the number of its prompt.
        reencode: called as `(rollout, latents [frames, channels, h, w])` between two rollouts, with the first
            `finished_frames` of the finished one. Decodes them and encodes the last video frame as the first of a
            video; returns the latent frame `[1, channels, h, w]`.
        layout: default: 21 frames with an overlap of 3.
        made: finished blocks of an earlier render, the first ones of the video; they are yielded unchanged. `reencode`
            is called for their rollouts, too, unless they are the whole video.
        on_step: as in `rollout`.
    """
    layout = layout or Overlap(frames_per_block=schedule.frames_per_block)
    if layout.frames_per_block != schedule.frames_per_block:
        raise HeadForcingError(
            f"overlap and schedule must have blocks of the same length, got {layout.frames_per_block} and "
            f"{schedule.frames_per_block} latent frames"
        )
    if not prompts:
        raise HeadForcingError("a video needs a prompt for every block")
    if schedule.sigmas == SCHEDULES["3_steps"].sigmas:
        model = WholeTimesteps(model)
    latents: list[Tensor] = []  # of the current rollout
    for number in range(layout.rollouts(len(prompts))):
        first, given = number * layout.stride, None
        if number and len(made) < len(prompts):
            finished, rest = torch.cat(latents).tensor_split((layout.finished_frames,))
            given = torch.cat((reencode(number - 1, finished).to(rest), rest))
        latents = [] if given is None else [given]
        begin = first + (layout.given_blocks if number else 0)
        end = min(first + layout.blocks, len(prompts))
        blocks: Iterator[Block]
        if end <= len(made):
            read = ((block, upload(made[block], cache.device)) for block in range(begin, end))
            blocks = (Block(block - first, prompts[block], x, None) for block, x in read)
        else:
            cache.rewind(cache.block)
            later, step = LaterNoise(noise, first), partial(_from, first, on_step)
            blocks = rollout(model, cache, schedule, later, prompts[first:end], given, made[begin:end], step)
        for block in blocks:
            latents.append(block.latents)
            at_start = block.index == begin - first
            place, begun_with = first + block.index, given if at_start else None
            yield OverlapBlock(place, block.prompt, block.latents, None, rollout=number, given=begun_with)


def _from(first: int, on_step: StepCallback, block: int, step: int, latents: Tensor | None) -> None:
    on_step(first + block, step, latents)
