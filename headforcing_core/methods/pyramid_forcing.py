"""Pyramid Forcing: three kinds of heads keep the middle of the video in three ways.

*Wave* heads keep past frames by their phase in a period, *anchor* heads every sixth frame, *veil*
heads averages of four frames over patches of tokens. Each frame of the current block is an
attention of its own, whose sinks and middle frames are moved to one temporal index. The middle
changes in clean passes only, before their attention.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ..cache.state import Saved, check_fields
from .base import BaseMethod, MethodCache, MethodShape, Requirements
from .pyramid_labels import HeadLabel

WAVE = HeadLabel.WAVE
ANCHOR = HeadLabel.ANCHOR
VEIL = HeadLabel.VEIL


@dataclass(frozen=True)
class PyramidForcing(BaseMethod):
    """Pyramid Forcing's settings (arXiv 2605.13111), in latent frames.

    Attributes:
        recent_frames: last frames of every head, the current block included.
        period, phase_frames: of wave heads; frames kept for each phase of the period.
        stride, stride_frames: of anchor heads; every `stride`-th frame, and how many of them are
            kept.
        patch, merged_blocks: of veil heads; a merged block averages `patch` squared frames over
            patches of as many tokens.
        nearest, farthest: limits of the distance between a query and its sinks and middle frames.
    """

    # class attributes, not options: they have no types
    heads_by = "labels"
    resumes_from = ("blocks", "state")
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

    def sinks(self, label: HeadLabel) -> int:
        """Number of sink frames of heads with this label."""
        return {WAVE: self.wave_sinks, ANCHOR: self.anchor_sinks, VEIL: self.veil_sinks}[label]

    def far(self, frame: int) -> int:
        """Temporal index of sinks and middle frames for a query of this frame."""
        return max(0, frame - min(max(frame, self.nearest), self.farthest))

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        label = HeadLabel(role)
        # patches at the edge of an odd grid are smaller, so that there are more
        patches = math.ceil(shape.rows / self.patch) * math.ceil(shape.columns / self.patch)
        middle = {
            WAVE: self.period * self.phase_frames,
            ANCHOR: self.stride_frames,
            # the running sum is in float32
            VEIL: (self.merged_blocks + 2) * patches / shape.frame_tokens,
        }
        return self.sinks(label) + self.recent_frames + middle[label]

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        smallest = min(
            self.period,
            self.phase_frames,
            self.stride,
            self.stride_frames,
            self.patch,
            self.merged_blocks,
        )
        return {
            "period, phase_frames, stride, stride_frames, patch and merged_blocks of at least 1": (
                smallest >= 1
            ),
            f"recent_frames for a block of {block}": self.recent_frames >= block,
        }


@dataclass(frozen=True)
class FrameEntry:
    """A stored frame, or the average of several."""

    first: int  # its first and last latent frame
    last: int
    at: int  # temporal index of its own
    kv: Tensor  # [2, heads, tokens, head_dim]; keys are rotated spatially


@dataclass
class EntriesRead:
    """Entries that are read together, and the temporal index of each."""

    entries: list[FrameEntry]
    at: list[int]


class MergedBlocks:
    """Averages blocks of `patch` squared frames over square patches of tokens.

    A merged token has the row and column of its patch's first token and the time of the lower
    middle frame.
    """

    def __init__(self, cache: PyramidForcingCache):
        self.rope = cache.rope
        patch = cache.method.patch
        self.frames = patch**2
        self.sum: Tensor | None = None  # of an unfinished entry's keys and values, float32
        rows = torch.arange(cache.shape.rows)
        columns = torch.arange(cache.shape.columns)
        patches = (rows // patch * -(-cache.shape.columns // patch))[:, None] + columns // patch
        first = (rows % patch == 0)[:, None] & (columns % patch == 0)
        self.patch_of_token = patches.flatten().to(cache.device)
        self.first_tokens = first.flatten().nonzero()[:, 0].to(cache.device)
        self.tokens_in_patch = self.patch_of_token.bincount()[:, None].float()

    def add(self, entry: FrameEntry, raw_keys: Tensor) -> FrameEntry | None:
        """Take a frame; returns the merged block that it completes."""
        raw = torch.stack((raw_keys, entry.kv[1]))
        size = (*raw.shape[:2], len(self.first_tokens), raw.shape[3])
        summed = raw.new_zeros(size, dtype=torch.float32).index_add_(
            2, self.patch_of_token, raw.float()
        )
        total = summed if self.sum is None else self.sum + summed
        self.sum = None if (entry.at + 1) % self.frames == 0 else total
        if self.sum is not None:
            return None
        k, v = (total / (self.frames * self.tokens_in_patch)).to(raw.dtype)
        full = k.new_zeros(len(k), len(self.patch_of_token), k.shape[-1])
        full[:, self.first_tokens] = k
        k = self.rope.rotate_spatial(full[:, None])[:, 0, self.first_tokens]
        first = entry.at + 1 - self.frames
        return FrameEntry(first, entry.at, first + (self.frames - 1) // 2, torch.stack((k, v)))


class LabelState:
    """State of the heads of one label in one layer: sinks, last frames, and what they keep between
    them.

    The middle is the last entries of every queue: one for each phase of the period in wave heads,
    else a single one.
    """

    def __init__(self, cache: PyramidForcingCache, label: HeadLabel, index: Tensor):
        method = cache.method
        self.method = method
        self.label = label
        self.index = index
        self.sink_count = method.sinks(label)
        self.sinks: dict[int, FrameEntry] = {}
        self.recent: dict[int, FrameEntry] = {}
        kept = {
            WAVE: method.phase_frames,
            ANCHOR: method.stride_frames,
            VEIL: method.merged_blocks,
        }[label]
        queues = method.period if label == WAVE else 1
        self.middle: list[deque[FrameEntry]] = [deque(maxlen=kept) for _ in range(queues)]
        self.merged = MergedBlocks(cache) if label == VEIL else None

    def write(self, entry: FrameEntry, raw_keys: Tensor, clean: bool) -> None:
        """Store a frame of the current block in place of what an earlier pass stored.

        `raw_keys` are its keys without rotary embedding.
        """
        if entry.at < self.sink_count:
            self.sinks[entry.at] = entry
        else:
            self.recent[entry.at] = entry
            for frame in sorted(self.recent)[: -self.method.recent_frames]:
                del self.recent[frame]
        if clean:
            kept = entry if self.merged is None else self.merged.add(entry, raw_keys)
            if kept is not None and (self.label != ANCHOR or kept.at % self.method.stride == 0):
                self.middle[kept.at % len(self.middle)].append(kept)

    def read(self, frame: int) -> list[EntriesRead]:
        """The parts of what a query of this frame attends to, with their temporal indices."""
        far = self.method.far(frame)
        first_recent = frame - self.method.recent_frames + 1
        # without entries that are read as a sink or as recent frames already
        middle = [
            entry
            for entry in self.middle[frame % len(self.middle)]
            if entry.first > 0 and entry.last < first_recent
        ]
        at = [entry.at if self.label == VEIL else far for entry in middle]
        return [
            EntriesRead([*self.sinks.values()], [far] * len(self.sinks)),
            EntriesRead([*self.recent.values()], [*self.recent]),
            EntriesRead(middle, at),
        ]

    @property
    def saved(self) -> Saved:
        """Its part of a stored cache, see `cache.state`."""
        return {
            "sinks": self.sinks,
            "recent": self.recent,
            "middle": [list(queue) for queue in self.middle],
            "sum": None if self.merged is None else self.merged.sum,
        }

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)
        self.sinks = saved["sinks"]
        self.recent = saved["recent"]
        for queue, entries in zip(self.middle, saved["middle"], strict=True):
            queue.extend(entries)
        if self.merged is not None:
            self.merged.sum = saved["sum"]


class PyramidForcingCache(MethodCache, of=PyramidForcing):
    method: PyramidForcing
    rotates_spatially = False
    state_classes = (FrameEntry,)

    def begin_video(self) -> None:
        self.layers: list[list[LabelState]] = []  # per layer, of the labels that it has
        for labels in self.shape.roles:
            kinds: list[LabelState] = []
            for label in HeadLabel:
                heads = [head for head, own in enumerate(labels) if own == label]
                if heads:
                    kinds.append(LabelState(self, label, torch.tensor(heads, device=self.device)))
            self.layers.append(kinds)

    @property
    def saved(self) -> Saved:
        return {"states": [heads.saved for heads in chain(*self.layers)]}

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)
        for heads, own in zip(chain(*self.layers), saved["states"], strict=True):
            heads.saved = own

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        kv = torch.stack((self.rope.rotate_spatial(k), v))
        for heads in self.layers[layer]:
            for place, frame in enumerate(range(self.start, self.end)):
                entry = FrameEntry(frame, frame, frame, kv[:, heads.index, place])
                heads.write(entry, k[heads.index, place], self.clean)

    def context(self, layer: int, q: Tensor) -> Tensor:
        s = self.rope.frame_tokens
        q = self.at_own_index(self.rope.rotate_spatial(q))
        out = self.empty_attention(q)
        for place, frame in enumerate(range(self.start, self.end)):
            for heads in self.layers[layer]:
                k, v = self.join(heads.read(frame))
                out[heads.index, place * s : (place + 1) * s] = self.attention(
                    q[heads.index, place], k, v
                )
        return out

    def join(self, parts: list[EntriesRead]) -> tuple[Tensor, Tensor]:
        """The keys, fully rotated, and the values of all parts, `[heads, tokens, head_dim]`."""
        pairs = [pair for part in parts for pair in zip(part.entries, part.at, strict=True)]
        keys = [self.rope.rotate_temporal(entry.kv[0][:, None], [at])[:, 0] for entry, at in pairs]
        return torch.cat(keys, dim=1), torch.cat([entry.kv[1] for entry, _ in pairs], dim=1)
