"""Sheets as PNG: evenly spaced frames of one video, or a frame of each prompt of several videos of
one story.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

import av
from PIL import Image, ImageDraw, ImageFont

from ..errors import HeadForcingError
from ..files import replacing
from ..timeline.clock import format_time, plain_time
from .reader import open_video
from .section import FrameTimes, frames_shown

# of a contact sheet, at most
COLUMNS = 12
ROWS = 5
MAX_PROMPTS = 12  # of a story that has a column each
AFTER_SECONDS = 3.0  # of a prompt, at most, before the frame that stands for it
BACKGROUND = (24, 26, 31)
BRIGHT = (240, 240, 244)
_DIM = (150, 154, 164)
_COLOURS = (
    (86, 156, 255),
    (255, 159, 64),
    (90, 200, 130),
    (226, 110, 170),
    (240, 208, 80),
    (150, 130, 255),
)
# pixels; a strip of prompts
_MARGIN = 16
_STRIP = 28
_GAP = 6  # between tiles
_LINE_HEIGHT = 17
_LINES = 4  # of a text, at most

Label = tuple[float, str]


class Sheet:
    """A canvas of `width` x `height` pixels with tiles, texts and the coloured bars of prompts."""

    def __init__(self, width: int, height: int):
        self.image = Image.new("RGB", (width, height), BACKGROUND)
        self._draw = ImageDraw.Draw(self.image)

    def write(
        self, x: int, y: int, text: str, size: int, width: int, ink: tuple[int, int, int] = BRIGHT
    ) -> None:
        """Write one line, cut to `width` pixels."""
        self._draw.text((x, y), fit_text(text, size, width), ink, font(size))

    def write_lines(self, x: int, y: int, lines: Sequence[str], **style: Any) -> None:
        """Write the first lines of a text below each other, see `write`."""
        for number, words in enumerate(lines[:_LINES]):
            self.write(x, y + number * _LINE_HEIGHT, words, **style)

    def stamp(self, x: int, y: int, text: str) -> None:
        """Write a short text on a ground of its own."""
        self._draw.rectangle((x, y, x + font(12).getlength(text) + 6, y + 15), BACKGROUND)
        self._draw.text((x + 3, y + 1), text, BRIGHT, font(12))

    def mark(self, left: int, top: int, right: int, height: int, prompt: int) -> None:
        """Draw the bar of a prompt."""
        self._draw.rectangle(
            (left, top, right - 1, top + height - 1), _COLOURS[prompt % len(_COLOURS)]
        )

    def save(self, path: Path) -> Path:
        with replacing(path) as temporary:
            self.image.save(temporary, format="PNG")
        return path


def contact_sheet(path: Path, out_png: Path, labels: Sequence[Label] = ()) -> Path:
    """Write evenly spaced video frames with their times as a PNG, with the text and a bar in a
    colour for each prompt.

    `labels` are (start in seconds, prompt). Raises HeadForcingError for an unreadable video.
    """
    with open_video(path) as container:
        stream = container.streams.video[0]
        size = f"{stream.width} x {stream.height} pixels"
    timing = FrameTimes.of(path)
    frames = len(timing.times)
    count = min(COLUMNS * ROWS, frames)
    times = [timing.times[round(i * (frames - 1) / max(count - 1, 1))] for i in range(count)]
    tiles = _frames_at(path, times, 128)
    prompts = sorted(labels)
    gap = 4
    head = _MARGIN + 34
    strip = _STRIP if labels else 0
    step = tiles[0].width + gap
    row_height = strip + tiles[0].height + gap
    width = 2 * _MARGIN + min(count, COLUMNS) * step - gap
    sheet = Sheet(width, head + math.ceil(count / COLUMNS) * row_height - gap + _MARGIN)
    length = f"{timing.end - times[0]:.1f} s \u00b7 {frames} frames at {timing.fps:g} fps"
    title = f"{path.name} \u00b7 {length} \u00b7 {size}"
    sheet.write(_MARGIN, _MARGIN, title, size=17, width=width - 2 * _MARGIN)
    # whole seconds would repeat on adjacent tiles of a short video
    tenths = times[-1] < count - 1
    corners = []
    for place, (seconds, tile) in enumerate(zip(times, tiles, strict=True)):
        row, column = divmod(place, COLUMNS)
        corner = (_MARGIN + column * step, head + row * row_height + strip)
        corners.append(corner)
        sheet.image.paste(tile, corner)
        sheet.stamp(*corner, format_time(seconds)[:-2] if tenths else plain_time(seconds))
    starts = [start for start, _ in prompts]
    prompt_of = [bisect_right(starts, seconds) - 1 for seconds in times]  # the prompt of each tile
    for (_, prompt), places in groupby(range(count), lambda i: (i // COLUMNS, prompt_of[i])):
        if prompt < 0:
            continue
        first, *others = places
        left, top = corners[first]
        width = (1 + len(others)) * step - gap
        sheet.mark(left, top - 7, left + width, height=4, prompt=prompt)
        start, text = prompts[prompt]
        ink = _DIM
        if prompt_of.index(prompt) == first:
            text = f"{plain_time(start)}  {text}"
            ink = BRIGHT
        sheet.write(left, top - strip + 1, text, size=14, width=width, ink=ink)
    return sheet.save(out_png)


def side_by_side(
    out_png: Path, videos: Sequence[tuple[str, Path]], prompts: Sequence[Label], seconds: float
) -> Path:
    """Write a frame of every prompt and video as a PNG, with names, times and prompts; equal ones
    have one colour.

    `videos` are name and file, of the same story and length in `seconds`; `prompts` (start in
    seconds, text) in order, of which the first twelve are drawn. Raises HeadForcingError for an
    unreadable video.
    """
    starts = [*(start for start, _ in prompts), seconds]
    texts = [text for _, text in prompts[:MAX_PROMPTS]]
    times = [
        start + min(AFTER_SECONDS, (end - start) / 2)
        for start, end in pairwise(starts[: len(texts) + 1])
    ]
    tile = 160
    name_width = 210
    rows = [_frames_at(path, times, tile) for _, path in videos]
    top = _MARGIN + 54
    bars_top = top + (_LINES + 1) * _LINE_HEIGHT + 2
    head = bars_top - 2 + 2 * _GAP
    left = _MARGIN + name_width
    row_height = rows[0][0].height + _GAP
    columns = [left + column * (tile + _GAP) for column in range(len(texts))]
    width = columns[-1] + tile + _MARGIN
    sheet = Sheet(width, head + len(videos) * row_height - _GAP + _MARGIN)
    story = "One story"
    if len(videos) > 1:
        story = f"One story, the same noise, {len(videos)} caches"
    advice = "A column for each prompt, a row for each video."
    if len(set(texts)) < len(texts):
        advice = "Equal colours, equal prompts. Does what comes back look as it did before?"
    text_width = width - 2 * _MARGIN
    sheet.write(_MARGIN, _MARGIN, story, size=17, width=text_width)
    sheet.write(_MARGIN, _MARGIN + 22, advice, size=14, width=text_width, ink=_DIM)
    for x, start, text in zip(columns, starts, texts, strict=False):
        time = plain_time(round(start))
        prompt = texts.index(text)
        if columns[prompt] < x:
            time += ", again"
        sheet.write(x, top, time, size=14, width=tile)
        sheet.write_lines(x, top + _LINE_HEIGHT, wrap(text, 24), size=13, width=tile, ink=_DIM)
        sheet.mark(x, bars_top, x + tile, height=5, prompt=prompt)
    for row, ((name, _), tiles) in enumerate(zip(videos, rows, strict=True)):
        y = head + row * row_height
        sheet.write_lines(_MARGIN, y, wrap(name, 26), size=14, width=name_width - _GAP)
        for x, image in zip(columns, tiles, strict=True):
            sheet.image.paste(image, (x, y))
    return sheet.save(out_png)


def scale_frame(frame: av.VideoFrame, width: int, height: int | None = None) -> Image.Image:
    """A frame as an image of this width, in its own proportions where no height is given."""
    height = height or max(1, round(width * frame.height / frame.width))
    return frame.to_image(
        width=width, height=height, interpolation="AREA" if frame.width > width else "POINT"
    )


def _frames_at(path: Path, times: Sequence[float], width: int) -> list[Image.Image]:
    """The video frames that are shown at these times, ascending, or the last one."""
    images = []
    for frame, _, count in frames_shown(path, FrameTimes.of(path), times, seeks=False):
        images += [scale_frame(frame, width)] * count
    if not images:
        raise HeadForcingError(f"{path} has no frames that can be decoded.")
    return images


def fit_text(text: str, size: int, width: int) -> str:
    """`text` on one line, cut with an ellipsis if it is wider than `width` pixels."""
    text = " ".join(text.split())
    # no more is measured, which takes time in proportion; more characters than pixels are not
    # legible
    start = text[: max(width, 0)]
    if start == text and font(size).getlength(text) <= width:
        return text
    longer = bisect_right(
        range(len(start)), width, key=lambda count: int(font(size).getlength(start[:count] + "..."))
    )
    return start[: max(longer - 1, 0)].rstrip() + "..."


@lru_cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
