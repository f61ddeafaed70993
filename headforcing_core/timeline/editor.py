"""Answers to a visual editor of the timeline: a text as segments, and changed segments as a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..errors import HeadForcingError
from .clock import MAX_SECONDS, BlockClock, is_finite
from .grammar import TimelineError
from .switch import MAX_SEED, RESET, Switch, tag_of
from .timeline import Timeline, parse_timeline
from .writer import PlacedPrompt, place_prompts, write_timeline

_KINDS: dict[type, str] = {str: "text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


def answer(request: object) -> dict[str, Any]:
    """Segments of a text, or the text of segments with what it is parsed to.

    `request` holds `seconds`, `shared_prompt`, `switch`, `blend_blocks` and `re_anchor` as *Prompt Timeline* does, and
    either `text` or `segments`, each `{text, start_block, switch, seed, asked}` with a switch of null or
    `{kind, blend_blocks, re_anchor, recall, new_scene}`. A seed is null or digits as text, since it can exceed the
    whole numbers that JavaScript counts in; `asked` is the time in seconds that the text has for the prompt, or null.
    With segments, `length` is the length in seconds that the text sets where `seconds` is 0.

    The answer holds `text`, `segments`, `blocks`, `seconds` (the length), `block_seconds`, `first_block_seconds` and
    `default` (the switch of prompts without a tag); or, for a text that is no timeline, `error` and `line` (1-based or
    None). Raises HeadForcingError for a request of another form.
    """
    if not isinstance(request, Mapping):
        raise HeadForcingError(f"expected a JSON object with text or segments, found {type(request).__name__}")
    clock, (seconds, shared, default) = BlockClock(), read_widgets(request)
    try:
        if "segments" in request:
            end = None if seconds else _number(request, "length") or None
            text = write_timeline(_place(_get(request, "segments", list)), clock, end, default)
        else:
            text = _get(request, "text", str)
        timeline = parse_timeline(text, seconds or None, clock, shared, default)
    except TimelineError as error:
        return {"error": str(error), "line": error.line}
    return {"text": text, "default": str(default)} | _describe(text, timeline)


def read_widgets(fields: Mapping[str, Any]) -> tuple[float, str, Switch]:
    """`seconds`, the shared prompt and the switch of prompts without a tag, from what *Prompt Timeline* calls them.

    Raises HeadForcingError for a value of another type or out of range.
    """
    return _number(fields, "seconds"), _get(fields, "shared_prompt", str, ""), _switch(fields, "switch")


def _describe(text: str, timeline: Timeline) -> dict[str, Any]:
    clock, segments = timeline.clock, []
    for prompt, segment in zip(place_prompts(text, timeline), timeline.segments, strict=True):
        segments.append(
            {
                "text": prompt.text,
                "start_block": segment.start_block,
                "end_block": segment.end_block,
                "start": clock.start_seconds(segment.start_block),
                "end": min(clock.start_seconds(segment.end_block), timeline.seconds),
                "switch": None if prompt.switch is None else _fields(prompt.switch),
                "seed": None if prompt.seed is None else str(prompt.seed),
                "tag": tag_of(prompt.switch, prompt.seed),
                "asked": prompt.asked,
            }
        )
    return {
        "segments": segments,
        "blocks": timeline.blocks,
        "seconds": timeline.seconds,
        "block_seconds": clock.block_seconds,
        "first_block_seconds": clock.start_seconds(1),
    }


def _fields(switch: Switch) -> dict[str, Any]:
    """The fields of a switch that a tag can set."""
    return {name: value for name, value in asdict(switch).items() if name != "continues"}


def _place(segments: list[Any]) -> list[PlacedPrompt]:
    placed = []
    for segment in segments:
        if not isinstance(segment, Mapping):
            raise HeadForcingError(f"a segment must be an object, found {type(segment).__name__}")
        switch = None if segment.get("switch") is None else _switch(_get(segment, "switch", dict), "kind")
        text, block = _get(segment, "text", str), _get(segment, "start_block", int)
        asked = None if segment.get("asked") is None else _number(segment, "asked")
        placed.append(PlacedPrompt(text, block, switch, _seed(segment.get("seed")), asked))
    return placed


def _seed(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20 and int(value) <= MAX_SEED:
        return int(value)
    raise HeadForcingError(f"a seed is a whole number from 0 to {MAX_SEED}, got {value!r:.40}")


def _switch(fields: Mapping[str, Any], kind: str) -> Switch:
    return Switch(
        _get(fields, kind, str, RESET.kind),
        _get(fields, "blend_blocks", int, RESET.blend_blocks),
        _get(fields, "re_anchor", bool, RESET.re_anchor),
        None if fields.get("recall") is None else _get(fields, "recall", int),
        _get(fields, "new_scene", bool, RESET.new_scene),
    )


def _get(fields: Mapping[str, Any], name: str, kind: type, default: Any = None) -> Any:
    value = fields.get(name, default)
    if type(value) is not kind:
        raise HeadForcingError(f"{name} must be {_KINDS[kind]}, got {value!r:.40}")
    return value


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name, 0)
    if type(value) not in (int, float) or not is_finite(value) or not 0 <= value <= MAX_SECONDS:
        raise HeadForcingError(f"{name} must be a number of seconds in 0-{MAX_SECONDS:.0f}, got {value!r:.40}")
    return float(value)
