"""Other prompts for a render that runs: a route of the server takes the text, the sampler takes it before a block."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import comfy.model_management
from aiohttp import web
from comfy_execution.utils import get_executing_context
from server import PromptServer
from torch import Tensor

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.render.live_story import Story
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.timeline.clock import format_time
from ...headforcing_core.timeline.timeline import Timeline
from . import checks, helpers, routes
from .conditioning import TimelineNode, node_of

log = logging.getLogger(__name__)

EVENT = "headforcing.story"  # tells the editor that queued the graph which node's story can be changed
_NODE = "HeadForcingPromptTimeline"
_FIELDS = ("client_id", "prompt_id", "node_id", "text")
_NOT_RUNNING = "no render of this story is running; press Run to render it"

_lock = threading.Lock()
_running: LiveStory | None = None
_told: tuple[str, str, str] = ("", "", "")  # the last change: prompt id, node id, text
_changes = 0


class _Request:
    """A text that waits for the next block, and the answer to it."""

    def __init__(self, text: str, timeline: Timeline):
        self.text, self.timeline = text, timeline
        self.error: str | None = None
        self.taken: dict[str, Any] = {}
        self.done = threading.Event()

    def refuse(self, error: str) -> None:
        self.error = error
        self.done.set()


class LiveStory(Story):
    """The story of one run of a sampler.

    Attributes:
        reload: puts the weights of the model back in place after the text encoder has run.
        notes: a line of the report for every change.
    """

    def __init__(self, node: TimelineNode | None, hidden: Any, model: Any, client_id: str, seconds: float):
        self.node, self.client_id, self.seconds = node, client_id, seconds
        context = get_executing_context()
        self.prompt_id = "" if context is None else context.prompt_id
        self.reload: Callable[[], Any] = lambda: None
        self.notes: list[str] = []
        self._hidden, self._model = hidden, model
        self._waiting: _Request | None = None
        self._asked: _Request | None = None
        if node is not None and _told[:2] == (self.prompt_id, node.node_id):  # by another sampler of the same run
            self._waiting = _Request(_told[2], node.parse(_told[2]))

    # ------------------------------------------------------------------- in the thread of a request

    def tell(self, text: str) -> dict[str, Any]:
        """Put a text in place of the one that waits, and wait until the render takes or refuses it.

        Returns the first block with another prompt, counted from 1, of how many, and its time in the story in seconds
        and as text. Raises HeadForcingError with the sentence to show.
        """
        if self.node is None:
            raise HeadForcingError(
                "this render's prompts come from another node than Prompt Timeline, so no new one can be encoded; "
                "queue the new story as a render"
            )
        if not isinstance(_inputs(self._hidden, self.node.node_id).get("prompts"), str):
            raise HeadForcingError("this text comes from another node; change it there and queue it as a render")
        request = _Request(text, self.node.parse(text))
        with _lock:
            if _running is not self:
                raise HeadForcingError(_NOT_RUNNING)
            waiting, self._waiting = self._waiting, request
        if waiting is not None:
            waiting.refuse("a later text came before the next block")
        request.done.wait()
        if request.error is not None:
            raise HeadForcingError(request.error)
        return request.taken

    # ------------------------------------------------------------------- in the thread of the sampler

    def ask(self) -> Timeline | None:
        if self.node is not None:
            self.announce(running=True)
        with _lock:
            self._asked, self._waiting = self._waiting, None
        return None if self._asked is None else self._asked.timeline

    def encode(self, texts: list[str]) -> Sequence[Tensor]:
        assert self.node is not None
        try:
            embeds = [tensor[0] for tensor, _ in self.node.encode(texts)]
            checks.check_text_width(self._model, embeds)
            return embeds
        except (HeadForcingError, comfy.model_management.InterruptProcessingException):
            raise
        except Exception as error:
            first = str(error).partition("\n")[0] or type(error).__name__
            raise HeadForcingError(
                f"the text encoder failed while the model was loaded ({first}); the render goes on with its prompts"
            ) from error
        finally:
            self.reload()  # the text encoder may have taken the model's place

    def taken(self, plan: RenderPlan, block: int) -> None:
        global _told, _changes
        request, self._asked = self._asked, None
        assert request is not None and self.node is not None
        seconds = plan.timeline.clock.start_seconds(max(0, block - (plan.blocks - plan.new_blocks)))
        place = f"block {block + 1} of {plan.blocks}, {format_time(seconds)}"
        self.notes.append(f"the story was changed while it was rendered, from {place} on")
        log.info("Head Forcing: %s", self.notes[-1])
        try:
            _retell(self._hidden, self.node.node_id, request.text)
        except Exception as error:  # of a graph that a script made; the render goes on
            log.warning("Head Forcing: the queued graph keeps its text, it cannot be read: %r", error)
        with _lock:
            _told, _changes = (self.prompt_id, self.node.node_id, request.text), _changes + 1
        request.taken = {"block": block + 1, "blocks": plan.blocks, "seconds": seconds, "time": format_time(seconds)}
        request.done.set()

    def refused(self, error: HeadForcingError) -> None:
        if self._asked is not None:
            log.info("Head Forcing: the story was not changed: %s", error)
            self._asked.refuse(str(error))
            self._asked = None

    def tags(self) -> dict[str, str]:
        """`helpers.graph_tags` with the story that is told."""
        return helpers.graph_tags(self._hidden)

    def announce(self, running: bool) -> None:
        """Tell the editor that queued the graph whether the story can be changed."""
        if self.node is not None and self.client_id:
            about = {"prompt_id": self.prompt_id, "node_id": self.node.node_id, "running": running}
            about["workflow"] = helpers.workflow_id(self._hidden)  # an editor may show another one
            PromptServer.instance.send_sync(EVENT, about, self.client_id)

    def end(self) -> None:
        """Answer whoever still waits."""
        with _lock:
            waiting = [request for request in (self._waiting, self._asked) if request is not None]
            self._waiting = self._asked = None
        for request in waiting:
            request.refuse("the render ended before the next block; queue the new story as a render")
        self.announce(running=False)


def of(positive: list[Any], hidden: Any, model: Any, seconds: float) -> LiveStory:
    """The story of a sampler that runs now."""
    return LiveStory(node_of(positive), hidden, model, PromptServer.instance.client_id or "", seconds)


@contextmanager
def running(story: LiveStory) -> Iterator[None]:
    """Let the story be changed in the `with` block."""
    global _running
    with _lock:
        _running = story
    try:
        yield
    finally:
        with _lock:
            _running = None
        story.end()


def changes() -> int:
    """How many stories were changed while they were rendered, since the server started."""
    return _changes


def register() -> None:
    """Add the route to ComfyUI's server, where one runs."""
    server = getattr(PromptServer, "instance", None)
    if server is not None:
        server.routes.post("/headforcing/story")(_story)


