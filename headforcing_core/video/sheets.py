"""Sheets as PNG: evenly spaced frames of one video, or a frame of each prompt of several videos of
one story.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from ..files import replacing
from ..timeline.clock import format_time, plain_time
from .section import FrameTimes, read_frames

# of a contact sheet, at most
COLUMNS = 12
ROWS = 5
MAX_PROMPTS = 12  # of a story that has a column each
AFTER_SECONDS = 3.0  # of a prompt, at most, before the frame that stands for it
BACKGROUND = (24, 26, 31)
BRIGHT = (240, 240, 244)
_COLOURS = (
    (86, 156, 255),
    (255, 159, 64),
    (90, 200, 130),
    (226, 110, 170),
    (240, 208, 80),
    (150, 130, 255),
)
# pixels
_MARGIN = 16
_TITLE = 34
_GAP = 4  # between tiles
_LINE = 17
_LINES = 5  # of a text, at most
_BAR = 7  # of a prompt, with the room below it
_SIZE = 14  # of a text

Label = tuple[float, str]


class Sheet:
    """A canvas of `width` x `height` pixels with tiles, texts and the coloured bars of prompts."""

    def __init__(self, width: int, height: int):
        self.image = Image.new("RGB", (width, height), BACKGROUND)

    def write(self, x: int, y: int, text: str, width: int, size: int = _SIZE) -> None:
        """Write one line over what is there, cut after `width` pixels."""
        strip = Image.new("RGB", (width, round(1.3 * size)), BACKGROUND)
        # no more is drawn, which takes time in proportion; a character has at least a pixel
        ImageDraw.Draw(strip).text((0, 0), " ".join(text.split())[:width], BRIGHT, font(size))
        self.image.paste(strip, (x, y))

    def write_lines(self, x: int, y: int, text: str, width: int) -> None:
        """Write the first lines of a text below each other."""
        for number, line in enumerate(wrap(text, 2 * width // _SIZE)[:_LINES]):
            self.write(x, y + number * _LINE, line, width)

    def stamp(self, x: int, y: int, text: str) -> None:
        """Write a short text on a ground of its own."""
        self.write(x, y, text, width=round(font(12).getlength(text)) + 3, size=12)

    def mark(self, x: int, y: int, width: int, prompt: int) -> None:
        """Draw the bar of a prompt above tiles at this place."""
        bar = (x, y - _BAR, x + width, y - _BAR + 4)
        self.image.paste(_COLOURS[prompt % len(_COLOURS)], bar)

    def save(self, path: Path) -> Path:
        with replacing(path) as temporary:
            self.image.save(temporary, format="PNG")
        return path


def contact_sheet(path: Path, out_png: Path, labels: Sequence[Label] = ()) -> Path:
    """Write evenly spaced video frames with their times as a PNG, with the text and a bar in a
    colour for each prompt.

    `labels` are (start in seconds, prompt). Raises HeadForcingError for an unreadable video.
    """
    timing = FrameTimes.of(path)
    frames = len(timing.times)
    count = min(COLUMNS * ROWS, frames)
    times = [timing.times[round(i * (frames - 1) / max(count - 1, 1))] for i in range(count)]
    tiles = _frames_at(path, times, 128)
    prompts = sorted(labels)
    starts = [start for start, _ in prompts]
    strip = 2 * _GAP + _LINE + 3 if labels else 0
    step = tiles[0].width + _GAP
    row_height = strip + tiles[0].height + _GAP
    top = _MARGIN + _TITLE
    width = min(count, COLUMNS) * step - _GAP
    height = math.ceil(count / COLUMNS) * row_height - _GAP
    sheet = Sheet(width + 2 * _MARGIN, top + height + _MARGIN)
    length = f"{timing.end - times[0]:.1f} s \u00b7 {frames} frames at {timing.fps:g} fps"
    sheet.write(_MARGIN, _MARGIN, f"{path.name} \u00b7 {length}", width, size=17)
    written = -1  # the prompt above the tile before
    for place, (seconds, tile) in enumerate(zip(times, tiles, strict=True)):
        row, column = divmod(place, COLUMNS)
        x = _MARGIN + column * step
        y = top + row * row_height + strip
        sheet.image.paste(tile, (x, y))
        sheet.stamp(x, y, format_time(seconds)[:-2])
        prompt = bisect_right(starts, seconds) - 1
        if prompt < 0:
            continue
        sheet.mark(x, y, tile.width, prompt)
        # over the end of the text before
        if prompt != written or column == 0:
            start, text = prompts[prompt]
            sheet.write(x, y - strip, f"{plain_time(start)}  {text}", width - column * step)
        written = prompt
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
    starts = [*(start for start, _ in prompts), seconds][: MAX_PROMPTS + 1]
    texts = [text for _, text in prompts[:MAX_PROMPTS]]
    times = [start + min(AFTER_SECONDS, (end - start) / 2) for start, end in pairwise(starts)]
    rows = [_frames_at(path, times, 160) for _, path in videos]
    tile = rows[0][0]
    names_width = 210
    row_height = tile.height + _GAP
    top = _MARGIN + _TITLE + (1 + _LINES) * _LINE + 2 * _BAR
    columns = [_MARGIN + names_width + i * (tile.width + _GAP) for i in range(len(texts))]
    width = columns[-1] + tile.width + _MARGIN
    sheet = Sheet(width, top + len(videos) * row_height - _GAP + _MARGIN)
    title = (
        "One story: a column for each prompt, a row for each video. Equal colours, equal prompts."
    )
    sheet.write(_MARGIN, _MARGIN, title, width - 2 * _MARGIN, size=17)
    for x, start, text in zip(columns, starts, texts, strict=False):
        sheet.write(x, _MARGIN + _TITLE, plain_time(round(start)), tile.width)
        sheet.write_lines(x, _MARGIN + _TITLE + _LINE, text, tile.width)
        sheet.mark(x, top, tile.width, prompt=texts.index(text))
    for row, ((name, _), tiles) in enumerate(zip(videos, rows, strict=True)):
        y = top + row * row_height
        sheet.write_lines(_MARGIN, y, name, names_width - _GAP)
        for x, image in zip(columns, tiles, strict=True):
            sheet.image.paste(image, (x, y))
    return sheet.save(out_png)


def _frames_at(path: Path, times: Sequence[float], width: int) -> list[Image.Image]:
    """The video frames that are shown at these times, ascending, or the last one."""
    images = []
    for frame in read_frames(path, FrameTimes.of(path), times):
        height = max(1, round(width * frame.shape[0] / frame.shape[1]))
        images.append(scaled(Image.fromarray(frame.numpy()), width, height))
    return images


def scaled(image: Image.Image, width: int, height: int) -> Image.Image:
    """An image of another size, whose pixels are squares where it is larger."""
    return image.resize((width, height), Image.Resampling.BOX)


@lru_cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
