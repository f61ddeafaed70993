"""Automatic head profile: measure the head roles during the first seconds of a video, then use
head-wise caches.

During the warm-up of 21 latent frames every head attends to all frames, which is plain Self Forcing
within its training length, and attention shares are measured in the same passes. Then the roles are
fixed, and the head-wise caches are filled with the content that they would have if they had been
used from the start.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..cache.base import WriteClean
from ..cache.head_cache import HeadCache
from ..cache.roles import HeadRole, RolePolicy
from ..cache.shape import CacheShape
from ..cache.state import State
from ..errors import HeadForcingError
from ..methods.head_forcing import CachePolicy
from ..model.attention import AttentionFunction, sdpa
from ..model.wan import Norms, PromptKV
from ..rollout.loop import MemoryEvent
from ..timeline.switch import Switch
from .profile import ANCHOR_FRACTION, LOCAL_FRACTION, HeadProfile, classify, load_profile
from .profiler import ShareMeter
from .rules import with_rule

log = logging.getLogger(__name__)

WARM_UP_FRAMES = 21  # latent frames: the training length of Self Forcing
FIRST_MEASURED_BLOCK = 2  # 0-based; before it, the context is too short to distinguish roles


@dataclass(frozen=True)
class AutoProfile:
    """Requests that head roles are measured during sampling, by a rule of `names.RULES`; in place
    of a head profile.
    """

    anchor_fraction: float = ANCHOR_FRACTION
    local_fraction: float = LOCAL_FRACTION
    rule: str = "quota"

    @property
    def key(self) -> dict[str, Any]:
        """Settings that the found roles depend on, as JSON values."""
        key = asdict(self)
        if self.rule == "quota":
            del key["rule"]
        return key

    def expected_roles(self, num_layers: int, num_heads: int) -> tuple[tuple[HeadRole, ...], ...]:
        """Roles in the right numbers but for arbitrary heads, to compute cache sizes before the
        measurement.
        """
        nothing = [[(1.0, 0.0, 0.0)] * num_heads] * num_layers
        return classify(nothing, self.anchor_fraction, self.local_fraction)


def warm_up_frames(frames_per_block: int) -> int:
    """Length of the warm-up in latent frames, a multiple of `frames_per_block`; shorter videos keep
    every frame.
    """
    return max(FIRST_MEASURED_BLOCK + 1, WARM_UP_FRAMES // frames_per_block) * frames_per_block


def warm_up_shape(shape: CacheShape) -> CacheShape:
    """The cache shape of the warm-up: every head keeps every latent frame."""
    everything = CachePolicy.uniform(RolePolicy(recent_frames=None), "absolute")
    return replace(
        shape,
        policy=everything,
        total_frames=min(shape.total_frames, warm_up_frames(shape.frames_per_block)),
    )


class AutoProfileCache(HeadCache):
    """A `HeadCache` of every frame that measures the head roles, and begins again with them after
    the warm-up.

    `shape` is that of the head-wise caches. With a `known` profile, which an earlier render of the
    same video measured, the switch takes place at the same block, but nothing is measured.
    """

    meter: ShareMeter

    def __init__(
        self,
        shape: CacheShape,
        auto: AutoProfile,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
        known: HeadProfile | None = None,
    ):
        self.auto = auto
        self.known = known
        self.dtype = dtype
        self.head_wise = shape
        self._hold(warm_up_shape(shape), device, attention)
        self.meter = ShareMeter(shape.layers, shape.heads, self.rope.frame_tokens)
        self.earlier_events: list[MemoryEvent] = []
        self._prompts: list[PromptKV] = []
        self._switches: dict[int, Switch] = {}  # those that only begin a prompt, by block
        self._sum = torch.zeros(shape.layers, shape.heads, 3, dtype=torch.float64)
        self._passes = 0
        self._pass_open = False

    def _hold(
        self, shape: CacheShape, device: torch.device | str, attention: AttentionFunction
    ) -> None:
        """Become empty caches of this shape."""
        super().__init__(shape, self.dtype, device, attention)
        self.fused = False

    def begin_block(self) -> None:
        super().begin_block()
        self.meter.active = (
            self.profile is None and self.known is None and self.block >= FIRST_MEASURED_BLOCK
        )
        self._pass_open = False

    def write(
        self, layer: int, k: Tensor, v: Tensor, q: Tensor | None = None, norms: Norms | None = None
    ) -> Tensor | None:
        if layer == 0 and self.meter.active:
            # A pass is counted when the next one begins, which leaves out the last pass of a block:
            # the clean pass.
            if self._pass_open:
                self._sum += self.meter.shares
                self._passes += 1
            self._pass_open = True
        return super().write(layer, k, v, q=q, norms=norms)

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        event = super().commit(prompt)
        if self.profile is None:
            self._prompts.append(prompt)
            frames = self.shape.frames_per_block
            if self.block * frames >= warm_up_frames(frames):
                event = self._switch()
        return event

    def apply_switch(
        self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]
    ) -> None:
        if self.profile is not None:
            super().apply_switch(switch, write_clean, latest)
        # the cache of the warm-up stays as it is: the head-wise caches are filled from it
        elif switch.changes_cache:
            raise HeadForcingError(
                "a prompt switch cannot change the cache while head roles are being measured; load "
                "a head profile"
            )
        else:
            self._switches[self.block] = switch

    def state(self) -> State | None:
        return None if self.profile is None else super().state()

    def restore(self, state: State) -> None:
        """Restore the state of head-wise caches from an earlier render, with the roles that it
        measured (`known`).
        """
        assert self.known is not None
        self._hold(replace(self.head_wise, roles=self.known.roles), self.device, self.attention)
        super().restore(state)
        self.profile = self.known

    def _measure(self) -> HeadProfile:
        shares = tuple(
            tuple(tuple(head) for head in layer) for layer in (self._sum / self._passes).tolist()
        )
        found = HeadProfile(
            "auto",
            self.shape.layers,
            self.shape.heads,
            roles=classify(shares, self.auto.anchor_fraction, self.auto.local_fraction),
            shares=shares,
            anchor_fraction=self.auto.anchor_fraction,
            local_fraction=self.auto.local_fraction,
            measured={"window_frames": self.shape.total_frames, "rope": "absolute", "prompts": 1},
            provenance={
                "source": "found while sampling",
                "note": "one prompt, the first seconds of one video",
            },
        )
        return with_rule(found, self.auto.rule)

    def _switch(self) -> MemoryEvent | None:
        """Fix the roles and fill the head-wise caches; returns the memory event of the block just
        committed.
        """
        self.profile = self.known or self._measure()
        full = copy(self)
        self._hold(replace(self.head_wise, roles=self.profile.roles), self.device, self.attention)
        events = []
        for block, prompt in enumerate(self._prompts):
            if block in self._switches:
                self.begin_scene(self._switches[block])
            self._take_block(full, block)
            events.append(self.commit(prompt))
        self._prompts = []
        self.earlier_events = [event for event in events[:-1] if event is not None]
        return events[-1]

    def _take_block(self, full: HeadCache, block: int) -> None:
        """Write a block from the keys and values of `full`, a cache that holds every frame in every
        head.
        """
        (group,) = full.groups
        frames = self.shape.frames_per_block
        slots = slice(block * frames, (block + 1) * frames)
        self.begin_block()
        for layer, (k, v) in enumerate(zip(group.k, group.v, strict=True)):
            for ours in self.groups:
                heads = ours.heads[layer]
                ours.take(layer, k[heads, slots], v[heads, slots], group.indices[slots])


def store_found_profile(folder: Path, fingerprint: str, profile: HeadProfile) -> Path:
    """Keep a profile that was found for a model, for the next run with it."""
    path = folder / f"{fingerprint}.json"
    source = f"found while sampling on {date.today().isoformat()}"
    measured = profile.measured | {"fingerprint": fingerprint}
    provenance = profile.provenance | {"source": source}
    replace(profile, name=source, measured=measured, provenance=provenance).save(path)
    return path


def load_found_profile(folder: Path, fingerprint: str, auto: AutoProfile) -> HeadProfile | None:
    """The profile that was found for this model earlier, with the wanted thresholds; None without
    an intact one.
    """
    path = folder / f"{fingerprint}.json"
    if not path.exists():
        return None
    try:
        return with_rule(load_profile(path), auto.rule, auto.anchor_fraction, auto.local_fraction)
    except HeadForcingError as error:
        log.warning("Head Forcing: roles are found again, %s", error)
        return None
