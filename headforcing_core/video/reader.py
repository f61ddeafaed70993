"""Opening of video files."""

from __future__ import annotations

import io
from pathlib import Path

import av

from ..errors import HeadForcingError

VideoSource = str | Path | io.BytesIO


def open_video(source: VideoSource, name: str | None = None) -> av.container.InputContainer:
    """Open a video file for a `with` block. Raises HeadForcingError, which names it `name`, if it is not a video."""
    name = name or str(source)
    try:
        # tags of a damaged file are any bytes
        container = av.open(source if isinstance(source, io.BytesIO) else str(source), "r", metadata_errors="replace")
    except (OSError, ValueError, av.error.FFmpegError) as error:
        raise HeadForcingError(f"{name} cannot be read as a video ({error}): give a video file") from error
    if not container.streams.video:
        container.close()
        raise HeadForcingError(f"{name} has no video track: give a video file")
    return container
