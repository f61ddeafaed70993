"""Notes on a finished video that its blocks do not hold and reports have, stored in the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from ..cache.scenes import Recall
from ..errors import HeadForcingError
from ..runs.files import SECONDS
from ..runs.folder import RunFolder


@dataclass(frozen=True)
class Finished:
    """Facts about the end of a render, for which its cache need not be made again.

    Attributes:
        seconds: median time per block; None if it is not known.
        events: number of decisions of episodic memory, those after start blocks included.
        guards, recalls: as in `RenderResult`.
        occupied: after each block, as in `RunReport`.
    """

    seconds: float | None
    events: int
    guards: Sequence[str]
    recalls: Sequence[Recall]
    occupied: Sequence[int | None]

    @classmethod
    def load(cls, run: RunFolder, key: str) -> Finished | None:
        """Load the note on the last block of a video; None if there is none, or not all of it."""
        note = run.load_note(SECONDS, [key])
        if note is None or any(note.get(name) is None for name in ("events", "guards", "recalls", "occupied")):
            return None
        recalls = [Recall(saved["block"], saved["scene"], tuple(saved["frames"])) for saved in note["recalls"]]
        return cls(note["seconds"], note["events"], note["guards"], recalls, note["occupied"])

    def save(self, run: RunFolder, key: str) -> None:
        """Store the note with the last block; without it a later render takes longer, and no block is lost."""
        with suppress(HeadForcingError):
            run.save_note(SECONDS, key, asdict(self))
