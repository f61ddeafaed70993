"""The block loop: a video is generated one block of latent frames at a time (paper, "Preliminary"; METHOD.md).

`make_block` is the paper's algorithm; `rollout` calls it block after block and handles start frames, finished blocks of
an earlier render and prompt switches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from ..devices import upload
from ..errors import HeadForcingError
from ..model.wan import KeyValueCache, PromptKV
from ..timeline.switch import SWITCHES, Switch
from .events import MemoryEvent
from .noise import NoiseSource
from .schedule import Schedule


def make_block(
    model: VideoModel,
    cache: BlockCache,
    sigmas: Sequence[float],
    noise: NoiseSource,
    block: int,
    on_step: StepCallback = lambda block, step, latents: None,
) -> tuple[Tensor, MemoryEvent | None]:
    """Make one block from noise: denoise over the noise levels `sigmas`, clean pass, commit (METHOD.md, "One block").

    Args:
        block: its number in the video, from 0; seeds the noise.
        on_step: as for `rollout`.

    Returns:
        the block's clean latents `[frames, channels, h, w]`, and the decision of episodic memory, None for none.
    """
    cache.begin_block()
    on_step(block, 0, None)
    x = upload(noise.initial(block), cache.device)
    for step, sigma in enumerate(sigmas):
        x0 = model.denoise(x, sigma, cache)
        on_step(block, step + 1, x0)
        if step + 1 < len(sigmas):
            fresh = upload(noise.renoise(block, step).to(x0.dtype), x0.device)
            x = (1 - sigmas[step + 1]) * x0 + sigmas[step + 1] * fresh
    model.write_clean(x0, cache)
    return x0, cache.commit(model.prompt)


def rollout(
    model: VideoModel,
    cache: BlockCache,
    schedule: Schedule,
    noise: NoiseSource,
    prompts: Sequence[int],
    start_latents: Tensor | None = None,
    made: Sequence[Tensor] = (),
    on_step: StepCallback = lambda block, step, latents: None,
    on_start_event: Callable[[MemoryEvent], None] = lambda event: None,
    switches: Mapping[int, Switch] = MappingProxyType({}),
) -> Iterator[Block]:
    """Yield the finished blocks of one video. A generator: a block is computed when the caller asks for it.

    Prompts and switches may change between two blocks: those of a block are read when it begins.

    Args:
        prompts: for every block, start blocks included, the number of its prompt.
        start_latents: `[n * frames_per_block, channels, h, w]`, latents that the video begins with. They are written
            to the cache and not yielded; the blocks after them are numbered from `n`.
        made: finished blocks of an earlier render, the first ones after the start; they are yielded unchanged. Those
            that the cache does not hold yet are written to it. Each is moved to the cache's device when it is read.
        on_start_event: called with the decisions of episodic memory after start blocks, which are not yielded.
        on_step: called as `(block, step, predicted clean latents)` after each step, and with step 0 and None before the
            first; an exception raised by it stops the rollout within one model call.
        switches: by block number, the prompt switch before it.
    """
    if not prompts:
        raise HeadForcingError("a rollout needs a prompt for every block")
    start = split_start_latents(start_latents, schedule.frames_per_block)
    # of any switch, since `switches` may change; the reference cache of the paper alone has none
    needed = max(cache.switch_blocks(Switch(kind)) for kind in SWITCHES) if hasattr(cache, "switch_blocks") else 0
    latest: deque[Tensor] = deque(maxlen=needed)
    active = None
    for block, prompt in enumerate(prompts):
        event = None
        if block < cache.block:  # the cache was restored and holds this block
            latents = _given(start, made, block, cache.device)
        else:
            if prompt != active:
                model.use_prompt(prompt)
                active = prompt
            if block in switches:
                _apply_switch(switches[block], model, cache, latest, partial(on_step, block, 0, None))
            if block < len(start) + len(made):
                latents = _given(start, made, block, cache.device)
                event = _write_given(model, cache, latents, block, on_step)
            else:
                sigmas = schedule.for_block(block - len(start))  # the first generated block may have more steps
                latents, event = make_block(model, cache, sigmas, noise, block, on_step)
                if block + 1 < len(prompts):
                    noise.ahead(block + 1)  # before anything waits for this block
        latest.append(latents)
        if block >= len(start):
            yield Block(block, prompt, latents, event)
        elif event is not None:
            on_start_event(event)


def _given(start: Sequence[Tensor], made: Sequence[Tensor], block: int, device: torch.device) -> Tensor:
    """A start block, or one of an earlier render; the others stay where they are, which may be the host's memory."""
    return start[block] if block < len(start) else upload(made[block - len(start)], device)


