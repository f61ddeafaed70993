"""The prompt timeline: which prompt drives which block, read from plain text.

`parse_timeline` chooses the grammar from how the text begins:

    0:00 text / 1:02.5 - text / [0:10-0:20] text / 12.5s text     times, one prompt per line or more
    Scene 1: text / Scene 2 [0:10]: text                          scenes, equal shares unless they carry times
    {"prompts": ["text", "text"]} or ["text", "text"]             LongLive's JSON, equal shares
    text | text | text                                            equal shares
    anything else                                                 one prompt

A text that carries no length lasts 10 s per prompt. Times are read to the millisecond and snap to the nearest block.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .errors import HeadForcingError

PICTURES_PER_FRAME = 4  # the causal VAE: n latent frames decode to 4(n-1)+1 pictures
SECONDS_PER_PROMPT = 10.0
MAX_SECONDS = 36_000.0
MAX_SEGMENTS = 10_000
MAX_TEXT_BYTES = 1 << 20
MAX_SHARED_CHARACTERS = 4_000  # it is repeated in every segment


class TimelineError(HeadForcingError):
    """A timeline that cannot be used; `line` is the 1-based line of the text, or None where no line is to blame."""

    def __init__(self, message: str, line: int | None = None):
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


@dataclass(frozen=True)
class BlockClock:
    """Converts between seconds, pictures and blocks of `frames_per_block` latent frames, at `fps` pictures a second.

    n blocks decode to 4(n * frames_per_block - 1) + 1 pictures: with 3 frames the first gives 9, each later one 12.
    """

    frames_per_block: int = 3
    fps: float = 16.0

    def __post_init__(self) -> None:
        if type(self.frames_per_block) is not int or not 1 <= self.frames_per_block <= 1000:
            raise HeadForcingError(f"frames_per_block must be a whole number in 1-1000, got {self.frames_per_block!r}")
        if not _is_finite(self.fps) or not 0 < self.fps <= 1000:
            raise HeadForcingError(f"fps must be above 0 and at most 1000, got {self.fps!r}")

    @property
    def block_seconds(self) -> float:
        """How long every block but the first lasts."""
        return PICTURES_PER_FRAME * self.frames_per_block / self.fps

    def pictures(self, blocks: int) -> int:
        """Pictures that the first `blocks` blocks decode to; 0 for none."""
        if blocks < 0:
            raise HeadForcingError(f"a number of blocks cannot be negative, got {blocks}")
        return PICTURES_PER_FRAME * (blocks * self.frames_per_block - 1) + 1 if blocks else 0

    def start_picture(self, block: int) -> int:
        """Index of the first picture of a 0-based block."""
        return self.pictures(block)

    def start_seconds(self, block: int) -> float:
        """Time of the first picture of a 0-based block."""
        return self.pictures(block) / self.fps

    def blocks_for(self, seconds: float) -> int:
        """The smallest number of blocks, at least one, whose pictures last `seconds` or longer."""
        pictures = math.ceil(self._position(seconds) - 1e-6)
        per_block = PICTURES_PER_FRAME * self.frames_per_block
        return max(1, -(-(pictures + PICTURES_PER_FRAME - 1) // per_block))

    def block_at(self, seconds: float) -> int:
        """The 0-based block whose start is nearest to `seconds`; the earlier of two that are equally near."""
        position = self._position(seconds)
        block = int((position + PICTURES_PER_FRAME - 1) // (PICTURES_PER_FRAME * self.frames_per_block))
        before, after = self.pictures(block), self.pictures(block + 1)
        return block if position - before <= after - position else block + 1

    def _position(self, seconds: float) -> float:
        if not _is_finite(seconds) or not 0 <= seconds <= 1e9:
            raise HeadForcingError(f"a time must be a number of seconds from 0 to 1e9, got {seconds!r}")
        return seconds * self.fps


@dataclass(frozen=True)
class Segment:
    """One prompt and the blocks it drives, `end_block` exclusive."""

    text: str
    start_block: int
    end_block: int


@dataclass(frozen=True)
class Timeline:
    """Prompts laid over the blocks of one video, without gaps: segment k ends where segment k + 1 starts.

    `seconds` is the asked length (the blocks last at least as long); `requested` holds what each segment asked for as
    (start, end) seconds, before snapping to blocks.
    """

    segments: tuple[Segment, ...]
    clock: BlockClock
    seconds: float
    requested: tuple[tuple[float, float], ...]

    @property
    def blocks(self) -> int:
        """Number of blocks of the whole video."""
        return self.segments[-1].end_block

    def prompt_index(self, block: int) -> int:
        """Index of the segment that drives a 0-based block."""
        if not 0 <= block < self.blocks:
            raise TimelineError(f"the timeline has blocks 0 to {self.blocks - 1}, block {block} was asked for")
        return bisect.bisect_right(self.segments, block, key=lambda segment: segment.start_block) - 1

    def table(self) -> str:
        """Plain text for people: when each prompt was asked for and where it really starts."""
        rows = [("#", "asked", "starts", "picture", "block", "prompt")]
        for number, (segment, (start, _)) in enumerate(zip(self.segments, self.requested, strict=True), 1):
            block = segment.start_block
            times = format_time(start), format_time(self.clock.start_seconds(block))
            rows.append((str(number), *times, str(self.clock.start_picture(block)), str(block), segment.text))
        widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
        lines = ["  ".join([*map(str.rjust, row[:-1], widths), row[-1]]) for row in rows]
        pictures = self.clock.pictures(self.blocks)
        length = f"{pictures} pictures, {pictures / self.clock.fps:g} s at {self.clock.fps:g} pictures a second"
        lines.append(f"Asked for {self.seconds:g} s: {self.blocks} blocks, {length}.")
        if (first := self.requested[0][0]) > 0:
            lines.append(f"The first prompt was asked for at {_short(first)} and starts at 0:00.")
        return "\n".join(lines)


def parse_timeline(
    text: str, seconds: float | None = None, clock: BlockClock | None = None, shared_prompt: str = ""
) -> Timeline:
    """Read a prompt timeline (grammars: see the module) and snap it to the blocks of `clock` (3 frames, 16 fps).

    `seconds` is the length of the video: the last prompt lasts until then, prompts without times share it equally.
    Where a text with times leaves a gap the previous prompt continues; the first prompt always starts at 0.
    `shared_prompt` goes in front of every prompt, joined by a space after punctuation and by ", " otherwise.
    Raises TimelineError for anything that cannot be used, naming the line where there is one to blame.
    """
    clock = clock or BlockClock()
    if not isinstance(text, str) or not isinstance(shared_prompt, str):
        raise TimelineError("the timeline and the shared prompt must be text")
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
        raise TimelineError("the timeline is longer than 1 MB; split it into several videos")
    if len(shared_prompt) > MAX_SHARED_CHARACTERS:
        raise TimelineError(f"the shared prompt must have at most {MAX_SHARED_CHARACTERS} characters; shorten it")
    if seconds is not None:
        seconds = _checked_length(seconds)

    prompts = _read(text, clock)
    if all(prompt.start is None for prompt in prompts):
        total = _checked_length(SECONDS_PER_PROMPT * len(prompts)) if seconds is None else seconds
        spans = _equal_shares(len(prompts), total)
    else:
        spans = _asked_times(prompts, seconds)
    starts = _snap(prompts, spans, clock)
    ends = [*starts[1:], clock.blocks_for(spans[-1][1])]
    shared = _fold(shared_prompt)
    texts = [_join(shared, prompt.text) for prompt in prompts]
    return Timeline(tuple(map(Segment, texts, starts, ends)), clock, spans[-1][1], tuple(spans))


def format_timeline(timeline: Timeline) -> str:
    """Write a timeline as text, one `[m:ss.mmm-m:ss.mmm] prompt` a line; parsing it with the same clock restores it."""
    lines = []
    for segment, (start, end) in zip(timeline.segments, timeline.requested, strict=True):
        guard = "- " if segment.text.startswith(tuple(_SEPARATORS)) else ""  # the parser removes one separator
        lines.append(f"[{format_time(start)}-{format_time(end)}] {guard}{segment.text}")
    return "\n".join(lines)


def format_time(seconds: float) -> str:
    """Seconds as `m:ss.mmm`, cut to the millisecond."""
    minutes, milliseconds = divmod(math.floor(seconds * 1000 + 1e-6), 60_000)
    return f"{minutes}:{milliseconds // 1000:02}.{milliseconds % 1000:03}"


# ---------------------------------------------------------------------------------------------------- reading the text

_SEPARATORS = "–—:-"  # one of them may stand between a time and its prompt
_CLOCK = r"\d{1,9}:\d\d(?::\d\d)?(?:[.,]\d{1,9})?"
_NUMBER = r"\d{1,9}(?:[.,]\d{1,9})?"
_DASH = r"\s{0,8}[-–—]\s{0,8}"
_INSIDE = rf"(?:{_CLOCK}|{_NUMBER}s?)"
_BRACKETS = rf"\[\s{{0,8}}(?P<start>{_INSIDE})(?:{_DASH}(?P<end>{_INSIDE}))?\s{{0,8}}\]"
_BRACKETED = re.compile(_BRACKETS, re.ASCII)
_OUTSIDE = rf"(?:{_CLOCK}|{_NUMBER}s)"
_BARE = re.compile(  # a clock time of day such as "6:00 pm" is prose
    rf"(?P<start>{_OUTSIDE})(?:{_DASH}(?P<end>{_OUTSIDE}))?(?=[\s{_SEPARATORS}]|$)(?!\s?[ap]\.?m\b)",
    re.ASCII | re.IGNORECASE,
)
_DECADE = re.compile(r"[1-9]\d{0,8}0s\b", re.ASCII | re.IGNORECASE)  # "80s", "1920s"
_ALMOST_TIME = re.compile(r"\[\s{0,8}\d{1,9}:\d[^\]]{0,40}\]", re.ASCII)
_SCENE = re.compile(rf"scene\s{{1,8}}\d{{1,9}}\s{{0,8}}(?:{_BRACKETS}|(?=[{_SEPARATORS}]))", re.ASCII | re.I)
_MEANT_AS_JSON = re.compile(r'\s*(?:\{\s*"prompts"|\[\s*")')


@dataclass(frozen=True)
class _Prompt:
    """A prompt as it was read: folded text, the times it carries (seconds), and where and how the user wrote them."""

    text: str
    line: int | None = None
    start: float | None = None
    end: float | None = None
    token: str = ""


def _read(text: str, clock: BlockClock) -> list[_Prompt]:
    """Choose the grammar by how the text begins and read all prompts; checks number and text, not times."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    found: Iterator[_Prompt]
    if first[:1] in ("{", "[") and (data := _load_json(text)) is not None:
        found = _read_json(data, clock)
    elif (time := _match_time(first, decades=False)) or _ALMOST_TIME.match(first):
        in_seconds = time is not None and time.re is _BARE and ":" not in time["start"]
        found = _read_headed(lines, lambda line: _match_time(line, decades=in_seconds))
    elif _SCENE.match(first):
        found = _read_headed(lines, _SCENE.match)
    elif "|" in text:
        found = _read_pipes(text)
    else:
        found = iter([_Prompt(_fold(text), None)] if first else [])
    prompts = list(itertools.islice(found, MAX_SEGMENTS + 1))
    if not prompts:
        raise TimelineError("the timeline is empty; write at least one prompt")
    if len(prompts) > MAX_SEGMENTS:
        raise TimelineError(f"the timeline has more than {MAX_SEGMENTS} prompts; split it into several videos")
    for number, prompt in enumerate(prompts, 1):
        if not prompt.text:
            raise TimelineError(f"prompt {number} is empty; write its text or remove it", prompt.line)
    return prompts


