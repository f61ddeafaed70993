"""Parsers of the prompt timeline grammars: plain text to prompts with their times. `timeline.py` lists the grammars."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..errors import HeadForcingError
from .clock import MAX_SECONDS, TEMPORAL_STRIDE, BlockClock, cut_to_millisecond
from .switch import RESET, Switch, read_tag

MAX_SEGMENTS = 10_000


class TimelineError(HeadForcingError):
    """A timeline that cannot be used; `line` is the 1-based line of the error, None if it concerns the whole text."""

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


SEPARATORS = "–—:-"  # optional, one between a time and its prompt
_CLOCK = r"\d{1,9}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?"
_NUMBER = r"\d{1,9}(?:[.,]\d{1,9})?"
_DASH = r"\s{0,8}[-–—]\s{0,8}"
_INSIDE = rf"(?:{_CLOCK}|{_NUMBER}s?)"
_BRACKETS = rf"\[\s{{0,8}}(?P<start>{_INSIDE})(?:{_DASH}(?P<end>{_INSIDE}))?\s{{0,8}}\]"
_BRACKETED = re.compile(_BRACKETS, re.ASCII)
_OUTSIDE = rf"(?:{_CLOCK}|{_NUMBER}s)"
_BARE = re.compile(  # a time of day such as "6:00 pm" belongs to the prompt
    rf"(?P<start>{_OUTSIDE})(?:{_DASH}(?P<end>{_OUTSIDE}))?(?=[\s{SEPARATORS}]|$)(?!\s?[ap]\.?m\b)",
    re.ASCII | re.IGNORECASE,
)
_INSIDE_PROMPT = re.compile(rf"\[\s{{0,8}}(?:{_INSIDE}{_DASH})?{_OUTSIDE}\s{{0,8}}\]", re.ASCII | re.IGNORECASE)
_AFTER_COMMA = re.compile(  # "a cat, 0:05 it jumps", "a cat, 5s-10s: it jumps"
    rf"[,;]\s{{0,8}}(?:{_OUTSIDE}{_DASH}{_OUTSIDE}|{_CLOCK})[{SEPARATORS}]?\s(?!\s?[ap]\.?m\b)",
    re.ASCII | re.IGNORECASE,
)
_DECADE = re.compile(r"[1-9]\d{0,8}0s\b", re.ASCII | re.IGNORECASE)  # "80s", "1920s"
_ALMOST_TIME = re.compile(r"\[\s{0,8}\d{1,9}:\d[^\]\s]{0,40}\]?", re.ASCII)
_ALMOST_BARE = re.compile(r"\d{1,3}:\d{1,2}(?!\d)(?!\s?[ap]\.?m\b)", re.ASCII | re.IGNORECASE)
_SCENE = re.compile(rf"scene\s{{1,8}}\d{{1,9}}\s{{0,8}}(?:{_BRACKETS}|(?=[{SEPARATORS}]))", re.ASCII | re.I)
_SHARED = re.compile(r"\[\s{0,8}shared\s{0,8}\]", re.ASCII | re.IGNORECASE)
_MEANT_AS_JSON = re.compile(r'\s*(?:\{\s*"prompts"|\[\s*")')


@dataclass(frozen=True)
class Prompt:
    """A parsed prompt.

    Attributes:
        text: on one line, see `fold`.
        line: 1-based line of the prompt in the timeline.
        start, end: in seconds, None where not given.
        token: the time as the user wrote it, for messages.
        switch, seed: from the tag in front of the text, None where it does not name them.
    """

    text: str
    line: int | None = None
    start: float | None = None
    end: float | None = None
    token: str = ""
    switch: Switch | None = None
    seed: int | None = None


def split_lines(text: str) -> list[str]:
    """The lines of a text, which end at newlines of any system, and not at other characters as `str.splitlines`."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def split_prompts(text: str) -> tuple[str, ...]:
    """The prompts of a text with one on each line; empty lines are left out."""
    return tuple(filter(None, map(str.strip, split_lines(text))))


