"""Rows of tables: a method, several shuffles of the head roles, or the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..headforcing_core.render.comparison import Entry

SHUFFLES = 20


@dataclass(frozen=True)
class Rendered:
    """A row without a model: the truth, drawn from the prompts, `encoded` and decoded by the autoencoder or not."""

    label: str
    encoded: bool


@dataclass(frozen=True)
class Shuffles:
    """A row of several shuffles of the head roles, each measured on all videos, so that the two are told apart."""

    entry: Entry
    count: int = SHUFFLES

    @property
    def label(self) -> str:
        return self.entry.label


Row = Entry | Rendered | Shuffles


def renders_of(row: Row) -> list[Entry]:
    """Entries that are rendered for a row: as many as it has shuffles, and nothing where it has no model."""
    if isinstance(row, Shuffles):
        return [replace(row.entry, shuffle=shuffle) for shuffle in range(row.count)]
    return [] if isinstance(row, Rendered) else [row]
