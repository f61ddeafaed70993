"""Remedies for a render that does not fit into memory: what leaves the video as it is, then fewer
frames in memory heads, a smaller video, Head Forcing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ..errors import HeadForcingError
from ..files import Fields
from ..head_profiles.auto import AutoProfile
from ..methods.head_forcing import HeadForcing
from ..methods.registry import method_named
from ..video.memory import DecoderMemory
from .describe import format_bytes
from .plan import RenderPlan
from .resources import COMFYUI, MemorySavings, Needs, activation_bytes

_REMEDIES = 3


def too_large(
    needs: Needs, plan: RenderPlan, dtype: torch.dtype, room: int, savings: MemorySavings
) -> HeadForcingError:
    """The error for a render that does not fit into `room` bytes, with sizes and the cheapest
    remedies.
    """
    found = (
        f"{remedy.text} ({format_bytes(remedy.needs.wanted(savings))})"
        for remedy in remedies(needs, plan, dtype=dtype, room=room, savings=savings)
    )
    ways = list(dict.fromkeys(found))[:_REMEDIES]
    besides = " besides the weights" if savings.streams_weights else ""
    helps = "No setting of this video fits"
    if ways:
        helps = f"What fits, cheapest first: {'; '.join(ways)}"
    return HeadForcingError(
        f"not enough memory: {plan.size_text} needs "
        f"{format_bytes(needs.wanted(savings))}{besides} ({needs.parts}), the device has "
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
class Change:
    """Another way to make a render: the words for it, and what it sets: `sizes` of `Needs`, and
    `fields` of the plan.
    """

    text: str
    sizes: Fields
    fields: Fields


@dataclass(frozen=True)
class Remedy:
    """A render with changes, described by `text`, and what it needs then."""

    text: str
    plan: RenderPlan
    needs: Needs

    def then(self, change: Change, dtype: torch.dtype) -> Remedy:
        """With a change, too; the same where all sizes are so already."""
        plan = replace(self.plan, **change.fields)
        needs = replace(self.needs, **change.sizes)
        if change.fields:
            area = plan.width * plan.height / (self.plan.width * self.plan.height)
            needs = replace(
                needs,
                cache=plan.cache_bytes(dtype),
                activations=activation_bytes(plan, dtype),
                held=int(needs.held * area),
                decode=int(needs.decode * area),
            )
        elif needs == self.needs:
            return self
        text = f"{self.text} and {change.text}" if self.text else change.text
        return Remedy(text, plan, needs)


def remedies(
    needs: Needs, plan: RenderPlan, dtype: torch.dtype, room: int, savings: MemorySavings
) -> Iterator[Remedy]:
    """Yield what makes the render fit into `room` bytes: each change alone, or with all that leave
    the video as it is. Of sizes the largest that fits. The same one may come twice.
    """

    def first_that_fits(start: Remedy, changes: Sequence[Change]) -> Remedy | None:
        for change in changes:
            remedy = start.then(change, dtype)
            if remedy.needs.wanted(savings) <= room:
                return remedy
        return None

    exact = []  # changes that leave the video as it is
    if plan.vae_use is None:
        exact.append(Change(savings.decode_afterwards, {"vae": 0, "held": 0, "decode": 0}, {}))
    if savings.park:
        exact.append(Change(savings.park, {"held": 0}, {}))
    unchanged = least = Remedy("", plan, needs)  # least: with every harmless change
    for change in exact:
        least = least.then(change, dtype)
    groups = [[change] for change in exact]
    groups.append(list(_fewer_frames(plan)))
    if savings.smaller_weights is not None:
        how, saved_bytes = savings.smaller_weights
        weights = max(0, needs.weights - saved_bytes(plan.config, dtype))
        groups.append([Change(how, {"weights": weights}, {})])
    groups += [list(_sizes(plan)), list(_head_forcing(plan))]
    for changes in groups:
        found = first_that_fits(unchanged, changes) or first_that_fits(least, changes)
        if found is not None:
            yield found


def _fewer_frames(plan: RenderPlan) -> Iterator[Change]:
    """Fewer frames in memory heads."""
    method = plan.method
    if isinstance(method, HeadForcing) and method.heads_by and method.memory.episodic_frames > 2:
        memory = replace(method.memory, episodic_frames=2)
        shape = replace(plan.shape, method=replace(method, memory=memory))
        yield Change("episodic_frames 2", {}, {"shape": shape})


def _sizes(plan: RenderPlan) -> Iterator[Change]:
    """Smaller sizes of about the same shape, the largest first."""
    latents = plan.config.latents
    _, patch_rows, patch_columns = plan.config.patch_size
    step = latents.side_multiple
    for width in range(plan.width - step, 0, -step):
        height = max(step, round(width * plan.height / plan.width / step) * step)
        rows = height // latents.stride // patch_rows
        columns = width // latents.stride // patch_columns
        try:
            shape = replace(plan.shape, rows=rows, columns=columns)
        except HeadForcingError:  # too small for the method
            continue
        yield Change(f"{width}x{height}", {}, {"width": width, "height": height, "shape": shape})


def _head_forcing(plan: RenderPlan) -> Iterator[Change]:
    """Head Forcing in place of another method, with the numbers of heads that are expected."""
    method = method_named("head_forcing").for_video(plan.layout.facts)
    if method.key != plan.method.key:
        config = plan.config
        _, _, rows, columns = plan.block_shape
        shape = method.shape(
            config,
            AutoProfile().expected(config.num_layers, config.num_heads).roles,
            latent_height=rows,
            latent_width=columns,
            frames_per_block=plan.shape.frames_per_block,
            total_frames=plan.frames,
        )
        yield Change("method head_forcing", {}, {"shape": shape})