def read_shared(text: str) -> str:
    """The words of a first line `[shared] words`, on one line; empty where there is none."""
    return _split_shared(split_lines(text))[0]


def _split_shared(lines: list[str]) -> tuple[str, list[str]]:
    """The shared words, and all lines with those of the shared words empty, so that lines keep their numbers."""
    first = next((place for place, line in enumerate(lines) if line.strip()), 0)
    tag = _SHARED.match(lines[first].strip())
    if tag is None:
        return "", lines
    after = first + 1  # without times the prompts begin on the next line
    for number, line in enumerate(map(str.strip, lines[after:]), after):
        if _match_time(line, decades=False) or _ALMOST_TIME.match(line) or _SCENE.match(line):
            after = number
            break
    words = " ".join([lines[first].strip()[tag.end() :], *lines[first + 1 : after]])
    return fold(words), [""] * after + lines[after:]


def read_prompts(text: str, clock: BlockClock) -> list[Prompt]:
    """Choose the grammar by the beginning of the text, after a line of shared words, and parse all prompts.

    Raises TimelineError for an invalid number of prompts, empty prompts and invalid tags. The order of times is not
    checked here.
    """
    lines = _split_shared(split_lines(text))[1]
    text = "\n".join(lines)
    first = next((line.strip() for line in lines if line.strip()), "")
    parsed: Iterator[Prompt]
    if first[:1] in ("{", "[") and (data := _load_json(text)) is not None:
        parsed = _read_json(data, clock)
    elif (time := _match_time(first, decades=False)) or _ALMOST_TIME.match(first):
        # "80s" at the start of a line is a decade unless the timeline's first time is in plain seconds
        in_seconds = time is not None and time.re is _BARE and ":" not in time["start"]
        parsed = _read_headed(lines, lambda line: _match_time(line, decades=in_seconds), timed=True)
    elif _SCENE.match(first):
        parsed = _read_headed(lines, _SCENE.match)
    elif "|" in text:
        parsed = _read_pipes(text)
    else:
        parsed = iter([Prompt(fold(text), None)] if first else [])
    prompts = list(itertools.islice(parsed, MAX_SEGMENTS + 1))
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
        check_no_time(prompt.text, prompt.line)
    return prompts


def check_no_time(text: str, line: int | None = None) -> None:
    """Refuse a time in brackets inside a prompt, which would be sent to the model as words."""
    if inside := _INSIDE_PROMPT.search(text):
        raise TimelineError(
            f"{inside[0]} stands inside a prompt; begin the text with the first prompt's time, as in "
            "[0-5s] a cat walks, [5-10s] it jumps",
            line,
        )


def _read_switch(prompt: Prompt) -> Prompt:
    try:
        switch, seed, text = read_tag(prompt.text)
    except HeadForcingError as error:
        raise TimelineError(str(error), prompt.line) from None
    return replace(prompt, text=text, switch=switch, seed=seed)


def _match_time(line: str, decades: bool) -> re.Match[str] | None:
    """The time at the start of a line; "80s" and "1920s" are times only with `decades`."""
    if not decades and _DECADE.match(line):
        return None
    return _BRACKETED.match(line) or _BARE.match(line)


def _read_headed(
    lines: list[str], match: Callable[[str], re.Match[str] | None], timed: bool = False
) -> Iterator[Prompt]:
    """Prompts whose first lines have a header (a time or a scene); lines without one continue the prompt above."""
    header: dict[str, Any] | None = None
    parts: list[str] = []
    stripped = enumerate(map(str.strip, lines), 1)
    for number, line in ((n, piece) for n, whole in stripped for piece in (_pieces(whole) if timed else [whole])):
        heading = match(line)
        if heading is None:
            almost = _ALMOST_TIME.match(line) or (_ALMOST_BARE.match(line) if timed else None)
            if almost and not _BRACKETED.match(line):
                raise TimelineError(f"{almost[0]!r} is not a time; write m:ss, [m:ss] or [m:ss-m:ss]", number)
            parts.append(line)
            continue
        if header is not None:
            yield Prompt(fold(" ".join(parts)), **header)
        start, end = (None if token is None else _seconds(token, number) for token in heading.group("start", "end"))
        header = {"line": number, "start": start, "end": end, "token": heading[0]}
        rest = line[heading.end() :].lstrip()
        if heading.re is _BARE and (again := _AFTER_COMMA.search(rest)):
            raise TimelineError(
                f"{again[0][1:].strip()!r} stands inside a prompt; write each prompt on a line of its own, with "
                "its time in front",
                number,
            )
        parts = [rest[1:] if rest.startswith(tuple(SEPARATORS)) else rest]
    if header is not None:
        yield Prompt(fold(" ".join(parts)), **header)


