"""Lines with times or scenes as people, chat programs and other tools write them, prompts between
bars, and single prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ..characters import fold
from ..clock import BlockClock
from ..grammar import LATE_SECONDS
from ..prompt import Prompt, TimelineError
from ..wording import split_outside
from .headings import (
    TIME_IN_BRACKETS,
    Heading,
    Line,
    cut_line,
    open_brackets,
    read_lines,
    seconds_in,
    seconds_of,
)
from .json_forms import is_frame, load_json, read_json
from .lists import read_list
from .parts import read_parts
from .refusals import (
    INSIDE_NAMED,
    INSIDE_SCENE,
    INSIDE_TIMED,
    RULE,
    is_surely_heading,
    refuse_inside,
    refuse_like,
    refuse_schedule,
)
from .shots import as_scenes

_SHARED = re.compile(r"\[\s{0,8}shared\s{0,8}\]", re.ASCII | re.IGNORECASE)
PROMPT_ALONE = "words"  # the form of a text that is one prompt
_BAR = re.compile("[|｜]")
_NO_MARKUP = str.maketrans("*_`", "   ")
_QUOTE = re.compile("[\"'“”„‟＂＇]")


def split_shared(text: str) -> tuple[str, str]:
    """The words behind `[shared]`, on one line, and the text with their lines empty, so that all
    others keep their numbers. They reach to the first heading, without one to the end of the first
    line.
    """
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


def read_form(text: str, clock: BlockClock, seconds: float | None) -> tuple[str, list[Prompt]]:
    """The form of a text from `split_shared`, and its prompts with their tags as words."""
    text = open_brackets(text)
    begin = text.lstrip().partition("\n")[0]
    if begin[:1] in ("{", "[") or (_QUOTE.search(begin) and is_frame(begin)):
        data = load_json(text)
        if data is not None:
            return "JSON", list(read_json(data, clock))
    lines = read_lines(text)
    written = [line for line in lines if line.text and not RULE.fullmatch(line.text)]
    if not written:
        return PROMPT_ALONE, []
    parts = read_parts(written, seconds)
    if parts is not None:
        return "parts of the video", parts
    items = read_list(lines)
    if items is not None:
        return "a list", items
    form, scenes = as_scenes(written)
    if form and scenes[0].heading is not None:
        return form, _read_headed(scenes, scenes[0].heading)
    first = written[0].heading
    if first is not None and not _is_prose(first, written):
        return ("scenes" if first.name else "times"), _read_headed(written, first)
    refuse_schedule(lines, written)
    text = "\n".join("" if RULE.fullmatch(line.text) else line.text for line in lines)
    if _BAR.search(text):
        return "prompts between bars", list(_read_bars(text))
    return PROMPT_ALONE, [Prompt(fold(text))]


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
    start = seconds_in(heading.start, number)
    end = seconds_in(heading.end, number)
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


def _read_bars(text: str) -> Iterator[Prompt]:
    line = 1
    for piece in split_outside(text):
        yield Prompt(fold(piece), line)
        line += piece.count("\n")
