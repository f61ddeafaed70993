"""Parsers of the prompt timeline grammars: plain text to prompts with their times, switches and
seeds. `timeline.py` lists the grammars, `tags.py` reads the tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from ..errors import HeadForcingError
from .characters import clean, fold, plain
from .clock import MAX_SECONDS, BlockClock, cut_to_millisecond
from .foreign import to_timeline
from .headings import (
    TIME_IN_BRACKETS,
    Heading,
    Line,
    cut_line,
    open_brackets,
    read_lines,
    seconds_of,
)
from .json_forms import is_frame, load_json, read_json
from .prompt import Prompt, TimelineError
from .refusals import (
    INSIDE_NAMED,
    INSIDE_SCENE,
    INSIDE_TIMED,
    RULE,
    is_surely_heading,
    refuse_inside,
    refuse_like,
    refuse_schedule,
    refuse_table,
)
from .switch import RESET, Switch
from .tags import CAN_BE_TAG, match_tag, parse_tag, refuse_almost_tag
from .times import FLAGS, IN_BRACKETS

MAX_SEGMENTS = 10_000
MAX_TAGS = 8  # in front of a prompt

_SHARED = re.compile(r"\[\s{0,8}shared\s{0,8}\]", re.ASCII | re.IGNORECASE)
_FOREIGN = re.compile("-->|WEBVTT|```|~~~")  # subtitles and fences have one of these
_COMMENT = re.compile(  # also a negative prompt, which a distilled model has no use for
    r"(?:^|\s)(?://(?=\s|$)|/\*|--neg\b"
    r"|(?:negative[rs]? prompt|prompt n[ée]gatif|prompt negativo|负面提示词|負面提示詞"
    r"|反向提示词|ネガティブプロンプト|네거티브 프롬프트|부정 프롬프트)\s?[:：]).{0,40}",
    re.IGNORECASE,
)
ESCAPED = re.compile(r"\\([{}])")
_BAR = re.compile("[|｜]")
_ESCAPED_WORDS = re.compile(r"\\\{(?:[^{}]|\{[^{}|｜]*\})*\}")
_BRACES_AND_BARS = re.compile(rf"{_ESCAPED_WORDS.pattern}|\\[{{}}]|[{{}}|｜]")
_NO_MARKUP = str.maketrans("*_`", "   ")
_QUOTE = re.compile("[\"'“”„‟＂＇]")
_DIGIT = re.compile(r"\d")
_TIME_OF_WORDS = re.compile(rf"{IN_BRACKETS}[\]:]|\d:\d\d(?::\d\d[:;,]|,)\d", FLAGS)
LATE_SECONDS = 60.0  # a first time from here on is more likely a ratio or a time of day


def split_lines(text: str) -> list[str]:
    """The lines of a text, which end at newlines of any system, and not at other characters as
    `str.splitlines`.
    """
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def split_prompts(text: str) -> tuple[str, ...]:
    """The prompts of a text with one on each line; empty lines are left out."""
    return tuple(filter(None, map(str.strip, split_lines(text))))


def split_shared(text: str) -> tuple[str, str]:
    """The words behind `[shared]`, on one line, and the text with their lines empty, so that all
    others keep their numbers. They reach to the first heading, without one to the end of the first
    line. In any text invisible characters are gone, fences are empty, and subtitles are prompts."""
    if "\t" in text:
        refuse_table(text)
    text = clean(text)
    if _FOREIGN.search(text):
        text = to_timeline(text)
    tag = _SHARED.match(text.lstrip())
    if tag is None:
        return "", text
    lines = read_lines(text)
    first, *below = [line for line in lines if line.text]
    after = first.number  # without times the prompts begin on the next line
    for line in below:
        heading = line.heading
        # as in "80s neon"
        is_prose = heading is None or (heading.spoken and heading.start.endswith("0s"))
        if is_surely_heading(line) or not is_prose:
            after = line.number - 1
            break
    words = [line.text for line in lines[first.number : after] if not RULE.fullmatch(line.text)]
    text = "\n".join([""] * after + [line.text for line in lines[after:]])
    return fold(" ".join([first.text[tag.end() :], *words])), text


def read_prompts(text: str, clock: BlockClock) -> list[Prompt]:
    """The prompts of a text from `split_shared`, in the grammar that its beginning is of.

    Raises TimelineError for an invalid number of prompts, empty prompts and invalid tags. The order
    of times is not checked here.
    """
    prompts = list(_parse(text, clock))
    if not prompts:
        raise TimelineError("the timeline is empty; write at least one prompt")
    if len(prompts) > MAX_SEGMENTS:
        raise TimelineError(
            f"the timeline has more than {MAX_SEGMENTS} prompts; split it into several videos"
        )
    prompts = _read_tags(prompts, clock.block_seconds)
    if prompts[0].switch not in (None, RESET):
        raise TimelineError(
            f"the first prompt has nothing to switch from; remove [{prompts[0].switch}]",
            prompts[0].line,
        )
    for number, prompt in enumerate(prompts, 1):
        if not prompt.text:
            raise TimelineError(
                f"prompt {number} is empty; write its text or remove it", prompt.line
            )
        if _SHARED.match(prompt.text):
            raise TimelineError(
                "[shared] begins the first line of the timeline, before the first time", prompt.line
            )
        check_words(prompt.text, prompt.line)
    return prompts


def _read_tags(prompts: list[Prompt], block_seconds: float) -> list[Prompt]:
    """The prompts with the switches and seeds of their tags."""
    tagged = []
    for prompt in prompts:
        try:
            switch, seed, words = read_tag(prompt.text, block_seconds)
        except HeadForcingError as error:
            raise TimelineError(str(error), prompt.line) from None
        tagged.append(replace(prompt, text=words, switch=switch, seed=seed))
    return tagged


def read_tag(text: str, block_seconds: float) -> tuple[Switch | None, int | None, str]:
    """The switch and the seed of the tags in front of a one-line text, None for what they do not
    name, and the rest; a dissolve is rounded to blocks of `block_seconds`.

    A bracket with other words belongs to the prompt. Raises HeadForcingError for two kinds, blends
    or seeds, and for a misspelt tag.
    """
    if CAN_BE_TAG.match(text) is None:
        return None, None, text
    words: list[str] = []
    tag = match_tag(text)
    while tag is not None and len(words) < MAX_TAGS:
        words.append(tag.words)
        text = tag.rest
        tag = match_tag(text)
    refuse_almost_tag(text)
    switch, seed = parse_tag(", ".join(words), block_seconds) if words else (None, None)
    return switch, seed, text


def _parse(text: str, clock: BlockClock) -> Iterable[Prompt]:
    """The prompts of a text in the grammar that its first line is of."""
    text = open_brackets(text)
    begin = text.lstrip().partition("\n")[0]
    if begin[:1] in ("{", "[") or (_QUOTE.search(begin) and is_frame(begin)):
        data = load_json(text)
        if data is not None:
            return read_json(data, clock)
    lines = read_lines(text)
    written = [line for line in lines if line.text and not RULE.fullmatch(line.text)]
    if not written:
        return []
    first = written[0].heading
    if first is not None and not _is_prose(first, written):
        return _read_headed(written, first)
    refuse_schedule(lines, written)
    text = "\n".join("" if RULE.fullmatch(line.text) else line.text for line in lines)
    if _BAR.search(text):
        return _read_pipes(text)
    return [Prompt(fold(text))]


def _is_prose(first: Heading, lines: Sequence[Line]) -> bool:
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


def check_words(text: str, line: int | None = None) -> None:
    """Refuse what would be sent to the model as words: a time in brackets, braces that choose,
    comments.
    """
    inside = _DIGIT.search(text) and _TIME_OF_WORDS.search(plain(text))
    if inside:
        raise TimelineError(
            f"{text[inside.start() : inside.end()]} stands inside a prompt; begin the text with "
            "the first prompt's time, as in [0-5s] a cat walks, [5-10s] it jumps",
            line,
        )
    if any(map(_BAR.search, split_outside(_ESCAPED_WORDS.sub("", text)))):
        raise TimelineError(
            "{red|blue} chooses a word in ComfyUI's text box, not here: write one; \\{ and \\} are "
            "braces",
            line,
        )
    comment = _COMMENT.search(text)
    if comment is not None:
        raise TimelineError(
            f"{comment[0].strip()!r} is a comment or a negative prompt, which a prompt cannot "
            "hold; remove it",
            line,
        )


@dataclass(frozen=True)
class _Section:
    """The lines of a prompt, of the first one the words behind the heading."""

    heading: Heading
    lines: list[Line]


def _read_headed(lines: Sequence[Line], first: Heading) -> list[Prompt]:
    """Prompts whose first lines have a heading as the first one; lines without one continue the
    prompt above.
    """
    scenes = first.name == "scene"
    # a time as in "5 seconds later" counts where the first one is in plain seconds
    in_seconds = first.bare and not first.name and ":" not in first.start
    pieces = [_with_counted_heading(line, scenes, in_seconds) for line in lines]
    if not scenes:
        pieces = list(chain.from_iterable(map(cut_line, pieces)))
    sections: list[_Section] = []
    for line in pieces:
        heading = line.heading
        if heading is None:
            sections[-1].lines.append(line)
        else:
            words = replace(line, text=heading.words, same=heading.same)
            sections.append(_Section(heading, [words]))
    prompts = [_read_section(section.heading, section.lines) for section in sections]
    return [replace(prompt, text=fold(prompt.text)) for prompt in prompts]


def _with_counted_heading(line: Line, scenes: bool, in_seconds: bool) -> Line:
    """A line without its heading, if that begins no prompt: among scenes all but a scene, among
    times a scene without one and, unless `in_seconds`, a time as in "5 seconds later". The first
    heading of a text always counts.
    """
    heading = line.heading
    if heading is None:
        return line
    if heading.name == "scene":
        counts = scenes or heading.start != ""
    else:
        counts = not scenes and (in_seconds or not heading.spoken)
    return line if counts else replace(line, heading=None)


def _read_section(heading: Heading, lines: Sequence[Line]) -> Prompt:
    """The prompt of a section; TimelineError for lines that look like another prompt's."""
    number = lines[0].number
    start = _seconds(heading.start, number)
    end = _seconds(heading.end, number)
    words: list[str] = []
    for line in lines:
        if words:
            refuse_like(line, heading, words)
        again = time_inside(line.text, line.same, heading)
        if again:
            refuse_inside(again, heading, line.number)
        words.append(line.text)
    return Prompt(" ".join(words), number, start, end, token=heading.token)


