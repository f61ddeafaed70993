"""Open pages of the editor: the routes that they ask, and what they are told about renders of their
workflows.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from comfy.cli_args import args
from server import PromptServer

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.rollout.schedule import AUTO_FAMILY, schedule
from ....headforcing_core.timeline.editor import answer
from ....headforcing_core.timeline.switch import Switch

FROM_ELSEWHERE = (
    "this request comes from another site, or under a name that is not this server's; open ComfyUI "
    "itself by its address, or start it with --enable-cors-header and the address that you open"
)
KEPT_PAGES = 8  # that are not connected: a page that is loaded again comes back within seconds
KEPT_WORKFLOWS = 32  # of a page: those that it has shown last
KEPT_EVENTS = 64
LONGEST_ID = 64
# of an event: what grows with a story, which a page is sent when it changes, and asks for otherwise
LASTING = ("story", "scenes")


class RefusedError(HeadForcingError):
    """A request that is not answered: a sentence, and the HTTP status."""

    def __init__(self, sentence: str, status: int):
        super().__init__(sentence)
        self.status = status


def route(
    method: str,
    path: str,
    work: Callable[..., Any],
    threads: Executor | None = None,
) -> web.RouteDef:
    """A route that answers with the JSON of `work`, or the response that it returns.

    `work` runs in a thread and gets the query of a GET, else the JSON that was sent. Its
    HeadForcingErrors, and requests of other sites, are answered as `{"error": a sentence}`. Long
    work has `threads` of its own, so that all other routes answer; it gets a function, too, that
    raises when nobody waits for the answer any more.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            if not from_here(request):
                raise RefusedError(FROM_ELSEWHERE, 403)
            given = request.query if method == "GET" else await _json_of(request)
            if threads is None:
                found = await asyncio.to_thread(work, given)
            else:

                def check_waited() -> None:
                    if request.transport is None:  # the page is gone
                        raise RefusedError("nobody waits for this answer any more", 408)

                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(threads, work, given, check_waited)
        except HeadForcingError as error:
            status = error.status if isinstance(error, RefusedError) else 400
            return web.json_response({"error": str(error)}, status=status)
        return found if isinstance(found, web.StreamResponse) else web.json_response(found)

    return web.route(method, path, handle)


def jpeg_answer(picture: bytes | None) -> web.Response:
    """The answer with a JPEG that a page may keep for an hour; None where there is none."""
    if picture is None:
        raise RefusedError("there is no such picture", 404)
    return web.Response(
        body=picture, content_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"}
    )


async def _json_of(request: web.Request) -> Any:
    if request.content_type != "application/json":  # which no other site sends without asking first
        raise RefusedError(
            f"the body must be application/json, got {request.content_type[:40]}", 415
        )
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError):
        raise RefusedError("the body is not valid JSON", 400) from None