async def _story(request: web.Request) -> web.Response:
    return await routes.answered(request, change)


def change(body: Any) -> dict[str, Any]:
    """Change the story of the running render; `body` holds `client_id`, `prompt_id`, `node_id` and `text`.

    Answers as `LiveStory.tell`; a render of another client, graph or node is not known.
    """
    if not isinstance(body, dict) or not all(isinstance(body.get(name), str) for name in _FIELDS):
        raise HeadForcingError(f"expected a JSON object with {', '.join(_FIELDS)}, each a text")
    story = _running
    if story is None or not story.client_id or body["client_id"] != story.client_id:
        raise HeadForcingError(_NOT_RUNNING)
    if body["prompt_id"] != story.prompt_id or (story.node is not None and body["node_id"] != story.node.node_id):
        raise HeadForcingError(_NOT_RUNNING)
    return story.tell(body["text"])


# ------------------------------------------------------------------------------- the graph that was queued


def _inputs(hidden: Any, node_id: str) -> dict[str, Any]:
    """The inputs of a node in the graph that was queued; empty where there is none."""
    return ((hidden.prompt or {}).get(node_id) or {}).get("inputs") or {}


def _retell(hidden: Any, node_id: str, text: str) -> None:
    """Put the text into the graph that was queued: nodes that run later write that graph into their files."""
    inputs = _inputs(hidden, node_id)
    old, inputs["prompts"] = inputs.get("prompts"), text
    workflow = (hidden.extra_pnginfo or {}).get("workflow")
    node = _workflow_node(workflow, node_id) if isinstance(workflow, dict) else None
    values = None if node is None else node.get("widgets_values")
    if isinstance(values, list) and old in values:
        values[values.index(old)] = text
    elif isinstance(values, dict) and "prompts" in values:
        values["prompts"] = text


def _workflow_node(workflow: dict[str, Any], node_id: str) -> dict[str, Any] | None:
    """A node of an editor's workflow by its id in the queued graph, "5" or, in a subgraph, "12:5"."""
    subgraphs = {
        graph.get("id"): graph for graph in (workflow.get("definitions") or {}).get("subgraphs") or [] if graph
    }
    graph: dict[str, Any] | None = workflow
    found = None
    for part in node_id.split(":"):
        nodes = [] if graph is None else graph.get("nodes") or []
        found = next((node for node in nodes if str(node.get("id")) == part), None)
        graph = None if found is None else subgraphs.get(found.get("type"))
    return found
