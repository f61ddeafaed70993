"""The block loop: a video is generated one block of latent frames at a time (paper, "Preliminary";
METHOD.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ..devices import Device, upload
from ..model.wan import Backbone, KeyValueCache, PromptKV, encode_prompt, forward_block
from ..timeline.switch import SWITCHES, Blend, Switch
from .conditions import PassInputs, VideoConditions
from .rows import BlockRow, Script, SeededNoise
from .solvers import SOLVERS, Denoiser


def make_block(
    model: VideoModel,
    cache: BlockCache,
    row: BlockRow,
    noise: SeededNoise,
    block: int,
    on_step: StepCallback = lambda block, step, latents: None,
    held: Tensor | None = None,
) -> tuple[Tensor, MemoryEvent | None]:
    """Make block number `block`: denoise over the row's noise levels, clean pass, commit
    (METHOD.md, "One block").

    Args:
        on_step: as in `RolloutInputs`.
        held: first frames of the block that are given, as for `solvers.Renoise`.

    Returns:
        the clean latents `[frames, channels, h, w]`, and the decision of episodic memory, None for
        none.
    """
    cache.begin_block()
    on_step(block, 0, None)
    x = upload(noise.initial(block, row.seed), cache.device)
    solver = SOLVERS[row.solver](row.sigmas, partial(noise.renoise, block, row.seed), held)
    for step in range(len(row.sigmas)):
        x0 = solver.predict(model, x, step, cache)
        on_step(block, step + 1, x0)
        if step + 1 < len(row.sigmas):
            x = solver.advance(x0, step)
    _clean_pass(model, cache, x0)
    return x0, cache.commit(model.prompt)


def rollout(
    model: VideoModel, cache: BlockCache, video: RolloutInputs, part: range | None = None
) -> Iterator[Block]:
    """Yield the finished blocks of one video. A block's row is read when the caller asks for the
    block.

    Args:
        part: the blocks of the video that this rollout yields, given ones included; `video.given`
            are then the first of these, not of the video, and the cache must be empty. None: all
            blocks; the cache may be restored, with at most as many blocks as are given.
    """
    script = video.script
    first = 0 if part is None else part.start
    prompts = _Prompts(model, cache, video)
    block = first
    # a live edit may change the length of the script meanwhile
    while block < (len(script) if part is None else part.stop):
        row = script.begin(block)
        event = None
        number = block - first  # in this rollout
        if number >= len(video.given):
            prompts.enter(row, block)
            held = None
            if block == 0 and video.held is not None:
                held = upload(video.held, cache.device)
            latents, event = make_block(
                model, cache, row, video.noise, block=block, on_step=video.on_step, held=held
            )
            if block + 1 < len(script):  # drawn on the CPU while the GPU computes this block
                video.noise.ahead(block + 1, script.rows[block + 1].seed)
        else:
            latents = upload(video.given[number], cache.device)
            if number >= cache.block:  # else the cache was restored and holds this block
                prompts.enter(row, block)
                cache.begin_block()
                prompts.write_clean(block, latents)
                event = cache.commit(model.prompt)
        prompts.latest.append(latents)
        yield Block(block, latents, event)
        block += 1


class _Prompts:
    """Gives model and cache the prompts of a video, each before its first block.

    Attributes:
        active: the prompt of the model.
        latest: the latents of the last blocks, as many as any switch writes again.
    """

    def __init__(self, model: VideoModel, cache: BlockCache, video: RolloutInputs):
        self.model = model
        self.cache = cache
        self.video = video
        self.active: str | Blend | None = None
        # of any switch, since rows may be replaced
        most = max(cache.switch_blocks(Switch(kind)) for kind in SWITCHES)
        self.latest: deque[Tensor] = deque(maxlen=most)

    def enter(self, row: BlockRow, block: int) -> None:
        """Before a block: set the model's prompt if it is another one, and give the cache the
        pictures and the prompt switch of the row.
        """
        cache = self.cache
        script = self.video.script
        write_clean = partial(self.write_clean, block)
        if row.prompt != self.active:
            self.model.use_prompt(script.embedding(block))
            self.active = row.prompt
        if row.pictures:
            pictures = [
                upload(script.pictures[name].latents, cache.device) for name in row.pictures
            ]
            cache.hold_pictures(pictures, write_clean)
        if row.switch is not None:
            unneeded = max(0, len(self.latest) - cache.switch_blocks(row.switch))
            cache.apply_switch(row.switch, write_clean, list(self.latest)[unneeded:])

    def write_clean(self, block: int, latents: Tensor) -> None:
        """One clean pass over latents, before a block is denoised or over a given block."""
        self.video.on_step(block, 0, None)  # may stop the rollout
        _clean_pass(self.model, self.cache, latents)


def _clean_pass(model: VideoModel, cache: BlockCache, latents: Tensor) -> None:
    cache.clean = True
    model.write_clean(latents, cache)
    cache.clean = False


def split_start_latents(latents: Tensor | None, frames_per_block: int) -> Sequence[Tensor]:
    """Split `[frames, channels, h, w]` into blocks, which `lay_out` has checked to be whole."""
    return () if latents is None else latents.split(frames_per_block)


# ------------------------------------------------------------------- outputs and inputs of the loop


StepCallback = Callable[[int, int, Tensor | None], None]
WriteClean = Callable[[Tensor], None]  # one clean pass over latents [frames, channels, h, w]


@dataclass(frozen=True)
class RolloutInputs:
    """The inputs of one video's rollout, besides model and cache.

    Attributes:
        given: the first blocks of the video that are there already, `[frames, channels, h, w]`
            each. They are yielded unchanged, moved to the cache's device when they are read, and
            written to a cache that lacks them.
        held: given first frames of the first block, as for `make_block`; fewer than a block.
        extra: `Block.extra` of the last given block.
        reencode: decodes latents `[frames, channels, h, w]` and encodes the last video frame as the
            first latent frame of a new video; needed where a video is made of several rollouts.
        on_step: called as `(block, step, predicted clean latents)` after each denoising step, and
            with None before denoising and before each clean pass; its exceptions stop the rollout
            within one model call.
    """

    script: Script
    noise: SeededNoise
    given: Sequence[Tensor] = ()
    held: Tensor | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    reencode: Callable[[Tensor], Tensor] | None = None
    on_step: StepCallback = lambda block, step, latents: None


@dataclass(frozen=True)
class MemoryEvent:
    """Decision of episodic memory, after a block, about one candidate, a latent frame."""

    after_block: int
    frame: int
    delta: float  # its highest similarity to an entry (paper, Eq. 4); -1 when the memory was empty
    admitted: bool
    merged: list[list[int]] | None = None  # source frames of both entries that were merged for it
    # source frames of the entry that was dropped for it (first in, first out)
    dropped: list[int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; `dropped` is left out when it is None."""
        return {
            key: value
            for key, value in asdict(self).items()
            if key != "dropped" or value is not None
        }


