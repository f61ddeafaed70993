"""Metadata of a video file about its origin: this pack's own tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import one_line
from ..files import json_object
from ..timeline.clock import is_finite
from ..timeline.timeline import MAX_TEXT_BYTES


@dataclass(frozen=True)
class VideoTags:
    """Origin of a video; everything is None or empty for videos of other programs.

    `texts` are all prompts, `starts` their starts in seconds of the file; empty if these are
    unknown.
    """

    method: str | None = None
    seed: int | None = None
    frames_per_block: int | None = None
    texts: tuple[str, ...] = ()
    starts: tuple[float, ...] = ()

    @property
    def prompts(self) -> tuple[tuple[float, str], ...]:
        """(start in seconds, text) of each prompt; empty if the starts are unknown."""
        return tuple(zip(self.starts, self.texts, strict=False))


def read_tags(metadata: Mapping[str, str]) -> VideoTags:
    """Tags of a file: `prompts` are texts, `starts_seconds` (optional) their starts. Values of
    unexpected type are ignored.
    """
    tags = json_object(metadata, "head_forcing")
    method = tags.get("method")
    prompts = tags.get("prompts")
    if not isinstance(prompts, list):
        prompts = []
    starts: Any = [0.0] if len(prompts) == 1 else tags.get("starts_seconds")
    known = isinstance(starts, list) and len(starts) == len(prompts)
    if not known or not all(is_finite(start) and start >= 0 for start in starts):
        starts = []
    return VideoTags(
        one_line(method) if isinstance(method, str) else None,
        _whole(tags.get("seed")),
        _whole(tags.get("frames_per_block")),
        texts=tuple(one_line(text, MAX_TEXT_BYTES) for text in prompts),
        starts=tuple(map(float, starts)),
    )


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
