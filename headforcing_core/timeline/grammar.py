"""Parsers of the prompt timeline grammars: plain text to prompts with their times, switches and
seeds. `timeline.py` lists the grammars, `tags.py` reads the tags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from ..errors import HeadForcingError
from .characters import clean, fold
from .clock import MAX_SECONDS, BlockClock, cut_to_millisecond
from .foreign import without_fences, without_subtitles
from .headings import (
    BRACKET,
    IN_BRACKETS,
    Heading,
    Kind,
    Line,
    cut_line,
    is_frame,
    open_brackets,
    plain,
    read_lines,
    seconds_of,
)
from .json_forms import load_frames, load_json, read_frame_prompts, read_json
from .prompt import Prompt, TimelineError
from .refusals import (
    RULE,
    almost_time,
    refuse_almost,
    refuse_fractions,
    refuse_inside,
    refuse_length,
    refuse_schedule,
    refuse_tag,
    refuse_title,
)
from .switch import RESET, Switch
from .tags import CAN_BE_TAG, match_tag, parse_tag, refuse_almost_tag

MAX_SEGMENTS = 10_000

_SHARED = re.compile(r"\[\s{0,8}shared\s{0,8}\]", re.ASCII | re.IGNORECASE)
_FOREIGN = re.compile("-->|WEBVTT|```|~~~")  # subtitles and fences have one of these
_COMMENT = re.compile(r"(?:^|\s)(?://(?=\s|$)|/\*).{0,40}")
ESCAPED = re.compile(r"\\([{}])")
_DIGIT = re.compile(r"\d")
_SEED_ALONE = re.compile(r"seed \d{1,40}", re.ASCII | re.IGNORECASE)
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
    """The words of a first line `[shared] words`, on one line, and the text with its lines empty,
    so that all others keep their numbers; nothing can be seen that is not there, fences are empty,
    and subtitles are prompts."""
    text = clean(text)
    if _FOREIGN.search(text):
        text = "\n".join(without_subtitles(without_fences(text.split("\n"))))
    tag = _SHARED.match(text.lstrip())
    if tag is None:
        return "", text
    lines = text.split("\n")
    first = next(place for place, line in enumerate(lines) if line.strip())
    after = first + 1  # without times the prompts begin on the next line
    for line in read_lines("\n".join(lines[after:])):
        if line.kind not in (None, Kind.DECADE) or almost_time(line.text, bare=False):
            after += line.number - 1
            break
    words = [line for line in lines[first:after] if not RULE.fullmatch(line.strip())]
    words[0] = words[0].strip()[tag.end() :]
    return fold(" ".join(words)), "\n".join([""] * after + lines[after:])


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
    """The switch and the seed of the tag in front of a one-line text, None for what it does not
    name, and the rest; a dissolve is rounded to blocks of `block_seconds`.

    A bracket with other words belongs to the prompt. A tag of a seed alone may stand beside one of
    a switch. Raises HeadForcingError for two kinds, blends or seeds, and for a misspelt tag.
    """
    if CAN_BE_TAG.match(text) is None:
        return None, None, text
    tag = match_tag(text)
    if tag is None:
        refuse_almost_tag(text)
        return None, None, text
    switch, seed = parse_tag(tag.words, block_seconds)
    rest = tag.rest
    beside = match_tag(rest)
    if beside is None:
        if switch is None:
            refuse_almost_tag(rest)
    elif switch is None and not has_seed(rest):
        switch = parse_tag(beside.words, block_seconds)[0]
        rest = beside.rest
    elif switch not in (None, RESET) and seed is None and _SEED_ALONE.fullmatch(beside.words):
        # not after [reset], where all is text: see `editor`
        _, seed = parse_tag(beside.words, block_seconds)
        rest = beside.rest
    return switch, seed, rest


def has_seed(text: str) -> bool:
    """Whether the tag in front of a text names a seed."""
    tag = match_tag(text)
    return tag is not None and "seed" in tag.words.lower()


def _parse(text: str, clock: BlockClock) -> Iterable[Prompt]:
    """The prompts of a text in the grammar that its first line is of."""
    text = open_brackets(text)
    begin = text.lstrip().partition("\n")[0]
    if begin[:1] in ("{", "["):
        data = load_json(text)
        if data is not None:
            return read_json(data, clock)
    if is_frame(begin):
        return read_frame_prompts(load_frames(text), clock)
    lines = read_lines(text)
    first = next((line for line in lines if line.text and not RULE.fullmatch(line.text)), None)
    if first is None:
        return []
    time = first.time
    if (time is not None and not _is_prose(first, time, lines)) or almost_time(
        first.text, bare=False
    ):
        kinds = {Kind.TIME}
        if time is not None and time.bare and ":" not in str(time.start):
            # "80s" at the start of a line is a decade unless the timeline's first time is in plain
            # seconds
            kinds = {Kind.TIME, Kind.DURATION, Kind.DECADE}
        pieces = []
        for line in lines:
            pieces += cut_line(line, line.kind in kinds)
        return _read_headed(pieces, kinds)
    if first.kind is Kind.SCENE:
        return _read_headed(lines, {Kind.SCENE})
    refuse_schedule(first, lines)
    text = "\n".join("" if RULE.fullmatch(line.text) else line.text for line in lines)
    if "|" in text or "｜" in text:
        return _read_pipes(text)
    return [Prompt(fold(text))]


def _is_prose(first: Line, time: Heading, lines: list[Line]) -> bool:
    """Whether the first time of a text is a ratio, a time of day or a duration in a single prompt.

    Raises TimelineError where it can be that or the time of a prompt.
    """
    start = str(time.start)
    if re.match(r"0+\D", start) or (time.end and not time.bare):
        return False  # no ratio, and no time that is said as words
    if seconds_of(start) == 0 and seconds_of(str(time.end)) < LATE_SECONDS:
        return False  # "0-5 seconds", and no sprint of "0-100m"
    times = sum(line.time is not None for line in lines)
    alone = times < 2 and sum(_brackets_in(line) for line in lines) < 2
    if time.bare and alone:
        return True
    if seconds_of(start) >= LATE_SECONDS and (time.bare or alone):
        raise TimelineError(
            f"{time.token!r} is no first time; begin with 0:00, also where it belongs to the "
            f"prompt, as in 0:00 {start} {time.words:.40}",
            first.number,
        )
    return False


def _brackets_in(line: Line) -> int:
    """Number of times in brackets in a line."""
    return len(IN_BRACKETS.findall(plain(line.text)))


def check_words(text: str, line: int | None = None) -> None:
    """Refuse what would be sent to the model as words: a time in brackets, braces that choose,
    comments.
    """
    inside = IN_BRACKETS.search(plain(text)) if BRACKET.search(text) else None
    if inside is not None:
        raise TimelineError(
            f"{text[inside.start() : inside.end()]} stands inside a prompt; begin the text with "
            "the first prompt's time, as in [0-5s] a cat walks, [5-10s] it jumps",
            line,
        )
    choice = find_choice(text) if "{" in text else None
    if choice is not None:
        raise TimelineError(
            f"{choice[:60]} chooses in ComfyUI's text box, not here: write one; \\{{ and \\}} are "
            "braces",
            line,
        )
    comment = _COMMENT.search(text)
    if comment is not None:
        raise TimelineError(
            f"{comment[0].strip()!r} is a comment, which a prompt cannot hold; remove it", line
        )


def _read_headed(lines: list[Line], kinds: set[Kind]) -> list[Prompt]:
    """Prompts whose first lines have a heading of these kinds; lines without one continue the
    prompt above.
    """
    headed: list[tuple[Prompt, list[str]]] = []  # with the words of each line
    timed = Kind.TIME in kinds
    shots = False
    bare: Heading | None = None  # the heading above, if its time has no brackets
    if any(line.heading and line.heading.token.endswith(",") for line in lines):
        refuse_fractions(lines)
    for line in lines:
        heading = line.heading
        if not line.text or RULE.fullmatch(line.text):
            continue
        if heading is None or not _counts(heading, kinds):
            refuse_almost(line, timed, shots)
            if bare and _DIGIT.search(line.text):
                refuse_inside(line.text, heading=bare, number=line.number)
            if headed:  # those before the first heading are left out
                above = headed[-1][1]
                refuse_tag(line, above)
                above.append(line.text)
            continue
        if heading.named:
            refuse_title(heading, line.number)
            if not headed:
                refuse_length(heading, line.number)
                shots = timed
        start = None if heading.start is None else _seconds(heading.start, line.number)
        end = None if heading.end is None else _seconds(heading.end, line.number)
        bare = heading if heading.bare else None
        if bare and _DIGIT.search(bare.words):
            refuse_inside(bare.words, heading=bare, number=line.number)
        prompt = Prompt("", line.number, start, end, token=heading.token)
        headed.append((prompt, [heading.words]))
    return [replace(prompt, text=fold(" ".join(words))) for prompt, words in headed]


def _counts(heading: Heading, kinds: set[Kind]) -> bool:
    """Whether a heading begins a prompt in a text with headings of these kinds."""
    if heading.kind is Kind.SCENE and heading.start is not None:
        return True
    return heading.kind in kinds


def _read_pipes(text: str) -> Iterator[Prompt]:
    line = 1
    for piece in split_outside(text, MAX_SEGMENTS):
        yield Prompt(fold(piece), line)
        line += piece.count("\n")


def _seconds(token: str, line: int) -> float:
    """The value of a time; TimelineError for one that is written wrongly or too late."""
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


# --- braces: ComfyUI's text box chooses words with `{red|blue}`; `\\{red|blue\\}` are braces
# themselves


def split_outside(text: str, most: int) -> list[str]:
    """A text cut at its bars, full-width ones too, at most so often and not inside braces."""
    inside = _inside(text)
    bars = [bar.start() for bar in re.finditer("[|｜]", text) if bar.start() not in inside]
    cuts = [-1, *bars[:most], len(text)]
    return [text[begin + 1 : end] for begin, end in pairwise(cuts)]


def find_choice(text: str) -> str | None:
    """The first braces in a text that choose between words; None where there are none."""
    hidden = ESCAPED.sub("  ", text)
    for begin, end in sorted(_pairs(hidden)):
        if "|" in hidden[begin:end]:
            return text[begin : end + 1]
    return None


def _pairs(text: str) -> list[tuple[int, int]]:
    """The places of every pair of braces that is in no other pair."""
    opened = []
    pairs: list[tuple[int, int]] = []
    for found in re.finditer(r"[{}]", text):
        if found[0] == "{":
            opened.append(found.start())
        elif opened:
            begin = opened.pop()
            while pairs and pairs[-1][0] > begin:
                pairs.pop()
            pairs.append((begin, found.start()))
    return pairs


def _inside(text: str) -> set[int]:
    """The places in a text that are in braces."""
    places: set[int] = set()
    for begin, end in _pairs(text):
        places.update(range(begin, end))
    return places
