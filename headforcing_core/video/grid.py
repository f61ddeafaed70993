"""Grid video: several videos side by side, each with its name above, read and written frame by
frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from PIL import Image

from ..timeline.clock import VIDEO_FPS
from .reader import open_video, video_stream
from .sheets import BACKGROUND, scaled, write_line
from .writer import VideoInfo, VideoSettings, VideoWriter

MAX_COLUMNS = 4
MAX_WIDTH = 3840
MAX_HEIGHT = 2160
# pixels; smaller videos are enlarged by an integer factor, so that their names fit above them
MIN_TILE = 256
STRIP = 28  # pixels above a tile for its name


def grid_layout(count: int, width: int, height: int) -> tuple[int, int, int, int]:
    """Columns, rows of similar length, width and height of a tile in even pixels, for `count`
    videos of one size.
    """
    rows = math.ceil(count / MAX_COLUMNS)
    columns = math.ceil(count / rows)
    scale = max(1.0, math.ceil(MIN_TILE / width))
    scale = min(scale, MAX_WIDTH / (columns * width), (MAX_HEIGHT / rows - STRIP) / height)
    return columns, rows, _even(width * scale), _even(height * scale)


def _even(side: float) -> int:
    return max(2, int(side) // 2 * 2)


def write_grid(
    path: Path,
    tiles: Sequence[tuple[str, Path]],
    fps: float = VIDEO_FPS,
    metadata: Mapping[str, str] = MappingProxyType({}),
    on_progress: Callable[[int], None] = lambda video_frames: None,
) -> VideoInfo:
    """Write `tiles` (name, video file of `fps`; at least one) side by side, as long as the shortest
    video.

    `on_progress` gets the number of frames so far and may raise to stop. HeadForcingError for
    unreadable videos.
    """
    with ExitStack() as stack:
        videos = [stack.enter_context(open_video(video)) for _, video in tiles]
        first = video_stream(videos[0])
        columns, rows, wide, high = grid_layout(len(tiles), first.width, first.height)
        corners = [
            (place % columns * wide, place // columns * (high + STRIP))
            for place in range(len(tiles))
        ]
        sheet = Image.new("RGB", (columns * wide, rows * (high + STRIP)), BACKGROUND)
        for (name, _), (left, top) in zip(tiles, corners, strict=True):
            write_line(sheet, (left + 6, top + 4), name, wide - 12, size=16)
        writer = VideoWriter(VideoSettings(path, fps, metadata), sheet.width, sheet.height)
        stack.enter_context(writer)
        for frames in zip(*(video.decode(video_stream(video)) for video in videos), strict=False):
            for frame, (left, top) in zip(frames, corners, strict=True):
                sheet.paste(scaled(frame.to_image(), wide, high), (left, top + STRIP))
            writer.write(torch.from_numpy(np.array(sheet))[None])
            on_progress(writer.video_frames)
    return writer.info