@dataclass(frozen=True)
class Block:
    """A finished block.

    Attributes:
        index: its number in the video, start blocks included.
        latents: `[frames, channels, h, w]`.
        event: the decision of episodic memory after it.
        extra: tensors by name that the method needs, besides the blocks, to go on after it; a run
            folder stores them with the block.
    """

    index: int
    latents: Tensor
    event: MemoryEvent | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def in_main_memory(self) -> Tensor:
        """The latents in main memory, copied once for all that read them there.

        Ask before work for the block is queued on a GPU: the copy waits for what is queued.
        """
        return self.latents.cpu()


class BlockCache(KeyValueCache):
    """The part of `cache.base.Cache` that the block loop uses.

    Per block: `begin_block()`, passes that write and attend layer by layer, each in place of the
    one before, then, after the clean pass, `commit(prompt)`.

    Attributes:
        block: number of blocks that were committed.
        clean: True in a clean pass, over finished latents; the loop sets it.
    """

    device: torch.device
    block: int
    clean: bool = False

    def begin_block(self) -> None:
        """Begin the next block."""
        raise NotImplementedError

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        """Take the keys and values of the clean pass into the history; returns the decision of
        episodic memory.
        """
        raise NotImplementedError

    def hold_pictures(self, pictures: Sequence[Tensor], write_clean: WriteClean) -> None:
        """Write the pictures of the prompt that begins, `[frames, channels, h, w]` each, before its
        `apply_switch` or the first block."""
        raise NotImplementedError

    def switch_blocks(self, switch: Switch) -> int:
        """Number of last blocks that `apply_switch` writes again."""
        return 0

    def apply_switch(
        self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]
    ) -> None:
        """Change the cached history between two blocks; the model's new prompt is already active.

        `latest` holds the clean latents of the last blocks, oldest first; `write_clean(latents)` is
        one clean pass.
        """
        raise NotImplementedError


