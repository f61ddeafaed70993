"""Pyramid Forcing: three kinds of heads keep the middle of the video in three ways.

Every head has a label. *Wave* heads keep past frames by their phase in a period, *anchor* heads every sixth frame,
*veil* heads averages of four frames over patches of tokens. All keep sinks and the last frames, the current block
included. Each frame of the current block is an attention of its own, whose sinks and middle frames are moved to one
temporal index at most 21 frames before it. The middle changes in clean passes only, before their attention.

The authors have two caches; this is the one in Python without its two side effects, which are options here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..cache.shape import Shape
from ..errors import HeadForcingError
from ..model.rope import by_head
from .base import MethodCache, MethodPolicy, MethodShape
from .pyramid_readout import Entry, FreshReadout, Part, StaleReadout

WAVE, ANCHOR, VEIL = "wave", "anchor", "veil"


@dataclass(frozen=True)
class PyramidShape(MethodShape):
    """The shape of the cache; patches at the edge of an odd grid are smaller, so that there are more of them."""

    policy: PyramidForcing

    @property
    def frame_slots(self) -> int:
        rows, columns = (-(-side // self.policy.patch) for side in (self.rows, self.columns))
        merged = rows * columns / self.frame_tokens
        heads = ((layer, label) for layer, labels in enumerate(self.roles) for label in labels)
        slots = (self.policy.frames_per_head(*head, self.frames_per_block, merged) for head in heads)
        return -int(-sum(slots) // 1)


@dataclass(frozen=True)
class PyramidForcing(MethodPolicy):
    """Pyramid Forcing's settings (arXiv 2605.13111), in latent frames.

    Attributes:
        recent_frames: last frames of every head, the current block included.
        period, phase_frames: of wave heads; frames kept for each phase of the period.
        stride, stride_frames: of anchor heads; every `stride`-th frame, and how many of them are kept.
        patch, merged_blocks: of veil heads; a merged block averages `patch` squared frames over patches of as many
            tokens.
        nearest, farthest: limits of the distance between a query and its sinks and middle frames.
        overlaps_recent: middle frames that are recent, too, are read twice, as by the authors' CUDA cache.
        leftover_frame: anchor heads keep the first frame after the sinks for ever, as the authors' Python cache does.
        stale_readout: keys are packed once for several frames of a block, as by the authors' Python cache; see
            `pyramid_readout.StaleReadout`.
    """

    shape_class: ClassVar[type[Shape]] = PyramidShape
    heads_by = "labels"
    wave_sinks: int = 1
    anchor_sinks: int = 3
    veil_sinks: int = 3
    recent_frames: int = 4
    period: int = 6
    phase_frames: int = 4
    stride: int = 6
    stride_frames: int = 4
    patch: int = 2
    merged_blocks: int = 4
    nearest: int = 18
    farthest: int = 21
    overlaps_recent: bool = False
    leftover_frame: bool = False
    stale_readout: bool = False

    @property
    def resumes_from(self) -> tuple[str, ...]:
        # stale readouts depend on what earlier passes packed
        return ("state",) if self.stale_readout else ("blocks", "state")

    def sinks(self, label: str) -> int:
        return {WAVE: self.wave_sinks, ANCHOR: self.anchor_sinks, VEIL: self.veil_sinks}[label]

    def far(self, frame: int) -> int:
        """Temporal index of sinks and middle frames for a query of this frame."""
        return max(0, frame - min(max(frame, self.nearest), self.farthest))

    def frames_per_head(self, layer: int, role: str, frames_per_block: int, merged: float = 0.25) -> float:
        """`merged`: a merged block in frame-slots; its running sum is in float32."""
        middle = {
            WAVE: self.period * self.phase_frames,
            ANCHOR: self.stride_frames + self.leftover_frame,
            VEIL: (self.merged_blocks + 2) * merged,
        }
        return self.sinks(role) + self.recent_frames + middle[role]

    def check(self, shape: MethodShape) -> None:
        counts = (self.period, self.phase_frames, self.stride, self.stride_frames, self.patch, self.merged_blocks)
        if min(counts) < 1 or min(self.wave_sinks, self.anchor_sinks, self.veil_sinks, self.nearest) < 0:
            raise HeadForcingError(
                "Pyramid Forcing's period, stride, patch and numbers of frames and blocks must be at least 1, its "
                f"sinks and nearest at least 0, got {self}"
            )
        if self.recent_frames < shape.frames_per_block:
            raise HeadForcingError(
                f"Pyramid Forcing's recent frames must hold a block of {shape.frames_per_block}, got "
                f"{self.recent_frames}"
            )


class Middle:
    """Entries that heads of one kind keep between their sinks and their last frames: the last ones of every queue.

    A frame whose number is a multiple of `stride` goes to the queue of its phase, which queries of that phase read.
    """

    def __init__(self, queues: int, entries: int, stride: int = 1):
        self.queues: list[deque[Entry]] = [deque(maxlen=entries) for _ in range(queues)]
        self.stride = stride
        self.sum: list[Tensor] = []  # of an unfinished entry's keys and values, float32

    def add(self, entry: Entry, raw_keys: Tensor) -> None:
        """Take a frame of a finished block; `raw_keys` are its keys without rotary embedding."""
        if entry.at % self.stride == 0:
            self.queues[entry.at % len(self.queues)].append(entry)

    def read(self, frame: int) -> list[Entry]:
        """The entries that a query of this frame may attend to."""
        return [*self.queues[frame % len(self.queues)]]

    def held(self) -> list[Entry]:
        return [entry for queue in self.queues for entry in queue]

    def saved(self, place: Callable[[Entry], int]) -> Any:
        return {"queues": [[place(entry) for entry in queue] for queue in self.queues], "sum": self.sum}

    def load(self, saved: Any, entries: list[Entry]) -> None:
        for queue, places in zip(self.queues, saved["queues"], strict=True):
            queue.extend(entries[place] for place in places)
        self.sum = saved["sum"]


class MergedBlocks(Middle):
    """Averages of blocks of `patch` squared frames over square patches of tokens.

    A merged token has the row and column of its patch's first token and the time of the lower middle frame.
    """

    def __init__(self, cache: PyramidForcingCache):
        super().__init__(1, cache.policy.merged_blocks)
        self.rope, self.patch = cache.rope, cache.policy.patch
        self.frames = self.patch**2
        rows, columns = torch.arange(cache.shape.rows), torch.arange(cache.shape.columns)
        across = -(-cache.shape.columns // self.patch)
        patches = (rows // self.patch * across)[:, None] + columns // self.patch
        first = (rows % self.patch == 0)[:, None] & (columns % self.patch == 0)
        self.patch_of_token = patches.flatten().to(cache.device)
        self.first_tokens = first.flatten().nonzero()[:, 0].to(cache.device)
        self.tokens_in_patch = self.patch_of_token.bincount()[:, None].float()

    def add(self, entry: Entry, raw_keys: Tensor) -> None:
        summed = []
        for x in (raw_keys, entry.v):
            patches = x.new_zeros(len(x), len(self.first_tokens), x.shape[-1], dtype=torch.float32)
            summed.append(patches.index_add_(1, self.patch_of_token, x.float()))
        self.sum = summed if not self.sum else [a + b for a, b in zip(self.sum, summed, strict=True)]
        if (entry.at + 1) % self.frames:
            return
        k, v = ((x / (self.frames * self.tokens_in_patch)).to(entry.v.dtype) for x in self.sum)
        full = k.new_zeros(len(k), len(self.patch_of_token), k.shape[-1])
        full[:, self.first_tokens] = k
        k, self.sum = self.rope.rotate_spatial(full[:, None])[:, 0, self.first_tokens], []
        first = entry.at + 1 - self.frames
        self.queues[0].append(Entry(first, entry.at, first + (self.frames - 1) // 2, k, v))


class Heads:
    """State of the heads of one label in one layer."""

    def __init__(self, cache: PyramidForcingCache, label: str, index: Tensor):
        policy = cache.policy
        self.policy, self.label, self.index, self.sink_count = policy, label, index, policy.sinks(label)
        self.sinks: dict[int, Entry] = {}
        self.recent: dict[int, Entry] = {}
        self.middle = Middle(policy.period, policy.phase_frames)
        if label == VEIL:
            self.middle = MergedBlocks(cache)
        elif label == ANCHOR:
            self.middle = Middle(1, policy.stride_frames, policy.stride)

    def write(self, entry: Entry, raw_keys: Tensor, clean: bool) -> None:
        """Store a frame of the current block in place of what an earlier pass stored."""
        if entry.at < self.sink_count:
            self.sinks[entry.at] = entry
        else:
            self.recent[entry.at] = entry
            oldest = sorted(self.recent)[: -self.policy.recent_frames]
            for frame in oldest[1 if self.policy.leftover_frame and self.label == ANCHOR else 0 :]:
                del self.recent[frame]
        if clean:
            self.middle.add(entry, raw_keys)

    def read(self, frame: int) -> list[Part]:
        """The parts of what a query of this frame attends to, with their temporal indices."""
        far = self.policy.far(frame)
        middle = [entry for entry in self.middle.read(frame) if not self._left_out(entry, frame)]
        at = [entry.at if self.label == VEIL else far for entry in middle]
        return [
            Part([*self.sinks.values()], [far] * len(self.sinks)),
            Part([*self.recent.values()], [*self.recent]),
            Part(middle, at),
        ]

    def _left_out(self, entry: Entry, frame: int) -> bool:
        """Whether a middle entry is read as a sink or as a recent frame already."""
        if self.policy.overlaps_recent:
            return entry.first < (1 if self.label == VEIL else self.sink_count)
        return entry.first == 0 or entry.last >= frame - self.policy.recent_frames + 1

    def held(self) -> list[Entry]:
        entries = [*self.sinks.values(), *self.recent.values(), *self.middle.held()]
        return [*{id(entry): entry for entry in entries}.values()]

    def saved(self, place: Callable[[Entry], int]) -> Any:
        """State of these heads, with entries replaced by their places in a list."""
        sinks, recent = ([place(entry) for entry in held.values()] for held in (self.sinks, self.recent))
        return {"sinks": sinks, "recent": recent, "middle": self.middle.saved(place)}

    def load(self, saved: Any, entries: list[Entry]) -> None:
        self.sinks, self.recent = (
            {entries[place].at: entries[place] for place in saved[name]} for name in ("sinks", "recent")
        )
        self.middle.load(saved["middle"], entries)


class PyramidForcingCache(MethodCache, of=PyramidForcing):
    policy: PyramidForcing

    def begin_video(self) -> None:
        self.layers: list[list[Heads]] = []
        for labels in self.shape.roles:
            kinds = []
            for label in (WAVE, ANCHOR, VEIL):
                index = [head for head, own in enumerate(labels) if own == label]
                if index:
                    kinds.append(Heads(self, label, torch.tensor(index, device=self.device)))
            self.layers.append(kinds)
        readout = StaleReadout if self.policy.stale_readout else FreshReadout
        self.readouts = [readout(self.rope, any(kind.label != WAVE for kind in kinds)) for kinds in self.layers]

    def saved(self) -> Any:
        places: dict[int, int] = {}  # of every entry by its identity, as several parts may hold it
        entries: list[Entry] = []

        def place(entry: Entry) -> int:
            if id(entry) not in places:
                places[id(entry)] = len(entries)
                entries.append(entry)
            return places[id(entry)]

        layers = [[heads.saved(place) for heads in kinds] for kinds in self.layers]
        readouts = [readout.saved() for readout in self.readouts]
        return {"layers": layers, "readouts": readouts, "entries": entries}

    def load(self, saved: Any) -> None:
        entries = [Entry(**entry) for entry in saved["entries"]]
        for kinds, of_kinds in zip(self.layers, saved["layers"], strict=True):
            for heads, held in zip(kinds, of_kinds, strict=True):
                heads.load(held, entries)
        for readout, state in zip(self.readouts, saved["readouts"], strict=True):
            readout.load(state)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        raw, values = (by_head(x, self.shape.frame_tokens) for x in (k, v))
        keys = self.rope.rotate_spatial(raw)
        for heads in self.layers[layer]:
            for place, frame in enumerate(range(self.start, self.end)):
                entry = Entry(frame, frame, frame, keys[heads.index, place], values[heads.index, place])
                heads.write(entry, raw[heads.index, place], self.clean)
        self.readouts[layer].written(self.start, repeated=not (self.first_pass(layer) or self.clean))

    def context(self, layer: int, q: Tensor) -> Tensor:
        q, s = self.at_own_index(q), self.rope.frame_tokens
        out = q.new_empty(q.shape[0], self.frames * s, q.shape[-1])
        for place, frame in enumerate(range(self.start, self.end)):
            kinds = self.layers[layer]
            read = self.readouts[layer].read(frame, range(self.start, self.end), [kind.read(frame) for kind in kinds])
            for heads, (k, v) in zip(kinds, read, strict=True):
                out[heads.index, place * s : (place + 1) * s] = self.attention(q[heads.index, place], k, v)
        return out

    @property
    def occupied(self) -> int:
        numbers = sum(entry.v.numel() for kinds in self.layers for heads in kinds for entry in heads.held())
        return -(-numbers // (self.rope.frame_tokens * self.shape.head_dim))
