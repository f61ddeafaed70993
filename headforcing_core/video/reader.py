"""Opening a video file to read its pictures."""

from __future__ import annotations

import io
from pathlib import Path

import av

from ..errors import HeadForcingError

Source = str | Path | io.BytesIO


def open_video(source: Source, name: str | None = None) -> av.container.InputContainer:
    """The opened file, to be used in a `with` block; one sentence about `name` where it is no video."""
    name = name or str(source)
    try:
        container = av.open(source if isinstance(source, io.BytesIO) else str(source), "r")
    except (OSError, av.error.FFmpegError) as error:
        raise HeadForcingError(f"{name} cannot be read as a video ({error}): give a video file") from error
    if not container.streams.video:
        container.close()
        raise HeadForcingError(f"{name} has no video track: give a file with pictures in it")
    return container
