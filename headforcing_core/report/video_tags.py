"""Metadata of a video file about its origin: this pack's own tag, or the graph that ComfyUI
stores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import HeadForcingError, one_line
from ..files import Fields
from ..rollout.schedule import SCHEDULES
from ..timeline.clock import is_finite
from ..timeline.timeline import MAX_TEXT_BYTES, parse_timeline


@dataclass(frozen=True)
class VideoTags:
    """Origin of a video; everything is None or empty for videos of other programs.

    `texts` are all prompts, `prompts` the same with their start in seconds of the file; empty if
    that is unknown.
    """

    method: str | None = None
    seed: int | None = None
    frames_per_block: int | None = None
    texts: tuple[str, ...] = ()
    prompts: tuple[tuple[float, str], ...] = ()


def read_tags(metadata: Mapping[str, str], fps: float) -> VideoTags:
    """Tags of a file with `fps` frames per second. Values of unexpected type are ignored."""
    own = _json(metadata.get("head_forcing"))
    if isinstance(own, dict):
        return _own_tags(own)
    graph = _json(metadata.get("prompt"))
    if isinstance(graph, dict):
        return _graph_tags(graph, fps)
    return VideoTags()


def _own_tags(tags: Fields) -> VideoTags:
    """Read this pack's tag: `prompts` are texts, `starts_seconds` (optional) their starts."""
    method = _text(tags.get("method"))
    seed = _whole(tags.get("seed"))
    plain = VideoTags(method, seed, _whole(tags.get("frames_per_block")))
    prompts = tags.get("prompts")
    if not isinstance(prompts, list):
        return plain
    texts = [one_line(text, MAX_TEXT_BYTES) for text in prompts]
    starts = [0.0] if len(texts) == 1 else tags.get("starts_seconds")
    if (
        isinstance(starts, list)
        and len(starts) == len(texts)
        and all(is_finite(start) and start >= 0 for start in starts)
    ):
        return _with_prompts(plain, map(float, starts), texts)
    return replace(plain, texts=tuple(texts))


def _with_prompts(tags: VideoTags, starts: Iterable[float], texts: Sequence[str]) -> VideoTags:
    """The tags with prompts and their starts in seconds."""
    return replace(tags, texts=tuple(texts), prompts=tuple(zip(starts, texts, strict=True)))


_STARTS = {
    "start_frames",
    "start_image",
    "start_video",
}  # inputs after which times are not those of the timeline


def _graph_tags(graph: Fields, fps: float) -> VideoTags:
    """Read a graph in API format with one sampler and at most one timeline; linked inputs are not
    resolved.
    """
    sampler = _only(graph, "HeadForcingSampler")
    if sampler is None:
        return VideoTags()
    method = _text(sampler.get("method", "head_forcing"))
    seed = _whole(sampler.get("seed"))
    family = SCHEDULES.get(str(sampler.get("model_family", "self_forcing")))
    if family is None:
        return VideoTags(method, seed)
    plain = VideoTags(method, seed, family.frames_per_block)
    timeline = _only(graph, "HeadForcingPromptTimeline")
    if timeline is None or sampler.keys() & _STARTS:
        return plain
    text = timeline.get("prompts")
    length = timeline.get("seconds")
    shared = timeline.get("shared_prompt")
    if not isinstance(text, str) or not (length is None or is_finite(length)):
        return plain
    if not isinstance(shared, str):
        shared = ""
    try:
        parsed = parse_timeline(text, length or None, family.clock, shared)
    except HeadForcingError:
        return plain
    starts = [parsed.clock.video_frames(segment.start_block) / fps for segment in parsed.segments]
    texts = [one_line(segment.text, MAX_TEXT_BYTES) for segment in parsed.segments]
    return _with_prompts(plain, starts, texts)


def _only(graph: Fields, kind: str) -> Fields | None:
    """The inputs of the only node of that class; None if there are none or several."""
    nodes = [
        node for node in graph.values() if isinstance(node, dict) and node.get("class_type") == kind
    ]
    inputs = nodes[0].get("inputs") if len(nodes) == 1 else None
    return inputs if isinstance(inputs, dict) else None


def _json(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str | None:
    return one_line(value) if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
