"""The graph that was queued, as a node that runs sees it: where its inputs come from, and what it asks of one run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from ...headforcing_core.model.latents import LatentFormat
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.timeline.clock import TEMPORAL_STRIDE, format_time
from .sentences import Sentence, joined


def inputs_of(hidden: Any, node_id: str | None) -> dict[str, Any]:
    """The inputs of a node; empty where there is none of that id."""
    return ((hidden.prompt or {}).get(node_id) or {}).get("inputs") or {}


def is_link(value: Any) -> TypeGuard[list[Any]]:
    """Whether an input comes from another node."""
    return isinstance(value, list)


def find_source(hidden: Any, name: str, class_type: str, values: Mapping[str, Any]) -> str | None:
    """The id of the node of a class that an input of the running node comes from, straight or through other nodes.

    Of several the nearest one whose inputs are `values`. None where none is in the graph, as when nodes were made while
    the graph ran.
    """
    sources = _sources(hidden, inputs_of(hidden, hidden.unique_id).get(name))
    found = [source for source in sources if hidden.prompt[source].get("class_type") == class_type]
    if len(found) > 1:
        found = [source for source in found if _may_have(inputs_of(hidden, source), values)]
    return found[0] if found else None


def _may_have(inputs: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether no input has another value; those that are left out or come over links have none to compare."""
    for name, value in values.items():
        given = inputs.get(name, value)
        if given != value and not is_link(given):
            return False
    return True


def _sources(hidden: Any, link: Any) -> Iterator[str]:
    """All nodes that a link's value comes from, the nearest first."""
    seen = set()
    waiting = deque([link])
    while waiting:
        link = waiting.popleft()
        if not is_link(link) or not link:
            continue
        source = link[0]
        if source not in seen and source in (hidden.prompt or {}):
            seen.add(source)
            yield source
            waiting.extend(inputs_of(hidden, source).values())


def rewrite(hidden: Any, node_id: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Put other values of all widgets, by name, into a node: nodes that run later write the graph into their files."""
    changed = {name: value for name, value in after.items() if value != before[name]}
    inputs_of(hidden, node_id).update(changed)
    node = _workflow_node((hidden.extra_pnginfo or {}).get("workflow") or {}, node_id)
    values = node.get("widgets_values")
    for named in (values, node.get("widgets_values_named")):  # newer editors read the latter
        if isinstance(named, dict):
            named.update(changed)
    first = next(iter(before.values()))
    if not isinstance(values, list) or first not in values:
        return
    for place, name in enumerate(before, values.index(first)):  # they stand in the order of the widgets
        if name in changed and values[place : place + 1] == [before[name]]:
            values[place] = changed[name]


def _workflow_node(workflow: Mapping[str, Any], node_id: str) -> dict[str, Any]:
    """A node of a workflow by its id in the queued graph, "5" or, in a subgraph, "12:5"; empty where there is none."""
    definitions = workflow.get("definitions") or {}
    subgraphs = {graph["id"]: graph for graph in definitions.get("subgraphs") or []}
    graph = workflow
    found: dict[str, Any] = {}
    for part in node_id.split(":"):
        nodes = {str(node["id"]): node for node in graph.get("nodes") or []}
        found = nodes.get(part, {})
        graph = subgraphs.get(found.get("type"), {})
    return found


@dataclass(frozen=True)
class Part:
    """A part of a video, or a draft of it: a run of a sampler, without arguments all of the video.

    The sampler's buttons queue the graph with inputs that no widget has, so that workflow and widgets stay as they are.
    """

    from_seconds: float = 0.0  # where the file begins, in seconds of the story
    until_seconds: float = 0.0  # where the render ends; 0: at the end of the story
    draft: bool = False  # whether it is rendered smaller and decoded by a tiny decoder where ComfyUI has one

    @classmethod
    def of(cls, hidden: Any) -> Part:
        """The part that the queued graph asks for."""
        asked = inputs_of(hidden, hidden.unique_id)
        return cls(asked.get("from_seconds", 0.0), asked.get("until_seconds", 0.0), asked.get("draft") is True)

    def until(self, plan: RenderPlan) -> int:
        """The number of blocks that are made, start blocks included; raises HeadForcingError for what is no time."""
        return plan.blocks_until(self.until_seconds)

    def first(self, plan: RenderPlan) -> int:
        """The block with which the file begins: the one before the part, since a decoder has to see what was before."""
        if self.from_seconds == 0 or plan.restart_frames:
            return 0
        block = plan.start_blocks + plan.timeline.clock.block_at(self.from_seconds) - 1
        return max(0, min(block, self.until(plan) - 1))

    def size(self, width: int, height: int, latents: LatentFormat) -> tuple[int, int]:
        """Width and height in pixels: of a draft half of both, in whole patches."""
        if not self.draft:
            return width, height
        patch = latents.side_multiple
        half_width = width // 2 // patch * patch
        half_height = height // 2 // patch * patch
        return max(patch, half_width), max(patch, half_height)

    def describe(self, plan: RenderPlan) -> Sentence | None:
        """Words before a status line; None for all of the video."""
        words = []
        if self.draft:
            words.append(Sentence("draft, %1x%2", plan.width, plan.height))
        until = self.until(plan)
        if until < plan.blocks:
            end = plan.timeline.clock.start_seconds(until - plan.start_blocks)
            words.append(Sentence("up to %1", format_time(end).partition(".")[0]))
        return joined(words, ", ") if words else None


WHOLE = Part()


def skipped_video_frames(plan: RenderPlan, first: int) -> int:
    """Number of video frames by which a file that begins with block `first` begins later than the video."""
    return first * plan.schedule.frames_per_block * TEMPORAL_STRIDE
