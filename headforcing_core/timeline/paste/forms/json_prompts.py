"""Timelines in JSON: LongLive's files of prompts, and schedules by the numbers of video frames."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ...characters import STRAIGHT_QUOTES, fold, plain
from ...clock import MAX_SECONDS, TEMPORAL_STRIDE, BlockClock, cut_to_millisecond
from ...prompt import Prompt, TimelineError
from ..text import Text

EXAMPLES = {
    '["a fox", "a wolf"]': [(None, "a fox"), (None, "a wolf")],
    '```json\n{"prompts": ["a fox", "a wolf"]}\n```': [(None, "a fox"), (None, "a wolf")],
    '{"0": "a fox", "80": "a wolf"}': [(0.0, "a fox"), (5.0, "a wolf")],
    '"0": "a fox",\n"80": "a wolf"': [(0.0, "a fox"), (5.0, "a wolf")],
    '{"prompts": ["a fox", "a wolf"], "switch_frame_indices": [21]}': [
        (0.0, "a fox"),
        (5.062, "a wolf"),
    ],
}
REFUSED = {
    '{"0": "a fox"\n"80": "a wolf"}': 2,
    "{'0': 'a fox', '80': 'a wolf'}": 1,
    '{"0": "a fox", "80": 5}': None,
    '{"prompts": ["a fox"], "scenes": []}': None,
    '{"prompts": ["a fox"], "switch_frame_indices": [3]}': None,
}
# also a list or an object as Python, JavaScript or YAML writes it: "{'0': 'a'}", "{0: "a"}"
_PYTHON_TEXT = r"'(?:[^'\\\n]|\\.)*'"
_MEANT_AS_JSON = re.compile(
    r'\s*(?:\{\s*"(?:prompts"|\d)|\[\s*"|["\']?\d'
    rf"|\{{\s*(?:{_PYTHON_TEXT}\s*:|\d+(?:\.\d+)?\s*:(?!:)|\w{{1,40}}\s*:\s*[\"'\[{{\d])"
    rf"|\{{\s*\"[^\"\n]*\"\s*:"
    rf"|\[\s*(?:{_PYTHON_TEXT}\s*[,\]]|\{{\s*[\"'\w]+\s*:|[\[(]\s*[\"'\d]|(?:None|True|False)\s*[,\]]))"
)
_FRAME = re.compile(r"""\s{0,8}["']?\d{1,9}["']?\s{0,8}:\s{0,8}["']""", re.ASCII)
_QUOTE = re.compile("[\"'“”„‟＂＇]")
_PROMPTS = '{"prompts": ["a cat walks", "it jumps"]}'
_FRAMES = '"0": "a cat walks", "80": "it jumps"'


def read(text: Text) -> list[Prompt] | None:
    """The prompts of a JSON value, or of one without its braces; None for another text."""
    begin = text.story.lstrip().partition("\n")[0]
    if begin[:1] not in ("{", "[") and not (_QUOTE.search(begin) and _is_frame(begin)):
        return None
    data = _load(text.story)
    return None if data is None else list(_prompts(data, text.clock))


def _is_frame(text: str) -> bool:
    """Whether a text begins with the number of a video frame and a text in quotes."""
    return _FRAME.match(plain(text)) is not None


def _load(text: str) -> Any:
    """The JSON value of a text, which can be a schedule by video frames without its braces; None
    for a prompt that begins with a bracket; TimelineError for invalid JSON.
    """
    whole = text
    if _is_frame(text):
        whole = "{" + text.translate(STRAIGHT_QUOTES).rstrip().removesuffix(",") + "}"
    try:
        return json.loads(whole, strict=False, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ValueError) and not _MEANT_AS_JSON.match(plain(text)):
            return None
        raise TimelineError(
            f"not valid JSON ({error!s:.60}); expected {_PROMPTS} or {_FRAMES}",
            getattr(error, "lineno", None),
        ) from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a JSON object, each of which may be there once."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise json.JSONDecodeError("a name is there twice", "", 0)
    return fields


def _prompts(data: Any, clock: BlockClock) -> Iterator[Prompt]:
    """Prompts of a list, which share the length, or by the number of the video frame that they
    begin at, at the model's frame rate.
    """
    if isinstance(data, dict) and "prompts" in data:
        for name in data:
            if name not in ("prompts", "switch_frame_indices"):
                raise TimelineError(f"a JSON timeline is {_PROMPTS}; remove {name!r:.40}")
        if data.get("switch_frame_indices") is not None:
            yield from _read_longlive(data["prompts"], data["switch_frame_indices"], clock)
            return
        data = data["prompts"]
    if isinstance(data, list) and all(isinstance(text, str) for text in data):
        yield from (Prompt(fold(text)) for text in data)
        return
    last_frame = int(MAX_SECONDS * clock.fps)
    for frame, text in data.items() if isinstance(data, dict) else [("", data)]:
        if not isinstance(text, str) or not frame.isdecimal() or int(frame[:12]) > last_frame:
            raise TimelineError(
                f"a JSON timeline is {_PROMPTS}, or {_FRAMES} with video frames from 0 to "
                f"{last_frame}; found {frame[:20]!r}: {text!r:.40}"
            )
        yield Prompt(
            fold(text), start=cut_to_millisecond(int(frame) / clock.fps), token=f"frame {frame}"
        )


def _read_longlive(texts: Any, frames: Any, clock: BlockClock) -> Iterator[Prompt]:
    """Prompts of LongLive's files: all but the first have the number of the latent frame that they
    begin at, and take effect at the next block start.
    """
    last_frame = int(MAX_SECONDS * clock.fps / TEMPORAL_STRIDE)
    expected = TimelineError(
        'a file of LongLive has "prompts", a list of texts, and "switch_frame_indices", latent '
        f"frames in 0-{last_frame}, one fewer than the prompts; found something else"
    )
    if not isinstance(texts, list) or not isinstance(frames, list):
        raise expected
    if len(frames) != len(texts) - 1:
        raise expected
    for text, frame in zip(texts, [0, *frames], strict=True):
        if not isinstance(text, str) or type(frame) is not int or not 0 <= frame <= last_frame:
            raise expected
        start = clock.start_seconds(-(-frame // clock.frames_per_block))
        yield Prompt(fold(text), start=cut_to_millisecond(start), token=f"latent frame {frame}")