def time_inside(words: str, same: str, heading: Heading) -> str:
    """The time or the scene of another prompt in words behind a heading, `same` as `plain` has
    them; "" for none, and behind a time in square brackets without a scene.
    """
    if heading.start and not heading.bare and not heading.name:
        return ""
    same = same.translate(_NO_MARKUP).rstrip()
    before = len(same) - len(same.lstrip())
    inside = INSIDE_TIMED if heading.start else INSIDE_SCENE
    if not heading.bare:  # behind the number of a scene or shot
        inside = INSIDE_NAMED
    found = inside.search(same[before:])
    if found is None:
        return ""
    return words[before + found.start() : before + found.end()].strip(",; *_`")


def _read_pipes(text: str) -> Iterator[Prompt]:
    line = 1
    for piece in split_outside(text):
        yield Prompt(fold(piece), line)
        line += piece.count("\n")


def split_outside(text: str) -> list[str]:
    """A text cut at its bars, full-width ones too, and not inside braces."""
    cuts = [-1]
    depth = 0
    for mark in _BRACES_AND_BARS.finditer(text):
        if mark[0] == "{":
            depth += 1
        elif mark[0] == "}":
            depth = max(0, depth - 1)
        elif depth == 0 and mark[0] in "|｜":
            cuts.append(mark.start())
    return [text[begin + 1 : end] for begin, end in pairwise([*cuts, len(text)])]


def _seconds(token: str, line: int) -> float | None:
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
