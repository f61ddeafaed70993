"""The audience of a video while it is rendered: its position, and how far ahead of it the render
has to be.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from dataclasses import dataclass

LEAD_SECONDS = 1.5
HEARD_SECONDS = 2.0  # for which the video plays on at a page that says nothing: it may be busy
LOST_SECONDS = 10.0  # without a word of a page, after which nobody watches
PAUSED_SECONDS = 300.0  # after which a paused video is ended, since it holds the GPU
# a block has to begin this early: blocks differ in time, and the file is written and read
_BLOCKS = 1.2
_MORE_SECONDS = 0.35
_LATEST = 4  # blocks whose time counts


class Audience:
    """People who watch. Seconds are those of the story."""

    def begin(self) -> None:
        """Called when the first block is there."""

    def position(self, end: float) -> float | None:
        """The second that is watched, at most `end`; None if nobody watches, and nothing waits."""
        raise NotImplementedError

    @property
    def leaving(self) -> str:
        """Why the video should end now; empty while it goes on."""
        return ""


class Player(Audience):
    """A player that nothing is heard of: it plays from the first block on, and waits where the
    video is late.
    """

    def __init__(self) -> None:
        self._second = 0.0
        self._since: float | None = None

    def position(self, end: float) -> float | None:
        now = time.monotonic()
        if self._since is not None:
            self._second = min(end, self._second + now - self._since)
        self._since = now
        return self._second


@dataclass(frozen=True)
class _Told:
    """The position that a page told."""

    second: float
    rate: float
    when: float

    def position(self, end: float) -> float:
        """The second that the page shows now, if it plays on, at most `end`."""
        passed = min(HEARD_SECONDS, time.monotonic() - self.when)
        return max(self.second, min(end, self.second + passed * self.rate))


class Pages(Audience):
    """Pages that tell where they are. Of several the one that is furthest counts."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}  # by page; replaced as a whole
        self._lock = threading.Lock()  # of those who replace it
        self._played = 0.0
        self._began = math.inf  # time of the first block: a model takes its time to load

    def begin(self) -> None:
        self._began = time.monotonic()

    def tell(self, page: str, second: float, rate: float) -> None:
        """Take the position of a page, and how fast it plays: 0 while it is paused."""
        with self._lock:
            told = _Told(second, rate, time.monotonic())
            before = self._told.get(page)
            if rate > 0 or before is None or before.second != second:
                self._played = told.when
            self._told = {**self._present, page: told}

    @property
    def _present(self) -> dict[str, _Told]:
        oldest = time.monotonic() - LOST_SECONDS
        return {page: told for page, told in self._told.items() if told.when > oldest}

    def position(self, end: float) -> float | None:
        told = self._present.values()
        if not told:
            # the page that began it has not got the first picture yet
            return 0.0 if time.monotonic() - self._began < LOST_SECONDS else None
        return max(each.position(end) for each in told)

    @property
    def leaving(self) -> str:
        now = time.monotonic()
        if not self._present and now - self._began > LOST_SECONDS:
            return f"no page has shown it for {LOST_SECONDS:g} s"
        if now - max(self._began, self._played) > PAUSED_SECONDS:
            return f"it was paused for {PAUSED_SECONDS / 60:g} minutes"
        return ""


class Lead:
    """Seconds that the render has to be ahead of its audience when a block begins."""

    def __init__(self, least: float = LEAD_SECONDS):
        self._least = least
        self._blocks: deque[float] = deque(maxlen=_LATEST)

    def add(self, seconds: float) -> None:
        """Take the time of a block that was made."""
        self._blocks.append(seconds)

    @property
    def block_seconds(self) -> float:
        """The longest time of the latest blocks; 0 before the first."""
        return max(self._blocks, default=0.0)

    @property
    def seconds(self) -> float:
        return max(self._least, _BLOCKS * self.block_seconds + _MORE_SECONDS)
