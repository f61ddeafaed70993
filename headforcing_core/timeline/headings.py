"""Beginnings of lines of a timeline: times and scenes, in the forms that people and other programs
write.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from .characters import STRAIGHT_QUOTES
from .times import (
    BARE,
    BEGIN,
    BRACKETS,
    CLOCK,
    COMMAS,
    FLAGS,
    IN_SECONDS,
    MINUTES_WORD,
    NO_TIME_OF_DAY,
    NUMBER,
    NUMBER_OR_TIME,
    PARENTHESES,
    RANGE,
    SEPARATORS,
    SPOKEN,
    TIME,
    TO,
)

_ORDINAL = (
    r"(?:#\s?)?(?:\d{1,9}|[ivx]{1,5}|one|two|three|four|five|six|seven|eight|nine|ten"
    r"|[一二三四五六七八九十]{1,3})(?!\w)"
)
SCENE_NAME = (
    rf"(?:(?:scene|场景|場景|シーン|장면|씬)\s{{0,8}}{_ORDINAL}"
    rf"|第\s?{_ORDINAL}\s?(?:场景|場景|场|場|幕))"
)
# less clear than a scene, and read with a time only
SHOT_NAME = (
    r"(?:(?:shot|clip|part|segment|beat|prompt|section|chapter|act|sequence|step|keyframe"
    rf"|镜头|鏡頭|分镜|カット|ショット|샷|컷)\s{{0,8}}{_ORDINAL})"
)
_AND_SEPARATOR = rf"\s{{0,8}}(?:[.{SEPARATORS}]\s{{0,8}})?"
_SCENE_IN_BRACKETS = rf"[\[(]\s{{0,8}}{SCENE_NAME}\s{{0,8}}[\])]"
_SCENE = rf"(?:{SCENE_NAME}|{_SCENE_IN_BRACKETS}){_AND_SEPARATOR}"
_SHOT = rf"{SHOT_NAME}{_AND_SEPARATOR}"
_ALONE = rf"\s{{0,8}}(?:[.)](?=\s|$)|(?=[{SEPARATORS}]|(?P=bold)|$))"
_NO_TIME = r"(?P<start>(?!))?(?P<end>(?!))?"
_LIST_MARK = r"(?:(?:[-+*•‣▪●·>–—]|#{1,6}|\(?\d{1,3}[.)])\s{1,8}){0,3}"  # bullet, heading, number
BEFORE = rf"{_LIST_MARK}(?P<bold>\*{{1,3}}|_{{1,2}}|`)?"

# in words these join letters and set their direction: only those in and before a time are left out
_MARKS = (
    "\u061c\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e"
    "\u2066\u2067\u2068\u2069\ufe0e\ufe0f"
)
_BEFORE_WORDS = re.compile(rf"[\d:.,\s\-*()\[\]{_MARKS}]*[\d\])](?:[{_MARKS}]+(?=\s))?", re.ASCII)
_NO_MARKS = str.maketrans("", "", _MARKS)

_OPENING = "【〔〖「『"
_PLAIN = str.maketrans(
    {
        **{chr(0xFF01 + code): chr(0x21 + code) for code in range(94)},  # full-width forms of ASCII
        **dict.fromkeys(_OPENING, "["),
        **dict.fromkeys("】〕〗」』", "]"),
        **dict.fromkeys("〜∼～", "~"),
        **dict.fromkeys("‐‑‒−", "-"),
        **dict.fromkeys("∶︰", ":"),
    }
)
_PLAIN |= STRAIGHT_QUOTES


class Kind(Enum):
    """Kind of a heading. A decade and a duration may be words of a prompt: "80s neon", "5 seconds
    later".
    """

    TIME = "time"
    DURATION = "duration"
    DECADE = "decade"
    SCENE = "scene"


@dataclass(frozen=True)
class Heading:
    """A time, or a scene with or without one, at the start of a line.

    Attributes:
        start, end: as in the line, with ASCII digits; None where there is none.
        token: all of it as it is written, for messages.
        words: the rest of the line.
        bare: no square brackets are around the time, so that it can be a ratio or a time of day.
        named: the name and number of a scene or shot stand before the time.
    """

    kind: Kind
    start: str | None
    end: str | None
    token: str
    words: str
    bare: bool = False
    named: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a text, or a piece of one, without white space around it."""

    number: int  # from 1
    text: str
    heading: Heading | None

    @property
    def kind(self) -> Kind | None:
        """The kind of its heading."""
        return None if self.heading is None else self.heading.kind

    @property
    def time(self) -> Heading | None:
        """The time at its start, which is no decade."""
        return self.heading if self.kind in (Kind.TIME, Kind.DURATION) else None


