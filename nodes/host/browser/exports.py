"""The routes that give a take's story as a file for other programs, which the page downloads, and
the formats that need what is not installed.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.runs.editor_timelines import OF_SEVERAL_TRACKS, TIMELINES, missing
from ....headforcing_core.runs.exported_story import ExportedStory, Marker
from ....headforcing_core.runs.exports import exported
from ....headforcing_core.runs.stored import StoredVideo
from ....headforcing_core.timeline.clock import MAX_SECONDS
from ....headforcing_core.video.sound import sound_of_file
from .pages import route
from .runs import file_of, find_take

MOST_MARKERS = 1000
MOST_TAKES = 30


def export(body: Any) -> Fields:
    """The `text` of a file that ends in `end` with the story of `take`, the first `MOST_MARKERS`
    `markers` of its workflow (`seconds`, `name`), and the first `MOST_TAKES` other `takes` on
    tracks of their own if such a file has several.
    """
    if not isinstance(body, dict):
        raise HeadForcingError("expected a JSON object with take and end")
    take = find_take(body.get("take"))
    end = str(body.get("end"))
    names = _list(body, "takes")[:MOST_TAKES] if end.lower() in OF_SEVERAL_TRACKS else []
    others = [find_take(name) for name in names]
    markers = [_marker(each) for each in _list(body, "markers")[:MOST_MARKERS]]
    video = file_of(take)
    story = replace(
        ExportedStory.of(take, video, _heard(video)),
        markers=[marker for marker in markers if marker is not None],
        takes=[ExportedStory.of(other, file_of(other)) for other in others],
    )
    return {"text": exported(story, end), "name": _name(take)}


def _missing(_: Any) -> dict[str, str]:
    """Commands that install what formats lack, by the ends of their files."""
    found = {end: missing(end) for end in TIMELINES}
    return {end: command for end, command in found.items() if command}


def _list(body: Fields, name: str) -> list[Any]:
    values = body.get(name, [])
    if not isinstance(values, list):
        raise HeadForcingError(f"{name} must be a list")
    return values


def _marker(value: Any) -> Marker | None:
    """A marker of a workflow; None for another than a person can set."""
    if not isinstance(value, dict):
        return None
    name = value.get("name") or ""
    seconds = value.get("seconds")
    if not isinstance(name, str) or not isinstance(seconds, (int, float)):
        return None
    return Marker(name, seconds) if 0 <= seconds <= MAX_SECONDS else None


def _heard(video: Path | None) -> Path | None:
    """The file, if it has sound."""
    with suppress(HeadForcingError):
        if video is not None and sound_of_file(str(video), 0.0, 1.0) is not None:
            return video
    return None


def _name(take: StoredVideo) -> str:
    """The name of the file without its end: that of the video file, or of the take."""
    video = file_of(take)
    return video.stem if video is not None else f"take_{take.take.number}"


ROUTES = (
    route("POST", "/headforcing/takes/export", export),
    route("GET", "/headforcing/takes/export/missing", _missing),
)
