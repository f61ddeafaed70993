"""What authors' code does beside its paper, for recordings of it: rules that nobody would render
with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...headforcing_core.methods.base import MethodShape, Requirements
from ...headforcing_core.methods.dummy_forcing import DummyForcing, DummyForcingCache
from ...headforcing_core.methods.longlive import LongLive, LongLiveCache, WindowCache
from ...headforcing_core.methods.memrope import MemRoPECache
from ...headforcing_core.methods.pyramid_forcing import (
    EntriesRead,
    FrameEntry,
    LabelState,
    PyramidForcing,
    PyramidForcingCache,
)
from ...headforcing_core.methods.pyramid_labels import HeadLabel
from ...headforcing_core.methods.swift import Swift, SwiftCache
from ...headforcing_core.methods.tethercache import TetherCache
from ...headforcing_core.rollout.rows import BlockRow


class SinksWrittenOnce(WindowCache):
    """A block's sinks keep what its first pass stored.

    The same where sinks are whole blocks; else clean passes cannot rebuild the cache.
    """

    def protected(self, layer: int) -> int:
        slots = super().protected(layer)
        if self.start == 0 or self.recaching or self.first_pass(layer):
            return slots
        return self.sinks


class LongLiveSinksOnce(SinksWrittenOnce, LongLiveCache):
    """LongLive's cache, as in its authors' code."""


class MemRoPESinksOnce(SinksWrittenOnce, MemRoPECache):
    """MemRoPE's cache, as in its authors' code."""


class SwiftSinksOnce(SinksWrittenOnce, SwiftCache):
    """SWIFT's cache, as in its authors' code."""


@dataclass(frozen=True)
class CommitForcing(LongLive):
    """LongLive's window with clean passes that read any number of newest frames, as Commit
    Forcing's authors varied it; a render has the window's own number.
    """

    clean_reads: str = "recent"
    commit_frames: int = 12

    @property
    def clean_frames(self) -> int:
        return self.commit_frames


# the caches of methods whose authors' code writes sinks once
SINKS_ONCE: dict[Any, type[WindowCache]] = {
    LongLiveCache: LongLiveSinksOnce,
    MemRoPECache: MemRoPESinksOnce,
    SwiftCache: SwiftSinksOnce,
}


@dataclass(frozen=True)
class RecordedDummyForcing(DummyForcing):
    """Dummy Forcing with the queries that a recorded render sampled, `rows` by layer."""

    rows: tuple[tuple[int, ...], ...] = ()


class RecordedDummyForcingCache(DummyForcingCache, of=RecordedDummyForcing):
    method: RecordedDummyForcing

    def sampled_rows(self, layer: int) -> Tensor:
        return torch.tensor(self.method.rows[layer], device=self.device)


@dataclass(frozen=True)
class AuthorsTetherCache(TetherCache):
    """TetherCache with any window: in one that is no whole number of blocks the authors' code reads
    a frame of zeros, and sets it aside.
    """

    def requirements(self, shape: MethodShape) -> Requirements:
        return {}


@dataclass(frozen=True)
class AuthorsSwift(Swift):
    """SWIFT with switches that are `announced` for any frame and happen at the next block."""

    announced: tuple[int, ...] = ()

    def own_rows(self, rows: Sequence[BlockRow], frames_per_block: int) -> list[BlockRow]:
        own = []
        begun = number = 0
        for block, row in enumerate(rows):
            frame = block * frames_per_block
            if row.switch is not None:
                begun = frame
                number += 1
            coming = self.announced[number:]
            to_switch = max(0, coming[0] - frame) if coming else None
            own.append(replace(row, window_frames=self.window_at(frame - begun, to_switch)))
        return own


@dataclass(frozen=True)
class AuthorsPyramidForcing(PyramidForcing):
    """Pyramid Forcing by the rules of its authors' two caches.

    Attributes:
        overlaps_recent: middle frames that are recent, too, are read twice, as by the CUDA cache.
        leftover_frame: anchor heads keep the first frame after the sinks for ever, as the Python
            cache does.
        stale_readout: keys are packed once for several frames of a block, as by the Python cache;
            see `StaleReadout`.
    """

    overlaps_recent: bool = False
    leftover_frame: bool = False
    stale_readout: bool = False


class AuthorsLabelState(LabelState):
    """State of the heads of one label, by the authors' rules."""

    method: AuthorsPyramidForcing

    def write(self, entry: FrameEntry, raw_keys: Tensor, clean: bool) -> None:
        before = dict(self.recent)
        super().write(entry, raw_keys, clean)
        dropped = before.keys() - self.recent.keys()
        if dropped and self.method.leftover_frame and self.label is HeadLabel.ANCHOR:
            oldest = min(dropped)
            self.recent = {oldest: before[oldest], **self.recent}

    def read(self, frame: int) -> list[EntriesRead]:
        sinks, recent, middle = super().read(frame)
        if self.method.overlaps_recent:
            veil = self.label is HeadLabel.VEIL
            first = 1 if veil else self.sink_count
            far = self.method.far(frame)
            queue = self.middle[frame % len(self.middle)]
            entries = [entry for entry in queue if entry.first >= first]
            middle = EntriesRead(entries, [entry.at if veil else far for entry in entries])
        return [sinks, recent, middle]


