"""Remedies for a render that does not fit into memory: all are computed.

In the order of what they cost: first what leaves the video as it is, then fewer frames in memory heads, a shorter or a
smaller video, another method.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

import torch

from ..cache.method import Method, VideoFacts
from ..cache.policy import CachePolicy
from ..errors import HeadForcingError
from ..head_profiles.profile import default_profile
from ..methods.registry import method_policy
from ..video.memory import DecoderMemory
from .describe import format_bytes
from .plan import RenderPlan
from .resources import COMFYUI, Host, Needs, activation_bytes

_REMEDIES = 3
_METHODS = ("head_forcing", "uniform_memory", "infinity_rope")  # small caches that do not grow


def too_large(needs: Needs, plan: RenderPlan, dtype: torch.dtype, room: int, host: Host) -> HeadForcingError:
    """The error for a render that does not fit into `room` bytes: it names the sizes and the cheapest remedies."""
    ways = (f"{way.text} ({format_bytes(way.bytes)})" for way in remedies(needs, plan, dtype, room, host))
    helps = "; ".join(islice(dict.fromkeys(ways), _REMEDIES))
    besides, parts = " besides the weights" if host.streams_weights else "", needs.describe().splitlines()[0]
    return HeadForcingError(
        f"not enough memory: {plan.width}x{plan.height} needs {format_bytes(needs.wanted(host))}{besides} "
        f"({parts.partition(': ')[2]}), the device has {format_bytes(max(0, room))} for it. "
        + (f"What fits, cheapest first: {helps}" if helps else "No setting of this video fits")
    )


def check_decoder(decoder: DecoderMemory, size: str, room: int) -> None:
    """Refuse a decoder that does not fit into `room` bytes of a device of its own."""
    wanted = decoder.weights + decoder.peak
    if wanted > room:
        raise HeadForcingError(
            f"not enough memory: decoding {size} needs {format_bytes(wanted)}, the device of the VAE has "
            f"{format_bytes(max(0, room))} for it; {COMFYUI.decode_afterwards}, or choose a smaller size"
        )


@dataclass(frozen=True)
class Remedy:
    """Changes to a render, and the memory in bytes that it takes with them, as its `Host` counts it."""

    text: str
    needs: Needs
    bytes: int


@dataclass(frozen=True)
class _Change:
    text: str
    make: Callable[[RenderPlan, Needs], tuple[RenderPlan, Needs]]


def remedies(needs: Needs, plan: RenderPlan, dtype: torch.dtype, room: int, host: Host) -> Iterator[Remedy]:
    """Yield what makes the render fit into `room` bytes, each change alone or with as few others as it takes."""

    def first(choices: Iterable[Sequence[_Change]]) -> Iterator[Remedy]:
        made = (_make(changes, needs, plan, host) for changes in choices)
        return islice((remedy for remedy in made if remedy.bytes <= room), 1)

    exact = list(_exact_changes(plan, dtype, host))
    some = [changes for count in range(len(exact) + 1) for changes in combinations(exact, count)]
    smaller = [_Change(text, _replan(dtype, policy=policy)) for text, policy in _smaller(plan.policy)]
    sizes = [_size(*size, dtype) for size in _sizes(plan)]

    alone = [remedy for change in exact for remedy in first([[change]])]
    yield from alone or first(some)
    for change in smaller:
        yield from first([*changes, change] for changes in some)
    lengths = [_shorter(plan, blocks, dtype) for blocks in range(plan.new_blocks - 1, 0, -1)]
    if lengths and _make(lengths[:1], needs, plan, host).bytes < _make([], needs, plan, host).bytes:
        fits = bisect_left(lengths, True, key=lambda length: _make([length], needs, plan, host).bytes <= room)
        yield from first([length] for length in lengths[fits : fits + 1])
    yield from first([size] for size in sizes)
    for method in _other_methods(plan, dtype):
        yield from first([*changes, method] for changes in some)
    yield from first([*exact, *smaller[-1:], size] for size in sizes)


def _make(changes: Sequence[_Change], needs: Needs, plan: RenderPlan, host: Host) -> Remedy:
    texts = []
    for change in changes:
        before = plan, needs
        plan, needs = change.make(*before)
        texts += [change.text] if plan is not before[0] or needs != before[1] else []
    return Remedy(" and ".join(texts), needs, needs.wanted(host))


def _exact_changes(plan: RenderPlan, dtype: torch.dtype, host: Host) -> Iterator[_Change]:
    """Changes that leave the video as it is."""
    if not plan.restart_frames:
        yield _Change(host.decode_afterwards, lambda plan, needs: (plan, replace(needs, vae=0, held=0, decode=0)))
    if host.park:
        yield _Change(host.park, lambda plan, needs: (plan, replace(needs, held=0)))
    if plan.auto is not None:
        text = "load a head profile instead of finding the roles"
        yield _Change(text, lambda plan, needs: _plan(replace(plan, auto=None), needs, plan, dtype))


def _plan(changed: RenderPlan, needs: Needs, plan: RenderPlan, dtype: torch.dtype) -> tuple[RenderPlan, Needs]:
    """A changed plan, and the needs of `plan` with what depends on the plan computed anew."""
    area = changed.width * changed.height / (plan.width * plan.height)
    one_pass = activation_bytes(changed, dtype)
    return changed, replace(
        needs,
        cache=changed.cache_bytes(dtype),
        activations=one_pass,
        graph=one_pass if needs.graph else 0,
        held=int(needs.held * area),
        decode=int(needs.decode * area),
    )


def _replan(dtype: torch.dtype, **shape: Any) -> Callable[[RenderPlan, Needs], tuple[RenderPlan, Needs]]:
    """The change of these fields of the cache's shape."""
    return lambda plan, needs: _plan(replace(plan, shape=replace(plan.shape, **shape)), needs, plan, dtype)


