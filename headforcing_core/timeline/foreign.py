"""Texts of other programs as lines of a timeline: subtitles, and what stands in a fence of chat
programs.
"""

from __future__ import annotations

import html
import re

from .characters import fold

_CUE_TIME = r"\d{1,4}:\d\d(?::\d\d)?[.,]\d{1,9}"
_CUE = re.compile(
    rf"\s{{0,8}}({_CUE_TIME})\s{{1,8}}-->\s{{1,8}}({_CUE_TIME})(?:\s{{1,8}}\w{{1,20}}:\S{{1,40}}){{0,8}}\s{{0,8}}",
    re.ASCII,
)
_MARKUP = re.compile(r"</?[a-z][^<>]{0,200}>", re.ASCII | re.IGNORECASE)
_OVERRIDE = re.compile(r"\{\\[^{}]{0,99}\}")  # of ASS in SubRip: "{\an8}"
_FENCE = re.compile(r"\s{0,8}(?:`{3,9}|~{3,9})[\w-]{0,20}\s{0,8}", re.ASCII)


def without_fences(lines: list[str]) -> list[str]:
    """The lines, those of a code fence empty."""
    return ["" if _FENCE.fullmatch(line) else line for line in lines]


def without_subtitles(lines: list[str]) -> list[str]:
    """The lines of SubRip and WebVTT subtitles as those of a timeline, as many as before; other
    lines as they are.
    """
    written = [line for line in lines if line.strip()]
    vtt = bool(written) and written[0].startswith("WEBVTT")
    if not vtt and not any(map(_CUE.fullmatch, written[:2])):
        return lines
    result = [""] * len(lines)
    cue = -1  # the line of the cue that is open
    for number, line in enumerate(lines):
        time = _CUE.fullmatch(line)
        if time is not None:
            cue = number
            result[cue] = f"[{time[1]}-{time[2]}]:".replace(",", ".")
        elif not line.strip():
            cue = -1
        elif cue >= 0 and not _names_cue(lines, number):
            result[cue] += f" {_words(line)}"
    return result


def _words(line: str) -> str:
    """A line of a cue without markup, with characters in place of their names."""
    bare = _OVERRIDE.sub("", _MARKUP.sub("", line))
    return fold(html.unescape(bare))


def _names_cue(lines: list[str], number: int) -> bool:
    """Whether a line holds only the number of the cue that begins on the next one."""
    below = lines[number + 1] if number + 1 < len(lines) else ""
    return lines[number].strip().isdigit() and _CUE.fullmatch(below) is not None
