"""Head-wise KV caches: every head keeps the latent frames of its role, in buffers that attention
reads directly.

Heads of one layer whose policies are equal form a group (`head_group.py`). A group's slots `[heads,
slots, s, d]` hold, in order, `[episodic entries | sinks | recent frames | current block]` without
gaps, so the first `frames` slots are the context and no pass has to assemble it. The order
of episodic entries is that of `EpisodicMemory`. In the buffers the groups of a layer follow one
another, then those of the next layer: one attention call processes all heads of a layer, and
one kernel launch changes the caches of all layers.

A key is stored fully rotated. Once per block, a slot whose temporal index has changed from `a` to
`b` is rotated by `b - a`. The paper ("Head-wise RoPE Re-encoding") rotates every assembled context
anew, which gives the same keys, because rotations compose: `R(b - a) R(a) = R(b)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ...kernels.write import write_block
from ..devices import Device, kept_tables, settle, upload
from ..files import explained
from ..model.attention import AttentionFunction, Span, Spans, sdpa
from ..model.attention_backends import attend_layer
from ..model.rope import RotaryEmbedding, by_head
from ..model.wan import Norms, PromptKV
from ..rollout.loop import MemoryEvent
from ..timeline.switch import RESET, Switch
from .base import Cache, WriteClean
from .head_group import HeadGroup
from .memory import EpisodicMemory
from .roles import RolePolicy
from .scenes import KeptScene, Recall, Scenes
from .shape import CacheShape
from .state import MISFIT, MemoryEntry, Saved, State, check_fields, pack, unpack

RECENT_AFTER_FLUSH = 2  # frames


class AttentionMeter(Protocol):
    """Measures the attention of a `HeadCache`, but only while `active` is true."""

    active: bool

    def attend(self, layer: int, group: HeadGroup, q: Tensor) -> Tensor:
        """Attention of the heads of a group in a layer, which is measured; `[heads, tokens,
        head_dim]` like the queries `q`.
        """


class HeadCache(Cache):
    """The caches of all heads of a model for one video.

    `flush`, `re_anchor` and `rewind` are called between two blocks and drop history.
    """

    group_class: ClassVar[type[HeadGroup]] = HeadGroup
    memory_class: ClassVar[type[EpisodicMemory]] = EpisodicMemory
    meter: AttentionMeter | None = None  # set by `head_profiles.profiler`
    fused = True

    def __init__(
        self,
        shape: CacheShape,
        dtype: torch.dtype,
        device: Device = "cpu",
        attention: AttentionFunction = sdpa,
    ):
        self.shape = shape
        self.attention = attention
        self.device = torch.device(device)
        self.block = 0  # blocks closed so far
        # the first sink frame: 0 until a re-anchor, a recall or pictures change it; below 0 the
        # sinks are pictures
        self.origin = 0
        self.oldest = 0  # no recent frame is older than this one
        self.rope = RotaryEmbedding(
            shape.head_dim, shape.rows, shape.columns, device, shape.rope_axes
        )
        # keys and values of all layers `[rows, head_dim]`, each in one piece so that one launch can
        # change all of them; zeroed, because some kernels multiply the rows after the last key by
        # zero, which leaves NaN as NaN
        rows = shape.frame_slots * shape.frame_tokens
        k = torch.zeros(rows, shape.head_dim, dtype=dtype, device=device)
        v = torch.zeros_like(k)
        self.flat = (k, v)
        self.k, k_of_groups = views(k, shape)
        self.v, v_of_groups = views(v, shape)
        self.groups: list[HeadGroup] = []
        for policy, heads in shape.groups.items():
            group = self.group_class(
                policy,
                [torch.tensor(of_layer, dtype=torch.long, device=device) for of_layer in heads],
                k_of_groups[policy],
                v_of_groups[policy],
                rope=self.rope,
                reencode=shape.method.rope == "contiguous",
                flat=self.flat,
            )
            self.groups.append(group)
        # per layer: the heads in the order of its buffers, and, the inverse of that permutation,
        # the place of each head in it
        self.order: list[Tensor] = []
        self.places: list[list[int]] = []
        for layer in range(shape.layers):
            order = [head for heads in shape.groups.values() for head in heads[layer]]
            self.order.append(torch.tensor(order, dtype=torch.long, device=device))
            self.places.append([order.index(head) for head in range(len(order))])
        # at most one policy has episodic memory; without one the memory has no room
        with_memory = [group for group in self.groups if group.policy.episodic_frames]
        store = (with_memory or self.groups)[0]
        self.memory = self.memory_class(store.policy.episodic_frames, shape.method.episodic, store)
        self.sink_groups = [group for group in self.groups if group.policy.sink_frames]
        self.scenes: Scenes | None = None
        if shape.method.kept_scenes:
            self.scenes = Scenes(store if self.memory.capacity else None, self.sink_groups)

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.flat)

    @property
    def occupied(self) -> int:
        """Slots in use, summed over the heads of all layers."""
        return sum(group.frames * sum(group.sizes) for group in self.groups)

    @property
    def frames_seen(self) -> int:
        """Latent frames of the closed blocks."""
        return self.block * self.shape.frames_per_block

    @property
    def first_frame(self) -> int:
        return self.frames_seen

    # --- in a pass

    def begin_block(self) -> None:
        seen = self.frames_seen
        for group in self.groups:
            recent = group.policy.recent(seen, self.oldest)
            group.begin_block(seen, self.shape.frames_per_block, recent.start)

    def write_and_rotate(
        self, layer: int, k: Tensor, v: Tensor, q: Tensor | None = None, norms: Norms | None = None
    ) -> Tensor | None:
        """Write as `KeyValueCache.write_and_rotate` says; queries are `[heads, tokens, head_dim]`,
        rotated, in the order of the layer's buffers.
        """
        if self.fused and write_block.usable(k.device, k.dtype):
            last_index = max(group.indices[-1] for group in self.groups)
            return write_block(
                None if q is None else q.flatten(1),
                k.flatten(1),
                v.flatten(1),
                norms,
                self.k[layer],
                self.v[layer],
                self._table(layer, k.shape[0]),
                *self.rope.tables(last_index + 1),
            )
        k = by_head(k, self.rope.frame_tokens)
        v = by_head(v, self.rope.frame_tokens)
        for group in self.groups:
            if group.sizes[layer]:
                group.write(layer, k, v)
        if q is None:
            return None
        queries = by_head(q, self.rope.frame_tokens).index_select(0, self.order[layer])
        for group, part in parts(self.groups, layer, queries):
            group.rotate(part)
        return queries.flatten(1, 2)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        attended: list[Tensor] = []  # one per head
        if self.meter is not None and self.meter.active:
            for group, part in parts(self.groups, layer, queries):
                attended.extend(self.meter.attend(layer, group, part))
        else:
            k = self.k[layer]
            v = self.v[layer]
            spans = self.spans(layer)
            attended.extend(attend_layer(self.attention, queries, k, v, spans=spans).unbind())
        return torch.stack([attended[place] for place in self.places[layer]], dim=1)

    def _table(self, layer: int, tokens: int) -> Tensor:
        """See `block_table`, for a block of so many tokens."""
        starts = []
        for group in self.groups:
            if group.sizes[layer]:
                first = group.current.start
                starts.append((first * self.rope.frame_tokens, group.indices[first]))
        return block_table(
            self.spans(layer),
            starts=tuple(starts),
            places=tuple(self.places[layer]),
            tokens=tokens,
            device=self.device,
        )

    def spans(self, layer: int) -> tuple[Span, ...]:
        """Per group with heads in a layer: its first row, the rows reserved for each head (`room`)
        and the rows that each head uses. A row is one token of one head.
        """
        spans = []
        first = 0
        for group in self.groups:
            heads = group.sizes[layer]
            if heads:
                room = group.k[layer].shape[1] * self.rope.frame_tokens
                spans.append(
                    Span(heads, first, room=room, rows=group.frames * self.rope.frame_tokens)
                )
                first += heads * room
        return tuple(spans)

    # --- between passes

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        """Close the block. Before frames are dropped, those of the scene are kept, and episodic
        memory considers its candidate, which leaves the recent frames now.
        """
        if self.scenes is not None:
            self.scenes.copy_frames(self.frames_seen, self.shape.frames_per_block)
        event = None
        if self.memory.capacity:
            group = self.memory.store
            recent = group.policy.recent_frames or 0
            frame = self.shape.method.episodic.candidate_frame(
                self.block, self.shape.frames_per_block, recent
            )
            sinks = range(self.origin, self.origin + group.policy.sink_frames)
            # a frame that has no slot of its own is part of an entry already, or was dropped
            own_slots = group.sources[group.entries :]
            if frame is not None and [frame] in own_slots and frame not in sinks:
                event = self.memory.consider(self.block, frame, prompt)
        self.close()
        return event

    def close(self) -> None:
        """Close the block like `commit`, but leave episodic memory as it is."""
        self.block += 1
        self._keep_history()

    def _keep_history(self) -> None:
        seen = self.frames_seen
        for group in self.groups:
            group.drop_all_but(group.policy.history(seen, self.origin, self.oldest))

    # --- prompt switches

    def switch_blocks(self, switch: Switch) -> int:
        return self.shape.recache_blocks if switch.kind == "recache" else 0

    def apply_switch(
        self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]
    ) -> None:
        """Change the history as BEYOND_THE_PAPER.md says. `switch.recall` is the number of a prompt
        that shows the scene.

        Args:
            write_clean: one clean pass, which stores the keys and values of a block.
            latest: clean latents of as many last blocks as `switch_blocks` asks for.
        """
        if self.scenes is not None:
            self.scenes.begin(switch, self.frames_seen)
        if switch.re_anchor:
            self.re_anchor()
        if switch.kind == "flush":
            self.flush()
        self.place_scene(switch)
        if switch.kind == "recache":
            self.rewind(len(latest))
            for latents in latest:
                self.begin_block()
                write_clean(latents)
                self.close()

    def flush(self) -> None:
        """Drop everything but the sinks, the last two frames and the pictures in episodic
        memory.
        """
        if self.memory.capacity:
            self.memory.forget()
        self.oldest = max(self.oldest, self.frames_seen - RECENT_AFTER_FLUSH)
        self._keep_history()

    def re_anchor(self) -> None:
        """Drop the sinks; the next frames that are made become the new sinks."""
        self.origin = self.frames_seen
        self._keep_history()

    def rewind(self, blocks: int) -> None:
        """Go back by some blocks, which are then written again, and drop all recent frames: only
        sinks and episodic memory stay before them.
        """
        self.block -= blocks
        self.oldest = max(self.oldest, self.frames_seen)
        self._keep_history()

    # --- scenes and pictures

    def place_scene(self, switch: Switch) -> None:
        """Give the heads the sinks and the entries of the prompt that begins.

        Sinks are the pictures that it names, else the first frames of the scene that it recalls,
        else those of the home scene. Pictures and frames of the recalled scene replace the entries
        of episodic memory; without any of these only entries of earlier pictures are dropped. A
        switch that `continues` changes something only with pictures.
        """
        placed = None if self.scenes is None else self.scenes.recall(switch, self.block)
        if placed is None:
            return
        scene, entries = placed
        if entries:  # none without memory heads
            self.memory.replace(self.memory.store.put_entries(entries))
        elif self.memory.pictures:
            self.memory.drop_pictures()
        # the sinks of every set of pictures have the same numbers, below 0: `origin` does not tell
        # them apart
        if self.origin != scene.start or scene.start < 0:
            self.origin = scene.start
            for group, frames in zip(self.sink_groups, scene.first, strict=True):
                group.put_sinks(frames, group.policy.recent(self.frames_seen, self.oldest))

    def hold_pictures(self, pictures: Sequence[Tensor], write_clean: WriteClean) -> None:
        """Keep reference pictures for the scene; before the first block they become its history at
        once.
        """
        assert self.scenes is not None
        self.scenes.keep_pictures(pictures, partial(self.written_alone, write_clean))
        if not self.block:  # no switch comes before the first block
            self.place_scene(RESET)

    @contextmanager
    def written_alone(self, write_clean: WriteClean, latents: Tensor) -> Iterator[None]:
        """Run a clean pass over latents as frames 0, 1, ... of an empty video. Within, the groups
        hold only its keys and values; afterwards everything is as before.
        """
        block = self.block
        with ExitStack() as emptied:
            for group in self.groups:
                emptied.enter_context(group.emptied(len(latents)))
            try:
                self.block = 0
                self.begin_block()
                write_clean(latents)
                yield
            finally:
                self.block = block

    # --- stored, and in reports

    def state(self) -> State | None:
        """The state between two blocks: used slots only, as views of the buffers, and the frames of
        kept scenes.
        """
        if self.scenes is not None:  # whose frames may still be on their way to main memory
            settle(self.device)
        return pack(self.saved)

    def restore(self, state: State) -> None:
        with explained("the saved state does not fit this render", MISFIT):
            self.saved = unpack(state, torch.device("cpu"), MemoryEntry, KeptScene, Recall)

    @property
    def saved(self) -> Saved:
        """The fields of a stored cache, see `cache/state.py`."""
        return {
            "own": {"block": self.block, "origin": self.origin, "oldest": self.oldest},
            "memory": self.memory.saved,
            "groups": [group.saved for group in self.groups],
            "scenes": None if self.scenes is None else self.scenes.saved,
        }

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)
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


# --- the groups of heads in the buffers


def views(buffer: Tensor, shape: CacheShape) -> tuple[list[Tensor], dict[RolePolicy, list[Tensor]]]:
    """Views of a buffer: per layer `[rows, head_dim]` of all its heads, and by policy and layer
    `[heads, slots, s, head_dim]`."""
    slots = buffer.view(-1, shape.frame_tokens, shape.head_dim)
    layers: list[Tensor] = []
    groups: dict[RolePolicy, list[Tensor]] = {policy: [] for policy in shape.groups}
    end = 0
    for layer in range(shape.layers):
        first = end
        for policy, heads in shape.groups.items():
            start = end
            end += len(heads[layer]) * shape.slots[policy]
            groups[policy].append(
                slots[start:end].unflatten(0, (len(heads[layer]), shape.slots[policy]))
            )
        layers.append(slots[first:end].flatten(0, 1))
    return layers, groups


def parts(groups: Sequence[HeadGroup], layer: int, x: Tensor) -> list[tuple[HeadGroup, Tensor]]:
    """Every group that has heads in a layer, with its part of `x [heads, ...]`, whose heads are in
    the order of the buffers.
    """
    split = x.split([group.sizes[layer] for group in groups])
    return [(group, part) for group, part in zip(groups, split, strict=True) if group.sizes[layer]]


@kept_tables
def block_table(
    spans: Spans,
    starts: tuple[tuple[int, int], ...],
    places: tuple[int, ...],
    tokens: int,
    device: torch.device,
) -> Tensor:
    """The table of `kernels.write.write_block` for a layer, `[heads, 3]` int32.

    Args:
        starts: for each span, the row within a head at which the current block begins, and the
            temporal index of the block's first frame.
        places: per head of the model, its place in the order of the spans.
        tokens: number of tokens of the block.
    """
    rows = []
    for span, (row, index) in zip(spans, starts, strict=True):
        for head in range(span.heads):
            rows.append((span.first + head * span.room + row, index))
    table = []
    for place in places:
        row, index = rows[place]
        table.append((row, place * tokens, index))
    return upload(torch.tensor(table, dtype=torch.int32), device)
