"""Metadata of a video file about its origin: this pack's own tag, or the graph that ComfyUI
stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import HeadForcingError, one_line
from ..files import Fields, json_object
from ..rollout.schedule import SCHEDULES
from ..timeline.clock import is_finite
from ..timeline.timeline import MAX_TEXT_BYTES, parse_timeline


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


def read_tags(metadata: Mapping[str, str], fps: float) -> VideoTags:
    """Tags of a file with `fps` frames per second. Values of unexpected type are ignored."""
    own = json_object(metadata, "head_forcing")
    if own:
        return _own_tags(own)
    return _graph_tags(json_object(metadata, "prompt"), fps)


def _own_tags(tags: Fields) -> VideoTags:
    """Read this pack's tag: `prompts` are texts, `starts_seconds` (optional) their starts."""
    method = _text(tags.get("method"))
    seed = _whole(tags.get("seed"))
    plain = VideoTags(method, seed, _whole(tags.get("frames_per_block")))
    prompts = tags.get("prompts")
    if not isinstance(prompts, list):
        return plain
    texts = tuple(one_line(text, MAX_TEXT_BYTES) for text in prompts)
    starts: Any = [0.0] if len(texts) == 1 else tags.get("starts_seconds")
    known = isinstance(starts, list) and len(starts) == len(texts)
    if not known or not all(is_finite(start) and start >= 0 for start in starts):
        starts = []
    return replace(plain, texts=texts, starts=tuple(map(float, starts)))


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
    return replace(plain, texts=tuple(texts), starts=tuple(starts))


def _only(graph: Fields, kind: str) -> Fields | None:
    """The inputs of the only node of that class; None if there are none or several."""
    nodes = [
        node for node in graph.values() if isinstance(node, dict) and node.get("class_type") == kind
    ]
    inputs = nodes[0].get("inputs") if len(nodes) == 1 else None
    return inputs if isinstance(inputs, dict) else None


def _text(value: Any) -> str | None:
    return one_line(value) if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
