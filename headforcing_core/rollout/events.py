"""What a cache reports to the block loop after a block."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class MemoryEvent:
    """One candidate's fate.

    Attributes:
        delta: its highest similarity to an entry, the summary included (paper, Eq. 4); -1 when the memory was empty.
        merged: the source frames of both parts.
    """

    after_block: int
    frame: int
    delta: float
    admitted: bool
    merged: list[list[int]] | None = None
    dropped: list[int] | None = None

    def to_dict(self) -> dict:
        """The JSON form used by `replay` and run reports (`dropped` only where something was)."""
        return {key: value for key, value in asdict(self).items() if key != "dropped" or value is not None}
