"""Other prompts for a render that runs: a route of the server takes the text, the sampler takes it
before a block.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

from comfy import model_management

from ....headforcing_core.errors import HeadForcingError, first_line
from ....headforcing_core.files import Fields
from ....headforcing_core.plan.options import RenderOptions
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.plan.request import RenderRequest
from ....headforcing_core.plan.resources import check_growth
from ....headforcing_core.render.live_story import LiveEdits, StoryEdits
from ....headforcing_core.render.sinks import VideoFile
from ....headforcing_core.rollout.rows import Embeddings, HasBegunError
from ....headforcing_core.timeline.clock import format_time
from ....headforcing_core.timeline.timeline import Timeline
from ..graph import queued_graph
from ..graph.conditioning import Conditioning, TimelineNode, node_of
from ..model.loaded_model import check_text_width
from ..model.memory import free_on
from . import pages

log = logging.getLogger(__name__)

# tells the editor that queued the graph which node's story can be changed
EVENT = "headforcing.story"
NODE = "HeadForcingPromptTimeline"
_FIELDS = ("client_id", "prompt_id", "node_id", "text")
_FOR_ALL_PROMPTS = ("shared_prompt", "switch", "blend_blocks", "re_anchor")
_NOT_RUNNING = "no render of this story is running; press Run to render it"


class Edits:
    """The edits of running stories, in the one place where two threads meet.

    A request's thread (`tell`) puts an edit beside the render and waits for the answer. The
    sampler's thread takes it between two blocks (`LiveStory.ask`), changes the render, and answers
    (`LiveStory.taken`, `LiveStory.refused`). The lock is held while `running` or the waiting edit
    of a story changes hands, so that no edit waits for a story that has ended; never while
    something is encoded or rendered. All else is safe without: the other fields here are used by
    the sampler's thread alone, and `LiveStory.node`, which it replaces as a whole, is read once by
    a request. ComfyUI runs one prompt at a time, so that one story can be edited.

    Attributes:
        running: the story that can be edited.
        latest: the values of a *Prompt Timeline* node after the last edit that a render has taken;
            another sampler of the same run begins with them.
        latest_ids: of the run and of that node.
        count: number of edits that renders have taken since the server started.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: LiveStory | None = None
        self.latest: TimelineNode | None = None
        self.latest_ids: tuple[str, str | None] = ("", None)
        self.count = 0


EDITS = Edits()


class _Request(Future[Fields]):
    """A story that waits for the next block, and the answer to it."""

    def __init__(self, node: TimelineNode, client: str = ""):
        super().__init__()
        self.node = node
        self.timeline = node.timeline()
        self.client = client

    def refuse(self, error: str) -> None:
        self.set_exception(HeadForcingError(error))


