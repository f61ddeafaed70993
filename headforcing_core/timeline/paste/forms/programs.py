"""Schedules of other programs and lines that are nearly times. They are always refused, for as
one prompt they would silently give another video.
"""

from __future__ import annotations

import re

from ...prompt import TimelineError
from ...times import CLOCK, FLAGS, IN_SECONDS, NUMBER, NUMBER_OR_TIME, SHOT, TO
from ..almost import is_like_heading, is_surely_heading
from ..headings import Line, seconds_of
from ..text import RULE, Text

EXAMPLES: dict[str, list[tuple[float | None, str]]] = {}
REFUSED = {
    "0;a fox\n5;a wolf": 1,
    "f0: a fox\nf80: a wolf": 1,
    "0-5: a fox\n5-10: a wolf": 1,
    "<?xml version='1.0'?>\n<tt>a fox</tt>": 1,
    "- time: 0\n  prompt: a fox\n- time: 5\n  prompt: a wolf": 1,
    "My story\n0:00 - a fox\n0:05 - a wolf": 1,
    "a fox\n---\n5 wolves": 2,
}
EXAMPLE = "0:00 a cat walks or Scene 1 (0:00-0:05): a cat walks"
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


def is_of_program(line: Line) -> bool:
    """Whether a line looks like one of a file of another program: "start: 0", "f0: a"."""
    return bool(_PROGRAM_ROW.match(line.unmarked) or _PROGRAM.match(line.same))


def read(text: Text) -> None:
    """Refuse lines that are no single prompt: several look like those of a schedule, or one surely
    is of one, or a rule separates them.
    """
    if not text.written:
        return
    first = text.written[0]
    like = [line for line in text.written if _is_row(line)]
    sure = [line for line in like if is_surely_heading(line) or _is_zero(line, first)]
    sure += [line for line in text.written if _PROGRAM.match(line.same)]
    numbered = [line for line in text.written if _NUMBER_ROW.match(line.unmarked)]
    if len(numbered) > 1 and _ZERO_ROW.match(numbered[0].unmarked):
        sure += numbered
    if len(like) > 1 or sure:
        line = (sure or like)[0]
        reason = "does not begin with a time that can be read"
        if line.heading is not None and line is not first:
            line = first  # the title above a line that can be read
            reason = "stands before the first time; titles and comments are no prompts"
        raise TimelineError(f"{line.text[:40]!r} {reason}; write {EXAMPLE}", line.number)
    last = text.written[-1]
    for line in text.lines:
        if RULE.fullmatch(line.text) and first.number < line.number < last.number:
            raise TimelineError(
                f"{line.text[:40]!r} stands between words; remove it, or write {EXAMPLE}",
                line.number,
            )


def _is_row(line: Line) -> bool:
    """Whether a line looks like one of a schedule, and not as in "1920s car"."""
    if line.heading is not None and not line.heading.spoken:
        return True
    return is_like_heading(line) or bool(_ROW.match(line.same) or _PROGRAM_ROW.match(line.unmarked))


def _is_zero(line: Line, first: Line) -> bool:
    """Whether a line below the first begins with the time 0."""
    heading = line.heading
    return heading is not None and line is not first and seconds_of(heading.start) == 0
