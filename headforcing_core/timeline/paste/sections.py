"""Prompts whose first lines have headings, and refusals of lines among them that could be the
beginning of another prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..characters import fold, plain
from ..grammar import LATE_SECONDS
from ..prompt import Prompt, TimelineError
from ..tags import match_tag
from ..times import CLOCK, FLAGS, NO_TIME_OF_DAY, NUMBER, SCENE, SEPARATORS, TO
from .almost import (
    RANGE,
    RANGE_OR_DURATION,
    is_like_heading,
    is_like_heading_below_scene,
)
from .headings import TIME_IN_BRACKETS, Heading, Line, seconds_in, seconds_of

_NO_MARKUP = str.maketrans("*_`", "   ")
_NOTE = re.compile(r"#{1,6}\s|//|/\*")
# the time or the scene of another prompt: "a cat 5-10s: it jumps", "a cat 0:05-0:10"
_OTHER = (
    rf"(?:^|[\s,;(\[{SEPARATORS}]){CLOCK}{TO}{CLOCK}[)\]]?(?=[\s,;{SEPARATORS}]|$){NO_TIME_OF_DAY}"
    rf"|[,;]\s{{0,8}}{RANGE}[{SEPARATORS}]?\s{NO_TIME_OF_DAY}"
    rf"|(?:^|\s){RANGE}\s?:|^00?:\d\d(?!\w)|(?<=[^\w]){SCENE}\s?[:|–—(\]]"
)
# behind a time also a clock below 1:00, or any clock after a comma: "a cat, 1:05 it jumps", "a cat
# (0:05) it jumps"
_OTHER_CLOCK = (
    rf"(?:^|[\s,;(\[{SEPARATORS}])00?:\d\d(?:\.\d{{1,9}})?"
    rf"[)\]]?(?=[\s,;{SEPARATORS}]|$){NO_TIME_OF_DAY}"
    rf"|[,;]\s{{0,8}}{CLOCK}[{SEPARATORS}]?\s{NO_TIME_OF_DAY}"
)
# in a scene without a time: "The Forest (5 s)", "The Forest - 5 s", "5 s - The Forest"
_IN_SCENE = (
    rf"^{RANGE_OR_DURATION}\s?(?:[:|–—]|-\s|$)|^{RANGE}(?!\w)|^0{{1,2}}\s?s(?:ec(?:ond)?s?)?(?!\w)"
    rf"|[\[({{]\s?(?:[a-z~≈]{{1,12}}[.:]?\s?)?(?<!\d){RANGE_OR_DURATION}\.?\s?[\])}}]"
    rf"|\(\s?0{TO}{NUMBER}\s?\)|@\s?{CLOCK}"
    rf"|[–—|,-]\s?(?:[a-z]{{1,12}}:\s?)?{RANGE_OR_DURATION}\.?[*_`]{{0,3}}$"
)
_INSIDE_NAMED = re.compile(_OTHER, FLAGS)
_INSIDE_TIMED = re.compile(f"{_OTHER}|{_OTHER_CLOCK}", FLAGS)
_INSIDE_SCENE = re.compile(f"{_OTHER}|{_IN_SCENE}", FLAGS)


@dataclass(frozen=True)
class _Section:
    """The lines of a prompt, of the first one the words behind the heading."""

    heading: Heading
    lines: list[Line]


def as_scene(line: Line, words: str) -> Line:
    """The line as the first one of a scene without a time, with these words behind its name."""
    heading = Heading(
        "scene", "", "", token=line.text, words=words, same=plain(words), bare=True, spoken=False
    )
    return replace(line, heading=heading)


def without_heading(line: Line) -> Line:
    """The line as words of the prompt above."""
    return replace(line, heading=None)


def read_scenes(lines: Sequence[Line]) -> list[Prompt]:
    """A prompt for each scene, which the first line begins; other headings are words, see
    `read_sections`.
    """
    scenes = []
    for line in lines:
        is_scene = line.heading is not None and line.heading.name == "scene"
        scenes.append(line if is_scene else without_heading(line))
    return read_sections(scenes)


def read_sections(lines: Sequence[Line]) -> list[Prompt]:
    """A prompt for each line with a heading, of which the first is one; lines without one continue
    the prompt above.

    Raises TimelineError for a line, or words in it, that look like the beginning of another prompt.
    """
    sections: list[_Section] = []
    for line in lines:
        heading = line.heading
        if heading is None:
            sections[-1].lines.append(line)
        else:
            words = replace(line, text=heading.words, same=heading.same)
            sections.append(_Section(heading, [words]))
    return [_read_section(section.heading, section.lines) for section in sections]


def _read_section(heading: Heading, lines: Sequence[Line]) -> Prompt:
    number = lines[0].number
    start = seconds_in(heading.start, number)
    end = seconds_in(heading.end, number)
    words: list[str] = []
    for line in lines:
        if words:
            _refuse_like(line, heading, words)
        again = _time_inside(line.text, line.same, heading)
        if again:
            raise TimelineError(
                f"{again!r} stands inside a prompt; write each prompt on a line of its own, with "
                "its time in front; where it belongs to the words, put brackets around the first "
                f"time, as in [{heading.start or '0:00'}]",
                line.number,
            )
        words.append(line.text)
    return Prompt(fold(" ".join(words)), number, start, end, token=heading.token)


def _refuse_like(line: Line, heading: Heading, above: Sequence[str]) -> None:
    """Refuse a line that would continue the words `above` of a prompt with this heading and begins
    like a time, a scene, a tag or a comment.
    """
    is_like = is_like_heading if heading.start else is_like_heading_below_scene
    tag = match_tag(line.text) is not None and any(above)
    if tag or is_like(line) or _NOTE.match(line.text):
        raise TimelineError(
            f"{line.text[:40]!r} begins like a time, a scene, a tag or a comment and would be "
            "words of a prompt; write it as in 0:10 [cut] a cat walks or Scene 2 (0:10-0:15): a "
            "cat walks, or put words in front of it",
            line.number,
        )


def _time_inside(words: str, same: str, heading: Heading) -> str:
    """The time or the scene of another prompt in words behind a heading, `same` as `plain` has
    them; "" for none, and behind a time in square brackets without a scene.
    """
    if heading.start and not heading.bare and not heading.name:
        return ""
    same = same.translate(_NO_MARKUP).rstrip()
    before = len(same) - len(same.lstrip())
    inside = _INSIDE_TIMED if heading.start else _INSIDE_SCENE
    if not heading.bare:  # behind the number of a scene or shot
        inside = _INSIDE_NAMED
    found = inside.search(same[before:])
    if found is None:
        return ""
    return words[before + found.start() : before + found.end()].strip(",; *_`")


def is_prose(first: Heading, lines: Sequence[Line]) -> bool:
    """Whether the first time of a text is a ratio, a time of day or a duration in a single prompt.
    An empty start or end counts as 0.

    Raises TimelineError where it can be that or the time of a prompt.
    """
    seconds = seconds_of(first.start)
    if seconds == 0 and seconds_of(first.end) < LATE_SECONDS:
        return False  # a scene, or "0-5 seconds", and no sprint of "0-100m"
    if re.match(r"0+\D", first.start) or (first.end and (first.name or not first.bare)):
        return False  # no ratio, and no time that is said as words
    headed = sum(line.heading is not None and not line.heading.spoken for line in lines)
    brackets = sum(len(TIME_IN_BRACKETS.findall(line.unmarked)) for line in lines)
    alone = headed < 2 and brackets < 2
    if first.bare and alone:
        return True
    if first.name and ":" not in first.start:
        raise TimelineError(
            f"{first.token!r} can be a start or a length; write both ends, as in Scene 1 "
            "(0:00-0:05): a cat walks",
            lines[0].number,
        )
    if (seconds >= LATE_SECONDS or first.spoken) and (first.bare or alone):
        raise TimelineError(
            f"{first.token!r} is no first time; begin with 0:00, also where it belongs to the "
            f"prompt, as in 0:00 {first.start} {first.words:.40}",
            lines[0].number,
        )
    return False
