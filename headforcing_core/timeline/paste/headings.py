"""Beginnings of lines of a timeline: times and scenes, in the forms that people and other programs
write.

A line is normalised before it is read: bullets and marks of bold type at its beginning are left
out, and full-width forms are ASCII.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from ..characters import plain
from ..clock import MAX_SECONDS, cut_to_millisecond
from ..prompt import TimelineError
from ..times import (
    FLAGS,
    IN_BRACKETS,
    MINUTES_WORD,
    NUMBER,
    SCENE,
    SEPARATORS,
    SHOT,
    SPOKEN,
    TIMES,
    TITLE_RANGE,
)

ALONE = rf"\s{{0,8}}(?:[.)](?=\s|$)|(?=[*_`{SEPARATORS}]|$))"
_BEHIND_NAME = rf"\s{{0,8}}(?:[.{SEPARATORS}]\s{{0,8}})?{TIMES}"
_BOX = r"(?P<box>[\[(]\s{0,8})?"
_CLOSED = r"(?(box)\s{0,8}[\])])"
_TIMED = {  # by the name that stands before the time
    "": re.compile(TIMES, FLAGS),
    "scene": re.compile(f"{_BOX}{SCENE}{_CLOSED}{_BEHIND_NAME}", FLAGS),
    "shot": re.compile(f"{_BOX}{SHOT}{_CLOSED}{_BEHIND_NAME}", FLAGS),
}
_ALONE = {
    "scene": re.compile(f"{_BOX}{SCENE}{_CLOSED}(?(box)|{ALONE})", FLAGS),
    "shot": re.compile(f"{SHOT}{ALONE}", FLAGS),
}
SHOT_ALONE = _ALONE["shot"]
_TITLE_RANGE = re.compile(TITLE_RANGE, FLAGS)
_MARKED_TIME = re.compile(r"[*_`]{1,3}[\[(]?\s?\d", FLAGS)
_SPOKEN = re.compile(SPOKEN, FLAGS)
_SEPARATOR = re.compile(rf"\s*(?:-{{1,2}}>|=>|[{SEPARATORS}])?\s*")
_MARKUP = re.compile(  # bullet, heading, number; bold, italics, code
    r"[\s\x7f]*(?:(?:[-+*•‣▪●·>–—]\s|#{1,6}\s|##|\(?\d{1,3}[.)]\s)\s{0,7}){0,3}(?P<bold>\*{1,3}|_{1,2}|`)?"
)
TIME_IN_BRACKETS = re.compile(rf"{IN_BRACKETS}\]", FLAGS)
_DIGITS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_MINUTES = re.compile(rf"{NUMBER}\s?(?:{MINUTES_WORD}|m)(?P<seconds>.*\d)?", FLAGS | re.DOTALL)


@dataclass(frozen=True)
class Heading:
    """A time, or a scene with or without one, at the start of a line.

    Attributes:
        name: "scene" or "shot" where its name and number stand before the time, else "".
        start, end: as in the line, with ASCII digits; "" where there is none.
        token: all of it as it is written, for messages.
        words: the rest of the line.
        same: the words as `plain` has them.
        bare: no square brackets are around the time, so that it can be a ratio or a time of day.
        spoken: it can be words of a prompt, "80s neon", "5 seconds later".
    """

    name: str
    start: str
    end: str
    token: str
    words: str
    same: str
    bare: bool
    spoken: bool


@dataclass(frozen=True)
class Line:
    """A line of a text, or a piece of one.

    Attributes:
        number: from 1.
        text: without white space around it.
        same: the text as `plain` has it.
        unmarked: the same without bullets and bold type at its beginning.
    """

    number: int
    text: str
    same: str
    unmarked: str
    heading: Heading | None


def read_lines(text: str) -> list[Line]:
    """The lines of a text, each with its heading."""
    lines = text.split("\n")
    pairs = zip(lines, plain(text).split("\n"), strict=True)
    return [_read_line(number, line, same) for number, (line, same) in enumerate(pairs, 1)]


def read_line(number: int, text: str) -> Line:
    """A line with its heading."""
    return _read_line(number, text, plain(text))


def _read_line(number: int, text: str, same: str) -> Line:
    text = text.strip()
    same = same.strip()
    begin = 0
    bold = None
    markup = _MARKUP.match(same)
    if markup is not None:
        begin = markup.end()
        bold = markup["bold"]
    heading = _read_heading(text[begin:], same[begin:], bold)
    return Line(number, text, same, same[begin:], heading)


def _read_heading(line: str, same: str, bold: str | None) -> Heading | None:
    """The time or the scene at the start of a line, `same` as `plain` has it; None for words.
    `bold` is the mark that was before it.
    """
    for name, form in _TIMED.items():
        found = form.match(same)
        if found is not None and (not name or _has_start(found)):
            words, same_words = _words(line[found.end() :], same[found.end() :], bold)
            return Heading(
                name,
                found["start"],
                found["end"] or "",
                line[: found.end()],
                words,
                same_words,
                bare=found["square"] is None,
                spoken=_SPOKEN.match(same) is not None,
            )
    for name, form in _ALONE.items():
        found = form.match(same)
        if found is not None:
            words, same_words = _words(line[found.end() :], same[found.end() :], bold)
            return _read_title(name, line[: found.end()], words, same_words)
    return None


def _has_start(found: re.Match[str]) -> bool:
    """Whether the time behind the name of a scene says when it begins: "(5 s)" can be its length,
    and a clock without brackets its words.
    """
    if found["end"] or found["square"]:
        return True
    return ":" in found["start"] and bool(found["round"])


def _words(words: str, same: str, bold: str | None) -> tuple[str, str]:
    """The words behind a heading without what separates them from it, and the end of bold type; and
    the same as `plain` has them.
    """
    end = -1
    if bold:
        end = same.find(bold)
    if bold and end >= 0:
        words = words[:end] + words[end + len(bold) :]
        same = same[:end] + same[end + len(bold) :]
    separator = _SEPARATOR.match(same)
    begin = separator.end() if separator else 0
    return words[begin:], same[begin:]


def _read_title(name: str, token: str, words: str, same: str) -> Heading | None:
    """A scene or shot with the range in its title as its time: "Scene 1: The Forest
    (0:00-0:10)"; None for a shot without one, and before a time in bold, italics or code.
    """
    found = _TITLE_RANGE.search(same)
    start = end = ""
    if found is not None:
        start = found["start"]
        end = found["end"]
        title = words[: found.start()].rstrip(f" ,{SEPARATORS}")
        words = f"{title} {words[found.end() :].strip()}".strip()
        same = plain(words)
    elif name == "shot" or _MARKED_TIME.match(same):
        return None
    return Heading(name, start, end, token, words, same, bare=True, spoken=False)


def seconds_of(token: str) -> float:
    """Seconds of `h:mm:ss`, `m:ss`, `1m 30s`, `1 min`, `s` or `ss`, each with an optional fraction
    and an optional unit.
    """
    numbers = [float(number) for number in _DIGITS.findall(token.replace(",", "."))]
    minutes = _MINUTES.match(token)
    if minutes is not None and not minutes["seconds"]:
        numbers.append(0.0)
    return functools.reduce(lambda total, part: total * 60 + part, numbers, 0.0)


def seconds_in(token: str, line: int) -> float | None:
    """The value of a time, None for ""; TimelineError for one that is written wrongly or too
    late.
    """
    if not token:
        return None
    if re.search(r":[6-9]\d", token):
        raise TimelineError(
            f"{token!r} is not a time; after a colon the numbers go from 00 to 59", line
        )
    value = seconds_of(token)
    if value > MAX_SECONDS:
        raise TimelineError(
            f"{token!r} is after the end of the longest video ({MAX_SECONDS:.0f} s)", line
        )
    return cut_to_millisecond(value)
