"""Refusals of lines that look like a time, a scene or a schedule and cannot be read as one; as
words of a prompt they would silently give another video.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from .headings import (
    BEFORE,
    EXAMPLE,
    NUMBERED,
    SCENE_NAME,
    SHOT_NAME,
    Heading,
    Kind,
    Line,
    brackets_with_words,
    is_frame,
    plain,
    seconds_of,
    time_inside,
)
from .prompt import TimelineError
from .tags import match_tag
from .times import (
    CLOCK,
    DURATION,
    FLAGS,
    IN_SECONDS,
    NO_TIME_OF_DAY,
    NUMBER,
    NUMBER_OR_TIME,
    SEPARATORS,
    TIME,
    TO,
)

SCENE_EXAMPLE = "Scene 1: a cat walks"
_TIMED_SCENE = "Scene 1 (0:00-0:05): a cat walks"

_IN_BRACKETS = re.compile(r"\[\s{0,8}\d{1,9}:\d[^\]\s]{0,40}\]?", re.ASCII)
_BARE = re.compile(  # "0: 10 b", "0:10 pm b", "5s, b", "5-10 s b"; "1920s" and "6:00 pm" are words
    rf"{BEFORE}[<{{@~≈+'\"(]?(?P<time>\d{{1,3}}\s{{0,2}}:\s{{0,2}}\d{{1,2}}(?!\d)[\d:;.,]{{0,12}}{NO_TIME_OF_DAY}"
    r"|00?:\d\d\s?[ap]\.?m\b|00?\.\d\d(?=\s)"
    rf"|(?!\d{{4}}s)(?:{NUMBER_OR_TIME}{TO})?{DURATION}(?!['’\w])"
    rf"|(?:{NUMBER_OR_TIME}{TO})?{NUMBER}\s[ms](?=\s?:))",
    FLAGS,
)
_SCENE = re.compile(
    rf"{BEFORE}[\[(]?\s?(?:{SCENE_NAME}|{SHOT_NAME}\s{{0,8}}[{SEPARATORS}]?\s?[\[(]\s?\d)",
    FLAGS,
)
_RANGE_OR_DURATION = rf"(?:{NUMBER_OR_TIME}{TO}{TIME}|{DURATION}|00?:\d\d)"
_DETAIL = re.compile(  # "Time: 0:00-0:10", "**Duration:** 5 s"
    rf"{BEFORE}(?:time(?:\s?(?:range|code|stamp))?|timestamps?|timing|duration|length|runtime"
    r"|时间|時間|时长|時長|長さ|시간|길이)[*_`]{0,3}\s?[:=]\s?[*_`]{0,3}\s?[~≈]?[\[(]?\s?"
    rf"{_RANGE_OR_DURATION}(?!\w){NO_TIME_OF_DAY}",
    FLAGS,
)
_IN_TITLE = re.compile(  # "The Forest (5 s)", "The Forest - 5 s", "5 s - The Forest", "0:05 b"
    rf"^(?:00?:\d\d(?!\w)|{_RANGE_OR_DURATION}\s?(?:[:|–—]|-\s|$))"
    rf"|[\[(]\s?(?:[a-z~≈]{{1,12}}[.:]?\s?)?(?<!\d){_RANGE_OR_DURATION}\s?[\])]\s?(?:[:*_|–—-]|$)"
    rf"|[\[(][^()\[\]]{{0,40}}(?<!\d)00?:\d\d{TO}{CLOCK}[^()\[\]]{{0,40}}[\])]"
    rf"|(?:[–—|,-]|\s(?=\d{{1,9}}:\d\d{TO}))\s?(?:[a-z]{{1,12}}:\s?)?{_RANGE_OR_DURATION}[*_`]{{0,3}}$",
    FLAGS,
)
_SCENE_IN_TITLE = re.compile(rf"(?<!\w){SCENE_NAME}\s?[:|–—(]", FLAGS)
_RANGE_IN_TITLE = re.compile(rf"[\[(]\s?{CLOCK}{TO}{CLOCK}\s?[\])]", FLAGS)
_ITEM = re.compile(  # "1. a", "2) b", "3: c"
    r"(?:[-*#>]{1,6}\s)?(?:\*{1,3}|_{1,2})?\(?(?P<number>\d{1,3})\s?"
    r"(?:[.:](?!\d)|[)、]|[–—-](?=\s))",
    FLAGS,
)
_ROW = re.compile(  # "5,it jumps", "5-10: it jumps", "(5-10) it jumps", "Second 5: it jumps"
    rf'"?{NUMBER}"?[,;]\s?(?=[^\d\s])|(?:seconds?|minutes?|frames?)\s{NUMBER}'
    rf"|(?:{NUMBER}{TO})?{NUMBER}\s?(?:[:|](?!\d)|[–—]\s)|\({NUMBER}{TO}{NUMBER}\)",
    FLAGS,
)
# "From 0:00 to 0:05: a", "A cat (0-5s)", "First 5 seconds: a", "T=5s: a"
_TIME_INSIDE = re.compile(
    rf"(?<![\d:])(?:00?:\d\d(?!\d)|{NUMBER_OR_TIME}{TO}(?:{CLOCK}|{IN_SECONDS})|{IN_SECONDS}\s?:)",
    FLAGS,
)
_NOTE = re.compile(r"#{1,6}\s|//|/\*")
RULE = re.compile(r"(?:[-*_=–—─━]\s?){3,}")  # horizontal: `---`, `***`


def almost_time(line: str, bare: bool) -> str | None:
    """The beginning of a line that is nearly a time, in brackets or, with `bare`, without them;
    None of others.
    """
    same = plain(line)
    found = _IN_BRACKETS.match(same)
    if found is not None:
        return line[: found.end()]
    found = _BARE.match(same) if bare else None
    return found and line[found.start("time") : found.end()]


def refuse_almost(line: Line, timed: bool, shots: bool) -> None:
    """Refuse a line that continues a prompt of a text with times or scenes, and begins with nearly
    a time or a scene, or with a comment; in a text with shots, with a shot, too.
    """
    almost = almost_time(line.text, bare=timed)
    if almost is not None:
        raise TimelineError(
            f"{almost!r} is not a time; write m:ss, [m:ss] or [m:ss-m:ss]; where it belongs to the "
            "prompt, put words in front of it",
            line.number,
        )
    same = plain(line.text)
    if _SCENE.match(same) or (shots and NUMBERED.match(same)):
        raise TimelineError(
            f"{line.text[:40]!r} is no scene that can be read; write "
            f"{SCENE_EXAMPLE}, or a time in every scene, as in {_TIMED_SCENE}",
            line.number,
        )
    time = line.time
    if time is not None and not timed and _is_of_scene(time):
        raise TimelineError(
            f"{time.token!r} stands below a scene; write the time behind the scene's number, as "
            f"in {_TIMED_SCENE}",
            line.number,
        )
    refuse_detail(line)
    if _NOTE.match(line.text):
        raise TimelineError(
            f"{line.text[:40]!r} is a comment, which a prompt cannot hold; remove it", line.number
        )


def _is_of_scene(time: Heading) -> bool:
    """Whether a time below a scene is that of the scene, and no ratio or time of day."""
    start = str(time.start)
    if not time.words or time.end is not None or not time.bare:
        return True
    in_seconds = time.kind is Kind.TIME and ":" not in start
    return in_seconds or re.match(r"00?:", start) is not None


def refuse_detail(line: Line) -> None:
    """Refuse a line such as `Duration: 5s`."""
    if _DETAIL.match(plain(line.text)):
        raise TimelineError(
            f"{line.text[:40]!r} would be words of a prompt; write times as in {EXAMPLE} or "
            f"{_TIMED_SCENE}",
            line.number,
        )


def refuse_inside(words: str, heading: Heading, number: int) -> None:
    """Refuse the time of another prompt in words behind a heading without brackets."""
    again = time_inside(words)
    if again is not None:
        raise TimelineError(
            f"{again!r} stands inside a prompt; write each prompt on a line of its own, with its "
            "time in front; where it belongs to the words, put brackets around the first time, as "
            f"in [{heading.start}]",
            number,
        )


def refuse_tag(line: Line, above: Sequence[str]) -> None:
    """Refuse a tag at the beginning of a line below the words of a prompt."""
    if match_tag(line.text) is None:
        return
    words = " ".join(above).strip()
    tag = match_tag(words)
    if words and (tag is None or tag.rest):
        raise TimelineError(
            f"{line.text[:40]!r} begins with a tag and stands below words of a prompt; write a tag "
            "behind the time of its prompt, as in 0:10 [cut] a cat walks",
            line.number,
        )


def refuse_title(heading: Heading, number: int) -> None:
    """Refuse another scene in the words of a scene's line, and a time that cannot be read as the
    scene's.
    """
    same = plain(heading.words)
    another = _SCENE_IN_TITLE.search(same)
    if another is not None:
        raise TimelineError(
            f"{heading.words[another.start() : another.end()]!r} stands inside a scene; write each "
            "scene on a line of its own",
            number,
        )
    pattern = _IN_TITLE if heading.start is None else _RANGE_IN_TITLE
    found = pattern.search(same)
    if found is not None:
        token = heading.words[found.start() : found.end()].strip()
        raise TimelineError(
            f"{token!r} in the line of a scene cannot be read; write its start and end, as in "
            f"{_TIMED_SCENE}, or put it on the next line with words in front of it",
            number,
        )


def refuse_fractions(lines: Sequence[Line]) -> None:
    """Refuse "0:10,5 cats" in a text with a comma after other times: its number can be a fraction
    or a word.
    """
    for line in lines:
        heading = line.heading
        if heading is not None and "," in str(heading.start):
            raise TimelineError(
                f"{heading.token!r} can be a time with a fraction or a time and a number; write a "
                "point in the time, or a blank behind the comma",
                line.number,
            )


def refuse_length(first: Heading, number: int) -> None:
    """Refuse the time of a first scene that can be its start or its length: "Scene 1 (5 s)"."""
    start = str(first.start)
    if first.end is None and ":" not in start and seconds_of(start) > 0:
        raise TimelineError(
            f"{first.token!r} can be a start or a length; write the start and the end, as in "
            f"{_TIMED_SCENE}",
            number,
        )


def refuse_schedule(first: Line, lines: list[Line]) -> None:
    """Refuse a text without a first time that is no single prompt."""
    for line in lines:
        if "---" in line.text and "|" in line.text and not line.text.strip("|:- "):
            raise TimelineError(
                f"a table cannot be read; write its rows as in {EXAMPLE}", first.number
            )
    example = _schedule_in(first, lines)
    if example is not None:
        raise TimelineError(
            f"{first.text[:40]!r} stands before the first time; titles and comments are no "
            f"prompts, begin with the first prompt, as in {example}",
            first.number,
        )
    reasons = {
        "has no time": _numbered(lines) or _items(lines),
        "does not begin with a time that can be read": _almost(lines),
    }
    for reason, found in reasons.items():
        if len(found) > 1:
            raise TimelineError(
                f"{found[0].text[:40]!r} {reason}; write times, as in {EXAMPLE}, or "
                f"{SCENE_EXAMPLE}",
                found[0].number,
            )
    for line in lines:
        refuse_detail(line)
    _refuse_rule(lines)


def _schedule_in(first: Line, lines: list[Line]) -> str | None:
    """An example of the times, scenes or frames that several lines of a text begin with; None for a
    single prompt, whose `first` line can begin with a time.
    """
    timed = [line for line in lines if line.time is not None]
    later = [line.time for line in timed if line is not first]
    if len(timed) > 1 or any(time and seconds_of(str(time.start)) == 0 for time in later):
        return EXAMPLE
    if [line.kind for line in lines].count(Kind.SCENE) > 1:
        return SCENE_EXAMPLE
    if sum(is_frame(line.text) for line in lines) > 1:
        return '"0": "a cat walks"'
    joined = "\n".join(line.text for line in lines)
    return "[0s: a cat walks] [5s: it jumps]" if brackets_with_words(joined) > 1 else None


def _numbered(lines: Sequence[Line]) -> list[Line]:
    """The lines that begin with a scene or shot with a number."""
    found = []
    for line in lines:
        same = plain(line.text)
        if NUMBERED.match(same) or _SCENE.match(same):
            found.append(line)
    return found


def _almost(lines: Sequence[Line]) -> list[Line]:
    """The lines that begin with nearly a time or with a number and a separator, and those with a
    time as in a schedule.
    """
    found = []
    for line in lines:
        same = plain(line.text)
        if almost_time(line.text, bare=True) or _ROW.match(same) or _TIME_INSIDE.search(same):
            found.append(line)
    return found


def _items(lines: Sequence[Line]) -> list[Line]:
    """The items of a numbered list, if some follow one another."""
    items = []
    numbers = []
    for line in lines:
        item = _ITEM.match(plain(line.text))
        if item is not None:
            items.append(line)
            numbers.append(int(item["number"]))
    follow = any(after == before + 1 for before, after in pairwise(numbers))
    return items if follow else []


def _refuse_rule(lines: Sequence[Line]) -> None:
    """Refuse a horizontal rule between words, which can separate two prompts."""
    written = [line for line in lines if line.text]
    while written and RULE.fullmatch(written[-1].text):
        written.pop()
    for before, line in pairwise(written):
        if RULE.fullmatch(line.text) and not RULE.fullmatch(before.text):
            raise TimelineError(
                f"{line.text[:40]!r} stands between words; remove it, or write prompts as in "
                f"{SCENE_EXAMPLE}",
                line.number,
            )