# a form of a time at the start of a line, its pattern and an example
FORMS = (
    ("brackets", BRACKETS, "[0:00-0:05] a cat walks"),
    ("commas", COMMAS, "0:00,a cat walks"),
    ("a time", BARE, "0:00 a cat walks"),
    ("parentheses", PARENTHESES, "(0:00-0:05) a cat walks"),
    ("a shot in brackets", _SHOT + BRACKETS, "Shot 1 [0:00-0:05]: a cat walks"),
    ("a shot in parentheses", _SHOT + PARENTHESES, "Shot 1 (0:00-0:05): a cat walks"),
    ("a shot and a range", _SHOT + RANGE, "Shot 1: 0:00-0:05 a cat walks"),
)
_SCENES = (
    _SCENE + BRACKETS,
    _SCENE + PARENTHESES,
    _SCENE + RANGE,
    rf"(?:{SCENE_NAME}{_ALONE}|{_SCENE_IN_BRACKETS}){_NO_TIME}",
)
_TIMED = {name: re.compile(BEFORE + pattern, FLAGS) for name, pattern, _ in FORMS}
_SCENED = [re.compile(BEFORE + pattern, FLAGS) for pattern in _SCENES]
EXAMPLE = "0:00 a cat walks"

_DECADE = re.compile(r"[1-9]\d{0,8}0s\b", FLAGS)  # "80s", "1920s"
_SPOKEN = re.compile(SPOKEN, FLAGS)
_SEPARATOR = re.compile(rf"-{{1,2}}>|=>|[{SEPARATORS}]")
_SEPARATED = re.compile(r"\s?(?:[:|]|[–—-](?=\s))")
_TITLE_RANGES = (  # "The Forest (0:00-0:10)", "The Forest - 0:00-0:10"
    re.compile(
        rf"[\[(]\s{{0,8}}(?P<start>{NUMBER_OR_TIME}){TO}(?P<end>{TIME})\s{{0,8}}[\])]"
        rf"[*_`]{{0,3}}\s{{0,8}}(?:[{SEPARATORS}]|$)",
        FLAGS,
    ),
    re.compile(
        rf"(?:(?:^|(?<!\d)[,{SEPARATORS}])\s{{0,8}}|\s(?=00?:\d))"
        rf"(?P<start>{BEGIN}){TO}(?P<end>{TIME})[*_`]{{0,3}}[.:]?$",
        FLAGS,
    ),
)
_OPEN_MARK = re.compile(r"[*_`]{1,3}")
_MARK_AT_END = re.compile(r"\s[*_`]{1,3}$")
IN_BRACKETS = re.compile(rf"\[\s{{0,8}}(?:{NUMBER_OR_TIME}{TO})?{TIME}\s{{0,8}}\]", FLAGS)
BRACKET = re.compile(rf"[\[［{_OPENING}]")  # that `IN_BRACKETS` begins with
_SHORT = rf"(?:{CLOCK}|{IN_SECONDS})"
_AFTER_COMMA = re.compile(  # "a cat, 0:05 it jumps", "a cat, 5s-10s: it jumps"
    rf"[,;]\s{{0,8}}(?:{_SHORT}{TO}{_SHORT}|{CLOCK})[{SEPARATORS}]?\s{NO_TIME_OF_DAY}",
    FLAGS,
)
# "a cat 0:05 it jumps", "a cat (0:05-0:10) it jumps", "a cat 5-10s: it jumps", "0:05 a cat"
_AFTER_WORDS = re.compile(
    rf"(?:^|\s)(?:00?:\d\d(?:[.,]\d{{1,9}})?|\((?:00?:\d\d|{CLOCK}{TO}{CLOCK})\)"
    rf"|{NUMBER}{TO}{IN_SECONDS}(?=:))"
    rf"[{SEPARATORS}]?\s{NO_TIME_OF_DAY}",
    FLAGS,
)
_WORDS_IN_BRACKETS = re.compile(  # "[1s: waves]"; "[0:00:05]" is a time
    rf"\[(?!\s{{0,8}}{NUMBER_OR_TIME}(?:{TO}{NUMBER_OR_TIME})?\s{{0,8}}\])"
    rf"\s{{0,8}}(?:{NUMBER_OR_TIME}{TO})?{TIME}\s{{0,8}}(?P<colon>:)(?:[^\[\]]|\[[^\[\]]{{0,999}}\])*(?P<close>\])",
    FLAGS,
)
_FRAME = re.compile(r"""\s{0,8}["']?\d{1,9}["']?\s{0,8}:\s{0,8}["']""", re.ASCII)
NUMBERED = re.compile(BEFORE + SHOT_NAME + _ALONE + _NO_TIME, FLAGS)

