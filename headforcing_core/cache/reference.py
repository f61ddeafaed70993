"""The specification: the head-wise KV caches, one head at a time (paper, sections 3.3 and 3.4; METHOD.md).

`ReferenceCache` keeps every frame's keys with their spatial rotation only, assembles each head's context anew in every
pass and rotates it then, as in the paper. Tests compare `HeadCache` with it. Prompt switches, scenes and pictures are
not the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..model.attention import explicit
from ..model.rope import RotaryEmbedding
from ..model.wan import PromptKV
from ..timeline.switch import Switch
from .base import Cache, WriteClean
from .guards import QueryScore
from .head_cache import FLUSHED_TO_FRAMES, HeadCache
from .memory import EpisodicMemory, MemoryEntry, MemoryEvent
from .roles import RolePolicy
from .scenes import KeptFrame, Scenes
from .shape import CacheShape

FrameList = list[tuple[Tensor, Tensor]]  # per frame, keys and values [heads, s, head_dim]
HeadContext = tuple[Tensor, Tensor, Tensor]  # of one head: rotated queries, keys and values [frames, s, head_dim]


class ReferenceCache(Cache):
    """Drop-in replacement for `HeadCache` in rollouts; not with guards, which change `rope_of` and `context`."""

    # the order of a `HeadCache`
    switch_blocks, apply_switch = HeadCache.switch_blocks, HeadCache.apply_switch
    begin_scene, hold_pictures = HeadCache.begin_scene, HeadCache.hold_pictures

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device | str = "cpu"):
        self.shape, self.policy = shape, shape.policy
        self.dtype, self.device = dtype, torch.device(device)
        self.rope = RotaryEmbedding(shape.head_dim, shape.rows, shape.columns, device)
        self.block = 0
        self.past: list[FrameList] = [[] for _ in shape.roles]  # per layer, clean frames, in order
        self.current: list[FrameList] = [[] for _ in shape.roles]  # of the latest pass
        self.entries: list[FrameList] = [[] for _ in shape.roles]  # episodic memory, all heads
        self.memory_heads = [
            torch.tensor([h for h, role in enumerate(layer) if self.policy.of(role).episodic_frames], dtype=torch.long)
            for layer in shape.roles
        ]
        self.remembers = any(map(len, self.memory_heads))
        score = None if self.policy.queries is None else QueryScore(shape, self.memory_heads)
        self.memory = EpisodicMemory(self.policy.memory.episodic_frames, self.policy.episodic, score)
        self.origin = self.oldest = 0  # the first sink frame, and the oldest that may be a recent one
        self.sink_policies = [policy for policy in shape.policies if policy.sink_frames]
        sinks = [policy.sink_frames for policy in self.sink_policies]
        stores, entries = [self] * len(sinks), self.memory.capacity * self.remembers
        keeps = self.policy.kept_scenes > 0
        self.scenes = Scenes(self if entries else None, entries, stores, sinks) if keeps else None
        self.sinks: dict[RolePolicy, dict[int, KeptFrame]] = {}  # that came back, of every policy with sinks
        self.recalled: set[int] = set()  # frames that came back as entries, which they were or are instead of recent

    @property
    def frames_seen(self) -> int:
        return len(self.past[0])

    def begin_block(self) -> None:
        self.current = [[] for _ in self.current]

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        k = self.rope.rotate_spatial(self._by_frame(k))
        self.current[layer] = list(zip(k, self._by_frame(v), strict=True))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        q = self.rope.rotate_spatial(self._by_frame(q))
        heads = [self.context(layer, head, q[:, head]) for head in range(q.shape[1])]
        out = [explicit(q.flatten(0, 1)[None], k.flatten(0, 1)[None], v.flatten(0, 1)[None])[0] for q, k, v in heads]
        return torch.stack(out, dim=1)

    def context(self, layer: int, head: int, q: Tensor) -> HeadContext:
        """Queries, keys and values of one head, from its queries `[frames, s, d]`."""
        frames, numbers = self.seen(layer, head)
        indices = list(range(len(frames))) if self.policy.rope == "contiguous" else numbers
        k, v = torch.stack([k[head] for k, _ in frames]), torch.stack([v[head] for _, v in frames])
        rope = self.rope_of(layer, head)
        return rope.rotate_temporal(q, indices[-len(q) :]), rope.rotate_temporal(k, indices), v

    def rope_of(self, layer: int, head: int) -> RotaryEmbedding:
        """The rotations of one head."""
        return self.rope

    def seen(self, layer: int, head: int) -> tuple[FrameList, list[int]]:
        """The frames in a head's context, entries first, the current block last, and their numbers in the video."""
        policy = self.policy.of(self.shape.roles[layer][head])
        frames: FrameList = []
        numbers: list[int] = []
        if policy.episodic_frames:
            frames += self.entries[layer]
            numbers += [sources[0] for sources in self.memory.sources]
        back = self.sinks.get(policy, {})
        for number in policy.history(self.frames_seen, self.origin, self.oldest):
            if number in back:
                frames.append((back[number].k[layer], back[number].v[layer]))
            elif number < 0 or (policy.episodic_frames and self._is_entry(number)):
                continue  # a picture that has none here, or a frame that must not be held twice
            else:
                frames.append(self.past[layer][number])
            numbers.append(number)
        current = self.current[layer]
        return frames + current, [*numbers, *range(len(self.past[layer]), len(self.past[layer]) + len(current))]

    def _is_entry(self, frame: int) -> bool:
        """Whether episodic memory holds a frame, or has got it from a recall."""
        return self.memory.holds(frame) or frame in self.recalled

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        block, fast = self.block, self.policy.memory.recent_frames or 0
        frame = self.policy.episodic.candidate_frame(block, self.shape.frames_per_block, fast)
        if self.scenes is not None:
            self.scenes.keep(self.frames_seen, self.shape.frames_per_block)
        self.close()
        if frame is None or frame < self.oldest or not self.remembers or self._is_entry(frame):
            return None
        return self.memory.consider(block, frame, prompt, self.memory_heads, self)

    def close(self) -> None:
        """Append the frames of the last pass to the history."""
        for past, current in zip(self.past, self.current, strict=True):
            past += current
        self.block += 1

    # --- prompt switches

    def flush(self) -> None:
        self.memory.forget(self)
        self.oldest = max(self.oldest, self.frames_seen - FLUSHED_TO_FRAMES)

    def re_anchor(self) -> None:
        self.origin, self.sinks = self.frames_seen, {}

    def rewind(self, blocks: int) -> None:
        self.block -= blocks
        first = self.block * self.shape.frames_per_block
        self.past = [past[:first] for past in self.past]
        self.oldest = max(self.oldest, first)
        self.sinks = {policy: {n: kept for n, kept in back.items() if n < first} for policy, back in self.sinks.items()}
        # frames that are written again are recent ones again, but for entries
        self.recalled = {frame for frame in self.recalled if frame < first or self.memory.holds(frame)}

    # --- scenes and pictures

    def bring_back(self, switch: Switch) -> None:
        back = None if self.scenes is None else self.scenes.brought_back(switch, self.block)
        if back is None:
            return
        scene, spread = back
        if spread:
            self.recalled |= {kept.frame for kept in spread}
            self.entries = [[(kept.k[layer], kept.v[layer]) for kept in spread] for layer in range(len(self.past))]
            pooled = [self._pool([layer[place] for layer in self.entries]) for place in range(len(spread))]
            self.memory.replace([MemoryEntry([kept.frame], key) for kept, key in zip(spread, pooled, strict=True)])
        elif self.memory.pictures:
            self.memory.drop_pictures(self)
        if self.origin != scene.start or scene.start < 0:
            self.origin = scene.start
            for policy, frames in zip(self.sink_policies, scene.first, strict=True):
                recent = policy.recent(self.frames_seen, self.oldest)
                self.sinks[policy] = {kept.frame: kept for kept in frames if kept.frame not in recent}

    @contextmanager
    def alone(self, write_clean: WriteClean, latents: Tensor) -> Iterator[None]:
        aside = {name: vars(self)[name] for name in ("past", "entries", "sinks", "memory")}
        self.past, self.entries = [[] for _ in self.past], [[] for _ in self.entries]
        self.sinks, self.memory = {}, EpisodicMemory(0, self.policy.episodic)
        self.begin_block()
        write_clean(latents)
        yield
        vars(self).update(aside)

    def keep_frame(self, frame: int) -> KeptFrame:
        held = [current[frame - self.frames_seen] for current in self.current]
        return KeptFrame(frame, 0, [k for k, _ in held], [v for _, v in held])

    # --- memory.TokenStore

    def pooled_key(self, frame: int) -> Tensor:
        return self._pool([past[frame] for past in self.past])

    def merge_entries(self, i: int, j: int, select: Callable[[int, Tensor], Tensor]) -> Tensor:
        for layer, entries in enumerate(self.entries):
            if not len(self.memory_heads[layer]):
                continue
            keys, values = (torch.cat(pair, dim=1) for pair in zip(entries[i], entries[j], strict=True))
            kept = select(layer, keys[self.memory_heads[layer]])
            entries[i] = (keys[:, kept], values[:, kept])
        return self._pool([entries[i] for entries in self.entries])

    def arrange_entries(self, order: list[int]) -> None:
        self.entries = [[entries[k] for k in order] for entries in self.entries]

    def admit(self, frame: int) -> None:
        for entries, past in zip(self.entries, self.past, strict=True):
            entries.append(past[frame])

    def _pool(self, frames: FrameList) -> Tensor:
        keys = [k[heads].float().mean(dim=1) for (k, _), heads in zip(frames, self.memory_heads, strict=True)]
        return torch.cat(keys)

    def _by_frame(self, x: Tensor) -> Tensor:
        """`[frames * s, heads, d]` -> `[frames, heads, s, d]`."""
        return x.unflatten(0, (-1, self.rope.frame_tokens)).transpose(1, 2)
