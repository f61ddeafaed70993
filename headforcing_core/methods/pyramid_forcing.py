"""Pyramid Forcing: three kinds of heads keep the middle of the video in three ways.

*Wave* heads keep past frames by their phase in a period, *anchor* heads every sixth frame, *veil* heads averages of
four frames over patches of tokens. Each frame of the current block is an attention of its own, whose sinks and middle
frames are moved to one temporal index. The middle changes in clean passes only, before their attention.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import HeadForcingError
from .base import MethodCache, MethodPolicy, MethodShape

WAVE, ANCHOR, VEIL = "wave", "anchor", "veil"


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
            `StaleReadout`.
    """

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

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        rows, columns = (-(-side // self.patch) for side in (shape.rows, shape.columns))
        middle = {
            WAVE: self.period * self.phase_frames,
            ANCHOR: self.stride_frames + self.leftover_frame,
            # the running sum is in float32; patches at the edge of an odd grid are smaller, so that there are more
            VEIL: (self.merged_blocks + 2) * rows * columns / shape.frame_tokens,
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


@dataclass(frozen=True)
class Entry:
    """A stored frame, or the average of several."""

    first: int  # its first and last latent frame
    last: int
    at: int  # temporal index of its own
    kv: Tensor  # [2, heads, tokens, head_dim]; keys are rotated spatially


@dataclass
class Part:
    """Entries that are read together, and the temporal index of each."""

    entries: list[Entry]
    at: list[int]


class MergedBlocks:
    """Averages blocks of `patch` squared frames over square patches of tokens.

    A merged token has the row and column of its patch's first token and the time of the lower middle frame.
    """

    def __init__(self, cache: PyramidForcingCache):
        self.rope, patch = cache.rope, cache.policy.patch
        self.frames = patch**2
        self.sum: Tensor | None = None  # of an unfinished entry's keys and values, float32
        rows, columns = torch.arange(cache.shape.rows), torch.arange(cache.shape.columns)
        patches = (rows // patch * -(-cache.shape.columns // patch))[:, None] + columns // patch
        first = (rows % patch == 0)[:, None] & (columns % patch == 0)
        self.patch_of_token = patches.flatten().to(cache.device)
        self.first_tokens = first.flatten().nonzero()[:, 0].to(cache.device)
        self.tokens_in_patch = self.patch_of_token.bincount()[:, None].float()

    def add(self, entry: Entry, raw_keys: Tensor) -> Entry | None:
        """Take a frame; returns the merged block that it completes."""
        raw = torch.stack((raw_keys, entry.kv[1]))
        size = (*raw.shape[:2], len(self.first_tokens), raw.shape[3])
        summed = raw.new_zeros(size, dtype=torch.float32).index_add_(2, self.patch_of_token, raw.float())
        total = summed if self.sum is None else self.sum + summed
        self.sum = None if (entry.at + 1) % self.frames == 0 else total
        if self.sum is not None:
            return None
        k, v = (total / (self.frames * self.tokens_in_patch)).to(raw.dtype)
        full = k.new_zeros(len(k), len(self.patch_of_token), k.shape[-1])
        full[:, self.first_tokens] = k
        k = self.rope.rotate_spatial(full[:, None])[:, 0, self.first_tokens]
        first = entry.at + 1 - self.frames
        return Entry(first, entry.at, first + (self.frames - 1) // 2, torch.stack((k, v)))


class Heads:
    """State of the heads of one label in one layer: sinks, last frames, and what they keep between them.

    The middle is the last entries of every queue: one for each phase of the period in wave heads, else a single one.
    """

    def __init__(self, cache: PyramidForcingCache, label: str, index: Tensor):
        policy = cache.policy
        self.policy, self.label, self.index, self.sink_count = policy, label, index, policy.sinks(label)
        self.sinks: dict[int, Entry] = {}
        self.recent: dict[int, Entry] = {}
        kept = {WAVE: policy.phase_frames, ANCHOR: policy.stride_frames, VEIL: policy.merged_blocks}[label]
        queues = policy.period if label == WAVE else 1
        self.middle: list[deque[Entry]] = [deque(maxlen=kept) for _ in range(queues)]
        self.merged = MergedBlocks(cache) if label == VEIL else None

    def write(self, entry: Entry, raw_keys: Tensor, clean: bool) -> None:
        """Store a frame of the current block in place of what an earlier pass stored.

        `raw_keys` are its keys without rotary embedding.
        """
        if entry.at < self.sink_count:
            self.sinks[entry.at] = entry
        else:
            self.recent[entry.at] = entry
            oldest = sorted(self.recent)[: -self.policy.recent_frames]
            for frame in oldest[1 if self.policy.leftover_frame and self.label == ANCHOR else 0 :]:
                del self.recent[frame]
        if clean:
            kept = entry if self.merged is None else self.merged.add(entry, raw_keys)
            if kept is not None and (self.label != ANCHOR or kept.at % self.policy.stride == 0):
                self.middle[kept.at % len(self.middle)].append(kept)

    def read(self, frame: int) -> list[Part]:
        """The parts of what a query of this frame attends to, with their temporal indices."""
        far = self.policy.far(frame)
        middle = [entry for entry in self.middle[frame % len(self.middle)] if not self._left_out(entry, frame)]
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

    @property
    def saved(self) -> list[Any]:
        """Its part of a stored cache, see `cache.state`."""
        middle = [list(queue) for queue in self.middle]
        return [self.sinks, self.recent, middle, None if self.merged is None else self.merged.sum]

    @saved.setter
    def saved(self, saved: list[Any]) -> None:
        self.sinks, self.recent, middle, total = saved
        for queue, entries in zip(self.middle, middle, strict=True):
            queue.extend(entries)
        if self.merged is not None:
            self.merged.sum = total


class StaleReadout:
    """Packs what a layer's heads read for the first frame of a block, and reads it for the others while lengths agree.

    As the authors' Python cache: wave heads of later frames read the phase of an earlier one, and in repeated passes
    the first frame finds middle frames at the temporal index that they had for the last one.

    Args:
        mixed: whether the layer has heads of other kinds than wave.
    """

    def __init__(self, mixed: bool):
        self.packed: list[list[Part]] | None = None
        self.packed_for = -1
        self.dirty = False
        self.steady = not mixed  # whether two packings in a row saw as many recent frames
        self.recent: list[int] = []

    def written(self, start: int, repeated: bool) -> None:
        """Called after every pass; `repeated` for all but the first and the clean one of a block."""
        if repeated and self.steady and self.packed is not None and self.packed_for == start:
            self.dirty = True
        else:
            self.packed = None

    def read(self, frame: int, block: range, wanted: list[list[Part]]) -> list[list[Part]]:
        """Per kind of heads the parts that a query of `frame` reads where it should read those `wanted`."""
        if self.packed is not None and self.packed_for == frame:
            if self.dirty:
                self._refresh(self.packed, block, wanted)
        elif self.packed is not None and _lengths(self.packed) == _lengths(wanted):
            for packed, parts in zip(self.packed, wanted, strict=True):
                for old, new in zip(packed, parts, strict=True):
                    old.at = new.at
        else:
            recent = [len(parts[1].entries) for parts in wanted]
            self.steady |= recent == self.recent
            self.recent, self.packed, self.packed_for = recent, wanted, frame
        self.dirty = False
        return self.packed

    def _refresh(self, packed: list[list[Part]], block: range, wanted: Sequence[list[Part]]) -> None:
        """Take the current block's frames, and its sinks, from what is wanted; leave the rest as it is."""
        for parts, fresh in zip(packed, wanted, strict=True):
            for old, new in zip(parts[:2], fresh[:2], strict=True):
                for place, entry in enumerate(new.entries):
                    if entry.at in block:
                        old.entries[place], old.at[place] = entry, new.at[place]


def _lengths(kinds: Sequence[list[Part]]) -> list[list[list[int]]]:
    return [[[entry.kv.shape[2] for entry in part.entries] for part in parts] for parts in kinds]


class PyramidForcingCache(MethodCache, of=PyramidForcing):
    policy: PyramidForcing
    rotates_spatially = False
    state_classes = (Entry,)

    def begin_video(self) -> None:
        self.layers: list[list[Heads]] = []
        for labels in self.shape.roles:
            by_label = ((label, [h for h, own in enumerate(labels) if own == label]) for label in (WAVE, ANCHOR, VEIL))
            kinds = [(label, torch.tensor(heads, device=self.device)) for label, heads in by_label if heads]
            self.layers.append([Heads(self, label, index) for label, index in kinds])
        self.readouts = [StaleReadout(any(heads.label != WAVE for heads in kinds)) for kinds in self.layers]

    @property
    def saved(self) -> list[Any]:
        heads = [[heads.saved for heads in kinds] for kinds in self.layers]
        # what is packed is dropped by the first pass of a block
        return [heads, [[readout.steady, readout.recent] for readout in self.readouts]]

    @saved.setter
    def saved(self, saved: list[Any]) -> None:
        of_layers, of_readouts = saved
        for kinds, of_kinds in zip(self.layers, of_layers, strict=True):
            for heads, held in zip(kinds, of_kinds, strict=True):
                heads.saved = held
        for readout, held in zip(self.readouts, of_readouts, strict=True):
            readout.steady, readout.recent = held

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        kv = torch.stack((self.rope.rotate_spatial(k), v))
        for heads in self.layers[layer]:
            for place, frame in enumerate(range(self.start, self.end)):
                entry = Entry(frame, frame, frame, kv[:, heads.index, place])
                heads.write(entry, k[heads.index, place], self.clean)
        self.readouts[layer].written(self.start, repeated=not (self.first_pass(layer) or self.clean))

    def context(self, layer: int, q: Tensor) -> Tensor:
        s, block = self.rope.frame_tokens, range(self.start, self.end)
        q = self.at_own_index(self.rope.rotate_spatial(q))
        out = q.new_empty(q.shape[0], self.frames * s, q.shape[-1])
        kinds = self.layers[layer]
        for place, frame in enumerate(block):
            read = [heads.read(frame) for heads in kinds]
            if self.policy.stale_readout:
                read = self.readouts[layer].read(frame, block, read)
            for heads, parts in zip(kinds, read, strict=True):
                k, v = self._joined(parts)
                out[heads.index, place * s : (place + 1) * s] = self.attention(q[heads.index, place], k, v)
        return out

    def _joined(self, parts: list[Part]) -> tuple[Tensor, Tensor]:
        """The keys, fully rotated, and the values of all parts, `[heads, tokens, head_dim]`."""
        pairs = [pair for part in parts for pair in zip(part.entries, part.at, strict=True)]
        keys = [self.rope.rotate_temporal(entry.kv[0][:, None], [at])[:, 0] for entry, at in pairs]
        return torch.cat(keys, dim=1), torch.cat([entry.kv[1] for entry, _ in pairs], dim=1)
