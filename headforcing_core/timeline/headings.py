"""Beginnings of lines of a timeline: times and scenes, in the forms that people and other programs
write.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from .characters import STRAIGHT_QUOTES

SEPARATORS = "–—:-"  # optional, one between a time and its prompt
_CLOCK = r"\d{1,9}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?"
_NUMBER = r"\d{1,9}(?:[.,]\d{1,9})?"
_WORD = r"(?:seconds?|secs?|秒|초)"  # other words for the unit s
_SECONDS = rf"(?:(?:\d{{1,9}}\s?[分분]\s?)?{_NUMBER}\s?{_WORD}|{_NUMBER}s)"
_TIME = rf"(?:{_CLOCK}|{_SECONDS})"
_NUMBER_OR_TIME = rf"(?:{_TIME}|{_NUMBER})"
_TO = r"\s{0,8}(?:-{1,2}>|[-–—~→]|to\b)\s{0,8}"
_NO_TIME_OF_DAY = r"(?!\s?[ap]\.?m\b)"  # "6:00 pm" belongs to the prompt
_AFTER_TIME = (
    rf"(?=[\s{SEPARATORS}]|(?P=bold)|$|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]){_NO_TIME_OF_DAY}"
)

_BARE = rf"(?P<start>{_TIME})(?:{_TO}(?P<end>{_TIME}))?{_AFTER_TIME}"
_RANGE = rf"(?P<start>{_TIME}){_TO}(?P<end>{_TIME}){_AFTER_TIME}"
_BRACKETS = (
    rf"\[\s{{0,8}}(?P<start>{_NUMBER_OR_TIME})(?:{_TO}(?P<end>{_NUMBER_OR_TIME}))?\s{{0,8}}\]"
)
_PARENTHESES = (
    rf"\(\s{{0,8}}(?P<start>{_TIME}|{_NUMBER}(?={_TO}{_TIME}))"
    rf"(?:{_TO}(?P<end>{_TIME}))?\s{{0,8}}\){_NO_TIME_OF_DAY}"
)
_SCENE = rf"scene\s{{0,8}}\d{{1,9}}\s{{0,8}}(?:[{SEPARATORS}]\s{{0,8}})?"
_SHOT = rf"(?:shot|clip|part|segment)\s{{0,8}}\d{{1,9}}\s{{0,8}}(?:[{SEPARATORS}]\s{{0,8}})?"
_LIST_MARK = r"(?:(?:[-+*•‣▪●·>–—]|#{1,6}|\(?\d{1,3}[.)])\s{1,8}){0,3}"  # bullet, heading, number
_BEFORE = rf"{_LIST_MARK}(?P<bold>\*{{1,3}}|_{{1,2}}|`)?"
_FLAGS = re.ASCII | re.IGNORECASE

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
    """

    kind: Kind
    start: str | None
    end: str | None
    token: str
    words: str
    bare: bool = False


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
    ("brackets", _BRACKETS, "[0:00-0:05] a cat walks"),
    ("a time", _BARE, "0:00 a cat walks"),
    ("parentheses", _PARENTHESES, "(0:00-0:05) a cat walks"),
    ("a shot in brackets", _SHOT + _BRACKETS, "Shot 1 [0:00-0:05]: a cat walks"),
    ("a shot in parentheses", _SHOT + _PARENTHESES, "Shot 1 (0:00-0:05): a cat walks"),
    ("a shot and a range", _SHOT + _RANGE, "Shot 1: 0:00-0:05 a cat walks"),
)
_SCENES = (
    _SCENE + _BRACKETS,
    _SCENE + _PARENTHESES,
    _SCENE + _RANGE,
    rf"scene\s{{0,8}}\d{{1,9}}\s{{0,8}}(?=[{SEPARATORS}])(?P<start>(?!))?(?P<end>(?!))?",
)
_TIMED = {name: re.compile(_BEFORE + pattern, _FLAGS) for name, pattern, _ in FORMS}
_SCENED = [re.compile(_BEFORE + pattern, _FLAGS) for pattern in _SCENES]
EXAMPLE = FORMS[1][2]

