"""The route that says what Run would do: which part of a story is stored, and which would be
rendered.

It compares blocks without encoding a text. It knows the videos that samplers have rendered since
the server started, and of those the ones whose nodes have the same inputs but for the story and the
seed.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeGuard

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.plan.request import RenderJob
from ....headforcing_core.render.render import Listener, Render
from ....headforcing_core.rollout.loop import Block
from ....headforcing_core.rollout.rows import first_difference
from ....headforcing_core.runs.folder import count_blocks
from ..graph import queued_graph
from ..graph.conditioning import TimelineNode
from . import pages
from .live_story import NODE, LiveStory

_KEPT_SETTINGS = 4
_KEPT_VIDEOS = 8
_SAMPLER = "HeadForcingSampler"
# inputs on which no block of a story depends, and those that are compared block by block
_NOT_COMPARED = {
    NODE: (
        "prompts seconds shared_prompt switch blend_blocks re_anchor audio_offset audio_gain"
    ).split(),
    _SAMPLER: (
        "seed filename_prefix decode_in_background from_seconds until_seconds draft live"
    ).split(),
}


@dataclass(frozen=True)
class _Video:
    """A video as it was rendered; the blocks of `keys` that are stored now are in `folder`."""

    plan: RenderPlan
    keys: tuple[str, ...]
    folder: Path


@dataclass
class _Settings:
    """The videos that were rendered with the same settings of all nodes.

    Attributes:
        node: of the last one.
        seconds: of the story, where the sampler sets them; else 0.
        pace: seconds that a block took to render; None before one was.
    """

    node: TimelineNode
    seconds: float
    videos: list[_Video]
    pace: float | None = None

    def add(self, video: _Video) -> None:
        others = [each for each in self.videos if each.keys != video.keys]
        self.videos = [*others, video][-_KEPT_VIDEOS:]


_lock = threading.Lock()
_known: dict[str, _Settings] = {}  # by `queued_graph.settings_key`


class Remember(Listener):
    """Remembers the video of a render when it ends, however it does."""

    def __init__(self, story: LiveStory):
        self._story = story
        self._render: Render | None = None
        self._made = 0  # blocks

    def begin(self, render: Render) -> None:
        self._render = render
        self._stored = render.job.plan.layout.start_blocks + len(render.run.stored)
        self._begun = time.monotonic()

    def add(self, block: Block) -> None:
        if block.index >= self._stored:
            self._made += 1

    def __exit__(self, *error: Any) -> None:
        if self._render is None or self._story.node is None:
            return
        pace = None
        if self._made and self._story.has_end:  # a video without an end waits for its pages
            pace = (time.monotonic() - self._begun) / self._made
        _remember(self._story, self._story.node, self._render.job, pace)


def _remember(story: LiveStory, node: TimelineNode, job: RenderJob, pace: float | None) -> None:
    if job.folder is None:
        return
    key = queued_graph.settings_key(story.hidden, _NOT_COMPARED)
    video = _Video(job.plan, tuple(job.keys), job.folder)
    with _lock:
        settings = _known.pop(key, None) or _Settings(node, story.seconds, [])
        settings.node = node
        settings.seconds = story.seconds
        settings.add(video)
        settings.pace = pace or settings.pace
        _known[key] = settings  # the newest comes last
        for oldest in list(_known)[:-_KEPT_SETTINGS]:
            del _known[oldest]


def forecast(body: Any) -> Fields:
    """The work of a Run of the sampler `node` in a graph `output`, as it is queued.

    Answers `kept`, the seconds of the story that are stored, `renders`, those that are not, and
    `takes`, the seconds that they would take, or null. Empty if no video with these settings is
    known, or the story cannot be read.
    """
    queued = _queued(body)
    sampler = queued_graph.inputs_of(queued, queued.unique_id)
    story_id = queued_graph.find_source(queued, NODE, {})
    seed = sampler.get("seed")
    text = queued_graph.inputs_of(queued, story_id).get("prompts")
    with _lock:
        known = _known.get(queued_graph.settings_key(queued, _NOT_COMPARED))
    if known is None or not isinstance(text, str) or not isinstance(seed, int):
        return {}
    inputs = queued_graph.inputs_of(queued, story_id)
    own = {name: inputs[name] for name in known.node.widgets if name in inputs}
    if any(map(queued_graph.is_link, own.values())):
        return {}
    try:
        timeline = known.node.changed(text, own).timeline()
    except HeadForcingError:
        return {}  # the editor says why
    videos = [video for video in known.videos if video.plan.seed == seed]
    seconds = known.seconds or timeline.seconds
    clock = known.videos[-1].plan.timeline.clock
    blocks = clock.blocks_for(seconds)
    kept = max((_kept_blocks(video, timeline, known.seconds) for video in videos), default=0)
    kept_seconds = seconds if kept >= blocks else clock.start_seconds(kept)
    takes = None if known.pace is None else known.pace * (blocks - kept)
    return {"kept": kept_seconds, "renders": seconds - kept_seconds, "takes": takes}


def _queued(body: Any) -> SimpleNamespace:
    """The graph and the sampler of a request, as the hidden inputs of a node that runs."""
    given = body if isinstance(body, dict) else {}
    graph = given.get("output")
    node = given.get("node")
    if not _is_graph(graph) or not isinstance(node, str) or node not in graph:
        raise HeadForcingError("expected a JSON object with output, a graph, and node, an id of it")
    return SimpleNamespace(prompt=graph, unique_id=node)


def _is_graph(value: Any) -> TypeGuard[Fields]:
    """Whether a value has the form of a queued graph."""
    return isinstance(value, dict) and all(
        isinstance(node, dict) and isinstance(node.get("inputs"), dict) for node in value.values()
    )


def _kept_blocks(video: _Video, timeline: Any, seconds: float) -> int:
    """The number of a story's first blocks that are stored for a video."""
    try:
        plan = video.plan.with_timeline(timeline, seconds)
    except HeadForcingError:
        return 0  # a video whose cache depends on its length, or on having one prompt
    same = first_difference(plan.rows, video.plan.rows)
    if same < max(plan.blocks, video.plan.blocks):  # not the same video
        same -= plan.blocks_ahead
    stored = count_blocks(video.folder, video.keys)
    return max(0, min(same - plan.layout.start_blocks, stored))


ROUTES = (pages.route("POST", "/headforcing/forecast", forecast),)
