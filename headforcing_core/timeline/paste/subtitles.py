"""Subtitles, SubRip and WebVTT: a prompt for each cue.

No library reads them here: those that there are move or drop words outside a cue without a word,
and do not say in which line they stand.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace

from ..characters import fold, plain
from ..prompt import Prompt, TimelineError
from ..times import TO
from .headings import read_line, seconds_in

_CUE_TIME = r"\d{1,4}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?"
_CUE_SETTINGS = r"(?: {1,8}\w{1,20}:\S{1,40}){0,8} {0,8}"
_CUE = re.compile(
    rf" {{0,8}}({_CUE_TIME}) {{0,8}}--> {{0,8}}({_CUE_TIME}){_CUE_SETTINGS}", re.ASCII
)
_NUMBER = re.compile(r" {0,8}\d{1,9} {0,8}", re.ASCII)
# what is meant as the time of a cue: "00:00:10,000 -> 00:00:20,000", "0:10 → 0:20"
_LIKE_CUE = re.compile(rf"\s*\d{{1,4}}:\d\d(?:(?::\d\d)?[.,:]\d|[\d:.,]{{0,12}}{TO}\d)|.*-->")
_HEADER = re.compile(r"[A-Za-z][A-Za-z-]{0,30} ?[:=]")  # "Kind: captions"
_BLOCK = re.compile(r"NOTE(?: |$)|(?:STYLE|REGION) *$")  # of WebVTT, up to an empty line
# tags, and the times of WebVTT inside a cue: "<c.yellow>", "<00:01.000>"
_MARKUP = re.compile(r"</?[a-z][^<>]{0,200}>|<\d[\d:.,]{2,20}>", re.ASCII | re.IGNORECASE)
_OVERRIDE = re.compile(r"\{\\[^{}]{0,99}\}")  # of ASS in SubRip: "{\an8}"
# not of a character's name, which ends with ";"
_PLAIN_AND = re.compile(
    r"&(?!(?:#\d{1,6}|#x[\da-f]{1,5}|[a-z]\w{1,30});)", re.ASCII | re.IGNORECASE
)


def read_subtitles(text: str) -> list[Prompt] | None:
    """The prompts of subtitles; None for another text.

    Raises TimelineError for a line that belongs to no cue.
    """
    lines = text.split("\n")
    written = [line for line in lines if line.strip()]
    if written and written[0].lstrip().startswith("WEBVTT"):
        return _read_webvtt(lines)
    return _read_subrip(lines) if _begins_subrip(written) else None


def _begins_subrip(written: Sequence[str]) -> bool:
    """Whether the first lines are the number and the time of a cue, or a time with a fraction."""
    if len(written) > 1 and _NUMBER.fullmatch(written[0]):
        return _CUE.fullmatch(written[1]) is not None
    time = _CUE.fullmatch(written[0]) if written else None
    return time is not None and re.search("[.,]", time[1]) is not None


def _read_subrip(lines: Sequence[str]) -> list[Prompt]:
    """Words below an empty line belong to the cue above, as FFmpeg reads them."""
    cues: list[Prompt] = []
    after_empty = False
    for index, line in enumerate(lines):
        time = _CUE.fullmatch(line)
        if time is not None:
            cues.append(_cue(time, index))
            after_empty = False
        elif not line.strip():
            after_empty = True
        elif not _is_number_of_cue(lines, index):
            _refuse_like_cue(line, index)
            if after_empty and _begins_otherwise(line):
                raise _belongs_to_none(line, index)
            cues[-1] = _with_words(cues[-1], line)
    return cues


def _read_webvtt(lines: Sequence[str]) -> list[Prompt]:
    """An empty line, without even a space, ends a cue or another block."""
    cues: list[Prompt] = []
    first = next(index for index, line in enumerate(lines) if line.strip())
    block = "header"
    for index, line in enumerate(lines[first + 1 :], first + 1):
        time = _CUE.fullmatch(line)
        if time is not None:
            cues.append(_cue(time, index))
            block = "cue"
        elif not line:
            block = ""
        elif block == "other" or _is_number_of_cue(lines, index):
            continue
        elif block == "cue":
            _refuse_like_cue(line, index)
            cues[-1] = _with_words(cues[-1], line)
        elif not block and _BLOCK.match(line):
            block = "other"
        elif line.strip() and not _is_outside(lines, index, block):
            _refuse_like_cue(line, index)
            raise _belongs_to_none(line, index)
    return cues


def _is_outside(lines: Sequence[str], index: int, block: str) -> bool:
    """Whether a line of WebVTT without a cue is the name of the next cue or a field of the
    header.
    """
    below = lines[index + 1] if index + 1 < len(lines) else ""
    named = "-->" not in lines[index] and _CUE.fullmatch(below) is not None
    return named or (block == "header" and _HEADER.match(lines[index]) is not None)


def _is_number_of_cue(lines: Sequence[str], index: int) -> bool:
    """Whether a line is a number and the next one that is not empty the time of a cue."""
    if _NUMBER.fullmatch(lines[index]) is None:
        return False
    for line in lines[index + 1 :]:
        if line.strip():
            return _CUE.fullmatch(line) is not None
    return False


def _begins_otherwise(line: str) -> bool:
    """Whether a line below an empty one begins as a prompt of its own, or is a number alone."""
    heading = read_line(1, line).heading
    return _NUMBER.fullmatch(line) is not None or (heading is not None and not heading.spoken)


def _cue(time: re.Match[str], index: int) -> Prompt:
    """A cue without words yet."""
    start = time[1].replace(",", ".")
    end = time[2].replace(",", ".")
    line = index + 1
    return Prompt(
        "",
        line,
        start=seconds_in(start, line),
        end=seconds_in(end, line),
        token=f"{start}-{end}",
    )


def _with_words(cue: Prompt, line: str) -> Prompt:
    return replace(cue, text=f"{cue.text} {_words(line)}".strip())


def _refuse_like_cue(line: str, index: int) -> None:
    if _LIKE_CUE.match(plain(line)):
        raise TimelineError(
            f"{line.strip()[:40]!r} is no time of a subtitle; write it on a line of its own, as "
            "in 00:00:05.000 --> 00:00:10.000",
            index + 1,
        )


def _belongs_to_none(line: str, index: int) -> TimelineError:
    return TimelineError(
        f"{line.strip()[:40]!r} belongs to no subtitle; put it below a time, as in 00:00:05.000 "
        "--> 00:00:10.000, or remove it",
        index + 1,
    )


def _words(line: str) -> str:
    """A line of a cue without markup, with characters in place of their names."""
    bare = _OVERRIDE.sub("", _MARKUP.sub("", line))
    return fold(html.unescape(_PLAIN_AND.sub("&amp;", bare)))
