"""Measurement of attention shares per head (paper, "Profile the Different Role of Attention Heads").

During a plain rollout with the same cache for all heads (sink frame and sliding window), each denoising step measures
which share of attention goes to the first frame in the cache, to the current block, and to the frames between them. The
same passes give the statistics of the queries that `cache/query_score.py` needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cache.head_cache import HeadCache, HeadGroup
from ..cache.query_score import query_means
from ..errors import HeadForcingError
from ..model.attention import AttentionFunction
from ..model.attention_shares import with_shares
from ..model.wan import WanConfig
from ..rollout.loop import StepCallback, VideoModel, rollout
from ..rollout.noise import SeededNoise
from ..rollout.rows import Script, lay_out_rows
from .shares import HeadShares

# number of prompts and seconds of video for each; the paper uses 20 x 30 s, and finds 3-4 prompts sufficient
BUDGETS = {"full": (20, 30.0), "quick": (4, 10.0)}


class ShareMeter:
    """Measures the attention shares of all heads during one pass of a `HeadCache`.

    Attributes:
        active: whether passes are measured.
        shares: `[layers, heads, 3]`: sink, middle, current; float64 on the CPU.
        queries: `[layers, heads, 3, head_dim / 2]`, see `query_means`; float64 on the CPU. Only with a `head_dim`.
    """

    def __init__(self, num_layers: int, num_heads: int, frame_tokens: int, head_dim: int = 0):
        self.frame_tokens, self.head_dim = frame_tokens, head_dim
        self.active = False
        self._shares = torch.zeros(num_layers, num_heads, 3, dtype=torch.float64)
        self._queries = torch.zeros(num_layers, num_heads, 3, head_dim // 2)

    @property
    def shares(self) -> Tensor:
        return self._shares.cpu().double()

    @property
    def queries(self) -> Tensor:
        return self._queries.cpu().double()

    def around(self, layer: int, group: HeadGroup, attention: AttentionFunction) -> AttentionFunction:
        """Wrap `attention` so that it records the shares of the heads of `group` in `layer`."""

        def measured(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out, shares = with_shares(attention, q, k, v, self.frame_tokens, q.shape[1])
            heads = group.heads[layer]
            # kept on the device until they are read: a copy to the CPU here would synchronise every layer
            self._shares = self._shares.to(shares)
            self._shares[layer, heads] = shares
            if self.head_dim:
                self._queries = self._queries.to(q.device)
                self._queries[layer, heads] = query_means(group.without_time(layer, q))
            return out

        return measured


def measure_prompt(
    model: VideoModel,
    config: WanConfig,
    shares: HeadShares,
    prompt: int,
    embedding: Tensor,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    attention: AttentionFunction | None = None,
    on_step: StepCallback = lambda block, step, latents: None,
) -> None:
    """Generate a video for one prompt of the setup and add the attention shares of every denoising step to `shares`.

    Args:
        prompt: index of the prompt in the setup.
        embedding: its text embedding, `[tokens, text_dim]`.
        dtype: of the KV cache.
        on_step: as in `rollout`. It may raise to stop; the measurements so far are kept.
    """
    setup = shares.setup
    cache = HeadCache(setup.shape(config), dtype, device, *([attention] if attention else []))
    meter = ShareMeter(setup.num_layers, setup.num_heads, cache.rope.frame_tokens, config.head_dim)
    cache.meter = meter
    shares.forget(prompt)

    def watch(block: int, step: int, latents: Tensor | None) -> None:
        if latents is not None and meter.active:
            shares.add(prompt, block, step - 1, meter.shares, queries=meter.queries)
        # the clean pass, which follows the last step, is not measured
        meter.active = block >= setup.first_block and step < len(setup.sigmas)
        on_step(block, step, latents)

    noise = SeededNoise((setup.frames_per_block, config.in_dim, *setup.latent_size(config)), video=prompt)
    text = setup.prompts[prompt]
    script = Script(lay_out_rows([text] * setup.blocks, setup.schedule, setup.seed), {text: embedding})
    for _ in rollout(model, cache, script, noise, on_step=watch):
        pass


def profile_heads(
    model: VideoModel,
    config: WanConfig,
    shares: HeadShares,
    embeds: Mapping[int, Tensor],
    on_prompt: Callable[[int], None] = lambda prompt: None,
    **options: Any,
) -> None:
    """Measure several prompts and skip those that are complete.

    Args:
        embeds: the text embedding of each, by its index in the setup.
        options: those of `measure_prompt`.
    """
    missing = set(shares.missing_prompts())
    for prompt, embedding in embeds.items():
        if prompt in missing:
            measure_prompt(model, config, shares, prompt, embedding, **options)
            on_prompt(prompt)


def pick_part(count: int, text: str) -> list[int]:
    """Indices of the prompts of one shard: `2/4` is the second of four equal parts of `count` prompts.

    Raises HeadForcingError for any other form.
    """
    found = re.fullmatch("([0-9]{1,5})/([0-9]{1,5})", text)
    part, parts = map(int, found.groups()) if found else (0, 0)
    if not 1 <= part <= parts <= 10_000:
        raise HeadForcingError(f"a shard must look like 2/4, the second of four, got {text!r}")
    return list(range(part - 1, count, parts))
