"""Stored runs, by the names in the nodes' lists, and the routes that list takes with pictures."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import comfy.latent_formats
import latent_preview
import torch
from aiohttp import web
from server import PromptServer

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.model.latents import WAN21, WAN22
from ...headforcing_core.runs.entries import Entry, find_take, list_takes
from ...headforcing_core.runs.stored import StoredVideo, stored_videos
from ...headforcing_core.runs.thumbnails import pictured_blocks, thumbnail
from . import folders, toy_world
from .pages import FROM_ELSEWHERE, from_here, refused

THUMBNAIL_PIXELS = 160  # of the longer side


def run_names() -> list[str]:
    """Names of all stored runs for a list widget, the newest first."""
    return [_label(video) for video in _videos()]


def take_names() -> list[str]:
    """Names of all stored runs as a person reads them, the newest first."""
    return [take_name(take) for take in list_takes(folders.runs_folder())[0]]


def take_name(take: Entry) -> str:
    """Date, take, length, size and prompts; ends in the name of the run, which stays when the others change."""
    parts = [take.date, f"take {take.video.take.number}", take.length, take.size, take.story, f"({take.video.name})"]
    return " · ".join(part for part in parts if part)


def find_run(name: str) -> StoredVideo:
    """The run of that name, in any of the forms that lists have had; HeadForcingError if there is none any more."""
    video = next((video for video in _videos() if _names(name, video)), None)
    if video is None:
        raise HeadForcingError(f"run: {name[:120]!r} is not in ComfyUI/output/head_forcing any more; choose another")
    return video


def finished_blocks(name: str) -> int:
    """Number of finished blocks of a run; 0 if there is none of that name."""
    return next((video.finished for video in _videos() if _names(name, video)), 0)


def to_latent(video: StoredVideo, latents: torch.Tensor) -> torch.Tensor:
    """Stored latents `[frames, 16, h, w]`, which are normalised for the model, in the scale of a LATENT."""
    if not _is_wan(video):
        return latents  # the toy world's are the same in a LATENT
    return _format(video).process_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)


def take_picture(take: Entry, number: int) -> bytes | None:
    """A thumbnail of a take as JPEG, see `runs.thumbnails.thumbnail`; drawn with the colours of live previews."""
    colours = _format(take.video) if _is_wan(take.video) else toy_world.ToyLatentFormat()

    def draw(latents: torch.Tensor) -> bytes:
        drawer = latent_preview.Latent2RGBPreviewer(colours.latent_rgb_factors, colours.latent_rgb_factors_bias)
        picture = drawer.decode_latent_to_preview(latents[None, :, None])
        larger = max(1, THUMBNAIL_PIXELS // max(picture.size))
        data = io.BytesIO()
        picture.resize((picture.width * larger, picture.height * larger)).convert("RGB").save(data, "JPEG", quality=80)
        return data.getvalue()

    return thumbnail(take, number, draw)


def _videos() -> list[StoredVideo]:
    return stored_videos(folders.runs_folder())


def _names(value: str, video: StoredVideo) -> bool:
    """Whether a widget's value means this video: its name alone, before the size and the prompt, or at the end."""
    return value == video.name or value.startswith(f"{video.name} ") or value.endswith(f" ({video.name})")


def _is_wan(video: StoredVideo) -> bool:
    return video.about.get("latent_format") in (WAN21.name, WAN22.name)


def _format(video: StoredVideo) -> comfy.latent_formats.LatentFormat:
    """ComfyUI's latent format of a video of a Wan model."""
    return getattr(comfy.latent_formats, video.about["latent_format"])()


def _label(video: StoredVideo) -> str:
    prompts = video.about.get("prompts") or [""]
    return f"{video.name} {video.about.get('size', '')} {str(prompts[0])[:60]}"


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
