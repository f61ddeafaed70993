"""The options of a render, with their defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..errors import HeadForcingError, unknown_name
from ..files import Fields
from ..head_profiles.auto import ProfileChoice
from ..methods.method import Method
from ..methods.options import Pairs, options_of, with_options
from ..methods.registry import method_named, method_schedule
from ..names import ROLE_ARRANGEMENTS
from ..rollout.schedule import Schedule
from ..timeline.clock import MAX_SECONDS
from ..timeline.switch import RESET, Switch
from .layout import check_size
from .settings import MEMORY_INPUTS, RenderSettings


@dataclass(frozen=True)
class RenderOptions(RenderSettings):
    """The options of a render; checks itself.

    Attributes:
        profile: head roles; None takes the bundled profile that fits the model, or finds roles
            while sampling.
        given_method: a method's settings, used in place of those that `method_name` names.
    """

    profile: ProfileChoice = None
    given_method: Method | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.width, self.height

    def __post_init__(self) -> None:
        check_size("width", self.width)
        check_size("height", self.height)
        if not (math.isfinite(self.seconds) and 0 <= self.seconds <= MAX_SECONDS):
            raise HeadForcingError(
                f"seconds must be above 0 and at most {MAX_SECONDS:.0f}, got {self.seconds}"
            )
        if not (math.isfinite(self.state_seconds) and self.state_seconds >= 0):
            raise HeadForcingError(
                f"state_seconds must be 0 (never) or more, got {self.state_seconds}"
            )
        if self.roles not in ROLE_ARRANGEMENTS:
            raise unknown_name("roles", self.roles, ROLE_ARRANGEMENTS)
        _ = self.method, self.schedule  # whose constructors check the other options

    @cached_property
    def method(self) -> Method:
        """The method's settings with the method options."""
        method = self.given_method or method_named(self.method_name)
        if not self.method_options:
            return method
        return with_options(method, self.method_options, self.method_name)

    def for_method(self, name: str, given: Method | None = None) -> RenderOptions:
        """The same options for another method, without those of episodic memory that it does not
        have.
        """
        has = (given or method_named(name)).memory_options
        shared = tuple(pair for pair in self.method_options if pair[0] in has)
        return replace(self, method_name=name, given_method=given, method_options=shared)

    @cached_property
    def schedule(self) -> Schedule:
        """The noise levels: `sigmas`, else the method's own, else the model family's."""
        return method_schedule(
            self.given_method or method_named(self.method_name), self.model_family, self.sigmas
        )

    @property
    def timeline_arguments(self) -> Fields:
        """The arguments of `parse_timeline` that a render of these options needs.

        A plain `switch` is a scene cut where the model was trained with them and the method knows
        cuts.
        """
        switch = self.switch
        schedule = self.schedule
        if switch == RESET and schedule.shot_prefix:
            with suppress(HeadForcingError):
                cut = Switch(re_anchor=True)
                if self.method.own_switch(cut):
                    switch = cut
        return {
            "seconds": self.seconds or None,
            "clock": schedule.clock,
            "switch": switch,
            "shot_prefix": schedule.shot_prefix,
        }


DEFAULTS = RenderOptions()


def method_options(
    name: str, inputs: Mapping[str, Any], pairs: Pairs
) -> tuple[tuple[str, str], ...]:
    """The options of a method: `pairs`, and those that the `inputs` of `MEMORY_INPUTS` set and
    `pairs` do not.

    An input sets nothing at its default, nor if the method does not have its option.
    """
    has = method_named(name).memory_options
    found = list(pairs)
    for each, option in MEMORY_INPUTS.items():
        value = inputs.get(each)
        if value is None or option not in has or option in dict(pairs):
            continue
        if value != options_of(DEFAULTS.method)[option].value:
            found.append((option, str(value)))
    return tuple(found)