def from_here(request: web.Request) -> bool:
    """Whether no page of another site sent the request.

    ComfyUI checks this too, but not when it is started with a CORS header, nor on addresses other
    than this computer's. Browsers tell where a request comes from in Sec-Fetch-Site (https and
    localhost) or Origin; programs send neither. A page of a domain that its owner points at this
    computer (DNS rebinding) passes for one of this server; Host tells.
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
    """Whether a browser may know this server by this name: no stranger's domain, as far as ComfyUI
    was told.
    """
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


@dataclass
class Page:
    """Whether a page plays files that grow, and the workflows that it has asked about, the latest
    at the end.
    """

    grows: bool = True
    workflows: list[str] = field(default_factory=list)


_lock = threading.Lock()
_pages: dict[str, Page] = {}  # by client id
# The last event of each kind and node, by kind, workflow and node; of a workflow without an id by
# the client's.
_events: dict[tuple[str, str, str], Fields] = {}


def client() -> str:
    """Client id of the page that queued the graph that runs; empty where a script did."""
    return PromptServer.instance.client_id or ""


def showing(client: str, workflow: str) -> dict[str, Page]:
    """The page that queued a workflow and all others that show it, by client id; empty where no
    page has asked.
    """
    with _lock:
        return {
            known: page
            for known, page in _pages.items()
            if known == client or workflow in page.workflows
        }


def tell(event: str, node: str, about: Fields, client: str, **once: Any) -> None:
    """Tell the page that queued a workflow, and all others that show it, about one of its nodes.

    Kept for pages that come later, but for what is said `once`. `about` has the workflow's id; the
    time is added, by which a page knows an answer that is older than what it has heard since. Of
    `LASTING` all is sent if some of it has changed, else `since`, the time of that change.
    """
    owner = about["workflow"] or client
    now = time.time()
    place = (event, owner, node)
    with _lock:
        before = _events.pop(place, {})
        lasts = _lasting(about) == _lasting(before)
        about = {**about, "time": now, "since": before["since"] if lasts and before else now}
        _events[place] = about  # the newest comes last
        for oldest in list(_events)[:-KEPT_EVENTS]:
            del _events[oldest]
    if lasts:
        about = _short(about)
    for page in {client, *showing(client, about["workflow"])}:
        PromptServer.instance.send_sync(event, {**about, **once}, page)


def last(event: str, node: str, workflow: str, client: str) -> Fields | None:
    """The last message about a node."""
    with _lock:
        return _events.get((event, workflow or client, node))


def _lasting(about: Fields) -> Fields:
    """The values of `LASTING` that an event has."""
    return {name: about[name] for name in LASTING if about.get(name) is not None}


def _short(about: Fields) -> Fields:
    """An event without `LASTING`; without `since`, too, if it had none of them."""
    left = {name: value for name, value in about.items() if name not in LASTING}
    if not _lasting(about):
        del left["since"]
    return left


def _asker(query: Fields) -> tuple[str, str]:
    """Client id and workflow of the connected page that asks."""
    client = query.get("client", "")
    workflow = query.get("workflow", "")
    if client not in PromptServer.instance.sockets or len(workflow) > LONGEST_ID:
        raise RefusedError("no editor of that client id is connected", 403)
    return client, workflow


def _renders(query: Fields) -> list[Any]:
    """Note what a connected page shows; answers with `[event, about]` of all nodes of that
    workflow, without `LASTING`.
    """
    client, workflow = _asker(query)
    connected = PromptServer.instance.sockets
    with _lock:
        for gone in [known for known in _pages if known not in connected][:-KEPT_PAGES]:
            del _pages[gone]
        page = _pages.setdefault(client, Page())
        page.grows = query.get("grows") == "true"
        if workflow:
            others = [each for each in page.workflows if each != workflow]
            page.workflows = [*others, workflow][-KEPT_WORKFLOWS:]
        return [
            [event, _short(about)]
            for (event, owner, _), about in _events.items()
            if owner in (client, workflow)
        ]


def _story(query: Fields) -> Fields:
    """The values of `LASTING` of the last `event` about a `node`, and `since` when they hold."""
    client, workflow = _asker(query)
    asked = (query.get("event", ""), query.get("node", ""))
    with _lock:
        for (event, owner, node), about in _events.items():
            if (event, node) == asked and owner in (client, workflow):
                return {**_lasting(about), "since": about["since"]}
    raise RefusedError("nothing is known of this node", 404)


def _segments(body: Any) -> Fields:
    """The answer to the timeline editor, in the blocks of its `model_family`; `auto` has those of
    Wan 2.1.
    """
    family = body.get("model_family", AUTO_FAMILY) if isinstance(body, dict) else AUTO_FAMILY
    model = schedule(str(family))
    return answer(body, model.clock, Switch(re_anchor=bool(model.shot_prefix)))


ROUTES = (
    route("POST", "/headforcing/timeline", _segments),
    route("GET", "/headforcing/renders", _renders),
    route("GET", "/headforcing/renders/story", _story),
)
