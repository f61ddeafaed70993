"""Texts of other programs as lines of a timeline: subtitles, and what stands in a fence of chat
programs.
"""

from __future__ import annotations

import html
import re

from .characters import fold

_CUE_TIME = r"\d{1,4}:\d\d(?::\d\d)?[.,]\d{1,9}"
_CUE_SETTINGS = r"(?: {1,8}\w{1,20}:\S{1,40}){0,8} {0,8}"
_CUE_LINE = rf" {{0,8}}({_CUE_TIME}) {{1,8}}--> {{1,8}}({_CUE_TIME}){_CUE_SETTINGS}"
_CUE = re.compile(_CUE_LINE, re.ASCII)
_CUE_NUMBER = re.compile(rf"^ {{0,8}}\d{{1,9}} {{0,8}}$(?=\n{_CUE_LINE}$)", re.ASCII | re.MULTILINE)
_MARKUP = re.compile(r"</?[a-z][^<>]{0,200}>", re.ASCII | re.IGNORECASE)
_OVERRIDE = re.compile(r"\{\\[^{}]{0,99}\}")  # of ASS in SubRip: "{\an8}"
# not of a character's name, which ends with ";"
_PLAIN_AND = re.compile(
    r"&(?!(?:#\d{1,6}|#x[\da-f]{1,5}|[a-z]\w{1,30});)", re.ASCII | re.IGNORECASE
)
_FENCE = re.compile(r"^ {0,8}(?:`{3,9}|~{3,9})[\w-]{0,20} {0,8}$", re.ASCII | re.MULTILINE)


def to_timeline(text: str) -> str:
    """A text without code fences, and with SubRip and WebVTT subtitles as lines of a timeline; it
    has as many lines as before.
    """
    text = _CUE_NUMBER.sub("", _FENCE.sub("", text))
    lines = text.split("\n")
    begin = text.lstrip().partition("\n")[0]
    if not begin.startswith("WEBVTT") and not _CUE.fullmatch(begin):
        return text
    result = [""] * len(lines)
    cue = -1  # the line of the cue that is open
    for number, line in enumerate(lines):
        time = _CUE.fullmatch(line)
        if time is not None:
            cue = number
            result[cue] = f"[{time[1]}-{time[2]}]:".replace(",", ".")
        elif not line.strip():
            cue = -1
        elif cue >= 0:
            result[cue] += f" {_words(line)}"
    return "\n".join(result)


def _words(line: str) -> str:
    """A line of a cue without markup, with characters in place of their names."""
    bare = _OVERRIDE.sub("", _MARKUP.sub("", line))
    return fold(html.unescape(_PLAIN_AND.sub("&amp;", bare)))
