"""The options of a render that are plain values, with their defaults; nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass

from ..timeline.switch import Switch


@dataclass(frozen=True)
class RenderSettings:
    """Plain values among the options of a render. Command-line arguments and widgets take their defaults from here.

    Attributes:
        method: a name of `methods.registry.method_names`; with `policy` only a name for files.
        roles: an arrangement of head roles, see `cache.roles.arrange_roles`.
        shuffle: number of the shuffle where `roles` shuffles them; the seed has no part in it.
        seconds: as for `layout.lay_out`.
        model_family: sets noise levels, frames per block and bundled profile; `auto` see `family.with_family`.
        sigmas: noise levels as text, which replace those of the family and the method.
        episodic_frames, recent_frames: latent frames that memory heads keep.
        novelty_threshold, update_interval: of episodic memory, see `cache.policy.EpisodicPolicy`.
        sink_gate, rope_jitter: guards of the caches, see `cache.guards.Guards`; 0 is off.
        compression: how episodic memory chooses the tokens of a merge, one of `names.COMPRESSIONS`.
        switch: the prompt switch of prompts without a tag.
        state_seconds: seconds between two stored cache states in a run folder; 0: never stored.
        method_options: options of the method as text, `window_frames=12, sink_frames=3`, see `cache.options`.
    """

    method: str = "head_forcing"
    roles: str = "profile"
    width: int = 832
    height: int = 480
    seconds: float = 0.0
    seed: int = 0
    model_family: str = "self_forcing"
    sigmas: str = ""
    episodic_frames: int = 5
    recent_frames: int = 3
    novelty_threshold: float = 0.95
    update_interval: int = 3
    sink_gate: float = 0.0
    rope_jitter: float = 0.0
    compression: str = "prompt"
    shuffle: int = 0
    switch: Switch = Switch()
    state_seconds: float = 300.0
    method_options: str = ""


DEFAULTS = RenderSettings()