def _shorter(plan: RenderPlan, blocks: int, dtype: torch.dtype) -> _Change:
    """A video of so many new blocks."""
    clock, frames = plan.timeline.clock, plan.start_frames + blocks * plan.schedule.frames_per_block
    return _Change(f"{clock.video_frames(blocks) / clock.fps:.2f} s", _replan(dtype, total_frames=frames))


def _sizes(plan: RenderPlan) -> Iterator[tuple[int, int]]:
    """Smaller sizes of about the same shape, the largest first."""
    step = plan.config.latents.side_multiple
    for width in range(plan.width - step, 0, -step):
        yield width, max(step, round(width * plan.height / plan.width / step) * step)


def _size(width: int, height: int, dtype: torch.dtype) -> _Change:
    def make(plan: RenderPlan, needs: Needs) -> tuple[RenderPlan, Needs]:
        (_, ph, pw), stride = plan.config.patch_size, plan.config.latents.stride
        shape = replace(plan.shape, rows=height // stride // ph, columns=width // stride // pw)
        return _plan(replace(plan, width=width, height=height, shape=shape), needs, plan, dtype)

    return _Change(f"{width}x{height}", make)


def _smaller(policy: Method) -> Iterator[tuple[str, Method]]:
    """Settings that need less and less memory, each with a description."""
    if isinstance(policy, CachePolicy) and policy.heads_by and policy.memory.episodic_frames:
        episodic = replace(policy.memory, episodic_frames=min(2, policy.memory.episodic_frames))
        yield "episodic_frames 2", replace(policy, memory=episodic)
        yield "episodic_frames 2, recent_frames 0", replace(policy, memory=replace(episodic, recent_frames=0))


def _other_methods(plan: RenderPlan, dtype: torch.dtype) -> Iterator[_Change]:
    """Methods whose cache does not grow; those with head roles if a bundled profile fits the model."""
    config, sizes = plan.config, (*plan.block_shape[-2:], plan.shape.frames_per_block)
    facts = VideoFacts(plan.schedule, plan.blocks, plan.start_frames)
    for name in _METHODS:
        policy = method_policy(name).for_video(facts)
        with suppress(HeadForcingError):
            roles: Any = [["memory"] * config.num_heads] * config.num_layers
            if policy.heads_by:
                roles = default_profile(config.num_layers, config.num_heads).roles
            shape = policy.shape(config, roles, *sizes, plan.shape.total_frames)
            other = replace(plan, shape=shape, auto=None)
            if policy.key != plan.policy.key:
                yield _Change(f"method {name}", _to(other, dtype))


def _to(other: RenderPlan, dtype: torch.dtype) -> Callable[[RenderPlan, Needs], tuple[RenderPlan, Needs]]:
    return lambda plan, needs: _plan(other, needs, plan, dtype)