class VideoModel(Denoiser, Protocol):
    """A model that denoises blocks given a cache.

    Attributes:
        backbone: the network, for reports on its weights.
        prompt: the active prompt's cross-attention keys and values.
    """

    @property
    def backbone(self) -> Backbone: ...
    @property
    def prompt(self) -> PromptKV: ...

    def use_prompt(self, embedding: Tensor) -> None:
        """Make the prompt with this text embedding `[tokens, text_dim]` the active one, between two
        blocks.
        """

    def use_conditions(self, conditions: VideoConditions) -> None:
        """Take these conditions into every pass, before the first one; for models with
        `config.is_driven`.
        """

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        """The clean pass: run at timestep 0, only to write keys and values to the cache.

        The last layer may leave out its queries unless `cache.reads_queries`.
        """


# ---------------------------------------------------------------------------- the model of the loop


class WanVideoModel:
    """A Wan backbone as a `VideoModel`; `forward` is `wan.forward_block` or does the same
    (`compiled_forward`).
    """

    def __init__(
        self,
        backbone: Backbone,
        dtype: torch.dtype,
        device: Device = "cpu",
        forward: Callable[..., Tensor | None] = forward_block,
    ):
        self.backbone = backbone
        self.dtype = dtype
        self.device = device
        self.forward = forward
        self.pass_inputs: PassInputs | None = None

    @torch.no_grad()
    def use_prompt(self, embedding: Tensor) -> None:
        # only the active prompt's keys and values are kept: 94 MB for the 1.3B model
        self.prompt = encode_prompt(self.backbone, embedding, self.dtype, self.device)

    def use_conditions(self, conditions: VideoConditions) -> None:
        self.pass_inputs = conditions.inputs(self.backbone)

    @torch.no_grad()
    def flow(
        self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache, write_only: bool = False
    ) -> Tensor | None:
        """The backbone's raw prediction, noise minus clean latents; None if `write_only`."""
        timesteps = 1000 * sigma
        if not isinstance(timesteps, Tensor):
            timesteps = torch.full((len(latents),), timesteps, dtype=torch.float64)
        latents = latents.to(device=self.device, dtype=self.dtype)
        inputs = None
        if self.pass_inputs is not None:
            inputs = self.pass_inputs.of(cache.first_frame, latents)
        return self.forward(
            self.backbone,
            latents,
            timesteps,
            self.prompt,
            cache,
            write_only=write_only,
            inputs=inputs,
        )

    def denoise(self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache) -> Tensor:
        flow = self.flow(latents, sigma, cache)
        assert flow is not None
        # `x0 = x - sigma * v` in float64 where the device has it; mps has not
        precise = torch.float64 if flow.device.type in ("cpu", "cuda") else torch.float32
        if isinstance(sigma, Tensor):
            sigma = upload(sigma.to(precise), flow.device)[:, None, None, None]
        return (latents.to(flow.device, precise) - sigma * flow.to(precise)).to(latents.dtype)

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        self.flow(latents, 0.0, cache, write_only=not cache.reads_queries)