class StaleReadout:
    """Packs what a layer's heads read for the first frame of a block, and reads it for the others
    while lengths agree.

    As the authors' Python cache: wave heads of later frames read the phase of an earlier one, and
    in repeated passes the first frame finds middle frames at the temporal index that they had for
    the last one.

    Args:
        mixed: whether the layer has heads of other kinds than wave.
    """

    def __init__(self, mixed: bool):
        self.packed: list[list[EntriesRead]] | None = None
        self.packed_for = -1
        self.dirty = False
        self.steady = not mixed  # whether two packings in a row saw as many recent frames
        self.recent: list[int] = []

    def written(self, start: int, repeated: bool) -> None:
        """Called after every pass; `repeated` for all but the first and the clean one of a
        block.
        """
        if repeated and self.steady and self.packed is not None and self.packed_for == start:
            self.dirty = True
        else:
            self.packed = None

    def read(
        self, frame: int, block: range, wanted: list[list[EntriesRead]]
    ) -> list[list[EntriesRead]]:
        """Per kind of heads the parts that a query of `frame` reads where it should read those
        `wanted`.
        """
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
            self.recent = recent
            self.packed = wanted
            self.packed_for = frame
        self.dirty = False
        return self.packed

    def _refresh(
        self, packed: list[list[EntriesRead]], block: range, wanted: Sequence[list[EntriesRead]]
    ) -> None:
        """Take the current block's frames, and its sinks, from what is wanted; leave the rest as it
        is.
        """
        for parts, fresh in zip(packed, wanted, strict=True):
            for old, new in zip(parts[:2], fresh[:2], strict=True):
                for place, entry in enumerate(new.entries):
                    if entry.at in block:
                        old.entries[place], old.at[place] = entry, new.at[place]


def _lengths(kinds: Sequence[list[EntriesRead]]) -> list[list[list[int]]]:
    return [[[entry.kv.shape[2] for entry in part.entries] for part in parts] for parts in kinds]


class AuthorsPyramidCache(PyramidForcingCache, of=AuthorsPyramidForcing):
    """Pyramid Forcing's cache, as in its authors' code."""

    method: AuthorsPyramidForcing

    def begin_video(self) -> None:
        super().begin_video()
        self.layers = [
            [AuthorsLabelState(self, heads.label, heads.index) for heads in kinds]
            for kinds in self.layers
        ]
        self.readouts = [
            StaleReadout(any(heads.label is not HeadLabel.WAVE for heads in kinds))
            for kinds in self.layers
        ]

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        super().take(layer, k, v)
        self.readouts[layer].written(
            self.start, repeated=not (self.first_pass(layer) or self.clean)
        )

    def context(self, layer: int, q: Tensor) -> Tensor:
        if not self.method.stale_readout:
            return super().context(layer, q)
        s = self.rope.frame_tokens
        block = range(self.start, self.end)
        kinds = self.layers[layer]
        q = self.at_own_index(self.rope.rotate_spatial(q))
        out = self.empty_attention(q)
        for place, frame in enumerate(block):
            wanted = [heads.read(frame) for heads in kinds]
            packed = self.readouts[layer].read(frame, block, wanted)
            for heads, parts in zip(kinds, packed, strict=True):
                k, v = self.join(parts)
                out[heads.index, place * s : (place + 1) * s] = self.attention(
                    q[heads.index, place], k, v
                )
        return out
