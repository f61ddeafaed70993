"""Sheets as PNG: evenly spaced frames of one video, or a frame of each prompt of several videos of
one story.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from textwrap import wrap

import av
from PIL import Image, ImageDraw, ImageFont

from ..errors import HeadForcingError
from ..files import replacing
from ..timeline.clock import VIDEO_FPS, format_time
from .reader import open_video

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
_ROUNDING = 0.004  # seconds by which containers round timestamps at worst

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

    def stamp(self, x: int, y: int, text: str) -> None:
        """Write a short text on a ground of its own."""
        self._draw.rectangle((x, y, x + font(12).getlength(text) + 6, y + 15), BACKGROUND)
        self._draw.text((x + 3, y + 1), text, BRIGHT, font(12))

    def mark(self, left: int, top: int, right: int, height: int, prompt: int) -> None:
        """Draw the bar of a prompt."""
        self._draw.rectangle(
            (left, top, right - 1, top + height - 1), _COLOURS[prompt % len(_COLOURS)]
        )

    def save(self, path: str | Path) -> Path:
        with replacing(path) as temporary:
            self.image.save(temporary, format="PNG")
        return Path(path)


def contact_sheet(
    video_path: str | Path, out_png: str | Path, labels: Sequence[Label] = ()
) -> Path:
    """Write evenly spaced video frames with their times as a PNG, with the text and a bar in a
    colour for each prompt.

    `labels` are (start in seconds, prompt). Raises HeadForcingError for an unreadable video.
    """
    with open_video(video_path) as container:
        stream = container.streams.video[0]
        rate = float(stream.average_rate or VIDEO_FPS)
        # estimated from the duration where the container does not store it
        frames = max(
            stream.frames or int((stream.duration or 0) * (stream.time_base or 0) * rate), 1
        )
        size = f"{stream.width} x {stream.height} pixels"
    count = min(COLUMNS * ROWS, frames)
    times = [round(i * (frames - 1) / max(count - 1, 1)) / rate for i in range(count)]
    tiles = list(zip(times, _frames_at(Path(video_path), times, 128), strict=True))
    lines = [tiles[i : i + COLUMNS] for i in range(0, len(tiles), COLUMNS)]
    prompts = sorted(labels)
    starts = [start for start, _ in prompts]
    strip = _STRIP if labels else 0
    gap = 4
    head = _MARGIN + 34
    step = tiles[0][1].width + gap
    line_height = strip + tiles[0][1].height + gap
    width = 2 * _MARGIN + len(lines[0]) * step - gap
    sheet = Sheet(width, head + len(lines) * line_height - gap + _MARGIN)
    length = f"{frames / rate:.1f} s \u00b7 {frames} frames at {rate:g} fps"
    title = f"{Path(video_path).name} \u00b7 {length} \u00b7 {size}"
    sheet.write(_MARGIN, _MARGIN, title, size=17, width=width - 2 * _MARGIN)
    # whole seconds would repeat on adjacent tiles of a short video
    tenths = tiles[-1][0] < len(tiles) - 1
    begun: set[int] = set()
    for number, line in enumerate(lines):
        top = head + number * line_height
        left = _MARGIN
        of_tiles = [bisect_right(starts, seconds) - 1 for seconds, _ in line]
        for prompt, members in groupby(of_tiles):
            right = left + len(list(members)) * step
            if prompt >= 0:
                start, text = prompts[prompt]
                bar_top = top + _STRIP - 7
                sheet.mark(left, bar_top, right - gap, height=4, prompt=prompt)
                ink = _DIM
                if prompt not in begun:
                    text = f"{_stamp(start)}  {text}"
                    ink = BRIGHT
                sheet.write(left, top + 1, text, size=14, width=right - gap - left, ink=ink)
                begun.add(prompt)
            left = right
        for column, (seconds, tile) in enumerate(line):
            corner = _MARGIN + column * step, top + strip
            sheet.image.paste(tile, corner)
            sheet.stamp(*corner, _stamp(seconds, tenths))
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
        start + min(AFTER_SECONDS, (starts[i + 1] - start) / 2)
        for i, start in enumerate(starts[: len(texts)])
    ]
    # pixels; lines of a text at most
    tile = 160
    gap = 6
    name_width = 210
    line = 17
    lines = 4
    rows = [_frames_at(path, times, tile) for _, path in videos]
    top = _MARGIN + 54
    head = top + (lines + 1) * line + 2 * gap
    left = _MARGIN + name_width
    row_height = rows[0][0].height + gap
    width = left + len(texts) * (tile + gap) - gap + _MARGIN
    sheet = Sheet(width, head + len(videos) * row_height - gap + _MARGIN)
    again = [texts.index(text) < column for column, text in enumerate(texts)]
    story = "One story"
    if len(videos) > 1:
        story = f"One story, the same noise, {len(videos)} caches"
    advice = "A column for each prompt, a row for each video."
    if any(again):
        advice = "Equal colours, equal prompts. Does what comes back look as it did before?"
    text_width = width - 2 * _MARGIN
    sheet.write(_MARGIN, _MARGIN, story, size=17, width=text_width)
    sheet.write(_MARGIN, _MARGIN + 22, advice, size=14, width=text_width, ink=_DIM)
    for column, (start, text) in enumerate(zip(starts, texts, strict=False)):
        x = left + column * (tile + gap)
        time = format_time(round(start)).split(".")[0]
        if again[column]:
            time += ", again"
        sheet.write(x, top, time, size=14, width=tile)
        for i, words in enumerate(wrap(text, 24)[:lines], 1):
            sheet.write(x, top + i * line, words, size=13, width=tile, ink=_DIM)
        bar_top = top + (lines + 1) * line + 2
        sheet.mark(x, bar_top, x + tile, height=5, prompt=texts.index(text))
    for row, ((name, _), tiles) in enumerate(zip(videos, rows, strict=True)):
        y = head + row * row_height
        for i, words in enumerate(wrap(name, 26)[:lines]):
            sheet.write(_MARGIN, y + i * line, words, size=14, width=name_width - gap)
        for column, image in enumerate(tiles):
            sheet.image.paste(image, (left + column * (tile + gap), y))
    return sheet.save(out_png)


def scale_frame(frame: av.VideoFrame, width: int, height: int | None = None) -> Image.Image:
    """A frame as an image of this width, in its own proportions where no height is given."""
    height = height or max(1, round(width * frame.height / frame.width))
    return frame.to_image(
        width=width, height=height, interpolation="AREA" if frame.width > width else "POINT"
    )


def _frames_at(path: Path, times: Sequence[float], width: int) -> list[Image.Image]:
    """The video frames that are shown at these times, ascending, or the last one."""
    shown: list[Image.Image] = []
    frame = None
    with open_video(path) as container:
        for frame in container.decode(video=0):
            while (
                len(shown) < len(times) and float(frame.time or 0) >= times[len(shown)] - _ROUNDING
            ):
                shown.append(scale_frame(frame, width))
            if len(shown) == len(times):
                return shown
    if frame is None:
        raise HeadForcingError(f"{path} has no frames that can be decoded.")
    return shown + [scale_frame(frame, width)] * (len(times) - len(shown))


def _stamp(seconds: float, tenths: bool = False) -> str:
    """`1:05`, or with tenths `1:05.3`; truncated, not rounded, as video players do."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02d}" + (f".{int(seconds * 10) % 10}" if tenths else "")


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
