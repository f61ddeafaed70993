"""Rolling Forcing: a window of blocks at rising noise levels is denoised jointly and moves over the
video.

Window `w` holds the blocks `w - steps + 1 .. w`, as far as they exist. One model call denoises each
of them by one step; then the first one is finished and leaves the window (arXiv 2509.25161; what
the paper leaves open is as in the authors' code).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..devices import upload
from ..errors import HeadForcingError
from ..rollout.loop import Block, RolloutInputs, VideoModel
from ..rollout.schedule import Schedule
from .base import BaseMethod, MethodCache, MethodShape, check_beginning
from .method import VideoFacts

SCHEDULE = Schedule.warped([1000, 800, 600, 400, 200])
# constants of the authors' code, there 24 and 21 latent frames
HELD_BLOCKS = 8
ATTENDED_BLOCKS = 7
UNFINISHED = "unfinished"  # in `Block.extra`: latents of the following blocks, oldest first


@dataclass(frozen=True)
class RollingForcing(BaseMethod):
    """Rolling Forcing's settings: only the schedule, whose number of steps is the window's number
    of blocks.
    """

    own_schedule: ClassVar[Schedule | None] = SCHEDULE
    fixed_length: ClassVar[bool] = True

    def blocks_ahead(self, schedule: Schedule) -> int:
        return len(schedule.sigmas) - 1  # of the window

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        return HELD_BLOCKS * shape.frames_per_block

    def for_video(self, video: VideoFacts) -> RollingForcing:
        schedule = video.schedule
        steps = len(schedule.sigmas)
        check_beginning(video)
        if steps >= ATTENDED_BLOCKS:
            raise HeadForcingError(
                f"rolling forcing attends to {ATTENDED_BLOCKS} blocks, the first one of the video "
                f"included, so at most {ATTENDED_BLOCKS - 1} steps fit, got {steps}; choose a "
                "schedule with fewer"
            )
        if video.blocks < steps:
            raise HeadForcingError(
                f"rolling forcing with {steps} steps needs a video of at least {steps} blocks of "
                f"{schedule.frames_per_block} latent frames, got {video.blocks}; make it longer or "
                "use fewer steps"
            )
        return self

    def steps_ahead(self, extra: Mapping[str, Tensor], schedule: Schedule) -> int:
        steps = len(schedule.sigmas)
        # the first of the window has had all steps but one, the next all but two
        return sum(steps - behind for behind in range(1, len(extra.get(UNFINISHED, ())) + 1))

    def rollout(  # type: ignore[override]  # its own cache
        self, model: VideoModel, cache: RollingCache, video: RolloutInputs
    ) -> Iterator[Block]:
        """Yield the finished blocks of one video, as `rollout.loop.rollout`; all rows have the same
        noise levels.

        A window is denoised under the prompt of its newest block, so a new prompt also affects the
        unfinished blocks; their latents are the `extra` of a finished one. `on_step` is called for
        each block of a window after its step, and with None for the newest one before it.
        """
        script = video.script
        given = video.given
        steps = len(script.rows[0].sigmas)
        blocks = len(script)
        window = [upload(x, cache.device) for x in video.extra.get(UNFINISHED, ())]
        if len(window) != (min(steps - 1, blocks - len(given)) if given else 0):
            raise HeadForcingError(
                f"resuming after {len(given)} of {blocks} blocks needs the {steps - 1} unfinished "
                f"ones (fewer at the end of the video), got {len(window)}; render the "
                "video from the beginning"
            )
        active = None
        for number in range(steps - 1 if given else 0, blocks + steps - 1):
            inside = range(max(0, number - steps + 1), min(number + 1, blocks))
            first = inside[0]
            newest = inside[-1]
            row = script.begin(newest)
            if row.prompt != active:
                active = row.prompt
                model.use_prompt(script.embedding(newest))
            video.on_step(newest, number - newest, None)
            if first < len(given):
                latents = upload(given[first], cache.device)
            else:
                if newest == number:
                    window.append(upload(video.noise.initial(number, row.seed), cache.device))
                latents, window = _take_step(
                    model, cache, video=video, window=window, inside=inside, number=number
                )
            # The authors write the first block after every window. An unfinished block 0 is never
            # read from the cache, so here a block is written once, when it is finished.
            if number - first == steps - 1:
                cache.begin(inside[:1], clean=True)
                model.write_clean(latents, cache)
                cache.block = first + 1
                kept = window and first + 1 >= len(given)
                extra = {UNFINISHED: torch.stack(window)} if kept else {}
                yield Block(first, latents, extra=extra)


def _take_step(
    model: VideoModel,
    cache: RollingCache,
    video: RolloutInputs,
    window: Sequence[Tensor],
    inside: range,
    number: int,
) -> tuple[Tensor, list[Tensor]]:
    """Denoise window `number` by one step; returns the first block's clean latents and the
    unfinished blocks.
    """
    rows = video.script.rows
    steps = [number - block for block in inside]
    levels = rows[0].sigmas
    sigmas = torch.tensor([levels[step] for step in steps], dtype=torch.float64)
    cache.begin(inside)
    frames = len(window[0])
    joint = model.denoise(torch.cat(tuple(window)), sigmas.repeat_interleave(frames), cache)
    unfinished = []
    for block, step, clean in zip(inside, steps, joint.split(frames), strict=True):
        video.on_step(block, step + 1, clean)
        if step + 1 < len(levels):
            sigma = levels[step + 1]
            seed = rows[block].seed
            fresh = upload(video.noise.renoise(block, seed, step).to(clean.dtype), clean.device)
            unfinished.append((1 - sigma) * clean + sigma * fresh)
    # cloned, because a view would keep the latents of the whole window in memory
    return joint[:frames].clone(), unfinished


class RollingCache(MethodCache, of=RollingForcing):
    """Keys and values of finished blocks: the first block of the video, an anchor whose index
    changes, and the last seven. Call `begin(blocks)` before each pass; only a clean pass is stored.
    """

    def begin_video(self) -> None:
        self.past: list[dict[int, Tensor]] = [{} for _ in self.shape.roles]  # per layer, by block
        self._positions: dict[int, int] = {}

    def begin(self, blocks: range, clean: bool = False) -> None:
        """Begin a pass over these blocks; a clean pass is over a single block and is stored."""
        count = self.shape.frames_per_block
        self.start = blocks.start * count
        self.end = blocks.stop * count
        self.clean = clean
        self._positions = attended_blocks(list(self.past[-1]), blocks, clean)

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self._own = torch.stack((k, v))
        if self.clean:
            past = self.past[layer]
            if len(past) == HELD_BLOCKS:
                del past[list(past)[1]]
            past[self.start // self.shape.frames_per_block] = self._own

    def context(self, layer: int, q: Tensor) -> Tensor:
        k, v = torch.cat(
            [*(self.past[layer][block] for block in self._positions), self._own], dim=2
        )
        count = self.shape.frames_per_block
        before = [
            place * count + frame for place in self._positions.values() for frame in range(count)
        ]
        k = self.rope.rotate_temporal(k, [*before, *range(self.start, self.end)])
        return self.attention_over(self.at_own_index(q), k, v)


def attended_blocks(held: Sequence[int], inside: range, clean: bool) -> dict[int, int]:
    """The stored blocks that a pass over the blocks `inside` attends to, each with its position, in
    blocks.

    A window attends to the last blocks that fit, and to the anchor at the position right before
    them. A clean pass attends to more, as in the authors' code: to all stored blocks with the
    anchor at position 0, or, if these are too many, to the last ones without the anchor.
    """
    if inside.start == 0:
        return {}  # the anchor itself is not finished
    others = [block for block in held if 0 < block < inside.start]
    room = ATTENDED_BLOCKS - len(inside) - 1
    if clean:
        if len(others) <= room:
            return {block: block for block in [0, *others]}
        return {block: block for block in others[len(others) - room - 1 :]}
    working = others[max(0, len(others) - room) :]
    return {0: inside.start - len(working) - 1, **{block: block for block in working}}
