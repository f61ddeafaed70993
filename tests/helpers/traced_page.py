"""What the main thread of a page does in a span of time, from the browser's own trace."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from comfy_browser import Browser
from playwright.sync_api import CDPSession

_CATEGORIES = ("toplevel", "devtools.timeline", "blink.user_timing")
_TASKS = ("ThreadControllerImpl::RunTask", "RunTask")
_BEGIN, _END = "hf-begin", "hf-end"


@dataclass
class Trace:
    """Events of the page's main thread. Times are those of the processor, in milliseconds: what
    other processes of a busy machine do meanwhile does not count.
    """

    events: list[dict[str, Any]] = field(default_factory=list)

    def frames_ms(self, event: str) -> list[float]:
        """Of each frame in which an event was dispatched, the time for script, style, layout and
        paint, in ascending order: Chromium dispatches the moves of a pointer once in a frame, in
        the task that draws it.
        """
        handled = [each["ts"] for each in self.events if _is_dispatched(each, event)]
        return sorted(
            task["tdur"] / 1000
            for task in self.events
            if task["name"] in _TASKS and _holds(task, handled)
        )

    def calls_ms(self, file: str) -> list[float]:
        """Of each call of a function in a script, by the end of its address, in ascending order."""
        return sorted(
            each["tdur"] / 1000
            for each in self.events
            if each["name"] == "FunctionCall"
            and "tdur" in each
            and each["args"]["data"].get("url", "").endswith(file)
        )


def _is_dispatched(each: dict[str, Any], event: str) -> bool:
    return each["name"] == "EventDispatch" and each["args"]["data"]["type"] == event


def _holds(task: dict[str, Any], times: list[float]) -> bool:
    return "tdur" in task and any(task["ts"] <= at < task["ts"] + task["dur"] for at in times)


@contextmanager
def traced(editor: Browser) -> Iterator[Trace]:
    """Trace the page while the block runs; the result is filled in when it ends."""
    page = editor.page
    session = page.context.new_cdp_session(page)
    ended: list[str] = []
    session.on("Tracing.tracingComplete", lambda told: ended.append(told["stream"]))
    config = {"includedCategories": list(_CATEGORIES)}
    session.send("Tracing.start", {"transferMode": "ReturnAsStream", "traceConfig": config})
    trace = Trace()
    page.evaluate("(name) => void performance.mark(name)", _BEGIN)
    yield trace
    page.evaluate("(name) => void performance.mark(name)", _END)
    session.send("Tracing.end")
    while not ended:
        page.wait_for_timeout(50)
    trace.events = _of_page(json.loads(_read(session, ended[0]))["traceEvents"])
    session.detach()


def _read(session: CDPSession, stream: str) -> str:
    text = ""
    while True:
        part = session.send("IO.read", {"handle": stream, "size": 1 << 20})
        is_encoded = part.get("base64Encoded", False)
        text += base64.b64decode(part["data"]).decode() if is_encoded else part["data"]
        if part["eof"]:
            session.send("IO.close", {"handle": stream})
            return text


def _of_page(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the thread that set the two marks, between them."""
    marks = {each["name"]: each for each in events if each["name"] in (_BEGIN, _END)}
    begin = marks[_BEGIN]
    thread = (begin["pid"], begin["tid"])
    span = range(begin["ts"], marks[_END]["ts"])
    return [each for each in events if (each["pid"], each["tid"]) == thread and each["ts"] in span]
