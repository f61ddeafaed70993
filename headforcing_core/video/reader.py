"""Opening of video files."""

from __future__ import annotations

import io
import math
from pathlib import Path

import av

from ..errors import HeadForcingError

MAX_PIXELS = 8192 * 4320  # of a frame: decoders hold several, whatever a damaged file claims
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
    context = container.streams.video[0].codec_context
    size = None if context is None else (context.width, context.height)  # None where no decoder knows the format
    if size is None or not 0 < math.prod(size) <= MAX_PIXELS:
        container.close()
        what = "in an unknown format" if size is None else f"of {size[0]}x{size[1]} pixels"
        raise HeadForcingError(f"{name} has frames {what}: give a video of at most 8192x4320 that plays elsewhere")
    return container
