"""One picture of several videos of one story: a row for each video, a column for each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw

from ..errors import HeadForcingError
from ..files import replacing
from ..timeline.clock import format_time
from .contact_sheet import Label, fitted, font
from .reader import open_video

MAX_COLUMNS = 12
AFTER_SECONDS = 3.0  # of a prompt, at most, before the frame that stands for it
_TILE, _NAME_WIDTH, _GAP, _MARGIN = 160, 210, 6, 16
_TITLE, _LINE, _LINES = 54, 17, 4  # pixels of the title and of a line of a prompt, and lines at most
_BACKGROUND, _BRIGHT, _DIM = (24, 26, 31), (240, 240, 244), (150, 154, 164)
_COLOURS = ((86, 156, 255), (255, 159, 64), (90, 200, 130), (226, 110, 170), (240, 208, 80), (150, 130, 255))


def returned(prompts: Sequence[str]) -> list[int]:
    """For every prompt the number of the earlier one with the same text, others between, or -1."""
    return [
        prompts.index(text) if text in prompts[: max(0, i - 1)] and text != prompts[i - 1] else -1
        for i, text in enumerate(prompts)
    ]


def side_by_side(out_png: Path, videos: Sequence[tuple[str, Path]], prompts: Sequence[Label], seconds: float) -> Path:
    """Write a frame of every prompt and video as a PNG, with names, times and prompts.

    Prompts with the same text have the same colour, and one that comes back says so.

    Args:
        videos: name and file, of the same story and length.
        prompts: (start in seconds, text) in order; of more than twelve the first are drawn.
        seconds: length of the videos.

    Raises HeadForcingError without videos or prompts, and for an unreadable video.
    """
    if not videos or not prompts:
        raise HeadForcingError(f"a picture needs videos and prompts, got {len(videos)} and {len(prompts)}")
    starts = [*(start for start, _ in prompts), seconds]
    shown = list(prompts[:MAX_COLUMNS])
    times = [start + min(AFTER_SECONDS, (starts[i + 1] - start) / 2) for i, (start, _) in enumerate(shown)]
    tiles = [_frames_at(path, times) for _, path in videos]
    height = tiles[0][0].height
    head = _MARGIN + _TITLE + (_LINES + 1) * _LINE + 2 * _GAP
    left = _MARGIN + _NAME_WIDTH
    size = left + len(shown) * (_TILE + _GAP) - _GAP + _MARGIN, head + len(videos) * (height + _GAP) - _GAP + _MARGIN
    canvas = Image.new("RGB", size, _BACKGROUND)
    draw = ImageDraw.Draw(canvas)
    texts = [text for _, text in shown]
    for i, (title, ink) in enumerate(zip(_title(texts, len(videos)), (_BRIGHT, _DIM), strict=True)):
        draw.text((_MARGIN, _MARGIN + 22 * i), fitted(title, 17 - 3 * i, size[0] - 2 * _MARGIN), ink, font(17 - 3 * i))
    for column, (start, text) in enumerate(shown):
        corner = (left + column * (_TILE + _GAP), _MARGIN + _TITLE)
        _draw_prompt(draw, corner, start, text, texts.index(text), returned(texts)[column] >= 0)
    for row, ((name, _), line) in enumerate(zip(videos, tiles, strict=True)):
        top = head + row * (height + _GAP)
        for i, words in enumerate(wrap(name, 26)[:_LINES]):
            draw.text((_MARGIN, top + i * _LINE), fitted(words, 14, _NAME_WIDTH - _GAP), _BRIGHT, font(14))
        for column, tile in enumerate(line):
            canvas.paste(tile, (left + column * (_TILE + _GAP), top))
    with replacing(out_png) as temporary:
        canvas.save(temporary, format="PNG")
    return out_png


def _title(texts: Sequence[str], videos: int) -> tuple[str, str]:
    """What is shown, and how to look at it."""
    what = f"One story, the same noise, {videos} caches" if videos > 1 else "One story"
    if any(number >= 0 for number in returned(texts)):
        return what, "Equal colours, equal prompts. Does what comes back look as it did before?"
    return what, "A column for each prompt, a row for each video."


def _draw_prompt(
    draw: ImageDraw.ImageDraw, corner: tuple[int, int], start: float, text: str, number: int, again: bool
) -> None:
    """The bar, the time and the text of a prompt above its column."""
    left, top = corner
    time = format_time(round(start)).split(".")[0] + (", again" if again else "")
    draw.text((left, top), time, _BRIGHT, font(14))
    for i, words in enumerate(wrap(text, 24)[:_LINES]):
        draw.text((left, top + (i + 1) * _LINE), fitted(words, 13, _TILE), _DIM, font(13))
    bar = top + (_LINES + 1) * _LINE + 2
    draw.rectangle((left, bar, left + _TILE - 1, bar + 4), _COLOURS[number % len(_COLOURS)])


def _frames_at(path: Path, times: Sequence[float]) -> list[Image.Image]:
    """The video frames that are shown at these times, ascending, or the last one; `_TILE` pixels wide."""
    found: list[Image.Image] = []
    with open_video(path) as container:
        stream = container.streams.video[0]
        height = max(1, round(_TILE * stream.height / stream.width))
        how = "AREA" if stream.width > _TILE else "POINT"
        last = None
        for frame in container.decode(stream):
            last = frame
            while len(found) < len(times) and float(frame.time or 0) >= times[len(found)]:
                found.append(frame.to_image(width=_TILE, height=height, interpolation=how))
            if len(found) == len(times):
                break
    if last is None:
        raise HeadForcingError(f"{path} has no frames that can be decoded.")
    rest = last.to_image(width=_TILE, height=height, interpolation=how)
    return found + [rest] * (len(times) - len(found))
