"""The specification: the paper's head-wise KV caches, one head at a time (sections 3.3 and 3.4; METHOD.md).

`ReferenceCache` keeps the keys of every frame of the video with their spatial rotation only, assembles each head's
context anew in every pass and applies its temporal rotation then, as in the paper. It is slow and its memory grows with
the video; tests compare `HeadCache` with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from ..model.attention import explicit
from ..model.rope import RotaryEmbedding
from ..model.wan import PromptKV
from ..timeline.switch import RESET, Switch
from .base import Cache, WriteClean
from .memory import EpisodicMemory, MemoryEntry, MemoryEvent, candidate_frame
from .query_score import QueryScore
from .roles import RolePolicy
from .scenes import KeptFrame, Scenes, keep_pictures
from .shape import CacheShape

FrameList = list[tuple[Tensor, Tensor]]  # per frame, keys and values [heads, s, head_dim]
HeadContext = tuple[Tensor, Tensor, Tensor]  # of one head: rotated queries, keys and values [frames, s, head_dim]


class ReferenceCache(Cache):
    """Drop-in replacement for `HeadCache` in rollouts whose prompt switches do not change the caches."""

    def __init__(self, shape: CacheShape, dtype: torch.dtype, device: torch.device | str = "cpu"):
        self.shape, self.policy = shape, shape.policy
        self.dtype, self.device = dtype, torch.device(device)
        self.rope = RotaryEmbedding(shape.head_dim, shape.rows, shape.columns, device)
        layers = len(shape.roles)
        self.block = 0
        self.past: list[FrameList] = [[] for _ in range(layers)]  # clean frames, in order
        self.current: list[FrameList] = [[] for _ in range(layers)]  # of the latest pass
        self.entries: list[FrameList] = [[] for _ in range(layers)]  # episodic memory, all heads
        self.memory_heads = [
            torch.tensor([h for h, role in enumerate(layer) if self.policy.of(role).episodic_frames], dtype=torch.long)
            for layer in shape.roles
        ]
        score = None if self.policy.queries is None else QueryScore.of(shape, self.memory_heads)
        self.memory = EpisodicMemory(self.policy.memory.episodic_frames, self.policy.episodic, score)
        self.origin = self.oldest = 0  # the first sink frame, and the oldest that may be a recent one
        self.sink_policies = [policy for policy in shape.policies if policy.sink_frames]
        sinks = [policy.sink_frames for policy in self.sink_policies]
        entries = self.memory.capacity if any(map(len, self.memory_heads)) else 0
        self.scenes = Scenes(entries, sinks) if self.policy.kept_scenes else None
        self.sinks: dict[RolePolicy, dict[int, KeptFrame]] = {}  # that came back, of every policy with sinks
        self.recalled: set[int] = set()  # frames that came back as entries, which they were or are instead of recent

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
        """Attention of one head over its context, with `q [frames, s, d]`."""
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
        for number in self.held(policy):
            frames.append(
                (back[number].k[layer], back[number].v[layer]) if number in back else self.past[layer][number]
            )
            numbers.append(number)
        for number, frame in enumerate(self.current[layer], start=len(self.past[layer])):
            frames.append(frame)
            numbers.append(number)
        return frames, numbers

    def history(self, policy: RolePolicy, frames_seen: int) -> list[int]:
        """The past frames that heads of this policy see, without episodic memory, in order."""
        back, held = self.sinks.get(policy, {}), policy.history(frames_seen, self.origin, self.oldest)
        return [frame for frame in held if frame >= 0 or frame in back]  # the others would be pictures

    def held(self, policy: RolePolicy) -> list[int]:
        """The frames of `history` that episodic memory neither holds nor has got from a recall."""
        history = self.history(policy, len(self.past[0]))
        if not policy.episodic_frames:
            return history
        return [frame for frame in history if not self.memory.holds(frame) and frame not in self.recalled]

    def candidate(self) -> int | None:
        """The frame that episodic memory considers after the current block; None for none."""
        fast, interval = self.policy.memory.recent_frames or 0, self.policy.episodic.update_interval
        return candidate_frame(self.block, self.shape.frames_per_block, fast, interval)

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        block, frame = self.block, self.candidate()
        if self.scenes is not None:
            memory = self if self.scenes.entries else None
            self.scenes.keep(len(self.past[0]), self.shape.frames_per_block, memory, [self] * len(self.sink_policies))
        self.close()
        if frame is None or not any(map(len, self.memory_heads)):
            return None
        if self.memory.holds(frame) or frame in self.recalled:
            return None
        return self.memory.consider(block, frame, prompt, self.memory_heads, self)

    def close(self) -> None:
        """Append the frames of the last pass to the history."""
        for past, current in zip(self.past, self.current, strict=True):
            past += current
        self.block += 1

    # --- scenes

    def begin_scene(self, switch: Switch) -> None:
        """Begin the scene of a new prompt with the next block, where frames of scenes are kept."""
        if self.scenes is not None:
            self.scenes.begin(switch, len(self.past[0]))

    def hold_pictures(self, pictures: Sequence[Tensor], write_clean: WriteClean) -> None:
        assert self.scenes is not None

        @contextmanager
        def alone(latents: Tensor) -> Iterator[None]:
            names = ("past", "entries", "sinks", "memory")
            aside = {name: vars(self)[name] for name in names}
            self.past, self.entries = [[] for _ in self.past], [[] for _ in self.entries]
            self.sinks, self.memory = {}, EpisodicMemory(0, self.policy.episodic)
            self.begin_block()
            write_clean(latents)
            yield
            vars(self).update(aside)

        memory = self if self.scenes.entries else None
        keep_pictures(self.scenes, pictures, alone, memory, [self] * len(self.sink_policies))
        if not self.block:
            self.bring_back(RESET)

    def bring_back(self, switch: Switch) -> None:
        """Put the frames of a recalled scene, or of pictures, in place of the entries of episodic memory and the
        sinks."""
        back = None if self.scenes is None else self.scenes.brought_back(switch, self.block)
        if back is None:
            return
        scene, spread = back
        if spread:
            self.recalled |= {kept.frame for kept in spread}
            entries = [[(kept.k[layer], kept.v[layer]) for kept in spread] for layer in range(len(self.past))]
            self.entries = entries
            pooled = [
                self._pool([entries[layer][place] for layer in range(len(entries))]) for place in range(len(entries[0]))
            ]
            self.memory.replace([MemoryEntry([kept.frame], key) for kept, key in zip(spread, pooled, strict=True)])
        elif self.memory.pictures:
            self.memory.drop_pictures(self)
        if self.origin != scene.start or scene.start < 0:
            self.origin = scene.start
            for policy, frames in zip(self.sink_policies, scene.first, strict=True):
                recent = policy.recent(len(self.past[0]), self.oldest)
                self.sinks[policy] = {kept.frame: kept for kept in frames if kept.frame not in recent}

    def keep_frame(self, frame: int) -> KeptFrame:
        held = [current[frame - len(self.past[0])] for current in self.current]
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
