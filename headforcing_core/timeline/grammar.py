"""Parsers of the prompt timeline grammars: plain text to prompts with their times. `timeline.py` lists the grammars."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ..errors import HeadForcingError
from .braces import find_choice, split_outside
from .characters import clean, fold
from .clock import MAX_SECONDS, BlockClock, cut_to_millisecond
from .foreign import without_fences, without_subtitles
from .headings import (
    EXAMPLE,
    IN_BRACKETS,
    NUMBERED,
    Heading,
    almost_time,
    brackets_with_words,
    first_time,
    is_frame,
    open_brackets,
    plain,
    read_scene,
    read_time,
    time_inside,
    without_marks,
)
from .json_forms import load_frames, load_json, read_frames, read_json
from .prompt import Prompt, TimelineError
from .switch import RESET, read_tag

MAX_SEGMENTS = 10_000


_SHARED = re.compile(r"\[\s{0,8}shared\s{0,8}\]", re.ASCII | re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)(?://(?=\s|$)|/\*).{0,40}")
_NOTE = re.compile(r"#{1,6}\s|//|/\*")
LATE_SECONDS = 60.0  # a first time from here on is more likely a ratio or a time of day


def split_lines(text: str) -> list[str]:
    """The lines of a text, which end at newlines of any system, and not at other characters as `str.splitlines`."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def split_prompts(text: str) -> tuple[str, ...]:
    """The prompts of a text with one on each line; empty lines are left out."""
    return tuple(filter(None, map(str.strip, split_lines(text))))


def read_shared(text: str) -> str:
    """The words of a first line `[shared] words`, on one line; empty where there is none."""
    return _split_shared(_lines(text))[0]


def _lines(text: str) -> list[str]:
    """The lines of a text without what cannot be seen, without fences, and with subtitles as prompts."""
    return without_subtitles(without_fences(clean(text).split("\n")))


def _split_shared(lines: list[str]) -> tuple[str, list[str]]:
    """The shared words, and all lines with those of the shared words empty, so that lines keep their numbers."""
    first = next((place for place, line in enumerate(lines) if line.strip()), 0)
    tag = _SHARED.match(lines[first].strip())
    if tag is None:
        return "", lines
    after = first + 1  # without times the prompts begin on the next line
    for number, line in enumerate(map(str.strip, lines[after:]), after):
        if first_time(line) or almost_time(line, bare=False) or read_scene(line):
            after = number
            break
    words = " ".join([lines[first].strip()[tag.end() :], *lines[first + 1 : after]])
    return fold(words), [""] * after + lines[after:]


def read_prompts(text: str, clock: BlockClock) -> list[Prompt]:
    """Choose the grammar by the beginning of the text, after a line of shared words, and parse all prompts.

    Raises TimelineError for an invalid number of prompts, empty prompts and invalid tags. The order of times is not
    checked here.
    """
    lines = _split_shared(_lines(text))[1]
    prompts = list(itertools.islice(_parse(lines, clock), MAX_SEGMENTS + 1))
    if not prompts:
        raise TimelineError("the timeline is empty; write at least one prompt")
    if len(prompts) > MAX_SEGMENTS:
        raise TimelineError(f"the timeline has more than {MAX_SEGMENTS} prompts; split it into several videos")
    prompts = list(map(_read_switch, prompts))
    if prompts[0].switch not in (None, RESET):
        raise TimelineError(
            f"the first prompt has nothing to switch from; remove [{prompts[0].switch}]", prompts[0].line
        )
    for number, prompt in enumerate(prompts, 1):
        if not prompt.text:
            raise TimelineError(f"prompt {number} is empty; write its text or remove it", prompt.line)
        if _SHARED.match(prompt.text):
            raise TimelineError("[shared] begins the first line of the timeline, before the first time", prompt.line)
        check_words(prompt.text, prompt.line)
    return prompts


