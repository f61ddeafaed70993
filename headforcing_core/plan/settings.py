"""The options of a render that are plain values, with their defaults; nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass

from ..timeline.switch import Switch

Size = tuple[int, int]
"""Width and height in pixels."""


@dataclass(frozen=True)
class RenderSettings:
    """Plain values among the options of a render. Command-line arguments and widgets take their
    defaults from here.

    Attributes:
        method_name: one of `methods.registry.method_names`; with `given_method` only a name for
            files.
        roles: an arrangement of head roles, see `cache.roles.arrange_roles`.
        shuffle: number of the shuffle where `roles` shuffles them; the seed has no part in it.
        seconds: as for `layout.lay_out`.
        model_family: sets noise levels, frames per block and bundled profile; `auto` see
            `family.with_family`.
        sigmas: noise levels as text, which replace those of the family and the method.
        switch: the prompt switch of prompts without a tag.
        state_seconds: seconds between two stored cache states in a run folder; 0: never stored.
        method_options: names of options of the method and their values as text, see
            `methods.options`.
    """

    method_name: str = "head_forcing"
    roles: str = "profile"
    width: int = 832
    height: int = 480
    seconds: float = 0.0
    seed: int = 0
    model_family: str = "self_forcing"
    sigmas: str = ""
    shuffle: int = 0
    switch: Switch = Switch()
    state_seconds: float = 300.0
    method_options: tuple[tuple[str, str], ...] = ()


DEFAULT_SETTINGS = RenderSettings()

# arguments and widgets that set an option of the method, and that option; widgets have the
# defaults of Head Forcing
MEMORY_INPUTS = {
    "episodic_frames": "memory.episodic_frames",
    "recent_frames": "memory.recent_frames",
    "novelty_threshold": "episodic.novelty_threshold",
    "update_interval": "episodic.update_interval",
}
