"""A progress bar over many videos that are made at the same time, on this machine or others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from tqdm import tqdm

_NAMES = 3  # of videos that are shown at a time
_LEAST_WAIT, _WAITS = 1.0, 20.0  # seconds between two looks; times what a look takes, on a slow network disk


class BlocksBar:
    """A bar of finished blocks with the names of the videos that have grown and the time that is left.

    It looks from time to time how far each video is, so nobody has to tell it.

    Args:
        videos: by name, how many blocks the video will have, and a function that says how many are finished.
    """

    def __init__(self, videos: Mapping[str, tuple[int, Callable[[], int]]], quiet: bool = False):
        self._videos = dict(videos)
        self._done = {name: finished() for name, (_, finished) in videos.items()}
        total = sum(blocks for blocks, _ in videos.values())
        self._bar: Any = tqdm(total=total, initial=self._sum(), unit="block", desc="rendering", disable=quiet)
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="head forcing progress", daemon=True)

    def __enter__(self) -> BlocksBar:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._bar.close()

    def ended(self, name: str, said: str, complete: bool) -> None:
        """Print a line for a video that has ended, and stop counting its blocks."""
        with self._lock:
            blocks, _ = self._videos.pop(name)
            if complete:
                self._done[name] = blocks
            self._show([])
        if not self._bar.disable:
            self._bar.write(f"{said}", file=self._bar.fp)

    def look(self) -> None:
        """Count the blocks of all videos that have not ended."""
        with self._lock:
            videos = list(self._videos.items())
        found = {name: min(finished(), blocks) for name, (blocks, finished) in videos}
        with self._lock:
            now = {name: count for name, count in found.items() if name in self._videos}
            grown = [name for name, count in now.items() if count > self._done[name]]
            self._done |= now
            self._show(grown)

    def _watch(self) -> None:
        wait = _LEAST_WAIT
        while not self._stop.wait(wait):
            begun = time.monotonic()
            self.look()
            wait = max(_LEAST_WAIT, _WAITS * (time.monotonic() - begun))

    def _show(self, grown: list[str]) -> None:
        if grown:
            more = f" and {len(grown) - _NAMES} more" if len(grown) > _NAMES else ""
            self._bar.set_postfix_str(", ".join(grown[:_NAMES]) + more, refresh=False)
        self._bar.update(self._sum() - self._bar.n)

    def _sum(self) -> int:
        return sum(self._done.values())
