"""The file that shows a video without a fixed end while it is made."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from ..errors import HeadForcingError
from ..files import live_path
from ..plan.request import RenderJob
from ..render.sinks import VideoFile
from ..video.sound import Sound
from ..video.stream import FrameSink, for_squares, in_squares
from ..video.writer import VideoSettings, VideoWriter

log = logging.getLogger(__name__)


_POLL_SECONDS = 0.015
_PIECE = 8 << 20  # bytes that are read at once


class LowDelayFile:
    """A second file of a video, which grows with each frame and is removed at the end: a
    `FrameSink` of the first one. Use as a context manager.

    The first file is that of any render. Its encoder looks ahead, and a player would get each
    second of it when the next one is made. An error of the disk ends this file, not the video.

    Args:
        path: where it grows, unless another program has a file of that name open.
        sound: that of the video.
        scale: every pixel becomes a square of this side.
    """

    def __init__(self, path: Path, fps: float, sound: Sound | None = None, scale: int = 1):
        settings = VideoSettings(path, fps, scale=scale, partial=path, low_delay=True)
        self._settings = for_squares(settings)
        self._sound = sound
        self._writer: VideoWriter | None = None
        self._has_failed = False

    @property
    def path(self) -> Path:
        """The path where it grows."""
        return self._settings.path if self._writer is None else self._writer.partial

    @property
    def video_frames(self) -> int:
        """Number of frames that can be read."""
        return 0 if self._writer is None else self._writer.video_frames

    def add(self, first: int, video_frames: Tensor) -> None:
        if self._has_failed:
            return
        try:
            video_frames = in_squares(video_frames, self._settings.scale)
            if self._writer is None:
                _, height, width, _ = video_frames.shape
                writer = VideoWriter(self._settings, width, height, sound=self._sound)
                self._writer = writer.__enter__()
                if self.path != self._settings.path:
                    log.warning(
                        "Head Forcing: another program has %s open, so %s grows in its place",
                        self._settings.path,
                        self.path,
                    )
            self._writer.write(video_frames)
        except HeadForcingError as error:
            self._has_failed = True
            log.warning("Head Forcing: the video is not shown any more while it is made: %s", error)

    def __enter__(self) -> LowDelayFile:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.leave()
        with suppress(OSError):  # on Windows a player may have it open
            self.path.unlink(missing_ok=True)


class ShownVideo(VideoFile):
    """The file of a render, with a `LowDelayFile` beside it that is shown meanwhile."""

    is_followed = True
    _live: LowDelayFile | None = None

    @property
    def shown(self) -> Path:
        return self.partial if self._live is None else self._live.path

    @property
    def shown_frames(self) -> int:
        return 0 if self._live is None else self._live.video_frames

    def _sinks(self, job: RenderJob, path: Path) -> list[FrameSink]:
        fps = job.plan.timeline.clock.fps
        self._live = LowDelayFile(live_path(path), fps, self._sound(job), self.scale)
        return [self._live, *super()._sinks(job, path)]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._live is not None:
            self._live.__exit__(*error)


def next_bytes(path: Path, first: int, patience: float) -> bytes:
    """Bytes of a growing file from number `first` on, as soon as there are some; none after
    `patience` seconds without any, and of a file that is gone.
    """
    until = time.monotonic() + patience
    while True:
        try:
            if path.stat().st_size > first:
                with open(path, "rb") as file:
                    file.seek(first)
                    return file.read(_PIECE)
        except OSError:
            return b""
        if time.monotonic() > until:
            return b""
        time.sleep(_POLL_SECONDS)
