"""Routes of the server that scripts in the browser ask; what they answer is worked out in the core."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from comfy.cli_args import args
from server import PromptServer

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.timeline.editor import answer
from ...headforcing_core.timeline.timeline import MAX_TEXT_BYTES

FROM_ELSEWHERE = (
    "this request comes from another site, or under a name that is not this server's; open ComfyUI itself by its "
    "address, or start it with --enable-cors-header and the address that you open"
)
MAX_BODY_BYTES = 4 * MAX_TEXT_BYTES  # a text of the longest kind, escaped


class _RefusedError(Exception):
    """A request that is not answered: the HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str):
        super().__init__(sentence)
        self.status = status


def register() -> None:
    """Add the routes to ComfyUI's server, where one runs."""
    server = getattr(PromptServer, "instance", None)
    if server is not None:
        server.routes.post("/headforcing/timeline")(_timeline)


async def _timeline(request: web.Request) -> web.Response:
    return await answered(request, answer)


async def answered(request: web.Request, work: Callable[[Any], Any]) -> web.Response:
    """The JSON of `work(body)` as a response; a request or a body that is refused gives `{"error": a sentence}`."""
    try:
        body = await json_body(request)
        return web.json_response(await asyncio.to_thread(work, body))
    except _RefusedError as error:
        return refused(error.status, str(error))
    except HeadForcingError as error:
        return refused(400, str(error))


async def json_body(request: web.Request) -> Any:
    """The JSON of a request that a page of this server sent. Raises _RefusedError for any other."""
    if not from_here(request):
        raise _RefusedError(403, FROM_ELSEWHERE)
    if request.content_type != "application/json":
        raise _RefusedError(415, f"the body must be application/json, got {request.content_type[:40]}")
    body = bytearray()
    async for piece in request.content.iter_chunked(1 << 16):
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise _RefusedError(413, f"the body is longer than {MAX_BODY_BYTES >> 20} MB; shorten the text")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _RefusedError(400, "the body is not valid JSON") from None


def refused(status: int, sentence: str) -> web.Response:
    """A response with an error."""
    return web.json_response({"error": sentence}, status=status)


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
