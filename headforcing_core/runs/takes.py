"""Takes: the different videos of one run folder, numbered in the order in which their renders were begun."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import HeadForcingError
from ..hashing import SHORT
from .files import files_of, read_note


class Take(NamedTuple):
    """The number of a video in its run folder, from 1, and when its first render was begun, in seconds since 1970."""

    number: int
    begun: float


def take_of(folder: Path, key: str) -> Take:
    """The take of the video whose last block has this key: that of its note, or the next one, begun now."""
    notes: dict[str, tuple[Mapping[str, Any], float]] = {}
    for video, path in files_of(folder, "video").items():
        with suppress(HeadForcingError, OSError):  # who reads the video says so
            notes[video] = read_note(path), path.stat().st_mtime
    takes = number_takes(notes)
    following = 1 + max((take.number for take in takes.values()), default=0)
    return takes.get(key[:SHORT]) or Take(following, float(int(time.time())))


def number_takes(notes: Mapping[str, tuple[Mapping[str, Any], float]]) -> dict[str, Take]:
    """The take of every video note of a folder, from its fields and when it was last written, by any key.

    Notes of versions that did not count get the free numbers, the oldest first.
    """
    known = {fields.get("take") for fields, _ in notes.values()}
    free = (number for number in count(1) if number not in known)
    takes = {}
    for key, (fields, written) in sorted(notes.items(), key=lambda entry: (entry[1][1], entry[0])):
        number = fields.get("take")
        takes[key] = Take(next(free) if number is None else number, fields.get("begun") or written)
    return takes
