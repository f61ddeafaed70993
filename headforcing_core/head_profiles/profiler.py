"""Measurement of attention shares per head (paper, "Profile the Different Role of Attention
Heads").

During a plain rollout with the same cache for all heads (sink frame and sliding window), each
denoising step measures which share of attention goes to the first frame in the cache, to the
current block, and to the frames between them.

In a video of one prompt the first frame is an earlier frame of the scene, too, so its shares cannot
tell a head that looks scenes up from one that looks at the first frame. A return story can: an
opening, a scene, another one, and the scene's prompt again, all within the measured window. The
share *return* is the attention to the frames of the visit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cache.head_cache import HeadCache
from ..cache.head_group import HeadGroup
from ..errors import HeadForcingError
from ..model.attention import AttentionFunction, sdpa
from ..model.attention_backends import Operands
from ..model.attention_parts import SummedAttention, attend_in_parts, with_sums
from ..model.wan import WanConfig
from ..rollout.loop import RolloutInputs, StepCallback, VideoModel, rollout
from ..rollout.rows import Script, SeededNoise, lay_out_rows
from .shares import HeadShares, ProfileSetup, ReturnStory

FIRST_STORY = 100_000  # number of the first story's noise, which no prompt's video has


class ShareMeter:
    """Measures, during one pass of a `HeadCache`, the attention shares `[layers, heads, 3]` (sink,
    middle, current) of all heads, float64 on the CPU.

    With `visited` latent frames, which lie side by side in the cache, the middle is these, and the
    other shares are what is before and behind them.
    """

    def __init__(
        self,
        num_layers: int,
        num_heads: int,
        frame_tokens: int,
        attention: SummedAttention,
        visited: range | None = None,
    ):
        self.frame_tokens = frame_tokens
        self.attention = attention
        self.visited = visited
        self.active = False
        self._shares = torch.zeros(num_layers, num_heads, 3, dtype=torch.float64)

    @property
    def shares(self) -> Tensor:
        return self._shares.cpu().double()

    def attend(self, layer: int, group: HeadGroup, q: Tensor) -> Tensor:
        k, v = group.context(layer)
        ends = self._ends(group, q.shape[1], k.shape[1])
        out, shares = attend_in_parts(self.attention, q, k=k, v=v, ends=ends)
        # kept on the device until they are read: a copy to the CPU here would synchronise every
        # layer
        self._shares = self._shares.to(shares)
        self._shares[layer, group.heads[layer]] = shares
        return out

    def _ends(self, group: HeadGroup, queries: int, keys: int) -> tuple[int, int]:
        """The keys before which the middle and the last part begin."""
        if self.visited is None:
            return min(self.frame_tokens, keys - queries), keys - queries
        visits = [slot for slot, (frame, *_) in enumerate(group.sources) if frame in self.visited]
        return visits[0] * self.frame_tokens, (visits[-1] + 1) * self.frame_tokens


def profile_heads(
    model: VideoModel,
    config: WanConfig,
    shares: HeadShares,
    embeds: Mapping[int, Tensor],
    on_prompt: Callable[[int], None] = lambda prompt: None,
    **options: Any,
) -> None:
    """Measure prompts, `embeds` by their index in the setup, but for complete ones: a video of
    each, into `shares`.

    `options` are dtype, device, attention, on_step and on_block of `_measure`. If on_step raises,
    measurements and finished blocks so far are kept, and another call goes on after them.
    """
    setup = shares.setup
    missing = shares.missing_prompts()
    for prompt in embeds:
        if prompt not in missing:
            continue
        made = shares.made.setdefault(prompt, [])
        shares.forget(prompt, len(made))
        _measure(
            model,
            config,
            setup=setup,
            prompts=[prompt] * setup.blocks,
            texts={setup.prompts[prompt]: embeds[prompt]},
            video=prompt,
            blocks=range(max(setup.first_block, len(made)), setup.blocks),
            add=partial(shares.add, prompt),
            made=made,
            **options,
        )
        del shares.made[prompt]
        on_prompt(prompt)


def measure_returns(
    model: VideoModel,
    config: WanConfig,
    shares: HeadShares,
    numbers: Iterable[int],
    embeds: Sequence[Tensor],
    on_story: Callable[[int], None] = lambda number: None,
    **options: Any,
) -> None:
    """Measure the return stories of these numbers, but for complete ones, with `embeds` of all
    prompts of the setup.

    Their shares are noted in `shares.returns`; `options` as of `profile_heads`.
    """
    setup = shares.setup
    texts = dict(zip(setup.prompts, embeds, strict=True))
    for number in numbers:
        if shares.returns[number].any():
            continue
        story = ReturnStory.of(setup, number)
        total = torch.zeros_like(shares.returns[number])
        _measure(
            model,
            config,
            setup=setup,
            prompts=story.prompts,
            texts=texts,
            video=FIRST_STORY + number,
            blocks=story.measured,
            add=partial(_add_visit, total),
            visited=story.visited,
            **options,
        )
        shares.returns[number] = total / (len(story.measured) * len(setup.sigmas))
        on_story(number)


def _add_visit(total: Tensor, block: int, step: int, shares: Tensor) -> None:
    """Add the attention to the visit's frames in one denoising step to `total`."""
    total += shares[..., 1]