def _match_time(line: str, decades: bool) -> re.Match[str] | None:
    """The time at the start of a line; "80s" counts only with `decades`, that is where the first line is in seconds."""
    if not decades and _DECADE.match(line):
        return None
    return _BRACKETED.match(line) or _BARE.match(line)


def _read_headed(lines: list[str], match: Callable[[str], re.Match[str] | None]) -> Iterator[_Prompt]:
    """Prompts that begin at lines with a header (a time or a scene); lines without one continue the prompt above."""
    header: dict[str, Any] | None = None
    parts: list[str] = []
    for number, line in enumerate(map(str.strip, lines), 1):
        found = match(line)
        if found is None:
            if _ALMOST_TIME.match(line) and not _BRACKETED.match(line):
                token = line[: line.index("]") + 1]
                raise TimelineError(f"{token!r} is not a time; write [m:ss] or [m:ss-m:ss]", number)
            parts.append(line)
            continue
        if header is not None:
            yield _Prompt(_fold(" ".join(parts)), **header)
        start, end = (None if token is None else _seconds(token, number) for token in found.group("start", "end"))
        header = {"line": number, "start": start, "end": end, "token": found[0]}
        rest = line[found.end() :].lstrip()
        parts = [rest[1:] if rest.startswith(tuple(_SEPARATORS)) else rest]
    if header is not None:
        yield _Prompt(_fold(" ".join(parts)), **header)


