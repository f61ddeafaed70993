"""Refusals of lines that look like a time, a scene or a schedule and cannot be read as one; as
words of a prompt they would silently give another video.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..characters import fold
from ..languages import LENGTHS
from ..prompt import TimelineError
from ..tags import match_tag
from ..times import (
    CLOCK,
    DURATION,
    FLAGS,
    IN_SECONDS,
    NO_TIME_OF_DAY,
    NUMBER,
    NUMBER_OR_TIME,
    SCENE,
    SEPARATORS,
    SHOT,
    TIME,
    TO,
)
from .headings import ALONE, Heading, Line, seconds_of

EXAMPLE = "0:00 a cat walks or Scene 1 (0:00-0:05): a cat walks"

_RANGE = rf"{NUMBER_OR_TIME}{TO}{TIME}"
_RANGE_OR_DURATION = rf"(?:{_RANGE}|{DURATION}|00?:\d\d)"
# beginnings of lines that are no heading, without markup
_OPEN = r"[<{@~≈+'\"(\[]?\s{0,2}"
# \x7f stands for marks of direction, see `plain`
_COLON = r"[\s\x7f]{0,2}:[\s\x7f]{0,2}"
_END_OF_NAME = rf"\s{{0,8}}(?:[.,、()\[\]*_`{SEPARATORS}]|$)"  # not as in "Scene 2 of the play"
_SURELY = (  # also where only one line begins so
    rf"\[\s{{0,8}}\d{{1,9}}:\d|{_OPEN}00?{_COLON}\d\d{NO_TIME_OF_DAY}"
    rf"|[\[(]?\s?(?:{SCENE}{_END_OF_NAME}|{SHOT}\s{{0,8}}[{SEPARATORS}]?\s?[\[(]\s?\d)"
    rf"|(?:total\s)?(?:{LENGTHS})[*_`]{{0,3}}\s?[:=]\s?[*_`]{{0,3}}\s?[~≈]?[\[(]?\s?"
    rf"{_RANGE_OR_DURATION}(?!\w){NO_TIME_OF_DAY}"
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
    rf"{_RANGE_OR_DURATION}\s?(?:[:|–—]|-\s|$)|{CLOCK}\s?$|{SCENE}|(?!\d*0s)\d{{1,9}}s\s"
    rf"|[\[(]\s?(?:{NUMBER_OR_TIME}{TO})?{NUMBER_OR_TIME}\s?[\])]"
)
_SURE = re.compile(_SURELY, FLAGS)
_LIKE = re.compile(f"{_SURELY}|{_NEARLY}", FLAGS)
_LIKE_BELOW_SCENE = re.compile(f"{_SURELY}|{_AS_HEADING}", FLAGS)
_NOTE = re.compile(r"#{1,6}\s|//|/\*")
# what several lines of a schedule begin with or hold: "1. a", "5,it jumps", "Second 5: it jumps",
# "From 0:00 to 0:05: a", "A cat (0-5s)", `"0": "a"`, `0'05" a`
_ROW = re.compile(
    r"(?:[-*#>]{1,6}\s)?(?:\*{1,3}|_{1,2})?\(?\d{1,3}\s?(?:[.:](?!\d)|[)、]|[–—-](?=\s))"
    rf'|"?{NUMBER}"?[,;]\s?(?=[^\d\s])|(?:seconds?|minutes?|frames?)\s{NUMBER}'
    rf"|(?:{NUMBER}{TO})?{NUMBER}\s?(?:[:|](?!\d)|[–—]\s)|\({NUMBER}{TO}{NUMBER}\)"
    rf"|[\"']\d{{1,9}}[\"']\s?:|\d{{1,3}}(?:'\d\d\"|h\s?\d{{1,3}}m)"
    rf"|.*?(?<![\d:])(?:00?:\d\d(?!\d)|{NUMBER_OR_TIME}{TO}(?:{CLOCK}|{IN_SECONDS})|{IN_SECONDS}\s?:)",
    FLAGS,
)
# lines of files of other programs, where several begin so: Audacity's labels "0.0 5.0 a", "0%: a",
# "f0: a", "0ms: a", "0 = a", "time: 0", `"a",`
_PROGRAM_ROW = re.compile(
    rf"{NUMBER}\s{{1,8}}{NUMBER}\s|\[?{NUMBER}\s?(?:%|f|fr|frames?|ms)\s?[:=|\]]"
    rf"|{NUMBER}\s?(?:=>?|->|→)|[\[({{<]\s?{NUMBER}\s?[,:;\])}}>]"
    r"|(?:f|fr|frames?|t|s|secs?|seconds?|k|kf|keyframe|block)[\s_]?[=#:]?\s?"
    rf"{NUMBER}\s?(?:[:=|,)]|->|\s[–—-]\s)"
    r"|[\"']?(?:time|times|start|begin|end|at|from|to|frame|offset|timestamp|duration|seconds?)"
    rf"[\"']?\s?[:=]\s?[\"']?{NUMBER}|[\"'][^\"']{{1,2000}}[\"'],$|dialogue:\s?\d"
    rf"|@\s?{NUMBER}\s|{SHOT}\s",
    FLAGS,
)
# a text that begins so, or has it anywhere, is a file of another program
_PROGRAM = re.compile(
    r"\s*(?:<\?xml|<!doctype|<sami|\[script info\]|\{\d{1,9}\}\{\d{0,9}\}"
    r"|(?:(?:const|let|var)\s)?[\"']?(?:prompts|scenes|shots|timeline|keyframes|schedule|segments)"
    r"[\"']?\s?[:=]\s?(?:[\[{(|>]|$))"
    r"|.*?<[a-z][\w:.-]{0,30}\s[^<>]{0,200}?(?:begin|start|end|dur|time|timestamp|from|to|t)"
    r"\s?=\s?[\"']"
    r"|.*?<(?P<tag>p|li|prompt|scene|shot|text|item|sync)>[^<>]*</(?P=tag)>\s*<(?P=tag)>",
    FLAGS,
)
_ZERO_ROW = re.compile(r"0{1,2}(?:[.,]0{1,9})?\s?%?\s")
_NUMBER_ROW = re.compile(rf"{NUMBER}\s?%?\s", FLAGS)
_TABLE_ROW = re.compile(rf"^ {{0,8}}{NUMBER} {{0,8}}\t|\t {{0,8}}{NUMBER} {{0,8}}$", FLAGS)
# the time or the scene of another prompt: "a cat 5-10s: it jumps", "a cat 0:05-0:10"
_OTHER = (
    rf"(?:^|[\s,;(\[{SEPARATORS}]){CLOCK}{TO}{CLOCK}[)\]]?(?=[\s,;{SEPARATORS}]|$){NO_TIME_OF_DAY}"
    rf"|[,;]\s{{0,8}}{_RANGE}[{SEPARATORS}]?\s{NO_TIME_OF_DAY}"
    rf"|(?:^|\s){_RANGE}\s?:|^00?:\d\d(?!\w)|(?<=[^\w]){SCENE}\s?[:|–—(\]]"
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
    rf"^{_RANGE_OR_DURATION}\s?(?:[:|–—]|-\s|$)|^{_RANGE}(?!\w)|^0{{1,2}}\s?s(?:ec(?:ond)?s?)?(?!\w)"
    rf"|[\[({{]\s?(?:[a-z~≈]{{1,12}}[.:]?\s?)?(?<!\d){_RANGE_OR_DURATION}\.?\s?[\])}}]"
    rf"|\(\s?0{TO}{NUMBER}\s?\)|@\s?{CLOCK}"
    rf"|[–—|,-]\s?(?:[a-z]{{1,12}}:\s?)?{_RANGE_OR_DURATION}\.?[*_`]{{0,3}}$"
)
INSIDE_NAMED = re.compile(_OTHER, FLAGS)
INSIDE_TIMED = re.compile(f"{_OTHER}|{_OTHER_CLOCK}", FLAGS)
INSIDE_SCENE = re.compile(f"{_OTHER}|{_IN_SCENE}", FLAGS)
RULE = re.compile(r"(?:[-*_=–—─━|:]\s?){3,}")  # horizontal, also of a table


def is_surely_heading(line: Line) -> bool:
    """Whether a line without a heading begins as only a time or a scene does: "[0:00-0:2O] a"."""
    return _SURE.match(line.unmarked) is not None


def refuse_like(line: Line, heading: Heading, above: Sequence[str]) -> None:
    """Refuse a line that would continue the words `above` of a prompt with this heading and begins
    like a time, a scene, a tag or a comment.
    """
    tag = match_tag(line.text) is not None and any(above)
    like = _LIKE if heading.start else _LIKE_BELOW_SCENE
    if tag or like.match(line.unmarked) or _NOTE.match(line.text):
        raise TimelineError(
            f"{line.text[:40]!r} begins like a time, a scene, a tag or a comment and would be "
            "words of a prompt; write it as in 0:10 [cut] a cat walks or Scene 2 (0:10-0:15): a "
            "cat walks, or put words in front of it",
            line.number,
        )


def refuse_inside(again: str, heading: Heading, number: int) -> None:
    """Refuse the time or the scene of another prompt in words behind a heading."""
    raise TimelineError(
        f"{again!r} stands inside a prompt; write each prompt on a line of its own, with its "
        "time in front; where it belongs to the words, put brackets around the first time, as "
        f"in [{heading.start or '0:00'}]",
        number,
    )


def refuse_table(text: str) -> None:
    """Refuse several rows of a table between whose tabs a number stands first or last."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if _TABLE_ROW.search(line):
            rows.append((number, line))
    if len(rows) > 1:
        number, line = rows[0]
        raise TimelineError(
            f"{fold(line)[:40]!r} is a row of a table, whose numbers cannot be read as times; "
            f"write {EXAMPLE}",
            number,
        )


