"""A video without a fixed end on pages: routes by which they give prompts, follow the file and tell
where they are; see `headforcing_core/live`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLateError
from dataclasses import replace
from typing import Any

from aiohttp import web
from comfy import model_management

from ....headforcing_core.cache.scenes import scenes_kept
from ....headforcing_core.demo import words as demo_words
from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.live.audience import LEAD_SECONDS, Pages
from ....headforcing_core.live.file import ShownVideo, next_bytes
from ....headforcing_core.live.performance import (
    MORE_SECONDS,
    Performance,
    Placed,
    check_endless,
    with_kept_scenes,
)
from ....headforcing_core.live.story import Beats, Said
from ....headforcing_core.plan.options import RenderOptions
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.plan.request import RenderRequest
from ....headforcing_core.rollout.loop import Block
from ....headforcing_core.timeline.clock import (
    MAX_SECONDS,
    TEMPORAL_STRIDE,
    format_time,
    plain_time,
)
from ....headforcing_core.timeline.timeline import Timeline
from .. import folders
from ..graph import queued_graph
from ..graph.conditioning import Conditioning, TimelineNode
from ..graph.part import WHOLE, Part
from . import pages, player
from .live_story import EDITS, LiveStory
from .progress import stop_where_asked

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 60.0  # in which the render takes a change: a text encoder may have to be loaded
_WAIT_SECONDS = 0.25  # in which a request that follows the file is answered
_NOT_RUNNING = "no live video is running; press Live to begin one"
# requests that wait have threads of their own, so that all other routes answer
_performing = ThreadPoolExecutor(4, thread_name_prefix="headforcing-perform")
_following = ThreadPoolExecutor(8, thread_name_prefix="headforcing-follow")


def story_of(positive: Conditioning, hidden: Any, model: Any, seconds: float) -> LiveStory:
    """The story of a run of a sampler; a `PerformedStory` if the page that queued it asks for a
    live video.
    """
    asked = queued_graph.inputs_of(hidden, hidden.unique_id).get("live")
    kind = PerformedStory if asked is True else LiveStory
    return kind(positive, hidden, model, seconds)


class PerformedStory(LiveStory):
    """The story of a video without a fixed end: the prompts come from pages, and the server writes
    them into *Prompt Timeline*.

    Attributes:
        audience: the pages that play the video.
        performance: None before the render begins.
    """

    file_class = ShownVideo
    keeps_latents = False
    has_end = False

    def __init__(self, positive: Conditioning, hidden: Any, model: Any, seconds: float):
        super().__init__(positive, hidden, model, seconds)
        inputs = queued_graph.inputs_of(hidden, self.node_id)
        if self.node is None or not isinstance(inputs.get("prompts"), str):
            raise HeadForcingError(
                "a live video writes its story into Prompt Timeline: connect one to the sampler, "
                "with a text of its own"
            )
        sampler = queued_graph.inputs_of(hidden, hidden.unique_id)
        if sampler.get("batch_size", 1) != 1 or Part.of(hidden) != WHOLE:
            raise HeadForcingError(
                "a live video is one video without a part: set batch_size to 1, and render a draft "
                "or a part afterwards"
            )
        if not queued_graph.is_link(sampler.get("vae")):
            raise HeadForcingError(
                "a live video is decoded while it is made: connect a VAE to vae of the sampler"
            )
        if sampler.get("live_decoder", "none") != "none":
            raise HeadForcingError(
                "a live video is decoded once, while it is made: set live_decoder to none, and "
                "connect a tiny decoder to vae if the VAE is too slow"
            )
        self._begins = self.node
        self.seconds = 0.0  # the story has its own length
        self.audience = Pages()
        self.performance: Performance | None = None

    @property
    def waits(self) -> bool:
        return True  # the file of an earlier video with this beginning does not do

    def options(self, options: RenderOptions, timeline: Timeline) -> RenderOptions:
        seconds = max(MORE_SECONDS, timeline.seconds)
        return with_kept_scenes(replace(options, seconds=seconds))

    def check_plan(self, request: RenderRequest, plan: RenderPlan) -> None:
        check_endless(request, plan)

    def edits(self, scale: int) -> Performance:
        node = self._begins
        pasted = node.translation
        text = node.text if pasted is None else pasted.text
        self.performance = _Announced(self, text, scale)
        return self.performance

    def read(self, text: str, seconds: float | None) -> Timeline:
        """The timeline of a text with the other values of the node."""
        node = self.node
        assert node is not None
        silent = replace(node, soundtrack=None)  # whose length is none of a text
        return silent.changed(text, {"seconds": seconds or 0.0}).timeline()

    # ------------------------------------------------------------------- in the thread of a request

    def tell(self, text: str, widgets: Fields, client: str) -> Fields:
        performance = self._running()
        node = self.node
        assert node is not None
        changed = node.changed(text, {**widgets, "seconds": node.seconds})
        if changed != replace(node, text=text):
            raise HeadForcingError(
                "while a live video runs only its prompts can change; put the other values of "
                "Prompt Timeline back"
            )
        pasted = changed.translation
        return self._answer(performance.replace_story(text if pasted is None else pasted.text))

    def perform(self, said: Said) -> Fields:
        """Let a prompt begin with the next block; answers as `tell`, and `in`, the seconds until
        the page that is furthest shows it.
        """
        performance = self._running()
        answer = self._answer(performance.perform(said.words, said.tag, said.recall, said.beats))
        position = self.audience.position(answer["seconds"])
        return {**answer, "in": answer["seconds"] - (position or 0.0)}

    def expect(self, words: str) -> Fields:
        """Encode words that may be given soon, if there is time; the answer is empty."""
        self._running().expect(words)
        return {}

    def stop(self) -> Fields:
        """End the video with the next block; answers as `tell`."""
        return self._answer(self._running().stop())

    def is_shown_by(self, client: str) -> bool:
        """Whether a page has queued the video, or shows its workflow."""
        return client in (self.client_id, *pages.showing(self.client_id, self.workflow))

    def _running(self) -> Performance:
        if self.performance is None:
            raise HeadForcingError("the live video has not begun; wait for its first picture")
        return self.performance

    def _answer(self, future: Future[Placed]) -> Fields:
        try:
            placed = future.result(timeout=_ANSWER_SECONDS)
        except TooLateError:
            raise HeadForcingError(
                f"the render has not taken it for {_ANSWER_SECONDS:g} s; it may still do so"
            ) from None
        return {
            "block": placed.block + 1,
            "seconds": placed.seconds,
            "time": format_time(placed.seconds),
        }

    # ----------------------------------------------------------------- in the thread of the sampler

    def taken(self, plan: RenderPlan, block: int) -> None:
        story = self._running().story
        self.notes = [f"performed: {len(story.prompts)} prompts"]
        self.become(self._node_with_taking(), "")

    def refused(self, error: HeadForcingError) -> None:
        log.info("Head Forcing: %s", error)
        self.notes.append(str(error))

    def about(self) -> Fields:
        return {"workflow": self.workflow, "written": self._node_with_taking().widgets}

    def _node_with_taking(self) -> TimelineNode:
        """The node with the story that is taken now, else with the one that it has."""
        node = self.node
        assert node is not None
        if self.performance is None:
            return node
        story = self.performance.taking or self.performance.story
        return node.changed(story.text, {"seconds": story.timeline.seconds})

    @property
    def more(self) -> Fields:
        """Facts that pages show while the video runs: how much it makes a second, how far ahead it
        is, whether it ends, and the scenes that can come back.
        """
        live = self.performance
        if live is None or not live.has_begun:
            return {"live": {}}
        plan = live.render.job.plan
        frames = plan.schedule.frames_per_block * TEMPORAL_STRIDE
        made = live.lead.block_seconds
        return {
            "live": {
                "fps": plan.timeline.clock.fps,
                "made": frames / made if made else None,
                "lead": live.lead.seconds,
                "ends": live.ends,
                "end": plain_time(live.story.timeline.seconds),
                "why": live.why,
                "kept": scenes_kept(plan.timeline),
            }
        }

    def end(self) -> None:
        if self.performance is not None:
            self.performance.finish()
        super().end()


class _Announced(Performance):
    """A performance that tells pages before each block that it runs, and that ComfyUI's Stop ends;
    the second Stop breaks the run off.
    """

    def __init__(self, story: PerformedStory, text: str, scale: int):
        super().__init__(
            text,
            story.read,
            story,
            audience=story.audience,
            lead=LEAD_SECONDS,
            while_waiting=stop_where_asked,
            video_folder=folders.output_folder(),
            scale=scale,
        )
        self._performed = story
        self._interrupt = model_management.interrupt_current_processing
        self._is_stopping = False  # since the first Stop; `ends` is set after the block of then

    def __enter__(self) -> _Announced:
        # each operation of a model raises where it is interrupted, in the middle of a block
        model_management.interrupt_current_processing = self._hear_stop
        return self

    def __exit__(self, *error: object) -> None:
        model_management.interrupt_current_processing = self._interrupt
        super().__exit__(*error)

    def _hear_stop(self, value: bool = True) -> None:
        if value and not (self._is_stopping or self.ends):
            self._is_stopping = True
            self.stop()
        else:
            self._interrupt(value)

    def add(self, block: Block) -> None:
        self._performed.announce(running=True)
        super().add(block)


# ----------------------------------------------------------------------------------------- routes


def _running_story(client: str, prompt_id: str) -> PerformedStory:
    """The live video that runs, if the page shows it."""
    with EDITS.lock:
        story = EDITS.running
    if (
        not isinstance(story, PerformedStory)
        or story.prompt_id != prompt_id
        or not story.is_shown_by(client)
    ):
        raise HeadForcingError(_NOT_RUNNING)
    return story


def perform(body: Any, check_waited: Callable[[], None]) -> Fields:
    """Give the live video a prompt, or end it with `stop`; `body` holds `client_id` and
    `prompt_id`, and may hold `words`, `tag`, `recall` and `beats`, as of `live.story.Said`. With
    `expected` the words are still being typed.
    """
    if not isinstance(body, dict):
        raise HeadForcingError("expected a JSON object with client_id and prompt_id")
    texts = [body.get(name, "") for name in ("client_id", "prompt_id", "words", "tag")]
    recall = body.get("recall")
    if not all(isinstance(text, str) for text in texts) or type(recall) not in (int, type(None)):
        raise HeadForcingError(
            "client_id, prompt_id, words and tag must be texts, and recall a whole number"
        )
    client, prompt_id, words, tag = texts
    story = _running_story(client, prompt_id)
    if body.get("stop") is True:
        return story.stop()
    if body.get("expected") is True:
        return story.expect(words)
    return story.perform(Said(words, tag, recall, _beats(body.get("beats"))))


def _beats(given: Any) -> Beats | None:
    """The beats that a page gives: `every` and `first`, in seconds."""
    if given is None:
        return None
    every: Any = None
    first: Any = None
    if isinstance(given, dict):
        every = given.get("every")
        first = given.get("first")
    if type(every) not in (int, float) or type(first) not in (int, float):
        raise HeadForcingError("beats must be an object with every and first, in seconds")
    if not (0.05 <= every <= 60 and abs(first) <= MAX_SECONDS):
        raise HeadForcingError(
            f"beats must be 0.05 to 60 s apart, from a second of the story, got {every}, {first}"
        )
    return Beats(every, first)


def follow(query: Fields, check_waited: Callable[[], None]) -> web.Response:
    """The bytes of a growing file `id` from `from` on, as soon as there are some; without content
    after a quarter of a second without any.

    A page tells with it where it is, second `at` of the story, and how fast it plays, `rate`.
    """
    try:
        first = int(query.get("from", "0"))
        at = float(query.get("at", "0"))
        rate = float(query.get("rate", "0"))
    except ValueError:
        raise HeadForcingError("from, at and rate must be numbers") from None
    # no file is larger than 2^62 bytes
    if not 0 <= first <= 2**62 or not (math.isfinite(at) and 0 <= rate <= 16):
        raise HeadForcingError("from, at and rate must be numbers of a video that is played")
    client = query.get("client", "")
    with EDITS.lock:
        story = EDITS.running
    if isinstance(story, PerformedStory) and story.is_shown_by(client):
        story.audience.tell(client, max(0.0, at), rate)
    path = player.growing_path(query.get("id", ""))
    piece = b"" if path is None else next_bytes(path, first, _WAIT_SECONDS)
    return web.Response(body=piece, status=200 if piece else 204)


def _words(query: Fields) -> Fields:
    """The words that the embedded model knows, by what they say."""
    return {kind: list(words) for kind, words in demo_words.CHOICES.items()}


ROUTES = (
    pages.route("POST", "/headforcing/perform", perform, _performing),
    pages.route("GET", "/headforcing/follow", follow, _following),
    pages.route("GET", "/headforcing/words", _words),
)
