"""Rolling Forcing: a window of blocks at rising noise levels is denoised jointly and rolls over the video.

Window `w` holds the blocks `w - steps + 1 .. w`, those of them that exist. One model call takes each of them one step
further, then the first one is finished and leaves. So a block sees the next ones while it is being made, and they see
it. The first block of the video stays in view as an attention sink ("Rolling Forcing: Autoregressive Long Video
Diffusion in Real Time"; what the paper leaves open is as in the authors' code).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..attention import AttentionFunction
from ..errors import HeadForcingError
from ..noise import NoiseSource
from ..rollout import Block, StepCallback, VideoModel
from ..schedule import Schedule
from ..wan import KeyValueCache
from .base import MethodPolicy, MethodShape
from .rolling_cache import ATTENDED_BLOCKS, HELD_BLOCKS, RollingCache

SCHEDULE = Schedule.warped([1000, 800, 600, 400, 200])


@dataclass(frozen=True)
class RolledBlock(Block):
    """A finished block, and those begun after it: `unfinished`, oldest first, each noisy and shaped like `latents`."""

    unfinished: tuple[Tensor, ...] = ()


class JointModel(VideoModel, Protocol):
    """A model that also denoises several blocks in one call, frames at different noise levels."""

    def denoise_jointly(self, latents: Tensor, sigmas: Tensor, cache: KeyValueCache) -> Tensor:
        """Predict the clean latents, same shape, of `latents [frames, c, h, w]` at noise levels `sigmas [frames]`."""


@dataclass(frozen=True)
class RollingForcing(MethodPolicy):
    """Rolling Forcing as a method to choose; it has no settings but the schedule, whose steps are the window."""

    own_schedule: ClassVar[Schedule | None] = SCHEDULE

    def frames_per_head(self, layer: int, role: str, frames_per_block: int) -> float:
        return HELD_BLOCKS * frames_per_block

    def blocks_per_pass(self, schedule: Schedule) -> int:
        return len(schedule.sigmas)

    def check_video(self, schedule: Schedule, blocks: int, start_frames: int) -> None:
        if start_frames:
            raise HeadForcingError(
                f"rolling forcing cannot go on from start frames, got {start_frames}: the blocks after them would have "
                "to be under way already; leave them out or choose another method"
            )
        check_window(schedule, blocks)

    def make_cache(
        self, shape: MethodShape, dtype: torch.dtype, device: torch.device | str, attention: AttentionFunction
    ) -> RollingCache:
        return RollingCache(shape, device, attention)  # it holds what it is given, in that dtype


def rolling_rollout(
    model: JointModel,
    cache: RollingCache,
    schedule: Schedule,
    noise: NoiseSource,
    prompts: Sequence[int],
    made: Sequence[Tensor] = (),
    unfinished: Sequence[Tensor] = (),
    on_step: StepCallback = lambda block, step, latents: None,
) -> Iterator[RolledBlock]:
    """Yield the finished blocks of one video; stop taking them and the rollout stops.

    Args:
        prompts: for every block the number of its prompt. A window runs under the prompt of its newest block, so a
            change of prompt reaches the blocks that are under way as well.
        made: blocks that were made before; they are written to the cache and yielded as they are.
        unfinished: what came with the last of them, `RolledBlock.unfinished`; finished blocks alone do not tell it.
        on_step: called as `(block, step, predicted clean latents)` for each block of a window after its step, and with
            None for the newest one before; raise from it to stop within one model call.
    """
    steps, blocks = len(schedule.sigmas), len(prompts)
    check_window(schedule, blocks)
    if len(unfinished) != (min(steps - 1, blocks - len(made)) if made else 0):
        raise HeadForcingError(
            f"going on after {len(made)} of {blocks} blocks needs the {steps - 1} that were begun (fewer at the end of "
            f"the video), got {len(unfinished)}; make the video anew"
        )
    active, window = None, [x.to(cache.device) for x in unfinished]
    for number in range(steps - 1 if made else 0, blocks + steps - 1):
        inside = range(max(0, number - steps + 1), min(number + 1, blocks))
        first, newest = inside[0], inside[-1]
        if prompts[newest] != active:
            active = prompts[newest]
            model.use_prompt(active)
        on_step(newest, number - newest, None)
        if first < len(made):
            latents = made[first]
        else:
            if newest == number:
                window.append(noise.initial(number).to(cache.device))
            latents, window = _take_step(model, cache, schedule, noise, window, inside, number, on_step)
        # The authors write the first block after every window. While block 0 is unfinished nobody reads it, so here a
        # block is written once, when it is finished.
        if number - first == steps - 1:
            cache.begin(inside[:1], clean=True)
            model.write_clean(latents, cache)
            yield RolledBlock(first, prompts[first], latents, None, tuple(window) if first + 1 >= len(made) else ())


def _take_step(
    model: JointModel,
    cache: RollingCache,
    schedule: Schedule,
    noise: NoiseSource,
    window: Sequence[Tensor],
    inside: range,
    number: int,
    on_step: StepCallback,
) -> tuple[Tensor, list[Tensor]]:
    """Denoise window `number` by one step: the first block's clean latents, and all blocks that have steps left."""
    steps = [number - block for block in inside]
    sigmas = torch.tensor([schedule.sigmas[step] for step in steps], dtype=torch.float64)
    cache.begin(inside)
    joint = model.denoise_jointly(torch.cat(tuple(window)), sigmas.repeat_interleave(schedule.frames_per_block), cache)
    unfinished = []
    for block, step, clean in zip(inside, steps, joint.split(schedule.frames_per_block), strict=True):
        on_step(block, step + 1, clean)
        if step + 1 < len(schedule.sigmas):
            sigma, fresh = schedule.sigmas[step + 1], noise.renoise(block, step).to(clean)
            unfinished.append((1 - sigma) * clean + sigma * fresh)
    return joint[: schedule.frames_per_block].clone(), unfinished  # a copy: a part would hold all of the window


def check_window(schedule: Schedule, blocks: int) -> None:
    """Refuse a schedule or a video that no rolling window fits."""
    steps = len(schedule.sigmas)
    if schedule.first_block_sigmas is not None:
        raise HeadForcingError(
            "rolling forcing takes every block through the same noise levels; choose a schedule that has no others for "
            "the first block"
        )
    if steps >= ATTENDED_BLOCKS:
        raise HeadForcingError(
            f"rolling forcing attends to {ATTENDED_BLOCKS} blocks, the first one of the video included, so that at "
            f"most {ATTENDED_BLOCKS - 1} steps fit, got {steps}"
        )
    if blocks < steps:
        raise HeadForcingError(
            f"rolling forcing with {steps} steps needs a video of at least {steps} blocks of "
            f"{schedule.frames_per_block} latent frames, got {blocks}; make it longer or use fewer steps"
        )