def is_of_program(line: Line) -> bool:
    """Whether a line looks like one of a file of another program: "start: 0", "f0: a"."""
    return bool(_PROGRAM_ROW.match(line.unmarked) or _PROGRAM.match(line.same))


def refuse_schedule(lines: Sequence[Line], written: Sequence[Line]) -> None:
    """Refuse lines that are no single prompt: several look like those of a schedule, or one surely
    is of one, or a rule separates them. `written` are those that are neither empty nor rules.
    """
    first = written[0]
    like = [line for line in written if _is_row(line)]
    sure = [line for line in like if is_surely_heading(line) or _is_zero(line, first)]
    sure += [line for line in written if _PROGRAM.match(line.same)]
    numbered = [line for line in written if _NUMBER_ROW.match(line.unmarked)]
    if len(numbered) > 1 and _ZERO_ROW.match(numbered[0].unmarked):
        sure += numbered
    if len(like) > 1 or sure:
        line = (sure or like)[0]
        reason = "does not begin with a time that can be read"
        if line.heading is not None and line is not first:
            line = first  # the title above a line that can be read
            reason = "stands before the first time; titles and comments are no prompts"
        raise TimelineError(f"{line.text[:40]!r} {reason}; write {EXAMPLE}", line.number)
    for line in lines:
        if RULE.fullmatch(line.text) and first.number < line.number < written[-1].number:
            raise TimelineError(
                f"{line.text[:40]!r} stands between words; remove it, or write {EXAMPLE}",
                line.number,
            )


def _is_row(line: Line) -> bool:
    """Whether a line looks like one of a schedule, and not as in "1920s car"."""
    if line.heading is not None and not line.heading.spoken:
        return True
    return bool(
        _LIKE.match(line.unmarked) or _ROW.match(line.same) or _PROGRAM_ROW.match(line.unmarked)
    )


def _is_zero(line: Line, first: Line) -> bool:
    """Whether a line below the first begins with the time 0."""
    heading = line.heading
    return heading is not None and line is not first and seconds_of(heading.start) == 0
