"""Remedies for a render that does not fit into memory: what leaves the video as it is, then fewer
frames in memory heads, a smaller video, another method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..errors import HeadForcingError
from ..head_profiles.auto import AutoProfile
from ..methods.head_forcing import CachePolicy
from ..methods.method import VideoFacts
from ..methods.registry import method_policy
from ..model.fp8 import saved_bytes
from ..video.memory import DecoderMemory
from .describe import format_bytes
from .layout import profile_without_choice
from .plan import RenderPlan
from .resources import COMFYUI, Host, Needs, activation_bytes

_REMEDIES = 3
_METHODS = ("head_forcing", "uniform_memory", "infinity_rope")  # small caches that do not grow


def too_large(
    needs: Needs, plan: RenderPlan, dtype: torch.dtype, room: int, host: Host
) -> HeadForcingError:
    """The error for a render that does not fit into `room` bytes, with sizes and the cheapest
    remedies.
    """
    ways: list[str] = []
    for remedy in remedies(needs, plan, dtype=dtype, room=room, host=host):
        way = f"{remedy.text} ({format_bytes(remedy.needs.wanted(host))})"
        if way not in ways:
            ways.append(way)
        if len(ways) == _REMEDIES:
            break
    besides = " besides the weights" if host.streams_weights else ""
    parts = needs.describe().splitlines()[0].partition(": ")[2]
    helps = "No setting of this video fits"
    if ways:
        helps = f"What fits, cheapest first: {'; '.join(ways)}"
    return HeadForcingError(
        f"not enough memory: {plan.width}x{plan.height} needs "
        f"{format_bytes(needs.wanted(host))}{besides} ({parts}), the device has "
        f"{format_bytes(max(0, room))} for it. {helps}"
    )


def check_decoder(decoder: DecoderMemory, size: str, room: int) -> None:
    """Refuse a decoder that does not fit into `room` bytes of a device of its own."""
    wanted = decoder.weights + decoder.peak
    if wanted > room:
        raise HeadForcingError(
            f"not enough memory: decoding {size} needs {format_bytes(wanted)}, the device of the "
            f"VAE has {format_bytes(max(0, room))} for it; {COMFYUI.decode_afterwards}, or choose "
            "a smaller size"
        )


@dataclass(frozen=True)
class Remedy:
    """A render with changes, described by `text`, and what it needs then."""

    text: str
    plan: RenderPlan
    needs: Needs

    def save(self, text: str, **sizes: int) -> Remedy:
        """With these sizes, too; the same where they are so already."""
        needs = replace(self.needs, **sizes)
        return self if needs == self.needs else Remedy(self._and(text), self.plan, needs)

    def take(self, text: str, dtype: torch.dtype, **changed: Any) -> Remedy:
        """With other fields of the plan, and all sizes that depend on it."""
        plan = replace(self.plan, **changed)
        area = plan.width * plan.height / (self.plan.width * self.plan.height)
        needs = replace(
            self.needs,
            cache=plan.cache_bytes(dtype),
            activations=activation_bytes(plan, dtype),
            held=int(self.needs.held * area),
            decode=int(self.needs.decode * area),
        )
        return Remedy(self._and(text), plan, needs)

    def _and(self, text: str) -> str:
        return f"{self.text} and {text}" if self.text else text


Change = Callable[[Remedy], Remedy]


def remedies(
    needs: Needs, plan: RenderPlan, dtype: torch.dtype, room: int, host: Host
) -> Iterator[Remedy]:
    """Yield what makes the render fit into `room` bytes: each change alone, or with all that cost
    nothing.
    """
    asked = least = Remedy("", plan, needs)
    alone = list(_exact_changes(plan, dtype, host))
    for change in alone:
        least = change(least)
    sizes = list(_sizes(plan, dtype))
    groups = [[change] for change in (*alone, *_smaller(plan, dtype))]
    if host.fp8_linears:
        groups.append([_with_fp8_linears(plan, dtype, host)])
    groups += [sizes, *([change] for change in _other_methods(plan, dtype))]
    for group in groups:
        remedy = _first_that_fits(group, (asked, least), room, host)
        if remedy is not None:
            yield remedy


def _first_that_fits(
    changes: list[Change], begun: Sequence[Remedy], room: int, host: Host
) -> Remedy | None:
    """The first of these changes, of sizes the largest, that fits: by itself, then with all that
    cost nothing.
    """
    for before in begun:
        for change in changes:
            remedy = change(before)
            if remedy.needs.wanted(host) <= room:
                return remedy
    return None


def _exact_changes(plan: RenderPlan, dtype: torch.dtype, host: Host) -> Iterator[Change]:
    """Changes that leave the video as it is."""
    if not plan.restart_frames:
        yield lambda remedy: remedy.save(host.decode_afterwards, vae=0, held=0, decode=0)
    if host.park:
        yield lambda remedy: remedy.save(host.park, held=0)


def _with_fp8_linears(plan: RenderPlan, dtype: torch.dtype, host: Host) -> Change:
    """The change to 8-bit linear layers, with which the video is another."""
    saved = saved_bytes(plan.config, dtype)

    def change(remedy: Remedy) -> Remedy:
        return remedy.save(host.fp8_linears, weights=max(0, remedy.needs.weights - saved))

    return change


def _smaller(plan: RenderPlan, dtype: torch.dtype) -> Iterator[Change]:
    """Settings of memory heads that need less and less memory."""
    policy = plan.policy
    if not (isinstance(policy, CachePolicy) and policy.heads_by and policy.memory.episodic_frames):
        return
    memory = replace(policy.memory, episodic_frames=min(2, policy.memory.episodic_frames))
    yield _with_policy(plan, replace(policy, memory=memory), "episodic_frames 2", dtype)
    policy = replace(policy, memory=replace(memory, recent_frames=0))
    yield _with_policy(plan, policy, "episodic_frames 2, recent_frames 0", dtype)


def _with_policy(plan: RenderPlan, policy: CachePolicy, text: str, dtype: torch.dtype) -> Change:
    shape = replace(plan.shape, policy=policy)
    return partial(Remedy.take, text=text, dtype=dtype, shape=shape)


def _sizes(plan: RenderPlan, dtype: torch.dtype) -> Iterator[Change]:
    """Smaller sizes of about the same shape, the largest first."""
    latents = plan.config.latents
    _, patch_rows, patch_columns = plan.config.patch_size
    step = latents.side_multiple
    for width in range(plan.width - step, 0, -step):
        height = max(step, round(width * plan.height / plan.width / step) * step)
        rows = height // latents.stride // patch_rows
        columns = width // latents.stride // patch_columns
        shape = replace(plan.shape, rows=rows, columns=columns)
        yield partial(
            Remedy.take,
            text=f"{width}x{height}",
            dtype=dtype,
            width=width,
            height=height,
            shape=shape,
        )


def _other_methods(plan: RenderPlan, dtype: torch.dtype) -> Iterator[Change]:
    """Methods whose cache does not grow; those with head roles if a bundled profile fits the
    model.
    """
    config = plan.config
    sizes = (*plan.block_shape[-2:], plan.shape.frames_per_block, plan.shape.total_frames)
    for name in _METHODS:
        policy = method_policy(name).for_video(
            VideoFacts(plan.schedule, plan.blocks, plan.start_frames)
        )
        with suppress(HeadForcingError):
            roles: Any = [["memory"] * config.num_heads] * config.num_layers
            if policy.heads_by:
                found = profile_without_choice(config, policy)
                if isinstance(found, AutoProfile):
                    found = found.expected(config.num_layers, config.num_heads)
                roles = found.roles
            shape = policy.shape(config, roles, *sizes)
            if policy.key != plan.policy.key:
                yield partial(
                    Remedy.take, text=f"method {name}", dtype=dtype, shape=shape, auto=None
                )
