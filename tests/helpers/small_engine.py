"""Small random models with awkward sizes, and what is made with them, for tests of the engine."""

import math
import random
from dataclasses import replace
from itertools import product

import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.roles import EpisodicPolicy
from headforcing.headforcing_core.cache.scenes import MAX_SCENES, Scenes
from headforcing.headforcing_core.head_profiles.profiler import ShareMeter
from headforcing.headforcing_core.methods.head_forcing import PRESETS, HeadForcing
from headforcing.headforcing_core.model.attention_parts import SUMMED
from headforcing.headforcing_core.model.wan import WanConfig, WanModel, forward_block
from headforcing.headforcing_core.rollout.loop import (
    RolloutInputs,
    WanVideoModel,
    rollout,
    split_start_latents,
)
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.timeline.switch import SWITCHES, Switch
from scripts import script_of

F = 3
# latents; 2 x 3 tokens a frame
HEIGHT = 4
WIDTH = 6
SHAPE = (F, 16, HEIGHT, WIDTH)  # of a block
TWO_STEPS = Schedule((1.0, 0.7), F)
SELF_FORCING = PRESETS["self_forcing"]
# admits every candidate after every block, so that memory is full and merging soon
BUSY = HeadForcing(episodic=EpisodicPolicy(novelty_threshold=2.0, update_interval=1))
KEEPING = replace(BUSY, kept_scenes=MAX_SCENES + 2, picture_frames=5)
EVERY_SWITCH = [
    Switch(kind, re_anchor=re_anchor) for kind, re_anchor in product(SWITCHES, (False, True))
]


def wan(layers=2, heads=4, head_dim=22, seed=0, norms=(0.8, 2.0), **dims) -> WanModel:
    """A random model that looks at its context: queries and keys are long enough for attention to
    have an opinion.
    """
    small = {"ffn_dim": 48, "freq_dim": 32, "text_dim": 10, "text_len": 7}
    config = WanConfig(dim=heads * head_dim, num_layers=layers, num_heads=heads, **(small | dims))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = WanModel(config).requires_grad_(False)
        for block in model.blocks:
            block.modulation.normal_(0, 0.3)
            for attention in (block.self_attn, block.cross_attn):
                attention.norm_q.weight.uniform_(*norms)
                attention.norm_k.weight.uniform_(*norms)
                attention.o.weight.mul_(2)
        model.head.modulation.normal_(0, 0.3)
    return model


def embeds(model: WanModel, count=2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(4 + i % 3, model.config.text_dim, generator=generator) for i in range(count)
    ]


def every_head(model: WanModel, role: str) -> list[list[str]]:
    return [[role] * model.config.num_heads for _ in model.blocks]


def random_roles(model: WanModel, seed=3) -> list[list[str]]:
    chooser = random.Random(seed)
    roles = []
    for _ in model.blocks:
        heads = range(model.config.num_heads)
        roles.append([chooser.choice(("local", "anchor", "memory")) for _ in heads])
    return roles


def prompts_of(switches, blocks: int) -> list[int]:
    """The number of each block's prompt, which alternate at switches."""
    numbers = []
    number = 0
    for block in range(blocks):
        if block in switches:
            number = 1 - number
        numbers.append(number)
    return numbers


def measure(cache: HeadCache) -> None:
    """Have a cache of two layers with four heads measure attention shares."""
    cache.meter = ShareMeter(2, 4, 6, SUMMED["explicit"])
    cache.meter.active = True


def random_pictures(count: int = 1, frames: int = F, seed: int = 0) -> list[torch.Tensor]:
    """Pictures of random latents."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(frames, 16, HEIGHT, WIDTH, generator=generator) for _ in range(count)]


def new_cache(model, roles, method, blocks, kind=HeadCache, dtype=torch.float32, f=F):
    return kind(
        CacheShape.for_model(model.config, roles, method, HEIGHT, WIDTH, f, blocks * f), dtype
    )


def make_blocks(
    model,
    cache,
    blocks,
    *,
    seed=3,
    schedule=TWO_STEPS,
    prompts=None,
    size=(HEIGHT, WIDTH),
    switches=None,
    start=None,
    pictures=None,
    forward=forward_block,
    dtype=torch.float32,
    **options,
):
    """The finished blocks of one video; `start` are the latents of its start blocks, `pictures` as
    for `script_of`.
    """
    noise = SeededNoise((schedule.frames_per_block, 16, *size))
    start_blocks = split_start_latents(start, schedule.frames_per_block)
    given = [*start_blocks, *options.pop("given", ())]
    script = script_of(
        prompts or [0] * blocks,
        schedule,
        embeds(model),
        seed=seed,
        switches=switches,
        start_blocks=len(start_blocks),
        pictures=pictures,
    )
    video = WanVideoModel(model, dtype, forward=forward)
    return list(rollout(video, cache, RolloutInputs(script, noise, given, **options)))


def latents(blocks) -> torch.Tensor:
    return torch.stack([block.latents for block in blocks])


def make(model, roles, method, blocks, **options) -> torch.Tensor:
    return latents(make_blocks(model, new_cache(model, roles, method, blocks), blocks, **options))


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def fill_with_nan(group, first: int) -> None:
    for buffer in (*group.k, *group.v):
        buffer[:, first:] = math.nan


def assert_same_scenes(one: Scenes, other: Scenes) -> None:
    for name in ("starts", "numbers", "home", "recalls"):
        assert getattr(one, name) == getattr(other, name), name
    assert list(one.kept) == list(other.kept)
    for a, b in zip(one.kept.values(), other.kept.values(), strict=True):
        assert (a.start, a.step) == (b.start, b.step)
        for frames, others in zip((a.spread, *a.first), (b.spread, *b.first), strict=True):
            for x, y in zip(frames, others, strict=True):
                assert (x.frame, x.index) == (y.frame, y.index)
                assert all(map(torch.equal, (*x.k, *x.v), (*y.k, *y.v)))


def assert_same_contents(one: HeadCache, other: HeadCache) -> None:
    assert (one.block, one.origin, one.oldest) == (other.block, other.origin, other.oldest)
    assert (one.memory.sources, one.memory.has_summary) == (
        other.memory.sources,
        other.memory.has_summary,
    )
    for a, b in zip(one.memory.entries, other.memory.entries, strict=True):
        assert torch.equal(a.pooled, b.pooled)
    if one.scenes is not None:
        assert_same_scenes(one.scenes, other.scenes)
    for a, b in zip(one.groups, other.groups, strict=True):
        assert (a.sources, a.indices, a.entries) == (b.sources, b.indices, b.entries)
        for x, y in zip((*a.k, *a.v), (*b.k, *b.v), strict=True):
            assert torch.equal(x[:, : a.frames], y[:, : b.frames])
