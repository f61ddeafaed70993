"""A page without a browser: it plays a live video at its rate as it arrives, tells where it is, and
gives prompts.
"""

import threading
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

from comfy_graphs import Graph, changed, growing_graph
from comfy_harness import ComfyServer, RunResult

FPS = 16
BEHIND = 0.06  # seconds before the end of what has arrived at which a player stops


@dataclass
class Given:
    """A prompt that was given: when, in seconds of the clock, and what became of it."""

    words: str
    sent: float
    answered: float = 0.0
    seconds: float = 0.0  # of the story, at which it begins
    shown: float | None = None  # when its first frame was played
    error: str = ""


class LivePage:
    """Queues a live video and plays it; use as a context manager.

    Attributes:
        position: second of the story that is played.
        stalled: seconds in which the picture stood, after the first one.
        first: seconds from queueing to the first frame; None before it.
        told: the last event of the story.
        result: of the run; None while it goes on.
    """

    def __init__(self, server: ComfyServer, graph: Graph, tells: bool = True):
        self.server = server
        self.graph = changed(graph, "sampler", live=True)
        self.tells = tells  # whether it follows the file, and so tells where it is
        self.position = 0.0
        self.stalled = 0.0
        self.first: float | None = None
        self.told: dict[str, Any] = {}
        self.result: RunResult | None = None
        self.given: list[Given] = []
        self.is_paused = False
        self.frames = 0
        self.done = 0  # finished blocks, by the messages
        self.file = ""
        self.holds = threading.Event()  # set once the sampler waits, see `ComfyServer.hold`
        self._asked = False
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._queue, daemon=True)]
        self._threads += [
            threading.Thread(target=work, daemon=True) for work in (self._play, self._follow)
        ]

    def __enter__(self) -> "LivePage":
        self.began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.tells = False  # a video that no page shows ends, also if Stop came too early
        end = time.monotonic() + 60
        while not self._over.is_set():
            assert time.monotonic() < end, "the live video goes on"
            self.server.interrupt()
            self._over.wait(1.0)

    def wait(self, seconds: float = 60.0) -> RunResult:
        """The result of the run."""
        assert self._over.wait(seconds), "the live video goes on"
        assert self.result is not None
        return self.result

    def until(self, position: float, seconds: float = 60.0) -> None:
        """Wait until a second of the story is played."""
        end = time.monotonic() + seconds
        while self.position < position:
            assert time.monotonic() < end and not self._over.is_set(), self.position
            time.sleep(0.02)

    def perform(self, words: str = "", **more: Any) -> Given:
        """Give a prompt, and wait until it is taken or refused."""
        given = Given(words, time.monotonic())
        self.given.append(given)
        status, answer = self._post(words=words, **more)
        given.answered = time.monotonic()
        if status == 200:
            given.seconds = answer["seconds"]
        else:
            given.error = answer["error"]
        return given

    def taken(self, words: str = "", **more: Any) -> Given:
        """Give a prompt that is not refused."""
        given = self.perform(words, **more)
        assert not given.error, given.error
        return given

    def stop(self) -> tuple[int, Any]:
        return self._post(stop=True)

    def _post(self, **body: Any) -> tuple[int, Any]:
        ids = {"client_id": self.server.client_id, "prompt_id": self.told.get("prompt_id", "")}
        return self.server.post("/headforcing/perform", ids | body)

    def _queue(self) -> None:
        try:
            self.result = self.server.queue(self.graph, on_event=self._hear)
        finally:
            self._over.set()

    def _hear(self, kind: str, data: dict[str, Any]) -> None:
        if not self._asked:
            self._asked = True
            asked = {"client": self.server.client_id, "workflow": "", "grows": "true"}
            self.server.get(f"/headforcing/renders?{urllib.parse.urlencode(asked)}")
        if kind == "headforcing.story":
            self.told = {**self.told, **data}
        elif kind == "test.waits":
            self.holds.set()
        elif kind == "head_forcing.progress":
            video = data.get("video") or {}
            if video.get("bytes") and video.get("followed"):
                self.file = video["id"]
            place = data.get("place") or {}
            self.done = place.get("done", self.done)

    def _play(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            time.sleep(0.005)
            now = time.monotonic()
            passed = now - last
            last = now
            if self.first is None or self.is_paused:
                continue
            end = max(self.position, self.frames / FPS - BEHIND)
            position = min(self.position + passed, end)
            self.stalled += passed - (position - self.position)
            self.position = position
            for given in self.given:
                if given.shown is None and given.seconds and position >= given.seconds:
                    given.shown = now

    def _follow(self) -> None:
        read = 0
        rest = b""
        while not self._over.is_set():
            if not self.file or not self.tells:
                time.sleep(0.01)
                continue
            plays = self.first is not None and not self.is_paused
            query = {
                "id": self.file,
                "from": read,
                "at": f"{self.position:.3f}",
                "rate": int(plays),
                "client": self.server.client_id,
            }
            path = f"/headforcing/follow?{urllib.parse.urlencode(query)}"
            try:
                status, data = self.server.ask(path, method="GET")
            except OSError:
                continue
            if status != 200:
                continue
            read += len(data)
            rest = rest[-3:] + data
            self.frames += rest.count(b"moof")
            if rest[-4:] == b"moof":
                rest = b""
            if self.first is None and self.frames > 1:
                self.first = time.monotonic() - self.began
            time.sleep(0.03)


def live_graph(seed: int, prompt: str, **sampler: Any) -> Graph:
    """The demo graph for a live video that begins with this prompt."""
    graph = growing_graph(
        "video/live", prompts=f"0:00 {prompt}", seconds=30.0, seed=seed, **sampler
    )
    return graph
