"""The written form of a story, the one form that is rendered:

    [shared] words of every prompt
    0:00 a prompt               times; a line without one goes on with the prompt above
    [0:10-0:20] a prompt        brackets and an end are optional
    Scene 1: a prompt           scenes share the length; Scene 1 (0:00-0:10): has times
    a prompt | a prompt         prompts share the length; on one line
    a prompt                    alone, on one line

Tags stand in front of a prompt (`tags.py`). Behind a time in square brackets the words may hold
other times and names of scenes. Any other text is translated into this form by `paste`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..errors import HeadForcingError
from .characters import lines_of, plain
from .clock import MAX_SECONDS, BlockClock, cut_to_millisecond
from .prompt import Prompt, TimelineError
from .switch import RESET
from .tags import CAN_BE_TAG, match_tag, read_tag
from .times import FLAGS, NUMBER, OTHERS, SCENE, SEPARATORS, SHOT, TO, UNIT
from .wording import check_words

MAX_SEGMENTS = 10_000
LATE_SECONDS = 60.0  # a first time from here on is more likely a ratio or a time of day

_CLOCK = r"\d{1,9}:[0-5]\d(?::[0-5]\d)?(?:\.\d{1,9})?"
_HEADING = re.compile(
    rf"(?:(?P<square>\[)?(?P<start>{_CLOCK})(?:-(?P<end>{_CLOCK}))?(?(square)\](?P<colon>:)?)"
    rf"|(?P<scene>Scene \d{{1,4}})(?: \((?P<begin>{_CLOCK})-(?P<until>{_CLOCK})\))?:)(?: |$)",
    re.ASCII,
)
_SHARED = re.compile(r"\[ ?shared ?\] ?", re.IGNORECASE)
# a line of words begins with a letter, and not as a scene, a field with a number or a program
_WORDS = re.compile(
    rf"(?!{SCENE}|{SHOT}|{OTHERS}|[^\d:=]{{1,40}}[:=][^\w]{{0,6}}\d)"
    r"[\"'“(@]?[^\W\d_]",
    re.IGNORECASE,
)
_PROGRAM = re.compile(r"[\w\"']\s?[:=]\s?(?:[\[{(|>]|$)|<[a-z/?!]|-->|｜|[\"'],$", FLAGS)
_SEPARATED = re.compile(rf"[,{SEPARATORS}]|=>|[ap]\.?m\b|{TO}\d", FLAGS)
_TIME_INSIDE = re.compile(  # "6:00 pm" is a time of day, unless a comma is before it
    rf"(?<![\d:])00?:\d\d|[,;] ?\d{{1,9}}:\d\d|:\d\d(?:\.\d{{1,9}})?{TO}\d"
    rf"|\d\s?(?:{UNIT})?{TO}(?:{NUMBER}\s?{UNIT}|\d{{1,9}}:\d\d)|\b{SCENE}\s?[:|–—(\]]",
    FLAGS,
)
_LENGTH_INSIDE = re.compile(rf"{NUMBER}\s?{UNIT}(?![a-z])|[(\[{{@]\s?\d", FLAGS)
_UNUSUAL = re.compile(r"[^\w\s.,;'\"!?()-]|--")  # in words that may be refused
ESCAPED = re.compile(r"\\([{}])")


@dataclass(frozen=True)
class Written:
    """The prompts of a text, and the words that every prompt keeps."""

    shared: str
    prompts: list[Prompt]


def read_story(text: str, clock: BlockClock) -> Written:
    """Read a text in the written form; a dissolve is rounded to blocks of the clock.

    Raises TimelineError with the line for a text of another form, for an invalid number of prompts,
    empty prompts and invalid tags. The order of times is not checked here.
    """
    lines = lines_of(text)
    first = _first_words(lines)
    shared = ""
    tag = _SHARED.match(lines[first])
    if tag is not None:
        headed = [at for at, line in enumerate(lines) if _HEADING.match(line)]
        until = headed[0] if headed else first + 1
        shared = " ".join([lines[first][tag.end() :], *lines[first + 1 : until]])
        _check_lines(lines, range(first + 1, until))
        lines[first:until] = [""] * (until - first)  # all others keep their numbers
        first = _first_words(lines)
    if _HEADING.match(lines[first]):
        prompts = _read_headed(lines)
    else:
        prompts = _read_plain(lines, first)
    return Written(" ".join(shared.split()), finished(prompts, clock))


def _first_words(lines: Sequence[str]) -> int:
    """The index of the first line that is not empty; 0 if all are."""
    for index, line in enumerate(lines):
        if line:
            return index
    return 0


def _other(line: str, index: int) -> TimelineError:
    return TimelineError(
        f"{line[:40]!r} looks like the beginning of something else; paste it into Prompt Timeline, "
        "or run `headforcing story FILE`",
        index + 1,
    )


def _check_lines(lines: Sequence[str], indices: Iterator[int] | range) -> None:
    """Refuse lines that look like the beginning of something else than words."""
    for index in indices:
        if lines[index] and _WORDS.match(lines[index]) is None:
            raise _other(lines[index], index)


def _read_headed(lines: Sequence[str]) -> list[Prompt]:
    """Prompts whose first lines all have a time, or all a scene."""
    headings = []
    for index, line in enumerate(lines):
        heading = _HEADING.match(line)
        if heading is not None:
            headings.append((index, heading))
    has_scenes = headings[0][1]["scene"] is not None
    ends = [index for index, _ in headings[1:]] + [len(lines)]
    prompts: list[Prompt] = []
    for (index, heading), end in zip(headings, ends, strict=True):
        line = lines[index]
        if end > index + 1:
            _check_lines(lines, range(index + 1, end))
        words = " ".join(filter(None, [line[heading.end() :], *lines[index + 1 : end]]))
        start = heading["start"] or heading["begin"]
        until = heading["end"] or heading["until"]
        if (heading["scene"] is not None) != has_scenes or not _fits(heading, words):
            raise _other(line, index)
        prompt = Prompt(words, index + 1, token=line[: heading.end()].strip(" :"))
        prompts.append(_with_times(prompt, start, until))
    first = headings[0][1]
    is_late = (prompts[0].start or 0.0) >= LATE_SECONDS
    if is_late and not (prompts[0].end and (first["square"] or has_scenes)):
        raise _other(lines[headings[0][0]], headings[0][0])
    starts = [None if each.start is None else cut_to_millisecond(each.start) for each in prompts]
    until = [None if each.end is None else cut_to_millisecond(each.end) for each in prompts]
    times = zip(prompts, starts, until, strict=True)
    return [replace(prompt, start=start, end=end) for prompt, start, end in times]


def _fits(heading: re.Match[str], words: str) -> bool:
    """Whether words are those of a heading, and nothing in them could be taken for more of it."""
    same = words if words.isascii() else plain(words)
    if not heading["colon"] and heading["scene"] is None and _SEPARATED.match(same):
        return False
    if heading["square"]:
        return True
    has_length = not (heading["start"] or heading["begin"]) and _LENGTH_INSIDE.search(same)
    return not (has_length or _TIME_INSIDE.search(same))


def _with_times(prompt: Prompt, start: str | None, end: str | None) -> Prompt:
    """The prompt with times as they are written; TimelineError for one that is too late."""
    seconds: list[float | None] = []
    for clock in (start, end):
        if clock is None:
            seconds.append(None)
            continue
        value = 0.0
        for part in clock.split(":"):
            value = value * 60 + float(part)
        if value > MAX_SECONDS:
            raise TimelineError(
                f"{clock!r} is after the end of the longest video ({MAX_SECONDS:.0f} s)",
                prompt.line,
            )
        seconds.append(value)
    return replace(prompt, start=seconds[0], end=seconds[1])


def _read_plain(lines: Sequence[str], first: int) -> list[Prompt]:
    """One prompt, or several with bars between them; all are on one line."""
    line = lines[first]
    has_tag = line.startswith("[") and match_tag(line) is not None
    _check_lines(lines, range(first + has_tag, first + 1))
    if _PROGRAM.search(line) or ("|" in line and "{" in line):
        raise _other(line, first)
    for index in range(first + 1, len(lines)):
        if lines[index]:
            raise TimelineError(
                f"{lines[index][:40]!r} stands below a text without times; write the text on one "
                "line, paste it into Prompt Timeline, or run `headforcing story FILE`",
                index + 1,
            )
    pieces = line.split("|")
    if len(pieces) == 1:
        return [Prompt(line)] if line else []
    return [Prompt(piece.strip(), first + 1) for piece in pieces]


def has_time(words: str, timed: bool) -> bool:
    """Whether words hold a time or a scene that could be another prompt's; behind a scene without a
    time, also a length.
    """
    same = plain(words)
    if _TIME_INSIDE.search(same) is not None:
        return True
    return not timed and _LENGTH_INSIDE.search(same) is not None


def heading_before(words: str, times: str) -> str:
    """The heading of these times before words, in brackets if they could be taken for more."""
    if _SEPARATED.match(plain(words)):
        return f"[{times}]: "
    return f"[{times}] " if has_time(words, timed=True) else f"{times} "


def finished(prompts: list[Prompt], clock: BlockClock) -> list[Prompt]:
    """The prompts with the switches and seeds of their tags; raises TimelineError for those that
    cannot be rendered.
    """
    if not prompts:
        raise TimelineError("the timeline is empty; write at least one prompt")
    if len(prompts) > MAX_SEGMENTS:
        raise TimelineError(
            f"the timeline has more than {MAX_SEGMENTS} prompts; split it into several videos"
        )
    tagged = []
    for number, prompt in enumerate(prompts, 1):
        if CAN_BE_TAG.match(prompt.text):
            prompt = _with_tag(prompt, clock.block_seconds)
        if number == 1 and prompt.switch not in (None, RESET):
            raise TimelineError(
                f"the first prompt has nothing to switch from; remove [{prompt.switch}]",
                prompt.line,
            )
        if not prompt.text:
            raise TimelineError(
                f"prompt {number} is empty; write its text or remove it", prompt.line
            )
        if _SHARED.match(prompt.text):
            raise TimelineError(
                "[shared] begins the first line of the timeline, before the first time", prompt.line
            )
        if _UNUSUAL.search(prompt.text):
            check_words(prompt.text, prompt.line)
        tagged.append(prompt)
    return tagged


def _with_tag(prompt: Prompt, block_seconds: float) -> Prompt:
    try:
        switch, seed, words = read_tag(prompt.text, block_seconds)
    except HeadForcingError as error:
        raise TimelineError(str(error), prompt.line) from None
    return replace(prompt, text=words, switch=switch, seed=seed)
