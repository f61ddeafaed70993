"""Sheets as PNG: evenly spaced frames of one video, or a frame of each prompt of several videos of
one story.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from ..files import replacing
from ..timeline.clock import format_time, plain_time
from .section import FrameTimes, read_frames

# of a contact sheet, at most
COLUMNS = 12
ROWS = 5
MAX_PROMPTS = 12  # that are written, and have a column each side by side
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
_LINE = 20
_BAR = 4  # of a prompt, above a frame
_GAP = 4  # between frames
_LEAST_WIDTH = 640  # of rows, for names and prompts above few frames

Label = tuple[float, str]
Frames = list[tuple[float, Image.Image]]  # with their seconds


def contact_sheet(path: Path, out_png: Path, labels: Sequence[Label] = ()) -> Path:
    """Write evenly spaced video frames with their times as a PNG, with the prompts, and a bar in a
    prompt's colour above its frames.

    `labels` are (start in seconds, prompt). Raises HeadForcingError for an unreadable video.
    """
    timing = FrameTimes.of(path)
    frames = len(timing.times)
    last = min(COLUMNS * ROWS, frames) - 1
    times = [timing.times[round(i * (frames - 1) / max(last, 1))] for i in range(last + 1)]
    shown = _frames_at(path, times, 128)
    rows = [("", shown[first : first + COLUMNS]) for first in range(0, len(shown), COLUMNS)]
    length = f"{timing.end - times[0]:.1f} s \u00b7 {frames} frames at {timing.fps:g} fps"
    return _write_sheet(out_png, f"{path.name} \u00b7 {length}", sorted(labels), rows)


def side_by_side(
    out_png: Path, videos: Sequence[tuple[str, Path]], prompts: Sequence[Label], seconds: float
) -> Path:
    """Write a frame of every prompt and video as a PNG, a row for each video, with names, times and
    prompts; equal ones have one colour.

    `videos` are name and file, of the same story and length in `seconds`; `prompts` (start in
    seconds, text) in order, of which the first twelve are drawn. Raises HeadForcingError for an
    unreadable video.
    """
    starts = [*(start for start, _ in prompts), seconds][: MAX_PROMPTS + 1]
    times = [start + min(AFTER_SECONDS, (end - start) / 2) for start, end in pairwise(starts)]
    rows = [(name, _frames_at(path, times, 160)) for name, path in videos]
    return _write_sheet(out_png, "One story, a row for each video", prompts, rows)


def _write_sheet(
    path: Path, title: str, prompts: Sequence[Label], rows: Sequence[tuple[str, Frames]]
) -> Path:
    """Write rows of video frames, each with a name, as a PNG."""
    texts = [text for _, text in prompts]
    # equal prompts have one colour
    colours = [_COLOURS[texts.index(text) % len(_COLOURS)] for text in texts]
    starts = [start for start, _ in prompts]
    lines = [f"{plain_time(start)}  {text}" for start, text in prompts[:MAX_PROMPTS]]
    if len(prompts) > MAX_PROMPTS:
        lines.append("...")
    _, first_row = rows[0]
    _, tile = first_row[0]
    step = tile.width + _GAP
    width = max(_LEAST_WIDTH, len(first_row) * step - _GAP)
    top = _MARGIN + _TITLE + len(lines) * _LINE
    above = _BAR + _LINE  # of a frame
    names = _LINE if any(name for name, _ in rows) else 0
    row_height = names + above + tile.height + _GAP
    height = top + len(rows) * row_height - _GAP + _MARGIN
    sheet = Image.new("RGB", (width + 2 * _MARGIN, height), BACKGROUND)
    write_line(sheet, (_MARGIN, _MARGIN), title, width, size=17)
    for line, text in enumerate(lines):
        y = _MARGIN + _TITLE + line * _LINE
        write_line(sheet, (_MARGIN, y), text, width, ink=colours[line])
    for row, (name, frames) in enumerate(rows):
        y = top + row * row_height + names
        write_line(sheet, (_MARGIN, y - names), name, width)
        for column, (seconds, image) in enumerate(frames):
            x = _MARGIN + column * step
            write_line(sheet, (x, y), format_time(seconds)[:-2], tile.width)
            sheet.paste(image, (x, y + above))
            prompt = bisect_right(starts, seconds) - 1
            if prompt >= 0:
                sheet.paste(colours[prompt], (x, y + _LINE, x + tile.width, y + above))
    with replacing(path) as temporary:
        sheet.save(temporary, format="PNG")
    return path


def write_line(
    sheet: Image.Image,
    place: tuple[int, int],
    text: str,
    width: int,
    size: int = 14,
    ink: tuple[int, int, int] = BRIGHT,
) -> None:
    """Write one line with its top left corner at `place`, cut after `width` pixels."""
    strip = Image.new("RGB", (width, round(1.3 * size)), BACKGROUND)
    # no more is drawn, which takes time in proportion; a character has at least a pixel
    ImageDraw.Draw(strip).text((0, 0), " ".join(text.split())[:width], ink, _font(size))
    sheet.paste(strip, place)


def _frames_at(path: Path, times: Sequence[float], width: int) -> Frames:
    """The video frames that are shown at these times, ascending, or the last one."""
    shown = []
    for time, frame in zip(times, read_frames(path, FrameTimes.of(path), times), strict=True):
        height = max(1, round(width * frame.shape[0] / frame.shape[1]))
        shown.append((time, scaled(Image.fromarray(frame.numpy()), width, height)))
    return shown


def scaled(image: Image.Image, width: int, height: int) -> Image.Image:
    """An image of another size, whose pixels are squares where it is larger."""
    return image.resize((width, height), Image.Resampling.BOX)


_font = lru_cache(ImageFont.load_default)
