"""Contact sheet of a video: evenly spaced video frames in rows, labelled with their prompts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import av
from PIL import Image, ImageDraw, ImageFont

from ..errors import HeadForcingError
from ..files import replacing
from .reader import open_video

_TILE_WIDTH = 128
_MARGIN = 16
_GAP = 4
_TITLE = 34
_PROMPT_STRIP = 28
_BACKGROUND = (24, 26, 31)
_BRIGHT = (240, 240, 244)
_DIM = (140, 144, 154)
_SEGMENT_COLOURS = ((86, 156, 255), (255, 159, 64), (90, 200, 130), (226, 110, 170), (240, 208, 80), (150, 130, 255))

Label = tuple[float, str]


def contact_sheet(
    video_path: str | Path,
    out_png: str | Path,
    columns: int = 12,
    rows: int = 5,
    labels: Sequence[Label] | None = None,
) -> Path:
    """Write evenly spaced video frames with their times as a PNG; `labels` are (start in seconds, prompt).

    A coloured bar marks the frames of each prompt. The prompt's text is at its first frame and, dimmed, at the start of
    each further row. Memory use is independent of the video's length. Raises HeadForcingError for an unreadable video.
    """
    if columns < 1 or rows < 1:
        raise HeadForcingError(f"A contact sheet needs at least 1 column and 1 row, got {columns} x {rows}.")
    with open_video(video_path) as container:
        title = f"{Path(video_path).name} \u00b7 {_describe(container)}"
        tiles = list(_evenly_spaced(container, columns * rows))
    if not tiles:
        raise HeadForcingError(f"{video_path} has no frames that can be decoded.")
    lines = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    tile_width, tile_height = tiles[0][1].size
    strip = _PROMPT_STRIP if labels else 0
    line_height = strip + tile_height + _GAP
    width = 2 * _MARGIN + len(lines[0]) * (tile_width + _GAP) - _GAP
    sheet = Image.new("RGB", (width, 2 * _MARGIN + _TITLE + len(lines) * line_height - _GAP), _BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, _MARGIN), fitted(title, 17, width - 2 * _MARGIN), _BRIGHT, font(17))
    prompts = sorted(labels or [])
    begun: set[int] = set()
    # whole seconds would repeat on adjacent tiles of a short video
    tenths = tiles[-1][0] < len(tiles) - 1
    for number, line in enumerate(lines):
        top = _MARGIN + _TITLE + number * line_height
        if prompts:
            segments = [sum(start <= seconds for start, _ in prompts) - 1 for seconds, _ in line]
            _draw_prompts(draw, top, segments, prompts, begun, tile_width + _GAP)
        for column, (seconds, tile) in enumerate(line):
            corner = (_MARGIN + column * (tile_width + _GAP), top + strip)
            sheet.paste(tile, corner)
            _draw_stamp(draw, corner, _stamp(seconds, tenths))
    with replacing(out_png) as temporary:
        sheet.save(temporary, format="PNG")
    return Path(out_png)


def _count(stream: av.VideoStream) -> int:
    """Number of video frames, estimated from the duration where the container does not store it."""
    if stream.frames:
        return stream.frames
    return int((stream.duration or 0) * (stream.time_base or 0) * (stream.average_rate or 0))


def _describe(container: av.container.InputContainer) -> str:
    stream = container.streams.video[0]
    video_frames, rate = _count(stream), float(stream.average_rate or 0)
    length = (
        f"{video_frames / rate:.1f} s \u00b7 {video_frames} frames at {rate:g} fps \u00b7 "
        if video_frames and rate
        else ""
    )
    return f"{length}{stream.width} x {stream.height} pixels"


def _evenly_spaced(container: av.container.InputContainer, count: int) -> Iterator[tuple[float, Image.Image]]:
    """(seconds, tile) of up to `count` video frames, the first and the last included."""
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    total = max(_count(stream), 1)
    count = min(count, total)
    wanted = {round(i * (total - 1) / max(count - 1, 1)) for i in range(count)}
    height = max(1, round(_TILE_WIDTH * stream.height / stream.width))
    for number, frame in enumerate(container.decode(stream)):
        if number in wanted:
            how = "AREA" if stream.width > _TILE_WIDTH else "POINT"
            yield float(frame.time or 0), frame.to_image(width=_TILE_WIDTH, height=height, interpolation=how)


def _draw_prompts(
    draw: ImageDraw.ImageDraw, top: int, segments: list[int], prompts: list[Label], begun: set[int], step: int
) -> None:
    """Draw bars and texts above one row of tiles `step` pixels apart; `segments` has each tile's prompt, -1 for none.

    `begun` collects the prompts whose text has been drawn.
    """
    bar = top + _PROMPT_STRIP - 7
    column = 0
    for segment, members in groupby(segments):
        left = _MARGIN + column * step
        column += len(list(members))
        if segment < 0:
            continue
        right = _MARGIN + column * step - _GAP
        draw.rectangle((left, bar, right - 1, bar + 3), _SEGMENT_COLOURS[segment % len(_SEGMENT_COLOURS)])
        start, prompt = prompts[segment]
        text, ink = (prompt, _DIM) if segment in begun else (f"{_stamp(start)}  {prompt}", _BRIGHT)
        draw.text((left, top + 1), fitted(text, 14, right - left), ink, font(14))
        begun.add(segment)


def _draw_stamp(draw: ImageDraw.ImageDraw, corner: tuple[int, int], stamp: str) -> None:
    x, y = corner
    draw.rectangle((x, y, x + font(12).getlength(stamp) + 6, y + 15), _BACKGROUND)
    draw.text((x + 3, y + 1), stamp, _BRIGHT, font(12))


def _stamp(seconds: float, tenths: bool = False) -> str:
    """`1:05`, or with tenths `1:05.3`; truncated, not rounded, as video players do."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}" + (f".{int(seconds * 10) % 10}" if tenths else "")


def fitted(text: str, size: int, width: int) -> str:
    """`text` on one line, cut with an ellipsis if it is wider than `width` pixels."""
    text = " ".join(text.split())
    # no more is measured, which takes time in proportion; more characters than pixels are not legible
    start = text[: max(width, 0)]
    if start == text and font(size).getlength(text) <= width:
        return text
    longer = bisect_right(range(len(start)), width, key=lambda count: int(font(size).getlength(start[:count] + "...")))
    return start[: max(longer - 1, 0)].rstrip() + "..."


@lru_cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
