"""Open pages of the editor, and what they are told about renders of the workflows that they show."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from server import PromptServer

from .routes import FROM_ELSEWHERE, from_here, refused

ROUTE = "/headforcing/renders"
KEPT_PAGES = 8  # that are not connected: a page that is loaded again comes back within seconds
KEPT_WORKFLOWS = 32  # of a page: those that it has shown last
KEPT_EVENTS = 64
LONGEST_ID = 64


class _Page:
    """Whether a page plays files that grow, and the workflows that it has asked about, the latest at the end."""

    def __init__(self) -> None:
        self.grows = True
        self.workflows: list[str] = []


_lock = threading.Lock()
_pages: dict[str, _Page] = {}  # by client id
# The last event of each kind and node, by kind, workflow and node; of a workflow without an id by the client's.
_events: dict[tuple[str, str, str], dict[str, Any]] = {}


def register() -> None:
    """Add the route to ComfyUI's server, where one runs."""
    server = getattr(PromptServer, "instance", None)
    if server is not None:
        server.routes.get(ROUTE)(_renders)


def showing(client: str, workflow: str) -> list[str]:
    """Client ids of the page that queued a workflow and of all others that show it; empty where no page has asked."""
    with _lock:
        return [known for known, page in _pages.items() if known == client or workflow in page.workflows]


def play_growing(client: str, workflow: str) -> bool:
    """Whether all pages that show a workflow play files that grow."""
    with _lock:
        pages = [page for known, page in _pages.items() if known == client or workflow in page.workflows]
    return all(page.grows for page in pages)


def tell(event: str, node: str, about: Mapping[str, Any], client: str, **once: Any) -> None:
    """Tell the page that queued a workflow, and all others that show it, about one of its nodes.

    Kept for pages that come later, but for what is said `once`. `about` has the workflow's id; the time is added, by
    which a page knows an answer that is older than what it has heard since.
    """
    owner, about = about["workflow"] or client, {**about, "time": time.time()}
    with _lock:
        _events.pop(place := (event, owner, node), None)
        _events[place] = about  # the newest comes last
        while len(_events) > KEPT_EVENTS:
            del _events[next(iter(_events))]
    for page in {client, *showing(client, about["workflow"])}:
        PromptServer.instance.send_sync(event, {**about, **once}, page)


def last(event: str, node: str, workflow: str, client: str) -> dict[str, Any] | None:
    """What was told last about a node."""
    with _lock:
        return _events.get((event, workflow or client, node))


async def _renders(request: web.Request) -> web.Response:
    """Note what a connected page shows; answers with `[event, about]` of all nodes of that workflow."""
    client, workflow = request.query.get("client", ""), request.query.get("workflow", "")
    connected = PromptServer.instance.sockets
    if not from_here(request):
        return refused(403, FROM_ELSEWHERE)
    if client not in connected or len(workflow) > LONGEST_ID:
        return refused(403, "no editor of that client id is connected")
    with _lock:
        for gone in [known for known in _pages if known not in connected][:-KEPT_PAGES]:
            del _pages[gone]
        page = _pages.setdefault(client, _Page())
        page.grows = request.query.get("grows") == "true"
        if workflow:
            others = [each for each in page.workflows if each != workflow]
            page.workflows = [*others, workflow][-KEPT_WORKFLOWS:]
        told = [[event, about] for (event, owner, _), about in _events.items() if owner in (client, workflow)]
    return web.json_response(told)
