"""Timelines in JSON: LongLive's files of prompts, and schedules by the numbers of video frames."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from .characters import STRAIGHT_QUOTES, fold
from .clock import MAX_SECONDS, TEMPORAL_STRIDE, BlockClock, cut_to_millisecond
from .prompt import Prompt, TimelineError

_MEANT_AS_JSON = re.compile(r'\s*(?:\{\s*"(?:prompts"|\d)|\[\s*")')
_FRAMES = 'a schedule by video frames is "0": "a cat walks", "80": "it jumps"'


def load_json(text: str) -> Any:
    """The JSON value; None for a prompt that begins with a bracket; TimelineError for invalid
    JSON.
    """
    try:
        return json.loads(text, strict=False, object_pairs_hook=_without_twins)
    except RecursionError:
        raise TimelineError(
            'the JSON is nested too deeply; expected {"prompts": ["...", "..."]}'
        ) from None
    except ValueError as error:
        if not _MEANT_AS_JSON.match(text):
            return None
        reason = getattr(error, "msg", "a number is too long")
        line = getattr(error, "lineno", None)
        raise TimelineError(
            f'not valid JSON ({reason}); expected one {{"prompts": ["...", "..."]}}', line
        ) from None


def read_json(data: Any, clock: BlockClock) -> Iterator[Prompt]:
    """Prompts in LongLive's JSON form; a switch at a latent frame takes effect at the next block
    start.
    """
    if isinstance(data, dict) and data and all(key.isdecimal() for key in data):
        yield from read_frame_prompts(data, clock)
        return
    fields = data if isinstance(data, dict) else {"prompts": data}
    texts = fields.get("prompts")
    switches = fields.get("switch_frame_indices")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise TimelineError(
            'a JSON timeline is {"prompts": ["...", "..."]} or a list of texts; '
            "found something else"
        )
    if switches is None or not texts:
        yield from (Prompt(fold(text)) for text in texts)
        return
    last_frame = int(MAX_SECONDS * clock.fps / TEMPORAL_STRIDE)
    if not isinstance(switches, list) or len(switches) != len(texts) - 1:
        raise TimelineError(
            f"switch_frame_indices must be a list of {len(texts) - 1}, one fewer than the prompts"
        )
    for text, frame in zip(texts, [0, *switches], strict=True):
        if type(frame) is not int or not 0 <= frame <= last_frame:
            raise TimelineError(
                f"switch_frame_indices must be latent frames in 0-{last_frame}, found {frame!r:.40}"
            )
        start = clock.start_seconds(-(-frame // clock.frames_per_block))
        yield Prompt(fold(text), start=cut_to_millisecond(start), token=f"latent frame {frame}")


def load_frames(text: str) -> Any:
    """The texts by video frames of a schedule without its braces."""
    straight = text.translate(STRAIGHT_QUOTES).strip().rstrip(",")
    try:
        return json.loads("{" + straight + "}", strict=False, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError) as error:
        raise TimelineError(
            f"{_FRAMES}; found something else ({getattr(error, 'msg', 'nested too deeply')})"
        ) from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a JSON object, each of which may be there once."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise json.JSONDecodeError("a name is there twice", "", 0)
    return fields


def read_frame_prompts(data: dict[str, Any], clock: BlockClock) -> Iterator[Prompt]:
    """Prompts by the number of the video frame that they begin at, at the model's frame rate."""
    last_frame = int(MAX_SECONDS * clock.fps)
    for frame, text in data.items():
        if not isinstance(text, str) or not frame.isdecimal() or int(frame[:12]) > last_frame:
            raise TimelineError(
                f"{_FRAMES}, frames from 0 to {last_frame}; found {frame[:20]!r}: {text!r:.40}"
            )
        yield Prompt(
            fold(text), start=cut_to_millisecond(int(frame) / clock.fps), token=f"frame {frame}"
        )
