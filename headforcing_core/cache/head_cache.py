"""Head-wise KV caches: every head keeps the latent frames of its role, in buffers that attention reads directly.

Heads of one layer whose policies are equal form a group (`head_group.py`). A group's slots `[heads, slots, s, d]` hold,
in order, `[episodic, summary first | sink | recent | current block]` without gaps, so the first `frames` slots are the
context and no pass has to assemble it. Groups of a layer, and layers, lie one after another, so that one attention call
can process all heads of a layer, and one launch can change all caches.

A key is stored fully rotated; once per block, slots whose index in the context has changed are re-rotated by the
difference. The paper rotates every assembled context anew ("Head-wise RoPE Re-encoding"; `reference.py` does so), which
gives the same keys, because rotations compose: `R(b - a) R(a) = R(b)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ...kernels.write import write_block
from ..devices import settle
from ..errors import HeadForcingError
from ..model.attention import AttentionFunction, LayerAttention, Span, sdpa
from ..model.rope import RotaryEmbedding, by_head
from ..model.wan import PromptKV
from ..timeline.switch import RESET, Switch
from .base import Cache, WriteClean
from .guards import AroundAttention, JitteredRotary, QueryScore, SinkGate, jitter_report, jittered_bases
from .head_group import HeadGroup, block_tables, parts
from .memory import EpisodicMemory, MemoryEntry, MemoryEvent, MemoryHeads
from .scenes import KeptFrame, KeptScene, Recall, Scenes
from .shape import CacheShape
from .state import State, check_fields, pack, unpack

FLUSHED_TO_FRAMES = 2  # recent frames that a flush keeps


class HeadCache(Cache):
    """The caches of all heads of a model for one video.

    `flush`, `re_anchor` and `rewind` are called between two blocks and drop history. `everywhere` is for
    `EpisodicMemory`, where several processes share the heads.
    """

    meter: AroundAttention | None = None  # measures attention (head_profiles/profiler.py)

    def __init__(
        self,
        shape: CacheShape,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
        *,
        everywhere: MemoryHeads | None = None,
    ):
        self.shape, self.attention, self.device = shape, attention, torch.device(device)
        self.block = 0  # blocks closed so far
        self.origin = 0  # the first sink frame: 0 until a re-anchor
        self.oldest = 0  # no recent frame is older than this one
        policy, heads_of = shape.policy, shape.groups
        sizes = (shape.head_dim, shape.rows, shape.columns, device)
        self.rope = RotaryEmbedding(*sizes)
        self.gate = SinkGate(policy.guards.sink_gate) if policy.guards.sink_gate else None
        # the rotary base of every head; None where all have the same, as fused kernels need it
        jitter = policy.guards.rope_jitter
        self.bases = jittered_bases(jitter, shape.layers, shape.heads) if jitter else None
        self.fused = self.bases is None
        # keys and values of all layers `[rows, head_dim]`, each in one piece so that one launch can change all of them;
        # zeroed, because some kernels multiply the rows after the last key by zero, which leaves NaN as NaN
        rows = shape.frame_slots * self.rope.frame_tokens
        k_flat, v_flat = (torch.zeros(rows, shape.head_dim, dtype=dtype, device=device) for _ in range(2))
        self.flat = k_flat, v_flat
        slots = [[(len(h[layer]), shape.slots[p]) for p, h in heads_of.items()] for layer in range(shape.layers)]
        (self.k, k_of), (self.v, v_of) = (_views(buffer, slots, self.rope.frame_tokens) for buffer in self.flat)
        self.groups = [
            HeadGroup(
                role,
                [torch.tensor(h, dtype=torch.long, device=device) for h in heads],
                k,
                v,
                [self.rope] * shape.layers
                if self.bases is None
                else [JitteredRotary(bases[h], *sizes) for bases, h in zip(self.bases, heads, strict=True)],
                policy.rope == "contiguous",
                self.flat if self.fused else None,
                everywhere=everywhere,
            )
            for (role, heads), k, v in zip(heads_of.items(), k_of, v_of, strict=True)
        ]
        order = [list(chain.from_iterable(heads)) for heads in zip(*heads_of.values(), strict=True)]
        # per layer, the heads in the order of its buffers, and the position of each head in that order
        self.order = [torch.tensor(heads, dtype=torch.long, device=device) for heads in order]
        self.places = [[heads.index(head) for head in range(len(heads))] for heads in order]
        self.memory_group = group = next((g for g in self.groups if g.policy.episodic_frames), None)
        score = None if group is None or policy.queries is None else QueryScore(shape, group.heads)
        capacity = 0 if group is None else group.policy.episodic_frames
        self.memory = EpisodicMemory(capacity, policy.episodic, score, everywhere=everywhere)
        self.sink_groups = [group for group in self.groups if group.policy.sink_frames]
        sinks = [group.policy.sink_frames for group in self.sink_groups]
        self.scenes = Scenes(group, capacity, self.sink_groups, sinks) if policy.kept_scenes else None

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.flat)

    @property
    def occupied(self) -> int:
        return sum(group.frames * sum(group.sizes) for group in self.groups)

    @property
    def frames_seen(self) -> int:
        return self.block * self.shape.frames_per_block

    # --- in a pass

    @property
    def layout(self) -> tuple[tuple[int, ...], ...] | None:
        """Slots and temporal indices of a pass; None while attention is measured or guards are on."""
        if self.shape.policy.guards or (self.meter is not None and self.meter.active):
            return None
        return tuple((group.frames, *group.indices[group.current]) for group in self.groups)

    def begin_block(self) -> None:
        for group in self.groups:
            group.begin_block(self.frames_seen, self.shape.frames_per_block)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        k, v = by_head(k, self.rope.frame_tokens), by_head(v, self.rope.frame_tokens)
        for group in self.groups:
            if group.sizes[layer]:
                group.write(layer, k, v)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        queries = by_head(q, self.rope.frame_tokens).index_select(0, self.order[layer])
        for group, part in parts(self.groups, layer, queries):
            group.rotate(layer, part, out=part)
        return self.attend_rotated(layer, queries.flatten(1, 2))

    def attend_rotated(self, layer: int, queries: Tensor) -> Tensor:
        """`attend` of rotated queries `[heads, tokens, head_dim]`, heads in the order of the layer's buffers."""
        around = [each for each in (self.meter, self.gate) if each is not None and each.active]  # the innermost first
        if not around and isinstance(self.attention, LayerAttention):
            k, v = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
            attended = list(self.attention.layer(queries, k, v, self.spans(layer)))
        else:
            attended = []
            for group, part in parts(self.groups, layer, queries):
                attention = self.attention
                for each in around:
                    attention = each.around(layer, group, attention)
                attended += attention(part, *group.context(layer))
        return torch.stack([attended[place] for place in self.places[layer]], dim=1)

    def write_projections(
        self, layer: int, q: Tensor | None, k: Tensor, v: Tensor, weights: tuple[Tensor, Tensor] | None, eps: float
    ) -> Tensor | None:
        s, indices = self.rope.frame_tokens, [group.indices[group.current] for group in self.groups]
        starts = [
            (group.current.start * s, first)
            for group, (first, *_) in zip(self.groups, indices, strict=True)
            if group.sizes[layer]
        ]
        tables = block_tables(self.spans(layer), tuple(starts), tuple(self.places[layer]), len(k), self.device)
        most = max(max(row) for row in indices) + 1
        k_buffer, v_buffer = self.k[layer].flatten(0, 1), self.v[layer].flatten(0, 1)
        return write_block(q, k, v, weights, eps, k_buffer, v_buffer, *tables, *self.rope.tables(most))

    def spans(self, layer: int) -> tuple[Span, ...]:
        """Per group of a layer: the rows of its heads in the buffers, and how many of them are in use."""
        spans, first = [], 0
        for group in self.groups:
            heads, slots, s, _ = group.k[layer].shape
            if heads:
                spans.append(Span(heads, first, room=slots * s, rows=group.frames * s))
                first += heads * slots * s
        return tuple(spans)

    # --- between passes

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        """Close the block: update episodic memory first, whose candidate is one of the frames that are then dropped."""
        if self.scenes is not None:
            self.scenes.keep(self.frames_seen, self.shape.frames_per_block)
        event = None
        if (group := self.memory_group) is not None:
            fast = group.policy.recent_frames or 0
            frame = self.shape.policy.episodic.candidate_frame(self.block, self.shape.frames_per_block, fast)
            # not where it is an entry, or was dropped
            if frame is not None and [frame] in group.sources[group.entries :]:
                event = self.memory.consider(self.block, frame, prompt, group.heads, group)
        self.close()
        return event

    def close(self) -> None:
        """Close the block like `commit`, but leave episodic memory as it is."""
        self.block += 1
        self._keep_history()

    def _keep_history(self) -> None:
        for group in self.groups:
            group.keep(group.policy.history(self.frames_seen, self.origin, self.oldest))

    # --- prompt switches

    def switch_blocks(self, switch: Switch) -> int:
        return self.shape.recache_blocks if switch.kind == "recache" else 0

    def apply_switch(self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]) -> None:
        """Change the history as BEYOND_THE_PAPER.md says; a recalled scene has a number."""
        self.begin_scene(switch)
        if switch.re_anchor:
            self.re_anchor()
        if switch.kind == "flush":
            self.flush()
        self.bring_back(switch)
        if switch.kind == "recache":
            self.rewind(len(latest))
            for latents in latest:
                self.begin_block()
                write_clean(latents)
                self.close()

    def flush(self) -> None:
        """Drop everything but the sinks and the last two frames; episodic memory is emptied, too."""
        if self.memory_group is not None:
            self.memory.forget(self.memory_group)
        self.oldest = max(self.oldest, self.frames_seen - FLUSHED_TO_FRAMES)
        self._keep_history()

    def re_anchor(self) -> None:
        """Drop the sinks; the next frames that are made become the new sinks."""
        self.origin = self.frames_seen
        self._keep_history()

    def rewind(self, blocks: int) -> None:
        """Drop the last blocks, so that they can be written again; episodic memory and earlier sinks stay."""
        self.block -= blocks
        self.oldest = max(self.oldest, self.frames_seen)
        self._keep_history()

    # --- scenes and pictures

    def begin_scene(self, switch: Switch) -> None:
        """Begin the scene of a new prompt with the next block, where frames of scenes are kept."""
        if self.scenes is not None:
            self.scenes.begin(switch, self.frames_seen)

    def bring_back(self, switch: Switch) -> None:
        """Put the frames of `Scenes.brought_back` in place of the entries of episodic memory and the sinks."""
        back = None if self.scenes is None else self.scenes.brought_back(switch, self.block)
        if back is None:
            return
        scene, entries = back
        if self.memory_group is not None and entries:
            self.memory.replace(self.memory_group.put_entries(entries))
        elif self.memory_group is not None and self.memory.pictures:
            self.memory.drop_pictures(self.memory_group)
        if self.origin != scene.start or scene.start < 0:
            self.origin = scene.start
            for group, frames in zip(self.sink_groups, scene.first, strict=True):
                group.put_sinks(frames, group.policy.recent(self.frames_seen, self.oldest))

    def hold_pictures(self, pictures: Sequence[Tensor], write_clean: WriteClean) -> None:
        assert self.scenes is not None
        self.scenes.keep_pictures(pictures, partial(self.alone, write_clean))
        if not self.block:  # no switch comes before the first block
            self.bring_back(RESET)

    @contextmanager
    def alone(self, write_clean: WriteClean, latents: Tensor) -> Iterator[None]:
        """Hold latents as the current block with nothing else in its context."""
        put_back = [group.set_aside(len(latents)) for group in self.groups]
        block, self.block = self.block, 0
        try:
            self.begin_block()
            write_clean(latents)
            yield
        finally:
            self.block = block
            for restore in put_back:
                restore()

    # --- stored, and in reports

    def state(self) -> State | None:
        """The state after `commit`; its tensors are views of the buffers, used slots only."""
        if self.scenes is not None:
            settle(self.device)
        return pack(self.saved)

    def restore(self, state: State) -> None:
        try:
            self.saved = unpack(state, torch.device("cpu"), MemoryEntry, KeptScene, KeptFrame, Recall)
        except (KeyError, ValueError, RuntimeError, TypeError, IndexError, AttributeError) as error:
            raise HeadForcingError(f"the saved state does not fit this render: {error}") from error

    @property
    def saved(self) -> dict[str, Any]:
        """The fields of a stored cache, see `cache.state`."""
        return {
            "own": {"block": self.block, "origin": self.origin, "oldest": self.oldest},
            "memory": self.memory.saved,
            "groups": [group.saved for group in self.groups],
            "scenes": None if self.scenes is None else self.scenes.saved,
        }

    @saved.setter
    def saved(self, saved: dict[str, Any]) -> None:
        check_fields(saved, ("own", "memory", "groups", "scenes"))
        own = saved["own"]
        check_fields(own, ("block", "origin", "oldest"))
        self.block = own["block"]
        self.origin = own["origin"]
        self.oldest = own["oldest"]
        for group, held in zip(self.groups, saved["groups"], strict=True):
            group.saved = held
        self.memory.saved = saved["memory"]
        for entry in self.memory.entries:
            entry.pooled = entry.pooled.to(self.device)
        if self.scenes is not None:  # their frames stay in main memory
            if saved["scenes"] is None:  # of a story without a recall
                raise ValueError("it has no frames of earlier scenes")
            self.scenes.saved = saved["scenes"]

    @property
    def recalls(self) -> list[Recall]:
        return [] if self.scenes is None else self.scenes.recalls

    @property
    def scene_starts(self) -> list[int] | None:
        return None if self.scenes is None else self.scenes.starts

    @property
    def report(self) -> list[str]:
        gate, score = ([each.report()] if each is not None else [] for each in (self.gate, self.memory.score))
        jitter = [] if self.bases is None else [jitter_report(self.shape.policy.guards.rope_jitter, self.bases)]
        return [*gate, *jitter, *score]


def _views(buffer: Tensor, slots: list[list[tuple[int, int]]], s: int) -> tuple[list[Tensor], list[list[Tensor]]]:
    """Views of a buffer: per layer `[slots, s, head_dim]` of all its heads, and per group and layer `[heads, slots, s,
    head_dim]`; `slots` has, by layer and group, the number of heads and that of their slots."""
    layers = list(buffer.unflatten(0, (-1, s)).split([sum(map(math.prod, sizes)) for sizes in slots]))
    split = [x.split([math.prod(size) for size in sizes]) for x, sizes in zip(layers, slots, strict=True)]
    parts_of = [[x.unflatten(0, size) for x, size in zip(*of, strict=True)] for of in zip(split, slots, strict=True)]
    return layers, [list(views) for views in zip(*parts_of, strict=True)]
