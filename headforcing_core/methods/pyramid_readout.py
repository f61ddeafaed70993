"""Collection of Pyramid Forcing's keys and values for an attention: fresh, or packed once as by its authors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..model.rope import RotaryEmbedding


@dataclass(frozen=True)
class Entry:
    """A stored frame, or the average of several.

    Attributes:
        first, last: its first and last latent frame.
        at: temporal index of its own.
        k, v: `[heads, tokens, head_dim]`; keys are rotated spatially.
    """

    first: int
    last: int
    at: int
    k: Tensor
    v: Tensor


@dataclass
class Part:
    """Entries that are read together, and the temporal index of each."""

    entries: list[Entry]
    at: list[int]


class FreshReadout:
    """Collects what the heads hold at every read."""

    def __init__(self, rope: RotaryEmbedding, mixed: bool):
        self.rope, self.mixed = rope, mixed

    def written(self, start: int, repeated: bool) -> None:
        """Called after every pass; `repeated` for all but the first and the clean one of a block."""

    def saved(self) -> Any:
        """State that a later block depends on."""

    def load(self, saved: Any) -> None:
        """Take what `saved` gave."""

    def read(self, frame: int, block: range, wanted: Sequence[list[Part]]) -> list[tuple[Tensor, Tensor]]:
        """Per kind of heads the keys, fully rotated, and the values, `[heads, tokens, head_dim]`."""
        return [self.joined(parts) for parts in wanted]

    def joined(self, parts: list[Part]) -> tuple[Tensor, Tensor]:
        pairs = [pair for part in parts for pair in zip(part.entries, part.at, strict=True)]
        keys = torch.cat([self.rope.rotate_temporal(entry.k[:, None], [at])[:, 0] for entry, at in pairs], dim=1)
        return keys, torch.cat([entry.v for entry, _ in pairs], dim=1)


class StaleReadout(FreshReadout):
    """Packs keys and values for the first frame of a block and reads them for the others while the lengths agree.

    So does the authors' Python cache. Its comment assumes that all frames of a block read the same middle frames, which
    is not so for wave heads: later frames read the phase of an earlier one. In repeated passes only the current block
    is packed again, so that the first frame finds middle frames at the temporal index they had for the last one.
    """

    def __init__(self, rope: RotaryEmbedding, mixed: bool):
        super().__init__(rope, mixed)
        self.packed: list[list[Part]] | None = None
        self.packed_for = -1
        self.dirty = False
        self.steady = not mixed  # whether two packings in a row saw as many recent frames
        self.recent: list[int] = []

    def saved(self) -> Any:
        return [self.steady, self.recent]  # what is packed is dropped by the first pass of a block

    def load(self, saved: Any) -> None:
        self.steady, self.recent = saved

    def written(self, start: int, repeated: bool) -> None:
        if repeated and self.steady and self.packed is not None and self.packed_for == start:
            self.dirty = True
        else:
            self.packed = None

    def read(self, frame: int, block: range, wanted: Sequence[list[Part]]) -> list[tuple[Tensor, Tensor]]:
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
            self.recent, self.packed, self.packed_for = recent, [*wanted], frame
        self.dirty = False
        return super().read(frame, block, self.packed)

    def _refresh(self, packed: list[list[Part]], block: range, wanted: Sequence[list[Part]]) -> None:
        """Take the current block's frames, and its sinks, from what is wanted; leave the rest as it is."""
        for parts, fresh in zip(packed, wanted, strict=True):
            for old, new in zip(parts[:2], fresh[:2], strict=True):
                for place, entry in enumerate(new.entries):
                    if entry.at in block:
                        old.entries[place], old.at[place] = entry, new.at[place]


def _lengths(kinds: Sequence[list[Part]]) -> list[list[list[int]]]:
    return [[[entry.k.shape[1] for entry in part.entries] for part in parts] for parts in kinds]
