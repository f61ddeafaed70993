"""Decisions of episodic memory, as a cache reports them after a block."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class MemoryEvent:
    """Decision of episodic memory about one candidate.

    Attributes:
        after_block: number of the block after which it was considered.
        frame: latent frame of the candidate.
        delta: its highest similarity to an entry, the summary included (paper, Eq. 4); -1 when the memory was empty.
        merged: the source frames of both entries that were merged for it; None without a merge.
        dropped: the source frames of the entry that was dropped for it (first in, first out); None otherwise.
    """

    after_block: int
    frame: int
    delta: float
    admitted: bool
    merged: list[list[int]] | None = None
    dropped: list[int] | None = None

    def to_dict(self) -> dict:
        """The JSON form used by `replay` and run reports; `dropped` is left out when it is None."""
        return {key: value for key, value in asdict(self).items() if key != "dropped" or value is not None}
