"""Entries of Pyramid Forcing's cache, and the packing of what heads read by the authors' Python cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Entry:
    """A stored frame, or the average of several.

    Attributes:
        first, last: its first and last latent frame.
        at: temporal index of its own.
        kv: keys and values `[2, heads, tokens, head_dim]`; keys are rotated spatially.
    """

    first: int
    last: int
    at: int
    kv: Tensor


@dataclass
class Part:
    """Entries that are read together, and the temporal index of each."""

    entries: list[Entry]
    at: list[int]


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
