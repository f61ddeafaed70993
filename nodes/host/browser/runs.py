"""Stored runs, by the names in the nodes' lists, and the routes that list takes with pictures, name
and delete them.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import comfy.latent_formats
from aiohttp import web
from torch import Tensor

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.hashing import digest
from ....headforcing_core.model.latents import WAN21, WAN22
from ....headforcing_core.plan.request import story_begins
from ....headforcing_core.runs.difference import WHOLE_VIDEO, Difference, differences
from ....headforcing_core.runs.stored import StoredVideo, find_video, stored_videos
from ....headforcing_core.runs.takes import (
    block_of_scene,
    pictured_blocks,
    read_label,
    remove_take,
    take_bytes,
    thumbnail,
    write_label,
)
from ....headforcing_core.timeline.clock import VIDEO_FPS, short_time
from .. import folders
from ..graph import images, video_files
from ..model import native_model, vae
from ..sentences import Sentence, joined, parts_of
from .pages import jpeg_answer, route
from .progress import linear_colours

THUMBNAIL_PIXELS = 160  # of the longer side
MOST_TITLE = 60  # letters
MOST_CHANGES = 6  # that a list names of a take
_NUMBER = re.compile("[0-9]{1,4}")  # of a scene


def run_names() -> list[str]:
    """Names of all stored runs that do not change while one is rendered, the newest first: size,
    prompt, name.
    """
    return [
        f"{run.size} {run.about['prompts'][0][:60]} ({run.name})"
        for run in stored_videos(folders.runs_folder())
    ]


def take_names() -> list[str]:
    """Names of all stored runs as a person reads them, the newest first."""
    return list(map(take_name, stored_videos(folders.runs_folder())))


def take_name(take: StoredVideo) -> str:
    """Date, take, length, size and prompts; ends in the name of the run, which stays when the
    others change.
    """
    named = read_label(take.folder, take.keys[-1]).title
    number = f"take {take.take.number} {named}".rstrip()
    parts = [take.date, number, take.length, take.size, take.story, f"({take.name})"]
    return " · ".join(filter(None, parts))


def find_run(name: str) -> StoredVideo:
    """The run of that name, or of an item of the list; HeadForcingError if there is none any
    more.
    """
    if (video := _find(name)) is None:
        raise HeadForcingError(
            f"run: {name[:120]!r} is not in ComfyUI/output/head_forcing any more; choose another"
        )
    return video


def finished_blocks(name: str) -> int:
    """Number of finished blocks of a run; 0 if there is none of that name."""
    video = _find(name)
    return 0 if video is None else video.finished


def to_latent(video: StoredVideo, latents: Tensor) -> Tensor:
    """Stored latents `[frames, channels, h, w]`, which are normalised for the model, in the scale
    of a LATENT.
    """
    return vae.to_latent(_format(video, latents), latents)


def _find(value: str) -> StoredVideo | None:
    """The video that a widget's value means: its name alone, or at the end."""
    name = value.rpartition(" (")[2].removesuffix(")")
    return find_video(folders.runs_folder(), name)


def _format(video: StoredVideo, latents: Tensor) -> comfy.latent_formats.LatentFormat:
    """ComfyUI's latent format of a Wan model's video, else that of the toy world; HeadForcingError
    if its `latents [frames, channels, h, w]` have other channels.
    """
    name = video.about.get("latent_format")
    found: comfy.latent_formats.LatentFormat = native_model.ToyLatentFormat()
    if name in (WAN21.name, WAN22.name):
        found = getattr(comfy.latent_formats, name)()
    if latents.shape[1] != found.latent_channels:
        raise HeadForcingError(
            f"run: {video.name} holds latents of {latents.shape[1]} channels, its notes say "
            f"{found.latent_channels}; choose another run"
        )
    return found


def _picture(query: Fields) -> web.Response:
    """The JPEG of the take `run`: the `number`-th of those over its whole length, or that of a
    `scene`. Names are compared with what is there, never made into paths.
    """
    picture = None
    with suppress(HeadForcingError):
        take = _find(query.get("run", ""))
        block = None if take is None else _pictured_block(take, query)
        if take is not None and block is not None:
            picture = thumbnail(take, block, partial(_draw, take))
    return jpeg_answer(picture)


def _pictured_block(take: StoredVideo, query: Fields) -> int | None:
    """The block whose picture a page asks for; None where the take has none."""
    scene = query.get("scene", "")
    if _NUMBER.fullmatch(scene):
        return block_of_scene(take, int(scene))
    number = query.get("number", "")
    blocks = pictured_blocks(take)
    return blocks[int(number)] if number in ("0", "1", "2", "3", "4")[: len(blocks)] else None


