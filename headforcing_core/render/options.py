"""The options of a render, with their defaults."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from ..cache.guards import Guards
from ..cache.method import Method
from ..cache.options import with_options
from ..cache.policy import ROLE_ARRANGEMENTS, CachePolicy
from ..errors import HeadForcingError, unknown_name
from ..head_profiles.auto import AutoProfile
from ..head_profiles.profile import HeadProfile
from ..methods.registry import method_policy, method_schedule
from ..model.wan import WanConfig
from ..rollout.schedule import Schedule, known_family
from ..timeline.clock import MAX_SECONDS
from ..timeline.switch import RESET, Switch
from ..timeline.timeline import Timeline, parse_timeline
from .plan import RenderPlan, check_size

_POLICY = CachePolicy()


@dataclass(frozen=True)
class RenderOptions:
    """The options of a render; checks itself. Command-line arguments and widgets take their defaults from here.

    Attributes:
        method: a name of `methods.registry.method_names`; with `policy` only a name for files.
        roles: an arrangement of head roles, see `cache.roles.arrange_roles`.
        shuffle: number of the shuffle where `roles` shuffles them; the seed has no part in it.
        width, height: in pixels.
        seconds: length of the new part of the video; 0 takes the timeline's.
        seed: of the noise.
        profile: head roles; None takes the bundled profile that fits the model, or finds roles while sampling.
        model_family: sets noise levels, frames per block and bundled profile; `auto` see `family.with_family`.
        sigmas: noise levels as text, which replace those of the family and the method.
        episodic_frames, recent_frames: latent frames that memory heads keep.
        novelty_threshold: a candidate is admitted to episodic memory if its similarity to all entries is below this.
        update_interval: a candidate is considered once in this many blocks.
        sink_gate, rope_jitter: guards of the caches, see `cache.guards.Guards`; 0 is off.
        compression: how episodic memory chooses the tokens of a merge: `prompt`, or `trigonometric`, which needs a head
            profile with query statistics.
        switch: the prompt switch of prompts without a tag, see `parse`.
        state_seconds: seconds between two stored cache states in a run folder; 0: never stored.
        policy: a method's settings, used in place of those that `method` names.
        method_options: options of the method as text, `window_frames=12, sink_frames=3`, see `cache.options`.
    """

    method: str = "head_forcing"
    roles: str = "profile"
    width: int = 832
    height: int = 480
    seconds: float = 0.0
    seed: int = 0
    profile: HeadProfile | AutoProfile | None = None
    model_family: str = "self_forcing"
    sigmas: str = ""
    episodic_frames: int = _POLICY.memory.episodic_frames
    recent_frames: int = _POLICY.memory.recent_frames or 0
    novelty_threshold: float = _POLICY.episodic.novelty_threshold
    update_interval: int = _POLICY.episodic.update_interval
    sink_gate: float = 0.0
    rope_jitter: float = 0.0
    compression: str = "prompt"
    shuffle: int = 0
    switch: Switch = Switch()
    state_seconds: float = 300.0
    policy: Method | None = None
    method_options: str = ""

    def __post_init__(self) -> None:
        check_size("width", self.width)
        check_size("height", self.height)
        if not (math.isfinite(self.seconds) and 0 <= self.seconds <= MAX_SECONDS):
            raise HeadForcingError(f"seconds must be above 0 and at most {MAX_SECONDS:.0f}, got {self.seconds}")
        if not (math.isfinite(self.state_seconds) and self.state_seconds >= 0):
            raise HeadForcingError(f"state_seconds must be 0 (never) or more, got {self.state_seconds}")
        if self.roles not in ROLE_ARRANGEMENTS:
            raise unknown_name("roles", self.roles, ROLE_ARRANGEMENTS)
        _ = self.cache_policy, self.schedule  # whose constructors check the other options

    @cached_property
    def cache_policy(self) -> Method:
        """The method's settings, with these options for memory heads, and at last the method options."""
        policy, guards = self.policy or method_policy(self.method), Guards(self.sink_gate, self.rope_jitter)
        if isinstance(policy, CachePolicy):
            policy = policy.with_memory(
                self.episodic_frames, self.recent_frames, self.novelty_threshold, self.update_interval
            ).with_guards(guards, self.compression)
        elif guards or self.compression != "prompt":
            raise HeadForcingError(
                "sink_gate, rope_jitter and compression are for methods that keep frames by head role, such as "
                "head_forcing; leave them at 0, 0 and prompt for this method"
            )
        return with_options(policy, self.method_options, self.method)

    @property
    def method_name(self) -> str:
        """The method with its options, for reports: `longlive (window_frames=9)`."""
        return f"{self.method} ({self.method_options.strip()})" if self.method_options.strip() else self.method

    @cached_property
    def schedule(self) -> Schedule:
        """The noise levels: `sigmas`, else the method's own, else the model family's."""
        return method_schedule(self.policy or method_policy(self.method), self.model_family, self.sigmas)

    def parse(self, text: str, shared_prompt: str = "") -> Timeline:
        """The timeline of a text for this render.

        Prompts without a tag get `switch`; a plain one is a scene cut where the model was trained with them and the
        method knows cuts.
        """
        switch, schedule = self.switch, self.schedule
        if switch == RESET and schedule.shot_prefix:
            with suppress(HeadForcingError):
                cut = Switch(re_anchor=True)
                switch = cut if self.cache_policy.own_switch(cut) else switch
        timeline = parse_timeline(text, self.seconds or None, shared_prompt=shared_prompt, switch=switch)
        return replace(timeline, shot_prefix=schedule.shot_prefix)

    def plan(
        self,
        config: WanConfig,
        timeline: Timeline,
        start_frames: int = 0,
        profile: HeadProfile | AutoProfile | None = None,
    ) -> RenderPlan:
        """The checked plan for a timeline and a model of these dimensions, after `start_frames` start latent frames.

        `profile`, if given, replaces that of the options.
        """
        return RenderPlan.make(
            config,
            self.cache_policy,
            self.schedule,
            timeline,
            self.width,
            self.height,
            self.seconds,
            profile=profile or self.profile,
            start_frames=start_frames,
            roles=self.roles,
            shuffle=self.shuffle,
            seed=self.seed,
            family=known_family(self.model_family),
        )


DEFAULTS = RenderOptions()
