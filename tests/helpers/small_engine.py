"""Small random models with awkward sizes, and what is made with them, for tests of the engine."""

import math
import random
from dataclasses import replace

import pytest
import torch
from attention_cases import WHOLE_LAYER
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy, EpisodicPolicy, RolePolicy
from headforcing.headforcing_core.cache.reference import ReferenceCache
from headforcing.headforcing_core.model.wan import WanConfig, WanModel, forward_block
from headforcing.headforcing_core.rollout.loop import WanVideoModel, rollout, split_start_latents
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import Schedule
from scripts import script_of

F = 3
HEIGHT, WIDTH = 4, 6  # latents; 2 x 3 tokens a frame
TWO_STEPS = Schedule((1.0, 0.7), F)
SELF_FORCING = PRESETS["self_forcing"]
# admits every candidate after every block, so that memory is full and merging soon
BUSY = CachePolicy(episodic=EpisodicPolicy(novelty_threshold=2.0, update_interval=1))


def wan(layers=3, heads=5, head_dim=22, seed=0, norms=(0.8, 2.0), **dims) -> WanModel:
    """A random model that looks at its context: queries and keys are long enough for attention to have an opinion."""
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
    return [torch.randn(4 + i % 3, model.config.text_dim, generator=generator) for i in range(count)]


def every_head(model: WanModel, role: str) -> list[list[str]]:
    return [[role] * model.config.num_heads for _ in model.blocks]


def mixed(model: WanModel, seed=1) -> list[list[str]]:
    chooser = random.Random(seed)
    return [[chooser.choice(("local", "anchor", "memory")) for _ in row] for row in every_head(model, "memory")]


def new_cache(model, roles, policy, blocks, kind=HeadCache, dtype=torch.float32, f=F, size=(HEIGHT, WIDTH)):
    return kind(CacheShape.for_model(model.config, roles, policy, *size, f, blocks * f), dtype)


def film(
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
    """The finished blocks of one video; `start` are the latents of its start blocks, `pictures` as for `script_of`."""
    noise = SeededNoise((schedule.frames_per_block, 16, *size))
    given = [*split_start_latents(start, schedule.frames_per_block), *options.pop("given", ())]
    begun = 0 if start is None else len(start) // schedule.frames_per_block
    told = dict(seed=seed, switches=switches, start_blocks=begun, pictures=pictures)
    script = script_of(prompts or [0] * blocks, schedule, embeds(model), **told)
    video = WanVideoModel(model, dtype, forward=forward)
    return list(rollout(video, cache, script, noise, given, **options))


def latents(blocks) -> torch.Tensor:
    return torch.stack([block.latents for block in blocks])


def make(model, roles, policy, blocks, **options) -> torch.Tensor:
    return latents(film(model, new_cache(model, roles, policy, blocks), blocks, **options))


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


def poison(group, first: int) -> None:
    for buffer in (*group.k, *group.v):
        buffer[:, first:] = math.nan


def assert_same_contents(one: HeadCache, other: HeadCache) -> None:
    assert one.block == other.block
    assert one.memory.sources == other.memory.sources
    assert one.memory.has_summary == other.memory.has_summary
    for a, b in zip(one.memory.entries, other.memory.entries, strict=True):
        assert torch.equal(a.pooled, b.pooled)
    for a, b in zip(one.groups, other.groups, strict=True):
        assert (a.sources, a.indices, a.entries) == (b.sources, b.indices, b.entries)
        for x, y in zip((*a.k, *a.v), (*b.k, *b.v), strict=True):
            assert torch.equal(x[:, : a.frames], y[:, : b.frames])


def random_setting(seed: int):
    """A model, roles and policy drawn from everything the policies allow."""
    chooser = random.Random(seed)
    f = chooser.choice((1, 2, 3))
    layers, heads = chooser.choice(((1, 3), (2, 5), (3, 4)))
    model = wan(layers, heads, head_dim=chooser.choice((6, 22, 26)), seed=seed, ffn_dim=16)
    names = chooser.choice((("local", "anchor", "memory"), ("memory",), ("memory", "memory", "anchor")))
    roles = [[chooser.choice(names) for _ in range(heads)] for _ in range(layers)]
    if layers > 1 and chooser.random() < 0.4:
        roles[chooser.randrange(layers)] = ["anchor"] * heads  # a layer without memory heads
    episodic = EpisodicPolicy(
        novelty_threshold=chooser.choice((0.3, 0.8, 0.97, 2.0)),
        update_interval=chooser.choice((1, 1, 2, 3)),
        admission=chooser.choice(("novelty", "novelty", "uniform")),
        eviction=chooser.choice(("summary", "summary", "fifo")),
        token_selection=chooser.choice(("prompt", "prompt", "random")),
        center_keys=chooser.random() < 0.3,
        pin_first=chooser.random() < 0.3,
    )
    policy = CachePolicy(
        local=RolePolicy(recent_frames=chooser.choice((0, 1, 2))),
        anchor=RolePolicy(sink_frames=chooser.choice((0, 1, 3, 4)), recent_frames=chooser.choice((0, 1, 5, None))),
        memory=RolePolicy(
            recent_frames=f * chooser.choice((0, 1, 1, 2)), episodic_frames=chooser.choice((0, 2, 3, 3, 5))
        ),
        rope=chooser.choice(("contiguous", "contiguous", "absolute")),
        episodic=episodic,
    )
    prompts = [chooser.randrange(2) for _ in range(4)]
    return model, roles, policy, f, [prompts[block // 3] for block in range(12)]


def assert_as_specified(seed: int, policy_changes=None, **options) -> None:
    """A film with settings drawn from a seed has the latents and decisions of the reference cache.

    Group by group and with all heads in one call; `options` are those of `film`.
    """
    model, roles, policy, f, prompts = random_setting(seed)
    policy = replace(policy, **(policy_changes or {}))
    specification = ReferenceCache if options else ReferenceCache
    caches = [new_cache(model, roles, policy, 12, kind, f=f) for kind in (HeadCache, specification, HeadCache)]
    caches[2].attention = WHOLE_LAYER["sequences" if seed % 2 else "tables"]
    schedule = Schedule((1.0, 0.6), f)
    ours, specified, in_one_call = (
        film(model, cache, 12, schedule=schedule, prompts=prompts, **options) for cache in caches
    )
    for made in (ours, in_one_call):
        assert difference(latents(made), latents(specified)) < 1e-4 * float(latents(specified).abs().max())
    for a, b in zip(ours, specified, strict=True):
        assert (a.event is None) == (b.event is None)
        if a.event is not None:
            assert a.event.delta == pytest.approx(b.event.delta, abs=1e-4)
            assert {**a.event.to_dict(), "delta": 0} == {**b.event.to_dict(), "delta": 0}
    assert caches[0].memory.sources == caches[1].memory.sources == caches[2].memory.sources