def _draw(take: StoredVideo, latents: Tensor) -> bytes:
    """A latent frame of a take as JPEG in the colours of live previews."""
    colours = linear_colours(_format(take, latents[None]))
    picture = colours.decode_latent_to_preview(latents[None, :, None])
    larger = max(1, THUMBNAIL_PIXELS // max(picture.size))
    return images.jpeg(picture.resize((picture.width * larger, picture.height * larger)))


def name_take(body: Any) -> Fields:
    """Set the name or the star of a take; `body` holds the name of its run, `take`, and `title` or
    `starred`.
    """
    video = _take_of(body)
    title = body.get("title")
    changed: Fields = {}
    if isinstance(body.get("starred"), bool):
        changed["starred"] = body["starred"]
    if isinstance(title, str):
        changed["title"] = " ".join(title.encode("utf-8", "ignore").decode().split())[:MOST_TITLE]
    write_label(video.folder, video.keys[-1], **changed)
    return _list()


def delete_take(body: Any) -> Fields:
    """Remove what is stored of the take `body["take"]`; blocks of other takes and all video files
    stay.
    """
    remove_take(_take_of(body))
    return _list()


def _take_of(body: Any) -> StoredVideo:
    """The video that the request of a page is about."""
    return find_take(body.get("take") if isinstance(body, dict) else None)


def find_take(name: Any) -> StoredVideo:
    """The video that a page means: its name is compared with what is there, never made into a
    path.
    """
    video = _find(str(name))
    if video is None:
        raise HeadForcingError("this take is not there any more")
    return video


def _list(_: Any = None) -> Fields:
    takes = stored_videos(folders.runs_folder())
    described = []
    for place, take in enumerate(takes):
        earlier = next(filter(partial(_is_of_same, take), takes[place + 1 :]), None)
        described.append({**_describe(take, takes), **_describe_change(take, earlier)})
    return {"takes": described}


def _is_of_same(take: StoredVideo, other: StoredVideo) -> bool:
    """Whether two takes are of one workflow, else of one story."""
    workflow = take.about.get("workflow")
    if workflow or other.about.get("workflow"):
        return bool(workflow == other.about.get("workflow"))
    return bool(take.about["prompts"][:1] == other.about["prompts"][:1])


def _describe_change(take: StoredVideo, earlier: StoredVideo | None) -> Fields:
    """The differences of a take from the one before it, as parts of a sentence, and the number of
    the first scene that differs, from 1; empty where nothing of the story does.
    """
    found = [] if earlier is None else differences(take.about, earlier.about)
    if not found:
        return {}
    told = [_change(take, each) for each in found[:MOST_CHANGES]]
    if len(found) > MOST_CHANGES:
        told.append(Sentence("%1 more", len(found) - MOST_CHANGES))
    scenes = [each.scene for each in found if each.scene != WHOLE_VIDEO]
    described: Fields = {"differs": parts_of(joined(told, "; "))}
    return described | ({"scene": scenes[0]} if scenes else {})


def _change(take: StoredVideo, found: Difference) -> Sentence:
    """A difference of a take as a sentence."""
    scene = found.scene
    sentences = {
        "words": Sentence("scene %1: %2", scene, found.words[:MOST_TITLE]),
        "start": Sentence("scene %1 begins at %2", scene, _begin(take, scene)),
        "seed": Sentence("scene %1: another seed", scene),
        "switch": Sentence("scene %1 follows in another way", scene),
        "end": Sentence("ends with scene %1", scene),
    }
    return Sentence("another seed") if scene == WHOLE_VIDEO else sentences[found.what]


def _begin(take: StoredVideo, scene: int) -> str:
    """The time of the story at which a scene begins."""
    starts = take.about["starts_seconds"]
    return short_time(starts[scene - 1] - starts[0])


def _describe(take: StoredVideo, takes: list[StoredVideo]) -> Fields:
    """A take for a page, without its whole story."""
    about = take.about
    label = read_label(take.folder, take.keys[-1])
    every, own = take_bytes(take, takes)
    return {
        "value": take_name(take),
        "name": take.name,
        "take": take.take.number,
        "date": take.date,
        "length": take.length,
        "size": take.size,
        "story": take.story,
        "story_key": digest(
            *(about.get(name) for name in ("prompts", "starts_seconds", "switches"))
        ),
        "pictures": len(pictured_blocks(take)),
        "title": label.title,
        "starred": label.starred,
        "file": _file(label.file),
        "bytes": every,
        "own_bytes": own,
        "finished": take.finished,
        "lead": story_begins(about),
        "fps": about.get("fps", VIDEO_FPS),
        "workflow": about.get("workflow", ""),
        "seed": about.get("seed"),
        "draft": about.get("draft", False),
    }


def take_story(query: Fields) -> Fields:
    """The story of a `take` as it was written in *Prompt Timeline*, None for another's."""
    return {"written": _take_of(dict(query)).about.get("written")}


def _file(label: str) -> Fields | None:
    """The video file of that name below the output folder as a page asks for it; None where it is
    not there.
    """
    path = _path(label)
    return None if path is None else {**video_files.saved(folders.OutputFile(path))}


def _path(label: str) -> Path | None:
    output = folders.output_folder()
    path = output / label
    with suppress(OSError, ValueError, RuntimeError):  # too long a name, a link that is a loop
        if path.is_file() and path.resolve().is_relative_to(output.resolve()):
            return path
    return None


def file_of(take: StoredVideo) -> Path | None:
    """The last video file that was made of a take; None where it is not there."""
    return _path(read_label(take.folder, take.keys[-1]).file)


def link_file(take: Any, path: Path, made_by: str) -> None:
    """Note the video file of a take, stored or just made, see `Label`; a folder that cannot be
    written goes without.
    """
    with suppress(HeadForcingError):
        label = folders.OutputFile(path).label
        write_label(take.folder, take.keys[-1], file=label, made_by=_maker(made_by, path))


def linked_file(take: Any, made_by: str) -> Path | None:
    """The video file of a take, if this decoder has made it and it is still there."""
    label = read_label(take.folder, take.keys[-1])
    path = _path(label.file)
    if path is None or label.made_by != _maker(made_by, path):
        return None
    return path


def _maker(made_by: str, path: Path) -> str:
    """A decoder and the size of its file: another file that took the name has another one."""
    return f"{made_by} {path.stat().st_size}"


ROUTES = (
    route("GET", "/headforcing/takes", _list),
    route("GET", "/headforcing/takes/picture", _picture),
    route("GET", "/headforcing/takes/story", take_story),
    route("POST", "/headforcing/takes/label", name_take),
    route("POST", "/headforcing/takes/delete", delete_take),
)