def _parse(lines: list[str], clock: BlockClock) -> Iterator[Prompt]:
    """The prompts of a text in the grammar that its first line is of."""
    text = open_brackets("\n".join(lines))
    lines = text.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    time = first_time(first)
    if first[:1] in ("{", "[") and (data := load_json(text)) is not None:
        return read_json(data, clock)
    if is_frame(plain(first)):
        return read_frames(load_frames(text), clock)
    if (time and not _is_prose(time, lines)) or almost_time(first, bare=False):
        # "80s" at the start of a line is a decade unless the timeline's first time is in plain seconds
        in_seconds = time is not None and time.bare and ":" not in str(time.start)
        return _read_headed(lines, functools.partial(read_time, in_seconds=in_seconds), timed=True)
    if read_scene(first):
        return _read_headed(lines, read_scene)
    _refuse_other_schedule(lines)
    if "|" in text or "｜" in text:
        return _read_pipes(text)
    return iter([Prompt(fold(text), None)] if first else [])


def _is_prose(time: Heading, lines: list[str]) -> bool:
    """Whether the first time of a text is a ratio, a time of day or a duration in a single prompt.

    Raises TimelineError where it can be that or the time of a prompt.
    """
    assert time.start is not None
    if re.match(r"0+\D", time.start) or (time.end and not time.bare):
        return False  # no ratio, and no time that is said as words
    timed = filter(None, map(first_time, map(str.strip, lines)))
    alone = len(list(itertools.islice(timed, 2))) < 2 and len(IN_BRACKETS.findall(plain("\n".join(lines)))) < 2
    if time.bare and alone:
        return True
    if _value(time.start) >= LATE_SECONDS and (time.bare or alone):
        begin = next(number for number, line in enumerate(lines, 1) if line.strip())
        raise TimelineError(
            f"{time.token!r} is no first time; begin with 0:00, also where it belongs to the prompt, as in "
            f"0:00 {time.start} {time.words:.40}",
            begin,
        )
    return False


def _refuse_other_schedule(lines: list[str]) -> None:
    """Refuse a text without a first time that is no single prompt."""
    stripped = list(map(str.strip, lines))
    begin = next((number for number, line in enumerate(stripped, 1) if line), 1)
    if example := _schedule_in(stripped):
        raise TimelineError(
            f"{stripped[begin - 1][:40]!r} stands before the first time; titles and comments are no prompts, begin "
            f"with the first prompt, as in {example}",
            begin,
        )
    shots = [line for line in stripped if NUMBERED.match(plain(line))]
    if len(shots) > 1:
        raise TimelineError(
            f"{shots[0][:40]!r} has no time; write times, as in {EXAMPLE}, or Scene 1: a cat walks", begin
        )


def _schedule_in(lines: list[str]) -> str | None:
    """An example of the times, scenes or frames that several lines of a text begin with; None for a single prompt."""
    times = [time for time in map(first_time, lines) if time is not None]
    if len(times) > 1 or any(_value(str(time.start)) == 0 for time in times):
        return EXAMPLE
    if len([line for line in lines if read_scene(line)]) > 1:
        return "Scene 1: a cat walks"
    if len([line for line in lines if is_frame(plain(line))]) > 1:
        return '"0": "a cat walks"'
    return "[0s: a cat walks] [5s: it jumps]" if brackets_with_words("\n".join(lines)) > 1 else None


def check_words(text: str, line: int | None = None) -> None:
    """Refuse what would be sent to the model as words: a time in brackets, braces that choose, comments."""
    if inside := IN_BRACKETS.search(plain(text)):
        raise TimelineError(
            f"{text[inside.start() : inside.end()]} stands inside a prompt; begin the text with the first prompt's "
            "time, as in [0-5s] a cat walks, [5-10s] it jumps",
            line,
        )
    if "{" in text and (choice := find_choice(text)):
        raise TimelineError(
            f"{choice[:60]} chooses in ComfyUI's text box, not here: write one; \\{{ and \\}} are braces", line
        )
    if comment := _COMMENT.search(text):
        raise TimelineError(f"{comment[0].strip()!r} is a comment, which a prompt cannot hold; remove it", line)


