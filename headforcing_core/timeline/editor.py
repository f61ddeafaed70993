"""Answers to a visual editor of the timeline: a text as segments, and changed segments as a
text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import HeadForcingError
from ..hashing import digest
from .characters import fold
from .clock import MAX_SECONDS, BlockClock, cut_to_millisecond, format_time, short_time
from .grammar import heading_before
from .paste.paste import Pasted, paste
from .prompt import Prompt, TimelineError
from .switch import MAX_SEED, RESET, Switch, tag_of
from .tags import read_tag
from .timeline import Segment, Timeline
from .wording import check_words

_KINDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_OF_SWITCH = {"blend_blocks": int, "re_anchor": bool, "recall": int, "new_scene": bool}


def answer(
    request: object, clock: BlockClock | None = None, plain: Switch = RESET
) -> dict[str, Any]:
    """Segments of a text, or the text of segments with what it is parsed to.

    Args:
        request: `seconds`, `shared_prompt`, `switch`, `blend_blocks` and `re_anchor` of *Prompt
            Timeline*, and either `text`, or `segments`, the `length` in seconds that the text sets,
            and the words `shared` by its prompts. A segment has `text`, `start_block`, `switch`
            (null or its fields), `seed` (null or digits as text, as it can exceed JavaScript's
            whole numbers) and `asked`, the time in seconds that the text has for it, or null.
        clock: defines the blocks.
        plain: the model's switch where the node says `reset`.

    The answer holds the keys below, with segments as `_describe` makes them. For a text in another
    form than the written one it also holds its translation as `written`, and a sentence about it as
    `read_as`; for a story that is longer than `seconds` it holds these as `beyond`, and why it
    cannot be rendered as `refusal`. For a text that is no timeline it holds `error` and `line`
    (1-based or None). Raises HeadForcingError for a request of another form.
    """
    if not isinstance(request, Mapping):
        raise HeadForcingError(
            f"expected a JSON object with text or segments, found {type(request).__name__}"
        )
    seconds, shared, default = read_widgets(request)
    clock = clock or BlockClock()
    if default == RESET:
        default = plain
    try:
        if "segments" in request:
            placed = _place(_get(request, "segments", list))
            own = _get(request, "shared", str, "")
            end = None if seconds else _number(request, "length") or None
            text = write_timeline(placed, clock, end=end, shared=own)
        else:
            text = _get(request, "text", str)
        pasted = paste(text, clock, seconds or None)
        timeline, refusal = _lay_out(pasted, seconds, clock=clock, shared=shared, default=default)
    except TimelineError as error:
        return {"error": str(error), "line": error.line}
    answer = {
        "text": text,
        "shared": pasted.story.shared,
        "default": _fields(default),
        "segments": _describe(pasted.story.prompts, timeline, cuts=plain.re_anchor),
        "blocks": timeline.blocks,
        "seconds": timeline.seconds,
        "block_seconds": clock.block_seconds,
        "first_block_seconds": clock.start_seconds(1),
        "fps": clock.fps,
    }
    if pasted.is_translated:
        answer |= {"written": pasted.text, "read_as": pasted.sentence}
    if refusal:
        answer |= {"beyond": seconds, "refusal": refusal}
    return answer


def _lay_out(
    pasted: Pasted, seconds: float, clock: BlockClock, shared: str, default: Switch
) -> tuple[Timeline, str]:
    """The timeline of a story, and why it does not fit into `seconds`; then it has the length that
    the story asks for.
    """
    options: dict[str, Any] = {"clock": clock, "shared_prompt": shared, "switch": default}
    try:
        return pasted.timeline(seconds or None, **options), ""
    except TimelineError as error:
        with suppress(TimelineError):
            return pasted.timeline(**options), str(error)
        raise


def read_widgets(fields: Mapping[str, Any]) -> tuple[float, str, Switch]:
    """`seconds`, shared prompt and default switch of *Prompt Timeline*; raises HeadForcingError for
    a wrong value.
    """
    return (
        _number(fields, "seconds"),
        _get(fields, "shared_prompt", str, ""),
        _switch(fields, "switch"),
    )


def words_key(words: str) -> str:
    """A short hash of the words of a rendered prompt, by which a page knows its scene wherever it
    stands.
    """
    return digest(words)[:8]


def way_key(segment: Segment, cuts: bool) -> str:
    """A short hash of how a prompt follows the one before it, and of its seed.

    `cuts`: the model cuts before every prompt, so that a cut is no difference.
    """
    switch = segment.switch if segment.start_block else RESET
    re_anchor = switch.re_anchor and not cuts
    parts = (switch.kind, switch.blend_blocks, re_anchor, switch.recall, switch.new_scene)
    return digest(*parts, segment.seed)[:8]


def scenes_of(laid_out: Timeline, written: Timeline) -> list[dict[str, Any]]:
    """The scenes of a story that is rendered, with their blocks and the keys that `answer` gives
    its segments, too.

    `written` is the story before the plan of a render let scenes come back in it.
    """
    cuts = bool(laid_out.shot_prefix)
    return [
        {
            "start_block": segment.start_block,
            "end_block": segment.end_block,
            "words": words_key(segment.text),
            "way": way_key(as_written, cuts),
        }
        for segment, as_written in zip(laid_out.segments, written.segments, strict=False)
    ]


def _describe(prompts: list[Prompt], timeline: Timeline, cuts: bool) -> list[dict[str, Any]]:
    clock = timeline.clock
    return [
        {
            "text": prompt.text,
            "start_block": segment.start_block,
            "end_block": segment.end_block,
            "start": clock.start_seconds(segment.start_block),
            "end": min(clock.start_seconds(segment.end_block), timeline.seconds),
            "switch": None if prompt.switch is None else _fields(prompt.switch),
            "seed": None if prompt.seed is None else str(prompt.seed),
            "tag": tag_of(prompt.switch, prompt.seed),
            "asked": prompt.start,
            "words": words_key(segment.text),
            "way": way_key(segment, cuts),
        }
        for prompt, segment in zip(prompts, timeline.segments, strict=True)
    ]


def _fields(switch: Switch) -> dict[str, Any]:
    """The fields of a switch that a tag can set."""
    fields = asdict(switch)
    del fields["continues"]
    return fields


def _place(segments: list[Any]) -> list[PlacedPrompt]:
    placed = []
    for segment in segments:
        if not isinstance(segment, Mapping):
            raise HeadForcingError(f"a segment must be an object, found {type(segment).__name__}")
        switch = asked = None
        if segment.get("switch") is not None:
            switch = _switch(_get(segment, "switch", dict), "kind")
        text = _get(segment, "text", str)
        block = _get(segment, "start_block", int)
        if segment.get("asked") is not None:
            asked = _number(segment, "asked")
        placed.append(PlacedPrompt(text, block, switch, _seed(segment.get("seed")), asked=asked))
    return placed


def _seed(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch("[0-9]{1,20}", value) and int(value) <= MAX_SEED:
        return int(value)
    raise HeadForcingError(f"a seed is a whole number from 0 to {MAX_SEED}, got {value!r:.40}")


def _switch(fields: Mapping[str, Any], kind: str) -> Switch:
    values = {
        name: _get(fields, name, of)
        for name, of in _OF_SWITCH.items()
        if fields.get(name) is not None
    }
    return Switch(_get(fields, kind, str, "reset"), **values)


def _get(fields: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = fields.get(name, default)
    if type(value) is not kind:
        raise HeadForcingError(f"{name} must be {_KINDS[kind]}, got {value!r:.40}")
    return value


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name, 0)
    if type(value) not in (int, float) or not 0 <= value <= MAX_SECONDS:
        raise HeadForcingError(
            f"{name} must be a number of seconds in 0-{MAX_SECONDS:.0f}, got {value!r:.40}"
        )
    return float(value)


@dataclass(frozen=True)
class PlacedPrompt:
    """A prompt as it is written, and the 0-based block it begins at; None for a switch, seed or
    time of no text.

    `asked` is the time that was written for it, in seconds.
    """

    text: str
    start_block: int
    switch: Switch | None = None
    seed: int | None = None
    asked: float | None = field(default=None, compare=False)


def write_timeline(
    prompts: Sequence[PlacedPrompt],
    clock: BlockClock,
    end: float | None = None,
    shared: str = "",
) -> str:
    """Prompts as text, one `m:ss.mmm [tag] prompt` per line, times without zeros at the end;
    parsing it gives the same prompts at the same blocks.

    Args:
        prompts: in order; a time is that of the block's first video frame, or the one asked for in
            the same block.
        end: of the video in seconds, written after the last prompt's start.
        shared: words of every prompt, written once before the first.

    Raises TimelineError for an empty prompt, for one whose words begin with a tag, and for blocks
    that are out of order or after the longest video.
    """
    if not prompts:
        raise TimelineError("the timeline is empty; write at least one prompt")
    shared = fold(shared)
    lines = [f"[shared] {shared}"] if shared else []
    lowest = highest = 0  # the blocks that the next prompt can begin at
    for number, prompt in enumerate(prompts, 1):
        text = fold(prompt.text)
        block = prompt.start_block
        line = len(lines) + 1
        if not text:
            raise TimelineError(f"prompt {number} is empty; write its text or remove it", line)
        check_words(text, line)
        if not lowest <= block <= highest:
            raise TimelineError(
                f"prompt {number} cannot begin at block {block!r:.20}; blocks go up from 0", line
            )
        lowest = block + 1
        highest = clock.blocks_for(MAX_SECONDS)
        time = _time(prompt, clock)
        if end is not None and number == len(prompts):
            time += f"-{format_time(end)}"
        tagged = _tag(text, prompt, clock.block_seconds)
        if tagged is None:
            raise TimelineError(
                f"prompt {number} begins with a tag; remove it and set the switch or the seed "
                "instead",
                line,
            )
        lines.append(heading_before(tagged, time) + tagged)
    return "\n".join(lines)


def _time(prompt: PlacedPrompt, clock: BlockClock) -> str:
    """The time of a prompt: as it was asked for, `0:10`, where it has not been moved; else
    `0:10.312`.
    """
    if prompt.asked is not None:
        asked = cut_to_millisecond(prompt.asked)
        stays = clock.block_at(asked) == prompt.start_block if prompt.start_block else asked == 0
        if stays:
            return short_time(asked)
    return short_time(clock.start_seconds(prompt.start_block))


def _tag(text: str, prompt: PlacedPrompt, block_seconds: float) -> str | None:
    """The text with the prompt's tag; None where no tag keeps the text's beginning from being read
    as one, too.
    """
    tag = tag_of(prompt.switch, prompt.seed)
    # after a colon a dash or a colon is the text's own
    forms = (text,) if tag is None else (f"[{tag}] {text}", f"[{tag}]: {text}")
    for tagged in forms:
        with suppress(HeadForcingError):  # it is read as a misspelt tag
            if read_tag(tagged, block_seconds) == (prompt.switch, prompt.seed, text):
                return tagged
    return None