class LiveStory(StoryEdits):
    """The story of one run of a sampler.

    Attributes:
        node: the values of *Prompt Timeline* of the current story; None for prompts of another
            node.
        node_id: of that node in the queued graph; None where it is not in it.
        hidden: the hidden inputs of the sampler, with that graph.
        video_frames: the length of the videos that are finished; 0 before the first of a batch is.
        reload: puts the weights of the model back in place after the text encoder has run, without
            asking for what the render has allocated already.
        workflow: the id of the graph.
        changed_by: client id of the page that changed the story last; empty before.
        notes: a line of the report for every change.
    """

    def __init__(self, positive: Conditioning, hidden: Any, model: Any, seconds: float):
        self.node = node_of(positive)
        self.client_id = pages.client()
        self.node_id: str | None = None
        if self.node is not None:
            self.node_id = queued_graph.find_source(hidden, NODE, self.node.widgets)
        self.seconds = seconds
        source = queued_graph.inputs_of(hidden, hidden.unique_id).get("seconds")
        if queued_graph.is_link(source) and source[:1] == [self.node_id]:
            self.seconds = 0.0  # the story has its own length
        self.workflow = queued_graph.workflow_id(hidden)
        self.prompt_id = queued_graph.prompt_id()
        self.changed_by = ""
        self.reload: Callable[[], Any] = lambda: None
        self.video_frames = 0
        self.notes: list[str] = []
        self.hidden = hidden
        self._model = model
        self._waiting: _Request | None = None
        self._told: _Request | None = None
        if EDITS.latest is not None and EDITS.latest_ids == (self.prompt_id, self.node_id):
            self._waiting = _Request(EDITS.latest)

    # ------------------------------------------------------- what another kind of story may change

    file_class: type[VideoFile] = VideoFile
    keeps_latents = True  # for the node's output
    has_end = True  # whether its length is that of the video

    def options(self, options: RenderOptions, timeline: Timeline) -> RenderOptions:
        """The options of the render of this story."""
        return options

    def check_plan(self, request: RenderRequest, plan: RenderPlan) -> None:
        """Refuse a plan with which the story cannot go on."""

    def edits(self, scale: int) -> LiveEdits:
        """The listener that puts changes of the story into the render; `scale` is that of the
        file's pixels, as in `needs_of`.
        """
        return LiveEdits(self)

    @property
    def more(self) -> Fields:
        """Further facts for pages."""
        return {}

    # ------------------------------------------------------------------- in the thread of a request

    def tell(self, text: str, widgets: Fields, client: str) -> Fields:
        """Put a story in place of the one that waits, and wait until the render takes or refuses
        it.

        `widgets` are other values of the node's; those that come over links stay. Returns the first
        block with another prompt, counted from 1, of how many, and its time in the story in seconds
        and as text. Raises HeadForcingError with the sentence to show.
        """
        node = self.node
        if node is None or self.node_id is None:
            raise HeadForcingError(
                "this render's prompts come from another node than Prompt Timeline, so no new one "
                "can be encoded; queue the new story as a render"
            )
        inputs = queued_graph.inputs_of(self.hidden, self.node_id)
        if not isinstance(inputs.get("prompts"), str):
            raise HeadForcingError(
                "this text comes from another node; change it there and queue it as a render"
            )
        given = {
            name: value
            for name, value in widgets.items()
            if not queued_graph.is_link(inputs.get(name))
        }
        changed = node.changed(text, given)
        if self.seconds and changed.seconds != node.seconds:
            raise HeadForcingError(
                f"the sampler's seconds, {self.seconds:g}, are the length of this render; put "
                f"seconds of Prompt Timeline back to {node.seconds:g}"
            )
        request = _Request(changed, client)
        with EDITS.lock:
            if EDITS.running is not self:
                raise HeadForcingError(_NOT_RUNNING)
            waiting = self._waiting
            self._waiting = request
        if waiting is not None:
            waiting.refuse("a newer text replaced this one before the next block")
        return request.result()

    # ----------------------------------------------------------------- in the thread of the sampler

    @property
    def waits(self) -> bool:
        """Whether another story waits for the next block."""
        with EDITS.lock:
            return self._waiting is not None

    def ask(self) -> Timeline | None:
        if self.node is not None:
            self.announce(running=True)
        with EDITS.lock:
            self._told = self._waiting
            self._waiting = None
        return None if self._told is None else self._told.timeline

    def check(self, plan: RenderPlan, more: int) -> None:
        if self.video_frames and plan.video_frames != self.video_frames:
            raise HeadForcingError(
                "the videos of a batch have one length, and the first of this one is finished"
            )
        check_growth(more, free_on(self._model))

    def encode(self, texts: list[str]) -> Embeddings:
        assert self.node is not None
        try:
            embeds = {text: tensor[0] for text, (tensor, _) in self.node.encode(texts).items()}
            check_text_width(self._model, embeds.values())
            return embeds
        except (HeadForcingError, model_management.InterruptProcessingException):
            raise
        except Exception as error:
            raise HeadForcingError(
                f"the text encoder failed while the model was loaded ({first_line(error)}); the "
                "render goes on with its prompts"
            ) from error
        finally:
            self.reload()  # the text encoder may have taken the model's place

    def taken(self, plan: RenderPlan, block: int) -> None:
        request = self._told
        self._told = None
        assert request is not None and self.node is not None and self.node_id is not None
        seconds = plan.start_seconds(block)
        place = f"block {block + 1} of {plan.blocks}, {format_time(seconds)}"
        self.notes.append(f"the story was changed while it was rendered, from {place} on")
        log.info("Head Forcing: %s", self.notes[-1])
        self.become(request.node, request.client)
        request.set_result(
            {
                "block": block + 1,
                "blocks": plan.blocks,
                "seconds": seconds,
                "time": format_time(seconds),
            }
        )

    def become(self, node: TimelineNode, client: str) -> None:
        """Put the story that the render has taken into the graph, and tell the pages of it; a page
        changed it, or with an empty `client` the server.
        """
        assert self.node is not None and self.node_id is not None
        with suppress(AttributeError, KeyError, TypeError):  # of a graph that a script made
            queued_graph.rewrite(self.hidden, self.node_id, self.node.widgets, node.widgets)
        EDITS.latest = node
        EDITS.latest_ids = (self.prompt_id, self.node_id)
        EDITS.count += 1
        self.node = node
        self.changed_by = client
        self.announce(running=True)  # now, for the other pages

    def refused(self, error: HeadForcingError) -> None:
        request = self._told
        self._told = None
        sentence = str(error)
        assert request is not None and self.node is not None
        before = self.node.widgets
        after = request.node.widgets
        names = [name for name in _FOR_ALL_PROMPTS if before[name] != after[name]]
        if isinstance(error, HasBegunError) and names:
            sentence += (
                f"; the node's {', '.join(names)} apply to them, too: put back what you changed "
                "there, and write words or tags into later prompts"
            )
        log.info("Head Forcing: the story was not changed: %s", sentence)
        request.refuse(sentence)

    def about(self) -> Fields:
        """The workflow, and the story as it is written in *Prompt Timeline*: a page that restores a
        take puts it back into the node.
        """
        about: Fields = {"workflow": self.workflow}
        node = self.node if self._told is None else self._told.node
        if node is not None:
            about["written"] = node.widgets
        return about

    def announce(self, running: bool) -> None:
        """Tell the pages that show the workflow whether the story can be changed, what it is, and
        who changed it.
        """
        if self.node_id is not None and self.client_id:
            about = {
                "prompt_id": self.prompt_id,
                "node_id": self.node_id,
                "running": running,
                "workflow": self.workflow,
                "changed_by": self.changed_by,
                "story": None if self.node is None else self.node.widgets,
                **self.more,
            }
            pages.tell(EVENT, self.node_id, about, self.client_id)

    def end(self) -> None:
        """Answer the request that still waits."""
        with EDITS.lock:
            requests = (self._waiting, self._told)
            self._waiting = self._told = None
        for request in requests:
            if request is not None:
                request.refuse(
                    "the render ended before the next block; queue the new story as a render"
                )
        self.announce(running=False)


