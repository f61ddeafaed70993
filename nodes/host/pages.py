"""Open pages of the editor: the routes that they ask, and what they are told about renders of their workflows."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from comfy.cli_args import args
from server import PromptServer

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.rollout.schedule import AUTO_FAMILY, schedule
from ...headforcing_core.timeline.editor import answer
from ...headforcing_core.timeline.switch import Switch
from ...headforcing_core.timeline.timeline import MAX_TEXT_BYTES

FROM_ELSEWHERE = (
    "this request comes from another site, or under a name that is not this server's; open ComfyUI itself by its "
    "address, or start it with --enable-cors-header and the address that you open"
)
KEPT_PAGES = 8  # that are not connected: a page that is loaded again comes back within seconds
KEPT_WORKFLOWS = 32  # of a page: those that it has shown last
KEPT_EVENTS = 64
LONGEST_ID = 64
MAX_BODY_BYTES = 4 * MAX_TEXT_BYTES  # a text of the longest kind, escaped


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class RefusedError(Exception):
    """A request that is not answered: the HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


def register(routes: Iterable[web.RouteDef]) -> None:
    """Add routes to ComfyUI's server, where one runs."""
    server = getattr(PromptServer, "instance", None)
    if server is not None:
        for route in routes:
            server.routes.route(route.method, route.path)(route.handler)


def guarded(handler: Handler) -> Handler:
    """The handler of a route that refuses requests of other sites; an error is answered as `{"error": a sentence}`."""

    @functools.wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            if not from_here(request):
                raise RefusedError(403, FROM_ELSEWHERE)
            return await handler(request)
        except RefusedError as error:
            return web.json_response({"error": str(error)}, status=error.status)

    return answer


def answering(work: Callable[[Any], Any]) -> Handler:
    """The handler of a route that answers with the JSON of `work(the JSON of the request)`."""

    @guarded
    async def answer(request: web.Request) -> web.Response:
        body = await json_body(request)
        try:
            return web.json_response(await asyncio.to_thread(work, body))
        except HeadForcingError as error:
            raise RefusedError(400, str(error)) from error

    return answer


def _segments(body: Any) -> dict[str, Any]:
    """The answer to the timeline editor, in the blocks of its `model_family`; `auto` has those of Wan 2.1."""
    family = body.get("model_family", AUTO_FAMILY) if isinstance(body, dict) else AUTO_FAMILY
    model = schedule(str(family))
    return answer(body, model.clock, Switch(re_anchor=bool(model.shot_prefix)))


async def json_body(request: web.Request) -> Any:
    """The JSON of a request. Raises RefusedError for another type, a long body and what is no JSON."""
    if request.content_type != "application/json":
        raise RefusedError(415, f"the body must be application/json, got {request.content_type[:40]}")
    body = bytearray()
    async for piece in request.content.iter_chunked(1 << 16):
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise RefusedError(413, f"the body is longer than {MAX_BODY_BYTES >> 20} MB; shorten the text")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is not valid JSON") from None


def from_here(request: web.Request) -> bool:
    """Whether no page of another site sent the request.

    ComfyUI checks this too, but not when it is started with a CORS header, nor on addresses other than this computer's.
    Browsers tell where a request comes from in Sec-Fetch-Site (https and localhost) or Origin; programs send neither.
    A page of a domain that its owner points at this computer (DNS rebinding) passes for one of this server; Host tells.
    """
    if not _is_own_name(request.headers.get("Host", "")):
        return False
    if site := request.headers.get("Sec-Fetch-Site"):
        return site in ("same-origin", "none")
    origin = request.headers.get("Origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == request.headers.get("Host", "").lower()
    except ValueError:
        return False


def _is_own_name(host: str) -> bool:
    """Whether a browser may know this server by this name: no stranger's domain, as far as ComfyUI was told."""
    allowed = args.enable_cors_header or ""
    listens = [name.strip().lower() for name in args.listen.split(",")]
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        if name in (*listens, urlsplit(allowed).hostname):
            return True
        # reached from a network, by names of proxies and clouds that cannot be known here
        if allowed == "*" or not {"0.0.0.0", "::"}.isdisjoint(listens):
            return True
        # no stranger can own a domain without a dot, nor one of these
        if "." not in name and ":" not in name or name.endswith((".localhost", ".local")):
            return True
        ipaddress.ip_address(name)
        return True
    except ValueError:
        return False


class _Page:
    """Whether a page plays files that grow, and the workflows that it has asked about, the latest at the end."""

    def __init__(self) -> None:
        self.grows = True
        self.workflows: list[str] = []


_lock = threading.Lock()
_pages: dict[str, _Page] = {}  # by client id
# The last event of each kind and node, by kind, workflow and node; of a workflow without an id by the client's.
_events: dict[tuple[str, str, str], dict[str, Any]] = {}


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
    """The last message about a node."""
    with _lock:
        return _events.get((event, workflow or client, node))


@guarded
async def _renders(request: web.Request) -> web.Response:
    """Note what a connected page shows; answers with `[event, about]` of all nodes of that workflow."""
    client, workflow = request.query.get("client", ""), request.query.get("workflow", "")
    connected = PromptServer.instance.sockets
    if client not in connected or len(workflow) > LONGEST_ID:
        raise RefusedError(403, "no editor of that client id is connected")
    with _lock:
        for gone in [known for known in _pages if known not in connected][:-KEPT_PAGES]:
            del _pages[gone]
        page = _pages.setdefault(client, _Page())
        page.grows = request.query.get("grows") == "true"
        if workflow:
            others = [each for each in page.workflows if each != workflow]
            page.workflows = [*others, workflow][-KEPT_WORKFLOWS:]
        messages = [[event, about] for (event, owner, _), about in _events.items() if owner in (client, workflow)]
    return web.json_response(messages)


ROUTES = (web.post("/headforcing/timeline", answering(_segments)), web.get("/headforcing/renders", _renders))
