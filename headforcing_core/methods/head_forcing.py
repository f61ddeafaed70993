"""Head Forcing as a `Method`: one cache policy per head role, and the named settings `PRESETS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..cache.base import Cache
from ..cache.head_cache import HeadCache
from ..cache.roles import EpisodicPolicy, RolePolicies, RolePolicy, check_choice
from ..cache.scenes import MAX_SCENES, RecalledScenes, check_recalls, recalled_scenes
from ..cache.shape import CacheShape, Shape
from ..errors import HeadForcingError
from ..rollout.rows import Script
from ..timeline.returns import with_returns
from ..timeline.switch import Switch
from ..timeline.timeline import Timeline
from .method import Method, VideoFacts, refuse_recall

_PAPERS_BLOCK = 3  # latent frames


@dataclass(frozen=True)
class HeadForcing(RolePolicies, Method):
    """Head Forcing, its ablations, and methods with one window for all heads: one policy per role.

    Heads with equal policies share one cache group, even if their roles differ.

    Attributes:
        scenes: what brings an earlier scene back: `off` only a tag, `auto` a prompt that returns to
            it, too. Frames of scenes are kept, unless it is `off` and the story has no such tag.
    """

    shape_class: ClassVar[type[Shape]] = CacheShape
    cache_class: ClassVar[Callable[..., Cache]] = HeadCache
    resumes_from = ("blocks", "state")

    scenes: str = "off"

    def __post_init__(self) -> None:
        check_choice("rope", self.rope, ("contiguous", "absolute"))
        check_choice("scenes", self.scenes, ("off", "auto", "tagged"))
        if any(role.episodic_frames and role != self.memory for role in (self.local, self.anchor)):
            raise HeadForcingError(
                "only memory heads hold episodic memory; set episodic_frames on the memory role"
            )

    @property
    def keeps_scenes(self) -> bool:
        """Whether any head keeps what a scene can bring back: sinks or episodic memory."""
        return any(
            role.sink_frames or role.episodic_frames
            for role in (self.local, self.anchor, self.memory)
        )

    @property
    def most_pictures(self) -> int:
        roles = (self.anchor, self.memory)
        return max(max(role.sink_frames, role.picture_entries) for role in roles)

    @property
    def heads_by(self) -> str:
        return "roles" if len({self.local, self.anchor, self.memory}) > 1 else ""

    @property
    def key(self) -> dict[str, Any]:
        # kept scenes change no block before a recall, whose row has what it depends on
        key = super().key
        del key["scenes"]
        if type(self) is HeadForcing:
            key["method"] = "CachePolicy"  # its name when the first run folders were made
        return key

    def for_video(self, video: VideoFacts) -> HeadForcing:
        if self.scenes != "off" and not self.keeps_scenes:
            raise HeadForcingError(
                f"scenes {self.scenes}: this method keeps nothing of earlier scenes; choose "
                "scenes=off, or head_forcing"
            )
        fitted = self._in_blocks(video.schedule.frames_per_block)
        keeps = self.keeps_scenes and (video.recalls or video.pictures or self.scenes != "off")
        # with the current one, and that of the sinks
        scenes = min(video.prompts, MAX_SCENES + 2) if keeps else 0
        frames = max(
            fitted.anchor.sink_frames, fitted.memory.sink_frames, fitted.memory.episodic_frames
        )
        episodic = self.episodic
        if episodic.token_selection == "random":
            episodic = replace(episodic, seed=video.seed)
        return replace(
            fitted,
            kept_scenes=scenes,
            picture_frames=frames if video.pictures else 0,
            episodic=episodic,
        )

    def _in_blocks(self, frames: int) -> HeadForcing:
        """The method for blocks of so many frames (BEYOND_THE_PAPER.md, "Longer blocks")."""

        def whole(count: int) -> int:
            return -(-count // frames) * frames

        if frames <= _PAPERS_BLOCK or not self.memory.episodic_frames:
            return self
        recent = self.memory.recent_frames
        memory = replace(
            self.memory,
            sink_frames=whole(self.memory.sink_frames),
            recent_frames=None if recent is None else whole(recent),
        )
        if not self.heads_by:
            return replace(self, local=memory, anchor=memory, memory=memory)
        return replace(
            self,
            anchor=replace(self.anchor, sink_frames=whole(self.anchor.sink_frames)),
            memory=memory,
        )

    def with_scenes(self, timeline: Timeline) -> Timeline:
        story = with_returns(timeline, MAX_SCENES) if self.scenes == "auto" else timeline
        if story.recalls:
            check_recalls(story)
        return story

    def own_switch(self, switch: Switch) -> Switch | None:
        if switch.recall is not None and not self.keeps_scenes:
            refuse_recall(switch)
        if switch.recall is not None and not self.kept_scenes:
            raise HeadForcingError(
                "this video began without a [recall], so no frames of its scenes are kept; remove "
                f"[{switch}], render the new story by itself, or begin with the method option "
                "scenes=tagged"
            )
        return switch if switch.changes_cache or self.kept_scenes else None

    def recalled(self, script: Script) -> RecalledScenes:
        return recalled_scenes(script)

    @property
    def memory_options(self) -> tuple[str, ...]:
        if not self.memory.episodic_frames:
            return ()
        rules = ("episodic.novelty_threshold", "episodic.update_interval")
        # an ablation that compares methods of one size keeps its numbers of frames
        if not self.heads_by:
            return rules
        return ("memory.episodic_frames", "memory.recent_frames", *rules)

    @classmethod
    def uniform(cls, policy: RolePolicy, rope: str = "absolute") -> HeadForcing:
        """The same cache for every head."""
        return cls(local=policy, anchor=policy, memory=policy, rope=rope)


_HEAD_FORCING = HeadForcing()

PRESETS: dict[str, HeadForcing] = {
    "head_forcing": _HEAD_FORCING,
    # the paper's ablations
    "no_rope_reencoding": replace(_HEAD_FORCING, rope="absolute"),
    "uniform_admission": replace(_HEAD_FORCING, episodic=EpisodicPolicy(admission="uniform")),
    "fifo_eviction": replace(_HEAD_FORCING, episodic=EpisodicPolicy(eviction="fifo")),
    "random_tokens": replace(_HEAD_FORCING, episodic=EpisodicPolicy(token_selection="random")),
    # ours: rules that the paper does not have
    "centered_keys": replace(_HEAD_FORCING, episodic=EpisodicPolicy(center_keys=True)),
    "pinned_first_entry": replace(_HEAD_FORCING, episodic=EpisodicPolicy(pin_first=True)),
    # the paper's
    "no_episodic_memory": replace(_HEAD_FORCING, memory=RolePolicy(recent_frames=8)),
    # every head is a memory head with 9 frame-slots, about the paper's mean of 8.6 per head
    "uniform_memory": HeadForcing.uniform(
        RolePolicy(recent_frames=3, episodic_frames=3), "contiguous"
    ),
    # one cache for all heads; windows count the current block of three frames
    "self_forcing": HeadForcing.uniform(RolePolicy(recent_frames=None)),
    "self_forcing_window_21": HeadForcing.uniform(RolePolicy(recent_frames=18)),
    "self_forcing_sink": HeadForcing.uniform(RolePolicy(sink_frames=1, recent_frames=17)),
    "livetalk": HeadForcing.uniform(RolePolicy(sink_frames=9, recent_frames=3)),
}