_DIGITS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_MINUTES = re.compile(rf"{NUMBER}\s?(?:{MINUTES_WORD}|m)(?P<seconds>.*\d)?", FLAGS | re.DOTALL)


def plain(text: str) -> str:
    """A text of the same length, to find times in: full-width forms and other brackets, dashes and
    quotes in ASCII.
    """
    return text if text.isascii() else text.translate(_PLAIN)


def without_marks(line: str) -> str:
    """A line without marks of direction and joiners before and in the time at its beginning."""
    if line.isascii():
        return line
    found = _BEFORE_WORDS.match(plain(line))
    if found is None:
        return line
    return line[: found.end()].translate(_NO_MARKS) + line[found.end() :]


def read_lines(text: str) -> list[Line]:
    """The lines of a text, each with its heading."""
    return [read_line(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]


def read_line(number: int, text: str) -> Line:
    """A line with its heading."""
    return Line(number, text, read_heading(text))


def read_heading(line: str) -> Heading | None:
    """The time or the scene at the start of a line; None for words."""
    unmarked = without_marks(line)
    same = plain(unmarked)
    for form, pattern in _TIMED.items():
        found = pattern.match(same)
        if found is not None:
            heading = _heading(_kind_of_time(same, found.end()), unmarked, found)
            if form == "commas":
                heading = replace(heading, words=_without_quotes(heading.words))
            return replace(
                heading,
                bare=form in ("commas", "a time", "parentheses"),
                named=form.startswith("a shot"),
            )
    same = plain(line)
    for pattern in _SCENED:
        found = pattern.match(same)
        if found is not None:
            scene = replace(_heading(Kind.SCENE, line, found), named=True)
            return _with_time_in_title(scene)
    found = NUMBERED.match(same)
    if found is not None:
        shot = replace(_heading(Kind.TIME, line, found), named=True)
        shot = _with_time_in_title(shot)
        return shot if shot.start is not None else None
    return None


def _kind_of_time(same: str, end: int) -> Kind:
    """The kind of the time that ends there; with a colon after it, it is no word of a prompt."""
    separator = _SEPARATED.match(same, end)
    if _DECADE.match(same) and (separator is None or ":" not in separator[0]):
        return Kind.DECADE
    if _SPOKEN.match(same) and separator is None:
        return Kind.DURATION
    return Kind.TIME


def _heading(kind: Kind, line: str, found: re.Match[str]) -> Heading:
    token = line[: found.end()]
    words = line[found.end() :]
    if found["bold"]:
        words = words.replace(found["bold"], "", 1)
    words = words.lstrip()
    separator = _SEPARATOR.match(plain(words))
    if separator is not None:
        words = words[separator.end() :]
    return Heading(kind, found["start"], end=found["end"], token=token, words=words.strip())


def _without_quotes(words: str) -> str:
    """The words of a field that is quoted as in a table of values with commas."""
    if len(words) > 1 and words[0] == words[-1] == '"':
        return words[1:-1].replace('""', '"').strip()
    return words


def _with_time_in_title(heading: Heading) -> Heading:
    """A scene or shot with the range in its title as its time: "Scene 1: The Forest
    (0:00-0:10)".
    """
    if heading.start is not None:
        return heading
    same = plain(heading.words)
    for pattern in _TITLE_RANGES:
        found = pattern.search(same)
        if found is not None:
            title = heading.words[: found.start()].rstrip().rstrip(f",{SEPARATORS}")
            words = f"{_without_open_marks(title)} {heading.words[found.end() :].strip()}"
            return replace(heading, start=found["start"], end=found["end"], words=words.strip())
    return heading


def _without_open_marks(title: str) -> str:
    """A title without marks of bold or italics at its ends that are not closed in it."""
    opened = _OPEN_MARK.match(title)
    if opened is not None and opened[0] not in title[opened.end() :]:
        title = title[opened.end() :]
    return _MARK_AT_END.sub("", title).strip()


def cut_line(line: Line, headed: bool) -> list[Line]:
    """A line cut before every time in brackets: "[0-5s] a cat walks, [5-10s] it jumps" holds two
    prompts.

    `headed`: its heading counts, and is not looked into.
    """
    text = line.text
    begin = 0
    if headed and line.heading is not None:
        text = without_marks(text)
        begin = len(line.heading.token)
    starts = [found.start() for found in IN_BRACKETS.finditer(plain(text), begin) if found.start()]
    if not starts:
        return [line]
    pieces = [text[first:end].rstrip(",; ") for first, end in pairwise([0, *starts])]
    pieces.append(text[starts[-1] :])
    return [read_line(line.number, piece.strip()) for piece in pieces]


def time_inside(words: str) -> str | None:
    """The time of another prompt in the words behind a time without brackets."""
    same = plain(words)
    found = _AFTER_COMMA.search(same) or _AFTER_WORDS.search(same)
    return found and words[found.start() : found.end()].strip(",; ")


def open_brackets(text: str) -> str:
    """A text of the same length with `[1s] waves ` in place of `[1s: waves]`, if it begins so."""
    same = plain(text)
    if _WORDS_IN_BRACKETS.match(same, len(same) - len(same.lstrip())) is None:
        return text
    characters = list(text)
    for found in _WORDS_IN_BRACKETS.finditer(same):
        characters[found.start("colon")] = "]"
        characters[found.start("close")] = " "
    return "".join(characters)


def brackets_with_words(text: str) -> int:
    """The number of `[1s: waves]` in a text."""
    return len(_WORDS_IN_BRACKETS.findall(plain(text)))


def is_frame(text: str) -> bool:
    """Whether a text begins with the number of a video frame and a text in quotes."""
    return _FRAME.match(plain(text)) is not None


def seconds_of(token: str) -> float:
    """Seconds of `h:mm:ss`, `m:ss`, `1m 30s`, `1 min`, `s` or `ss`, each with an optional fraction
    and an optional unit; frames of a timecode are left out.
    """
    numbers = [float(number) for number in _DIGITS.findall(token.replace(",", "."))][:3]
    minutes = _MINUTES.match(token)
    if minutes is not None and not minutes["seconds"]:
        numbers.append(0.0)
    return functools.reduce(lambda total, part: total * 60 + part, numbers, 0.0)