def _write_given(
    model: VideoModel, cache: BlockCache, latents: Tensor, block: int, on_step: StepCallback
) -> MemoryEvent | None:
    """Write a block of known latents to the cache: `make_block` without its denoising steps."""
    cache.begin_block()
    on_step(block, 0, None)
    model.write_clean(latents, cache)
    return cache.commit(model.prompt)


def _apply_switch(
    switch: Switch, model: VideoModel, cache: BlockCache, latest: Sequence[Tensor], before_pass: Callable[[], None]
) -> None:
    """Apply a prompt switch to the cache; `before_pass` is called before every clean pass of a recache."""

    def write_clean(latents: Tensor) -> None:
        before_pass()
        model.write_clean(latents, cache)

    needed = cache.switch_blocks(switch)
    cache.apply_switch(switch, write_clean, list(latest)[max(0, len(latest) - needed) :])


def split_start_latents(latents: Tensor | None, frames_per_block: int) -> Sequence[Tensor]:
    """Split `[frames, channels, h, w]` into blocks; raises HeadForcingError if the last one is not complete."""
    if latents is None:
        return ()
    if not len(latents) or len(latents) % frames_per_block:
        raise HeadForcingError(
            f"start frames must fill whole blocks of {frames_per_block} latent frames, got {len(latents)}; "
            f"drop {len(latents) % frames_per_block} from the end"
        )
    return latents.split(frames_per_block)


# ----------------------------------------------------------------- outputs and inputs of the loop


StepCallback = Callable[[int, int, Tensor | None], None]


@dataclass(frozen=True)
class Block:
    """A finished block: `latents [frames, channels, h, w]` float32, and the decision of episodic memory after it.

    Where a method denoises several blocks together, `unfinished` holds the partly denoised latents of the following
    blocks, oldest first, each shaped like `latents`.
    """

    index: int
    prompt: int
    latents: Tensor
    event: MemoryEvent | None
    unfinished: tuple[Tensor, ...] = ()


class KeyValueStore(KeyValueCache, Protocol):
    """The properties that every cache has, whichever loop uses it."""

    device: torch.device

    @property
    def bytes(self) -> int:
        """Size of all keys and values, or an upper bound of it."""

    @property
    def occupied(self) -> int:
        """Frame-slots in use by all heads together."""

    @property
    def block(self) -> int:
        """Number of blocks that were committed."""


class BlockCache(KeyValueStore, Protocol):
    """What the block loop needs from a cache: `HeadCache`, `ReferenceCache` or a method's own."""

    def begin_block(self) -> None:
        """Begin the next block."""

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        """Take the keys and values of the clean pass into the history."""

    def switch_blocks(self, switch: Switch) -> int:
        """How many of the last blocks `apply_switch` writes again."""

    def apply_switch(self, switch: Switch, write_clean: Callable[[Tensor], None], latest: Sequence[Tensor]) -> None:
        """Change the cached history between two blocks; the model's new prompt is already active.

        `latest` holds the clean latents of the last blocks, oldest first; `write_clean(latents)` runs one clean pass
        over the frames that the cache expects next.
        """


class VideoModel(Protocol):
    """A model that denoises one block given a cache."""

    @property
    def prompt(self) -> PromptKV:
        """The active prompt's cross-attention keys and values."""

    def use_prompt(self, prompt: int) -> None:
        """Make the prompt of this number the active one. To be called between two blocks."""

    def denoise(self, latents: Tensor, sigma: float, cache: BlockCache) -> Tensor:
        """Predict the clean latents, same shape, from latents at noise level `sigma`."""

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        """The clean pass: run at timestep 0, only to write keys and values to the cache."""


class JointModel(VideoModel, Protocol):
    """A model that also denoises several blocks in one call, frames at different noise levels.

    Attributes:
        embeds: the text embedding of every prompt, `[tokens, text_dim]`.
    """

    embeds: Sequence[Tensor]

    def denoise_jointly(self, latents: Tensor, sigmas: Tensor, cache: KeyValueCache) -> Tensor:
        """Predict the clean latents, same shape, of `latents [frames, c, h, w]` at noise levels `sigmas [frames]`."""


def reads_queries(cache: KeyValueCache) -> bool:
    """Whether the cache needs the last layer's queries of the clean pass, which are not computed otherwise."""
    return getattr(cache, "reads_queries", False)