def _pieces(line: str) -> list[str]:
    """A line cut before every time in brackets: "[0-5s] a cat walks, [5-10s] it jumps" holds two prompts."""
    starts = [0, *(found.start() for found in _INSIDE_PROMPT.finditer(line) if found.start()), len(line)]
    pieces = [line[start:end].strip() for start, end in itertools.pairwise(starts)]
    return [piece.rstrip(",; ") for piece in pieces[:-1]] + pieces[-1:] if pieces else [line]


def _read_pipes(text: str) -> Iterator[Prompt]:
    line = 1
    for piece in text.split("|", MAX_SEGMENTS):
        yield Prompt(fold(piece), line)
        line += piece.count("\n")


def _load_json(text: str) -> Any:
    """The JSON value; None for a prompt that begins with a bracket; TimelineError for invalid JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise TimelineError('the JSON is nested too deeply; expected {"prompts": ["...", "..."]}') from None
    except ValueError as error:
        if not _MEANT_AS_JSON.match(text):
            return None
        reason, line = getattr(error, "msg", "a number is too long"), getattr(error, "lineno", None)
        raise TimelineError(f'not valid JSON ({reason}); expected one {{"prompts": ["...", "..."]}}', line) from None


def _read_json(data: Any, clock: BlockClock) -> Iterator[Prompt]:
    """Prompts in LongLive's JSON form; a switch at a latent frame takes effect at the next block start."""
    fields = data if isinstance(data, dict) else {"prompts": data}
    texts, switches = fields.get("prompts"), fields.get("switch_frame_indices")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TimelineError('a JSON timeline is {"prompts": ["...", "..."]} or a list of texts; found something else')
    if switches is None or not texts:
        yield from (Prompt(fold(text)) for text in texts)
        return
    last_frame = int(MAX_SECONDS * clock.fps / TEMPORAL_STRIDE)
    if not isinstance(switches, list) or len(switches) != len(texts) - 1:
        raise TimelineError(f"switch_frame_indices must be a list of {len(texts) - 1}, one fewer than the prompts")
    for text, frame in zip(texts, [0, *switches], strict=True):
        if type(frame) is not int or not 0 <= frame <= last_frame:
            raise TimelineError(f"switch_frame_indices must be latent frames in 0-{last_frame}, found {frame!r:.40}")
        start = clock.start_seconds(-(-frame // clock.frames_per_block))
        yield Prompt(fold(text), start=cut_to_millisecond(start), token=f"latent frame {frame}")


def fold(text: str) -> str:
    """One line of valid Unicode: white space and NUL become single spaces, lone surrogates become "?"."""
    return " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())


def _seconds(token: str, line: int) -> float:
    """Seconds of `h:mm:ss`, `m:ss`, `s` or `ss`, each with an optional fraction and an optional final s."""
    first, *rest = token.lower().rstrip("s").replace(",", ".").split(":")
    if any(float(part) >= 60 for part in rest):
        raise TimelineError(f"{token!r} is not a time; after a colon the numbers go from 00 to 59", line)
    value = functools.reduce(lambda total, part: total * 60 + float(part), rest, float(first))
    if value > MAX_SECONDS:
        raise TimelineError(f"{token!r} is after the end of the longest video ({MAX_SECONDS:.0f} s)", line)
    return cut_to_millisecond(value)
