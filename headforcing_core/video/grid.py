"""Grid video: several videos side by side, each with its name above, read and written frame by frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..errors import HeadForcingError
from ..timeline.clock import VIDEO_FPS
from .reader import open_video
from .sheets import Sheet, scale_frame
from .stream import VideoInfo
from .writer import VideoWriter

MAX_COLUMNS = 4
MAX_WIDTH, MAX_HEIGHT = 3840, 2160
MIN_TILE = 256  # pixels; smaller videos are enlarged by an integer factor, so that their names fit above them
STRIP = 28  # pixels above a tile for its name


@dataclass(frozen=True)
class Grid:
    """Layout of the tiles; all sizes in pixels, and even as H.264 requires."""

    columns: int
    rows: int
    tile_width: int
    tile_height: int

    @classmethod
    def of(cls, count: int, width: int, height: int) -> Grid:
        """Layout of `count` videos of the same size: one row of up to four, otherwise rows of similar length."""
        rows = math.ceil(count / MAX_COLUMNS)
        columns = math.ceil(count / rows)
        scale = max(1.0, math.ceil(MIN_TILE / width))
        scale = min(scale, MAX_WIDTH / (columns * width), (MAX_HEIGHT / rows - STRIP) / height)
        return cls(columns, rows, _even(width * scale), _even(height * scale))

    @property
    def width(self) -> int:
        return self.columns * self.tile_width

    @property
    def height(self) -> int:
        return self.rows * (self.tile_height + STRIP)

    def corner(self, place: int) -> tuple[int, int]:
        """Left and top of the name strip of tile `place`; the tile is `STRIP` pixels below."""
        row, column = divmod(place, self.columns)
        return column * self.tile_width, row * (self.tile_height + STRIP)


def write_grid(
    path: Path,
    tiles: Sequence[tuple[str, Path]],
    fps: float = VIDEO_FPS,
    metadata: Mapping[str, str] | None = None,
    on_progress: Callable[[int], None] = lambda video_frames: None,
) -> VideoInfo:
    """Write `tiles` (name, video file) side by side; the result is as long as the shortest video.

    All videos must have `fps` frames per second. `on_progress` gets the number of frames so far and may raise to stop.
    Raises HeadForcingError without tiles and for unreadable videos.
    """
    if not tiles:
        raise HeadForcingError("a grid needs at least one video")
    with ExitStack() as stack:
        videos = [stack.enter_context(open_video(video)) for _, video in tiles]
        first = videos[0].streams.video[0]
        layout = Grid.of(len(tiles), first.width, first.height)
        sheet = Sheet(layout.width, layout.height)
        for place, (name, _) in enumerate(tiles):
            left, top = layout.corner(place)
            sheet.write(left + 6, top + 4, name, 16, layout.tile_width - 12)
        writer = stack.enter_context(VideoWriter(path, layout.width, layout.height, fps, metadata=metadata))
        for frames in zip(*(video.decode(video=0) for video in videos), strict=False):
            for place, frame in enumerate(frames):
                left, top = layout.corner(place)
                sheet.image.paste(scale_frame(frame, layout.tile_width, layout.tile_height), (left, top + STRIP))
            writer.write(torch.from_numpy(np.array(sheet.image))[None])
            on_progress(writer.video_frames)
    return VideoInfo(path, writer.video_frames, writer.video_frames / fps, layout.width, layout.height)


def _even(side: float) -> int:
    return max(2, int(side) // 2 * 2)