def _measure(
    model: VideoModel,
    config: WanConfig,
    setup: ProfileSetup,
    prompts: Sequence[int],
    texts: Mapping[str, Tensor],
    video: int,
    blocks: Container[int],
    add: Callable[[int, int, Tensor], None],
    made: list[Tensor] | None = None,
    visited: range | None = None,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    attention: AttentionFunction = sdpa,
    on_step: StepCallback = lambda block, step, latents: None,
    on_block: Callable[[int], None] = lambda block: None,
) -> None:
    """Make a video of the prompts of these numbers, one of each block, from noise number `video`;
    `add(block, step, shares)` follows each denoising step of `blocks`.

    `made` are its first blocks, of an earlier call; new ones are added. `visited` is of the meter,
    `dtype` that of the KV cache, `attention` the backend; `on_step` and `on_block`, which gets the
    numbers of new blocks that the device has finished, may raise to stop.
    """
    made = [] if made is None else made
    rows = lay_out_rows([setup.prompts[prompt] for prompt in prompts], setup.schedule, setup.seed)
    shape = replace(setup, blocks=len(rows)).shape(config)
    cache = HeadCache(shape, dtype, device, attention)
    operands = Operands(torch.device(device), dtype, shape.head_dim)
    summed = with_sums(attention, operands)
    meter = ShareMeter(setup.num_layers, setup.num_heads, shape.frame_tokens, summed, visited)
    cache.meter = meter

    def watch(block: int, step: int, latents: Tensor | None) -> None:
        if latents is not None and meter.active:
            add(block, step - 1, meter.shares)
        # the clean pass, which follows the last step, is not measured
        meter.active = block in blocks and step < len(setup.sigmas)
        on_step(block, step, latents)

    noise = SeededNoise(setup.block_shape(config), video=video)
    inputs = RolloutInputs(Script(rows, texts), noise, given=tuple(made), on_step=watch)
    for block in rollout(model, cache, inputs):
        latents = block.in_main_memory  # once the device has done all work before
        if block.index >= len(made):
            made.append(latents)
            on_block(block.index)


def pick_part(count: int, text: str) -> list[int]:
    """Indices of the prompts of one shard: `2/4` is the second of four equal parts of `count`
    prompts.
    """
    found = re.fullmatch("([0-9]{1,5})/([0-9]{1,5})", text)
    part, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= parts <= 10_000:
        raise HeadForcingError(f"a shard must look like 2/4, the second of four, got {text!r}")
    return list(range(part - 1, count, parts))