def _read_switch(prompt: Prompt) -> Prompt:
    try:
        switch, seed, text = read_tag(prompt.text)
    except HeadForcingError as error:
        raise TimelineError(str(error), prompt.line) from None
    return replace(prompt, text=text, switch=switch, seed=seed)


def _read_headed(lines: list[str], read: Callable[[str], Heading | None], timed: bool = False) -> Iterator[Prompt]:
    """Prompts whose first lines have a header (a time or a scene); lines without one continue the prompt above."""
    header: dict[str, Any] | None = None
    parts: list[str] = []
    for number, line in _numbered(lines, read, timed):
        heading = read(line)
        if heading is None:
            _refuse_almost(line, number, timed)
            parts.append(line)
            continue
        if header is not None:
            yield Prompt(fold(" ".join(parts)), **header)
        start = None if heading.start is None else _seconds(heading.start, number)
        end = None if heading.end is None else _seconds(heading.end, number)
        header = {"line": number, "start": start, "end": end, "token": heading.token}
        if heading.bare and (again := time_inside(heading.words)):
            raise TimelineError(
                f"{again!r} stands inside a prompt; write each prompt on a line of its own, with its time in front; "
                f"where it belongs to the words, put brackets around the first time, as in [{heading.start}]",
                number,
            )
        parts = [heading.words]
    if header is not None:
        yield Prompt(fold(" ".join(parts)), **header)


def _refuse_almost(line: str, number: int, timed: bool) -> None:
    """Refuse a line that continues a prompt and begins with nearly a time, or with a comment."""
    if almost := almost_time(line, bare=timed):
        raise TimelineError(
            f"{almost!r} is not a time; write m:ss, [m:ss] or [m:ss-m:ss]; where it belongs to the prompt, put words "
            "in front of it",
            number,
        )
    if _NOTE.match(line):
        raise TimelineError(f"{line[:40]!r} is a comment, which a prompt cannot hold; remove it", number)


def _numbered(lines: list[str], read: Callable[[str], Heading | None], cut: bool) -> Iterator[tuple[int, str]]:
    """Every line with its number from 1, or with `cut` every piece of it."""
    for number, line in enumerate(map(str.strip, lines), 1):
        for piece in _pieces(line, read(line)) if cut else [line]:
            yield number, piece


def _pieces(line: str, heading: Heading | None) -> list[str]:
    """A line cut before every time in brackets: "[0-5s] a cat walks, [5-10s] it jumps" holds two prompts."""
    first = 0 if heading is None else len(heading.token)
    line = line if heading is None else without_marks(line)
    starts = [0, *(found.start() for found in IN_BRACKETS.finditer(plain(line), first) if found.start()), len(line)]
    pieces = [line[start:end].strip() for start, end in itertools.pairwise(starts)]
    return [piece.rstrip(",; ") for piece in pieces[:-1]] + pieces[-1:] if pieces else [line]


def _read_pipes(text: str) -> Iterator[Prompt]:
    line = 1
    for piece in split_outside(text, MAX_SEGMENTS):
        yield Prompt(fold(piece), line)
        line += piece.count("\n")


def _value(token: str) -> float:
    """Seconds of `h:mm:ss`, `m:ss`, `s` or `ss`, each with an optional fraction and an optional unit."""
    digits = re.sub(r"[^\d:.]", "", re.sub("[分분]", ":", token.replace(",", ".")))
    return functools.reduce(lambda total, part: total * 60 + float(part), digits.split(":"), 0.0)


def _seconds(token: str, line: int) -> float:
    """The value of a time; TimelineError for one that is written wrongly or too late."""
    if re.search(r":[6-9]\d", token):
        raise TimelineError(f"{token!r} is not a time; after a colon the numbers go from 00 to 59", line)
    value = _value(token)
    if value > MAX_SECONDS:
        raise TimelineError(f"{token!r} is after the end of the longest video ({MAX_SECONDS:.0f} s)", line)
    return cut_to_millisecond(value)
