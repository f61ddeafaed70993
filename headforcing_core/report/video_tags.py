"""Metadata of a video file about its origin: this pack's own tag, or the graph that ComfyUI stores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import HeadForcingError, one_line
from ..rollout.schedule import SCHEDULES
from ..timeline.clock import is_finite
from ..timeline.timeline import MAX_TEXT_BYTES, parse_timeline


@dataclass(frozen=True)
class VideoTags:
    """Origin of a video; everything is None or empty for videos of other programs.

    `texts` are all prompts, `prompts` the same with their start in seconds of the file; empty if that is unknown.
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


def _own_tags(tags: dict[str, Any]) -> VideoTags:
    """Read this pack's tag: `prompts` are texts, `starts_seconds` (optional) their starts."""
    prompts = tags.get("prompts")
    starts = tags.get("starts_seconds")
    texts = tuple(one_line(text, MAX_TEXT_BYTES) for text in prompts) if isinstance(prompts, list) else ()
    if len(texts) == 1:
        starts = [0.0]
    timed: tuple[tuple[float, str], ...] = ()
    if isinstance(starts, list) and len(starts) == len(texts) and all(is_finite(s) and s >= 0 for s in starts):
        timed = tuple(zip(map(float, starts), texts, strict=True))
    seed = _whole(tags.get("seed"))
    per_block = _whole(tags.get("frames_per_block"))
    return VideoTags(_text(tags.get("method")), seed, per_block, texts, timed)


_STARTS = {"start_frames", "start_image", "start_video"}  # inputs after which times are not those of the timeline


def _graph_tags(graph: dict[str, Any], fps: float) -> VideoTags:
    """Read a graph in API format with one sampler and at most one timeline; linked inputs are not resolved."""
    sampler = _only(graph, "HeadForcingSampler")
    timeline = _only(graph, "HeadForcingPromptTimeline")
    if sampler is None:
        return VideoTags()
    method = _text(sampler.get("method", "head_forcing"))
    seed = _whole(sampler.get("seed"))
    family = SCHEDULES.get(str(sampler.get("model_family", "self_forcing")))
    plain = VideoTags(method, seed, family.frames_per_block if family else None)
    if timeline is None or family is None or sampler.keys() & _STARTS:
        return plain
    text = timeline.get("prompts")
    length = timeline.get("seconds")
    shared = timeline.get("shared_prompt")
    if not isinstance(text, str) or not (length is None or is_finite(length)):
        return plain
    try:
        parsed = parse_timeline(text, length or None, family.clock, shared if isinstance(shared, str) else "")
    except HeadForcingError:
        return plain
    starts = [parsed.clock.start_video_frame(segment.start_block) / fps for segment in parsed.segments]
    texts = tuple(one_line(segment.text, MAX_TEXT_BYTES) for segment in parsed.segments)
    return replace(plain, texts=texts, prompts=tuple(zip(starts, texts, strict=True)))


def _only(graph: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """The inputs of the only node of that class; None if there are none or several."""
    nodes = [node for node in graph.values() if isinstance(node, dict) and node.get("class_type") == kind]
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
