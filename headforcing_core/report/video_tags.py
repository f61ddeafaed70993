"""Metadata of a video file about its origin: this pack's own tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import one_line
from ..files import Fields, json_object
from ..timeline.clock import is_finite
from ..timeline.timeline import MAX_TEXT_BYTES


@dataclass(frozen=True)
class VideoTags:
    """Origin of a video; everything is None or empty for videos of other programs.

    `prompts` are (start in seconds of the file, text); empty if the starts are unknown.
    """

    method: str | None = None
    seed: int | None = None
    frames_per_block: int | None = None
    prompts: tuple[tuple[float, str], ...] = ()


NO_TAGS = VideoTags()


def read_tags(metadata: Mapping[str, str]) -> VideoTags:
    """Tags of a file; values of unexpected type are ignored."""
    tags = json_object(metadata, "head_forcing")
    method = tags.get("method")
    return VideoTags(
        one_line(method) if isinstance(method, str) else None,
        _whole(tags.get("seed")),
        _whole(tags.get("frames_per_block")),
        _prompts(tags),
    )


def _prompts(tags: Fields) -> tuple[tuple[float, str], ...]:
    """`VideoTags.prompts`; a single prompt needs no start."""
    texts = tags.get("prompts")
    starts = tags.get("starts_seconds")
    if not isinstance(texts, list):
        return ()
    if len(texts) == 1:
        starts = [0.0]
    if not isinstance(starts, list) or len(starts) != len(texts):
        return ()
    if not all(is_finite(start) and start >= 0 for start in starts):
        return ()
    shown = [one_line(text, MAX_TEXT_BYTES) for text in texts]
    return tuple(zip(map(float, starts), shown, strict=True))


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
