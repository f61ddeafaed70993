"""Cues of SubRip and WebVTT: their times and their words.

No library reads them here: pysubs2 1.8 drops words above the first cue without a word, srt 3.5
reads SubRip alone, and neither says in which line a cue stands.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace

from ..characters import fold, plain
from ..prompt import Prompt, TimelineError
from ..times import TO
from .headings import seconds_in

_CUE_TIME = r"\d{1,4}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?"
_CUE_SETTINGS = r"(?: {1,8}\w{1,20}:\S{1,40}){0,8} {0,8}"
CUE = re.compile(rf" {{0,8}}({_CUE_TIME}) {{0,8}}--> {{0,8}}({_CUE_TIME}){_CUE_SETTINGS}", re.ASCII)
NUMBER = re.compile(r" {0,8}\d{1,9} {0,8}", re.ASCII)
# what is meant as the time of a cue: "00:00:10,000 -> 00:00:20,000", "0:10 → 0:20"
_LIKE_CUE = re.compile(rf"\s*\d{{1,4}}:\d\d(?:(?::\d\d)?[.,:]\d|[\d:.,]{{0,12}}{TO}\d)|.*-->")
# tags, and the times of WebVTT inside a cue: "<c.yellow>", "<00:01.000>"
_MARKUP = re.compile(r"</?[a-z][^<>]{0,200}>|<\d[\d:.,]{2,20}>", re.ASCII | re.IGNORECASE)
_OVERRIDE = re.compile(r"\{\\[^{}]{0,99}\}")  # of ASS in SubRip: "{\an8}"
# not of a character's name, which ends with ";"
_PLAIN_AND = re.compile(
    r"&(?!(?:#\d{1,6}|#x[\da-f]{1,5}|[a-z]\w{1,30});)", re.ASCII | re.IGNORECASE
)


def is_number_of_cue(lines: Sequence[str], index: int) -> bool:
    """Whether a line is a number and the next one that is not empty the time of a cue."""
    if NUMBER.fullmatch(lines[index]) is None:
        return False
    for line in lines[index + 1 :]:
        if line.strip():
            return CUE.fullmatch(line) is not None
    return False


def new_cue(time: re.Match[str], index: int) -> Prompt:
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


def with_words(cue: Prompt, line: str) -> Prompt:
    return replace(cue, text=f"{cue.text} {_words(line)}".strip())


def refuse_like_cue(line: str, index: int) -> None:
    if _LIKE_CUE.match(plain(line)):
        raise TimelineError(
            f"{line.strip()[:40]!r} is no time of a subtitle; write it on a line of its own, as "
            "in 00:00:05.000 --> 00:00:10.000",
            index + 1,
        )


def belongs_to_none(line: str, index: int) -> TimelineError:
    return TimelineError(
        f"{line.strip()[:40]!r} belongs to no subtitle; put it below a time, as in 00:00:05.000 "
        "--> 00:00:10.000, or remove it",
        index + 1,
    )


def _words(line: str) -> str:
    """A line of a cue without markup, with characters in place of their names."""
    bare = _OVERRIDE.sub("", _MARKUP.sub("", line))
    return fold(html.unescape(_PLAIN_AND.sub("&amp;", bare)))