@contextmanager
def running(story: LiveStory) -> Iterator[None]:
    """Let the story be changed in the `with` block."""
    with EDITS.lock:
        EDITS.running = story
    try:
        yield
    finally:
        with EDITS.lock:
            EDITS.running = None
        story.end()


def change(body: Any) -> Fields:
    """Change the story of the running render; `body` holds `client_id`, `prompt_id`, `node_id` and
    `text`, and may hold other values of the node's widgets.

    Answers as `LiveStory.tell`; a render of another client, graph or node is not known.
    """
    if not isinstance(body, dict) or not all(isinstance(body.get(name), str) for name in _FIELDS):
        raise HeadForcingError(f"expected a JSON object with {', '.join(_FIELDS)}, each a text")
    with EDITS.lock:
        story = EDITS.running
    client = body["client_id"]
    node_id = body["node_id"]
    if (
        story is None
        or not story.client_id
        or client not in (story.client_id, *pages.showing(story.client_id, story.workflow))
        or body["prompt_id"] != story.prompt_id
        or node_id != (story.node_id or node_id)
    ):
        raise HeadForcingError(_NOT_RUNNING)
    widgets = {name: value for name, value in body.items() if name not in _FIELDS}
    return story.tell(body["text"], widgets, client)


ROUTES = (pages.route("POST", "/headforcing/story", change),)
