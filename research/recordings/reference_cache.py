"""The specification: the head-wise KV caches, one head at a time (paper, sections 3.3 and 3.4;
METHOD.md).

`ReferenceCache` keeps every frame's keys with their spatial rotation only, assembles each head's
context anew in every pass and rotates it then, as in the paper. Tests compare `HeadCache` with it.
Prompt switches, scenes and pictures are not the paper's. None of its rules is shared with
`HeadCache`, so that an error in one of them is a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ...headforcing_core.cache.base import Cache, WriteClean
from ...headforcing_core.cache.roles import RolePolicy
from ...headforcing_core.cache.scenes import Recall
from ...headforcing_core.cache.shape import CacheShape
from ...headforcing_core.model.attention import explicit
from ...headforcing_core.model.rope import RotaryEmbedding
from ...headforcing_core.model.wan import PromptKV
from ...headforcing_core.rollout.loop import MemoryEvent
from ...headforcing_core.timeline.switch import Switch
from .reference_memory import Frame, ReferenceEntry, ReferenceMemory

# of one head: rotated queries, keys and values [frames, s, head_dim]
HeadContext = tuple[Tensor, Tensor, Tensor]


@dataclass
class HeldPictures:
    """Pictures of a scene as the heads hold them: by policy its sinks, and the entries of episodic
    memory.
    """

    start: int  # the number of the first sink, which is negative
    sinks: dict[RolePolicy, dict[int, Frame]]
    entries: list[tuple[int, Frame]]


class ReferenceCache(Cache):
    """Drop-in replacement for `HeadCache` in rollouts."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device | str = "cpu"):
        self.shape = shape
        self.method = shape.method
        self.dtype = dtype
        self.device = torch.device(device)
        self.rope = RotaryEmbedding(shape.head_dim, shape.rows, shape.columns, device)
        self.block = 0
        self.past: list[Frame] = []  # clean frames, in order
        self.current: list[Frame] = []  # of the latest pass
        self.memory = ReferenceMemory(shape)
        self.origin = 0  # the first sink frame
        self.oldest = 0  # no recent frame is older than this one
        # by policy, those that were put in place of `past`
        self.sinks: dict[RolePolicy, dict[int, Frame]] = {}
        # frames that came back as entries, and are no recent frames any more
        self.recalled: set[int] = set()
        # scenes: every frame as it was when its block was made, and for each prompt its scene and
        # where its visit began
        self.made: list[Frame] = []
        self.scenes = [1]
        self.starts = [0]
        self.home = 1  # the scene whose first frames are the sinks while no other one is recalled
        self._recalls: list[Recall] = []
        self.pictures: HeldPictures | None = None  # of the prompt that begins

    @property
    def frames_seen(self) -> int:
        return len(self.past)

    @property
    def recalls(self) -> Sequence[Recall]:
        return self._recalls

    @property
    def scene_starts(self) -> list[int] | None:
        return self.starts if self.method.kept_scenes else None

    # --- in a pass

    def begin_block(self) -> None:
        self.current = []

    def write_and_rotate(
        self, layer: int, k: Tensor, v: Tensor, q: Tensor | None = None, norms: object = None
    ) -> Tensor | None:
        k = self.rope.rotate_spatial(self._by_frame(k))
        for place, keys_and_values in enumerate(zip(k, self._by_frame(v), strict=True)):
            if place == len(self.current):
                self.current.append({})
            self.current[place][layer] = keys_and_values
        return q

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        q = self.rope.rotate_spatial(self._by_frame(queries))
        heads = [self.context(layer, head, q[:, head]) for head in range(q.shape[1])]
        out = [
            explicit(q.flatten(0, 1)[None], k.flatten(0, 1)[None], v.flatten(0, 1)[None])[0]
            for q, k, v in heads
        ]
        return torch.stack(out, dim=1)

    def context(self, layer: int, head: int, q: Tensor) -> HeadContext:
        """Queries, keys and values of one head, from its queries `[frames, s, d]`."""
        frames, numbers = self.seen(layer, head)
        indices = list(range(len(frames))) if self.method.rope == "contiguous" else numbers
        k = torch.stack([frame[layer][0][head] for frame in frames])
        v = torch.stack([frame[layer][1][head] for frame in frames])
        return (
            self.rope.rotate_temporal(q, indices[-len(q) :]),
            self.rope.rotate_temporal(k, indices),
            v,
        )

    def seen(self, layer: int, head: int) -> tuple[list[Frame], list[int]]:
        """The frames in a head's context, sinks first, then entries, the current block last, and
        their numbers in the video.
        """
        policy = self.method.of(self.shape.roles[layer][head])
        recent = self._recent(policy)
        held = self._held(policy, self._sinks_before(policy, recent))
        if policy.episodic_frames:
            held += [(entry.sources[0], entry.tokens) for entry in self.memory.entries]
        held += self._held(policy, recent)
        held += enumerate(self.current, self.frames_seen)
        return [frame for _, frame in held], [number for number, _ in held]

    def _held(self, policy: RolePolicy, wanted: Iterable[int]) -> list[tuple[int, Frame]]:
        """Of these frames, those that a head holds besides entries, with their numbers."""
        back = self.sinks.get(policy, {})
        held = []
        for number in wanted:
            if number in back:
                held.append((number, back[number]))
            elif number < 0:  # a picture that has none here
                continue
            elif policy.episodic_frames and self._was_entry(number):  # no frame is held twice
                continue
            else:
                held.append((number, self.past[number]))
        return held

    def _recent(self, policy: RolePolicy) -> list[int]:
        """The last frames before the current block, none of which a flush has dropped."""
        count = self.frames_seen if policy.recent_frames is None else policy.recent_frames
        return [
            number
            for number in range(self.frames_seen)
            if number >= max(self.oldest, self.frames_seen - count)
        ]

    def _sinks_before(self, policy: RolePolicy, recent: Sequence[int]) -> list[int]:
        """The sinks of a head that are older than its recent frames."""
        end = recent[0] if recent else self.frames_seen
        sinks = range(self.origin, self.origin + policy.sink_frames)
        return [number for number in sinks if number < end]

    def _was_entry(self, frame: int) -> bool:
        """Whether episodic memory holds a frame, or has got it from a recall."""
        return self.memory.holds(frame) or frame in self.recalled

    # --- between passes

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        block = self.block
        self.made += self.current
        self.close()
        if not self.memory.capacity:
            return None
        # the newest block whose first frame has left fast memory
        fast = self.method.memory.recent_frames or 0
        first_frames = range(0, self.frames_seen - fast, self.shape.frames_per_block)
        if not first_frames or (len(first_frames) - 1) % self.method.episodic.update_interval:
            return None
        frame = first_frames[-1]
        if frame < self.oldest or self._was_entry(frame):
            return None
        if self.origin <= frame < self.origin + self.method.memory.sink_frames:
            return None
        return self.memory.consider(block, frame, self.past[frame], prompt)

    def close(self) -> None:
        """Append the frames of the last pass to the history."""
        self.past += self.current
        self.block += 1

    # --- prompt switches

    def switch_blocks(self, switch: Switch) -> int:
        if switch.kind != "recache":
            return 0
        blocks = 0
        for role in (self.method.local, self.method.anchor, self.method.memory):
            frames = self.shape.total_frames if role.recent_frames is None else role.recent_frames
            while blocks * self.shape.frames_per_block < frames:
                blocks += 1
        return blocks + 1  # that before them

    def apply_switch(
        self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]
    ) -> None:
        """Sinks, entries and older recent frames go; then a scene comes back; then the last blocks
        are written again and attend to it (BEYOND_THE_PAPER.md)."""
        if self.method.kept_scenes:
            self._begin_scene(switch)
        if switch.re_anchor:
            self.origin = self.frames_seen
            self.sinks = {}
        if switch.kind == "flush":
            self.memory.flush()
            self.oldest = max(self.oldest, self.frames_seen - 2)
        if self.method.kept_scenes:
            self._bring_back(switch)
        if switch.kind == "recache":
            self._forget_frames_from(self.frames_seen - sum(len(latents) for latents in latest))
            for latents in latest:
                self.begin_block()
                write_clean(latents)
                self.close()

    def _forget_frames_from(self, first: int) -> None:
        """Drop the last blocks, which are then written again; entries and earlier sinks stay."""
        self.past = self.past[:first]
        self.block = first // self.shape.frames_per_block
        self.oldest = max(self.oldest, first)
        for policy, back in self.sinks.items():
            self.sinks[policy] = {number: frame for number, frame in back.items() if number < first}
        # frames that are written again are recent ones again, but for entries
        self.recalled = {
            frame for frame in self.recalled if frame < first or self.memory.holds(frame)
        }

    # --- scenes

    def _begin_scene(self, switch: Switch) -> None:
        """Note the scene of the new prompt, by the number of the prompt that first made it."""
        if switch.continues:
            self.scenes.append(self.scenes[-1])
            self.starts.append(self.starts[-1])
            return
        scene = self.scenes[switch.recall - 1] if switch.recall else len(self.scenes) + 1
        self.scenes.append(scene)
        self.starts.append(self.frames_seen)
        if switch.re_anchor:
            self.home = scene

    def _bring_back(self, switch: Switch) -> None:
        """Put pictures and a recalled scene, or else the sinks of before, into the caches."""
        pictures = self.pictures
        self.pictures = None
        if switch.continues and pictures is None:  # the scene goes on with what it has
            return
        start = self.starts[self.home - 1]
        entries: list[tuple[int, Frame]] = []
        if switch.recall is not None:
            scene = self.scenes[-1]
            start = self.starts[scene - 1]
            spread = self._spread(scene)
            entries = [(number, self.made[number]) for number in spread]
            back = {*spread, *self._first_frames(start, self._most_sinks)}
            self._recalls.append(Recall(self.block, scene, sorted(back)))
        if pictures is not None:
            start = pictures.start
            entries = [*pictures.entries, *entries][: self.memory.capacity]
        if entries:
            numbers = {number for number, _ in entries}
            self.recalled |= numbers
            self.memory.replace([ReferenceEntry([number], frame) for number, frame in entries])
            for policy, back_here in self.sinks.items():
                if policy.episodic_frames:
                    self.sinks[policy] = {n: f for n, f in back_here.items() if n not in numbers}
        else:
            self.memory.drop_pictures()
        if start != self.origin or pictures is not None:
            self.origin = start
            for policy in self._with_sinks:
                if pictures is not None:
                    back_here = pictures.sinks[policy]
                else:
                    back_here = {
                        n: self.made[n] for n in self._first_frames(start, policy.sink_frames)
                    }
                elsewhere = set(self._recent(policy))
                if policy.episodic_frames:
                    doubled = {number for number in back_here if self.memory.holds(number)}
                    elsewhere |= doubled
                    self.recalled |= doubled  # they are no sinks later, either
                self.sinks[policy] = {n: f for n, f in back_here.items() if n not in elsewhere}

    @property
    def _with_sinks(self) -> list[RolePolicy]:
        return [policy for policy in self.shape.policies if policy.sink_frames]

    @property
    def _most_sinks(self) -> int:
        return max((policy.sink_frames for policy in self._with_sinks), default=0)

    def _first_frames(self, start: int, count: int) -> range:
        """The first frames of the scene that begins at `start`, as far as they are made."""
        return range(start, min(start + count, len(self.made)))

    def _spread(self, scene: int) -> list[int]:
        """The frames of a scene's first visit that come back into episodic memory."""
        capacity = self.memory.capacity
        if not capacity:
            return []
        start = self.starts[scene - 1]
        end = next(other for other in self.starts[scene:] if other != start)
        first_frames = range(start, end, self.shape.frames_per_block)
        step = 1  # every second frame was dropped as often as there were twice as many as entries
        while len(first_frames[::step]) >= 2 * capacity:
            step *= 2
        kept = list(first_frames[::step])
        if len(kept) <= capacity:
            return kept
        return [kept[round(place * (len(kept) - 1) / (capacity - 1))] for place in range(capacity)]

    # --- pictures

    def hold_pictures(self, pictures: Sequence[Tensor], write_clean: WriteClean) -> None:
        alone = [self._alone(latents, write_clean) for latents in pictures]
        start = -self._most_sinks
        sinks: dict[RolePolicy, dict[int, Frame]] = {}
        for policy in self._with_sinks:
            share = max(1, policy.sink_frames // len(pictures))
            frames = list(chain(*(of_picture[:share] for of_picture in alone)))
            frames = frames[: policy.sink_frames]
            sinks[policy] = {start + place: frame for place, frame in enumerate(frames)}
        free = 2  # entries, for the video
        in_memory = alone[: max(0, self.memory.capacity - free)]
        if self.method.memory.sink_frames:  # which the pictures take
            in_memory = []
        entries = [
            (number - len(pictures), of_picture[0]) for number, of_picture in enumerate(in_memory)
        ]
        self.pictures = HeldPictures(start, sinks, entries)
        if self.block == 0:  # no switch comes before the first block
            self._bring_back(Switch())

    def _alone(self, latents: Tensor, write_clean: WriteClean) -> list[Frame]:
        """The frames of a picture, of a clean pass with nothing else in any context."""
        alone = ReferenceCache(self.shape, self.dtype, self.device)
        frames = self.past, self.memory, self.sinks
        self.past = alone.past
        self.memory = alone.memory
        self.sinks = alone.sinks
        self.begin_block()
        write_clean(latents)
        self.past, self.memory, self.sinks = frames
        return self.current

    def _by_frame(self, x: Tensor) -> Tensor:
        """`[frames * s, heads, d]` -> `[frames, heads, s, d]`."""
        return x.unflatten(0, (-1, self.rope.frame_tokens)).transpose(1, 2)