def _read_pipes(text: str) -> Iterator[_Prompt]:
    line = 1
    for piece in text.split("|", MAX_SEGMENTS):
        yield _Prompt(_fold(piece), line)
        line += piece.count("\n")


def _load_json(text: str) -> Any:
    """The JSON value, or None for text that merely begins like JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise TimelineError('the JSON is nested too deeply; expected {"prompts": ["...", "..."]}') from None
    except ValueError as error:
        if not _MEANT_AS_JSON.match(text):
            return None
        reason, line = getattr(error, "msg", "a number is too long"), getattr(error, "lineno", None)
        raise TimelineError(f'not valid JSON ({reason}); expected one {{"prompts": ["...", "..."]}}', line) from None


def _read_json(data: Any, clock: BlockClock) -> Iterator[_Prompt]:
    """LongLive's prompts; a switch at a latent frame takes effect at the first block that starts there or later."""
    fields = data if isinstance(data, dict) else {"prompts": data}
    texts, switches = fields.get("prompts"), fields.get("switch_frame_indices")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TimelineError('a JSON timeline is {"prompts": ["...", "..."]} or a list of texts; found something else')
    if switches is None or not texts:
        yield from (_Prompt(_fold(text)) for text in texts)
        return
    last_frame = int(MAX_SECONDS * clock.fps / PICTURES_PER_FRAME)
    if not isinstance(switches, list) or len(switches) != len(texts) - 1:
        raise TimelineError(f"switch_frame_indices must be a list of {len(texts) - 1}, one fewer than the prompts")
    for text, frame in zip(texts, [0, *switches], strict=True):
        if type(frame) is not int or not 0 <= frame <= last_frame:
            raise TimelineError(f"switch_frame_indices must be latent frames in 0-{last_frame}, found {frame!r:.40}")
        start = clock.start_seconds(-(-frame // clock.frames_per_block))
        yield _Prompt(_fold(text), start=_cut(start), token=f"latent frame {frame}")


def _fold(text: str) -> str:
    """One line of valid Unicode: white space folds to single spaces, NUL is white space, lone surrogates become "?"."""
    return " ".join(text.replace("\0", " ").encode("utf-8", "replace").decode().split())


def _join(shared: str, text: str) -> str:
    if not shared:
        return text
    return f"{shared} {text}" if shared[-1] in ".,;:!?…。，！？、" else f"{shared}, {text}"


# -------------------------------------------------------------------------------------------------------- laying it out


def _equal_shares(count: int, total: float) -> list[tuple[float, float]]:
    edges = [_cut(index * total / count) for index in range(count)] + [total]
    return list(zip(edges[:-1], edges[1:], strict=True))


def _asked_times(prompts: list[_Prompt], seconds: float | None) -> list[tuple[float, float]]:
    """(start, end) of every prompt in seconds; a missing end is the next start, the last end that of the video."""
    starts: list[float] = []
    for index, prompt in enumerate(prompts):
        start = 0.0 if index == 0 and prompt.start is None else prompt.start
        if start is None:
            raise TimelineError("this scene has no time but others do; give every scene a time, or none", prompt.line)
        if prompt.end is not None and prompt.end <= start:
            raise TimelineError(f"{prompt.token!r} ends before it starts", prompt.line)
        if starts and (start <= starts[-1] or start < (prompts[index - 1].end or 0.0)):
            above = _short(prompts[index - 1].end or starts[-1])
            raise TimelineError(f"{_short(start)} does not come after {above} of the prompt above", prompt.line)
        late = max(start, prompt.end or 0.0)
        if seconds is not None and (late > seconds or start == seconds):
            place = "after the end" if late > seconds else "the end"
            raise TimelineError(f"{_short(late)} is {place} of the video ({seconds} s)", prompt.line)
        starts.append(start)
    total = seconds or _checked_length(prompts[-1].end or _cut(starts[-1] + SECONDS_PER_PROMPT))
    ends = [prompt.end or start for prompt, start in zip(prompts, starts[1:], strict=False)]
    return list(zip(starts, [*ends, total], strict=True))


def _snap(prompts: list[_Prompt], spans: list[tuple[float, float]], clock: BlockClock) -> list[int]:
    """First block of every prompt: the nearest one to its start, 0 for the first prompt."""
    blocks, total = clock.blocks_for(spans[-1][1]), spans[-1][1]
    starts = [0]
    for prompt, (start, _) in zip(prompts[1:], spans[1:], strict=True):
        block = clock.block_at(start)
        if starts[-1] < block < blocks:
            starts.append(block)
            continue
        if prompt.start is None:
            reason = f"{len(prompts)} prompts do not fit into {total:g} s, each needs a block of its own"
        elif block >= blocks:
            reason = f"{prompt.token} is too close to the end of the video ({total} s)"
        else:
            reason = f"{prompt.token} falls on the same block as the prompt above, move it later"
        raise TimelineError(f"{reason}; blocks last {clock.block_seconds:g} s", prompt.line if prompt.start else None)
    return starts


def _seconds(token: str, line: int) -> float:
    """Seconds of `h:mm:ss`, `m:ss`, `s` or `ss`, each with an optional fraction and an optional final s."""
    first, *rest = token.lower().rstrip("s").replace(",", ".").split(":")
    if any(float(part) >= 60 for part in rest):
        raise TimelineError(f"{token!r} is not a time; after a colon the numbers go from 00 to 59", line)
    value = functools.reduce(lambda total, part: total * 60 + float(part), rest, float(first))
    if value > MAX_SECONDS:
        raise TimelineError(f"{token!r} is after the end of the longest video ({MAX_SECONDS:.0f} s)", line)
    return _cut(value)


def _checked_length(seconds: float) -> float:
    if not _is_finite(seconds) or not 0.001 <= seconds <= MAX_SECONDS:
        raise TimelineError(f"the video must last above 0 and at most {MAX_SECONDS:.0f} seconds, got {seconds!r:.40}")
    return _cut(float(seconds))


def _cut(seconds: float) -> float:
    """Seconds cut to the millisecond; cutting, not rounding, so that a duration never grows into one more block."""
    return math.floor(seconds * 1000 + 1e-6) / 1000


def _short(seconds: float) -> str:
    return format_time(seconds).rstrip("0").removesuffix(".")


def _is_finite(value: object) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False
