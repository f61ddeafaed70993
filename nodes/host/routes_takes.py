"""Routes of the server for the list of takes: what is stored, and small pictures of it."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from server import PromptServer

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.runs.entries import find_take, list_takes
from ...headforcing_core.runs.thumbnails import pictured_blocks
from . import folders
from .routes import FROM_ELSEWHERE, from_here, refused
from .runs import take_name, take_picture


def register() -> None:
    """Add the routes to ComfyUI's server, where one runs."""
    server = getattr(PromptServer, "instance", None)
    if server is not None:
        server.routes.get("/headforcing/takes")(_takes)
        server.routes.get("/headforcing/takes/picture")(_picture)


async def _takes(request: web.Request) -> web.Response:
    if not from_here(request):
        return refused(403, FROM_ELSEWHERE)
    try:
        return web.json_response({"takes": await asyncio.to_thread(_list)})
    except HeadForcingError as error:
        return refused(500, str(error))


async def _picture(request: web.Request) -> web.Response:
    """The JPEG of `number` of the take `run`: names are compared with what is there, never made into paths."""
    if not from_here(request):
        return refused(403, FROM_ELSEWHERE)
    name, number = request.query.get("run", ""), request.query.get("number", "")
    picture = await asyncio.to_thread(_read, name, int(number)) if number in ("0", "1", "2", "3", "4") else None
    if picture is None:
        return refused(404, "there is no such picture")
    return web.Response(body=picture, content_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


def _list() -> list[dict[str, Any]]:
    return [
        {
            "value": take_name(take),
            "name": take.video.name,
            "take": take.video.take.number,
            "date": take.date,
            "length": take.length,
            "size": take.size,
            "story": take.story,
            "pictures": len(pictured_blocks(take)),
        }
        for take in list_takes(folders.runs_folder())[0]
    ]


def _read(name: str, number: int) -> bytes | None:
    try:
        take = find_take(folders.runs_folder(), name)
        return None if take is None else take_picture(take, number)
    except HeadForcingError:
        return None