_DECADE = re.compile(r"[1-9]\d{0,8}0s\b", _FLAGS)  # "80s", "1920s"
_PROSE = re.compile(rf"{_NUMBER}\s?{_WORD}", _FLAGS)  # "5 seconds later"
IN_BRACKETS = re.compile(rf"\[\s{{0,8}}(?:{_NUMBER_OR_TIME}{_TO})?{_TIME}\s{{0,8}}\]", _FLAGS)
BRACKET = re.compile(rf"[\[［{_OPENING}]")  # that `IN_BRACKETS` begins with
_AFTER_COMMA = re.compile(  # "a cat, 0:05 it jumps", "a cat, 5s-10s: it jumps"
    rf"[,;]\s{{0,8}}(?:{_TIME}{_TO}{_TIME}|{_CLOCK})[{SEPARATORS}]?\s{_NO_TIME_OF_DAY}", _FLAGS
)
_AFTER_WORDS = re.compile(  # "a cat 0:05 it jumps", "a cat (0:05-0:10) it jumps"
    rf"\s(?:00?:\d\d(?:[.,]\d{{1,9}})?|\((?:00?:\d\d|{_CLOCK}{_TO}{_CLOCK})\))[{SEPARATORS}]?\s{_NO_TIME_OF_DAY}",
    _FLAGS,
)
_ALMOST_IN_BRACKETS = re.compile(r"\[\s{0,8}\d{1,9}:\d[^\]\s]{0,40}\]?", re.ASCII)
_ALMOST_BARE = re.compile(rf"\d{{1,3}}:\d{{1,2}}(?!\d){_NO_TIME_OF_DAY}", _FLAGS)
_WORDS_IN_BRACKETS = re.compile(  # "[1s: waves]"; "[0:00:05]" is a time
    rf"\[(?!\s{{0,8}}{_NUMBER_OR_TIME}(?:{_TO}{_NUMBER_OR_TIME})?\s{{0,8}}\])"
    rf"\s{{0,8}}(?:{_NUMBER_OR_TIME}{_TO})?{_TIME}\s{{0,8}}(?P<colon>:)(?:[^\[\]]|\[[^\[\]]{{0,999}}\])*(?P<close>\])",
    _FLAGS,
)
_FRAME = re.compile(r"""\s{0,8}["']?\d{1,9}["']?\s{0,8}:\s{0,8}["']""", re.ASCII)
NUMBERED = re.compile(rf"{_BEFORE}(?:shot|clip)\s{{0,8}}\d{{1,9}}\s{{0,8}}[{SEPARATORS}]", _FLAGS)


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
            kind = Kind.TIME
            if _DECADE.match(same):
                kind = Kind.DECADE
            elif _PROSE.match(same):
                kind = Kind.DURATION
            return _heading(kind, unmarked, found, bare=form in ("a time", "parentheses"))
    same = plain(line)
    for pattern in _SCENED:
        found = pattern.match(same)
        if found is not None:
            return _heading(Kind.SCENE, line, found)
    return None


def _heading(kind: Kind, line: str, found: re.Match[str], bare: bool = False) -> Heading:
    token = line[: found.end()]
    words = line[found.end() :]
    if found["bold"]:
        words = words.replace(found["bold"], "", 1)
    words = words.lstrip()
    if plain(words).startswith(tuple(SEPARATORS)):
        words = words[1:]
    return Heading(
        kind, found["start"], end=found["end"], token=token, words=words.strip(), bare=bare
    )


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


def almost_time(line: str, bare: bool) -> str | None:
    """The beginning of a line that is nearly a time, in brackets or, with `bare`, without them;
    None of others.
    """
    same = plain(line)
    found = _ALMOST_IN_BRACKETS.match(same)
    if found is None and bare:
        found = _ALMOST_BARE.match(same)
    return found and line[: found.end()]


def time_inside(words: str) -> str | None:
    """The time of another prompt in the words behind a time without brackets."""
    same = plain(words)
    found = _AFTER_COMMA.search(same) or _AFTER_WORDS.search(same)
    return found and words[found.start() + 1 : found.end()].strip()


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
