"""Beginnings of lines that look like a time or a scene and cannot be read as one; as words of a
prompt they would silently give another video.
"""

from __future__ import annotations

import re

from ..languages import LENGTHS
from ..times import (
    CLOCK,
    DURATION,
    FLAGS,
    NO_TIME_OF_DAY,
    NUMBER,
    NUMBER_OR_TIME,
    SCENE,
    SEPARATORS,
    SHOT,
    TIME,
    TO,
)
from .headings import ALONE, Line

RANGE = rf"{NUMBER_OR_TIME}{TO}{TIME}"
RANGE_OR_DURATION = rf"(?:{RANGE}|{DURATION}|00?:\d\d)"
# beginnings of lines that are no heading, without markup
_OPEN = r"[<{@~≈+'\"(\[]?\s{0,2}"
# \x7f stands for marks of direction, see `plain`
_COLON = r"[\s\x7f]{0,2}:[\s\x7f]{0,2}"
_END_OF_NAME = rf"\s{{0,8}}(?:[.,、()\[\]*_`{SEPARATORS}]|$)"  # not as in "Scene 2 of the play"
_SURELY = (  # also where only one line begins so
    rf"\[\s{{0,8}}\d{{1,9}}:\d|{_OPEN}00?{_COLON}\d\d{NO_TIME_OF_DAY}"
    rf"|[\[(]?\s?(?:{SCENE}{_END_OF_NAME}|{SHOT}\s{{0,8}}[{SEPARATORS}]?\s?[\[(]\s?\d)"
    rf"|(?:total\s)?(?:{LENGTHS})[*_`]{{0,3}}\s?[:=]\s?[*_`]{{0,3}}\s?[~≈]?[\[(]?\s?"
    rf"{RANGE_OR_DURATION}(?!\w){NO_TIME_OF_DAY}"
)
_NEARLY = (  # "0: 10 b", "0:10 pm b", "5s, b", "5-10 s b"; "1920s" and "6:00 pm" are words
    rf"{_OPEN}\d{{1,3}}{_COLON}\d{{1,2}}(?!\d)[\d:;.,]{{0,12}}{NO_TIME_OF_DAY}"
    r"|00?:\d\d\s?[ap]\.?m\b|00?\.\d\d(?=\s)"
    rf"|{_OPEN}(?!\d{{4}}s)(?:{NUMBER_OR_TIME}{TO})?{DURATION}(?!['’\w])"
    rf"|\[\s{{0,8}}{NUMBER_OR_TIME}(?:{TO}{NUMBER_OR_TIME})?\s{{0,8}}\]"
    rf"|(?:{NUMBER_OR_TIME}{TO})?{NUMBER}\s[ms](?=\s?:)|{SHOT}{ALONE}|{SCENE}"
)
# below a scene without a time a number is more likely of its words: "30m tall", "16:9 frame"
_AS_HEADING = (
    rf"{RANGE_OR_DURATION}\s?(?:[:|–—]|-\s|$)|{CLOCK}\s?$|{SCENE}|(?!\d*0s)\d{{1,9}}s\s"
    rf"|[\[(]\s?(?:{NUMBER_OR_TIME}{TO})?{NUMBER_OR_TIME}\s?[\])]"
)
_SURE = re.compile(_SURELY, FLAGS)
_LIKE = re.compile(f"{_SURELY}|{_NEARLY}", FLAGS)
_LIKE_BELOW_SCENE = re.compile(f"{_SURELY}|{_AS_HEADING}", FLAGS)


def is_surely_heading(line: Line) -> bool:
    """Whether a line without a heading begins as only a time or a scene does: "[0:00-0:2O] a"."""
    return _SURE.match(line.unmarked) is not None


def is_like_heading(line: Line) -> bool:
    """Whether a line begins nearly as a time or a scene."""
    return _LIKE.match(line.unmarked) is not None


def is_like_heading_below_scene(line: Line) -> bool:
    """Whether a line begins nearly as a time or a scene, where only a scene without a time is
    above it.
    """
    return _LIKE_BELOW_SCENE.match(line.unmarked) is not None
