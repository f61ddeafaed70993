"""The player on a node: the file that grows, previews and a status line, in all pages that show its
workflow.
"""

from __future__ import annotations

import base64
import functools
import html
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web
from comfy import model_management
from comfy_api.latest import ui
from PIL import Image
from server import PromptServer

from ....headforcing_core.errors import first_line
from ....headforcing_core.files import Fields
from ....headforcing_core.render.sinks import VideoFile
from .. import folders
from ..folders import OutputFile
from ..graph import images, queued_graph, schema, video_files
from ..sentences import Sentence, parts_of
from . import pages

MESSAGE = "head_forcing.progress"
KEPT_GROWING = 64

_growing: dict[str, Path] = {}  # where videos grow, by the id of their file


def say(text: str, node_id: str) -> None:
    """Show a text below a node, in the editor that queued the graph; in all editors if a script
    queued it.

    Frontends put the text into the page as HTML, that of 0.3.75 without a check, and prompts and
    names of files are parts of it.
    """
    server = PromptServer.instance
    server.send_progress_text(html.escape(text, quote=False), node_id, server.client_id)


def growing(file: OutputFile, id: str, has_sound: bool) -> Fields:
    """A file that grows for the player in the editor: what it is, whether it has sound, and how
    many bytes can be read by now.
    """
    _growing[id] = file.path
    for oldest in list(_growing)[:-KEPT_GROWING]:
        del _growing[oldest]
    written = 0
    with suppress(OSError):  # it is finished, and has its number
        written = file.path.stat().st_size
    about = {**video_files.saved(file), "id": id, "bytes": written}
    if has_sound:
        about["sound"] = True
    return about


def growing_path(id: str) -> Path | None:
    """The path where the file of that id grows; None for one that is not known."""
    return _growing.get(id)


def shown_video(file: VideoFile) -> Fields:
    """The file of a render that has begun, as `growing`.

    Before the first video frame is written it has no bytes: until then a file of that name is that
    of an earlier render.
    """
    sheets = file.target.pictures
    assert sheets is not None
    about = growing(OutputFile(file.shown), sheets.name, file.video.sound is not None)
    if not file.shown_frames:
        about["bytes"] = 0
    if file.is_followed:
        about["followed"] = True
    if sheets.count:
        about["pictures"] = sheets.count
    return about


def draft_file(file: OutputFile) -> Fields:
    """A finished file that another will replace under its name, for the player in the editor."""
    return {**video_files.saved(file), "draft": True}


def _sheet(query: Fields) -> web.Response:
    """A sheet of the small pictures of the render `id`, see `video.pictures`; `count` of them were
    known to the page, so that an older sheet of that name is not shown.
    """
    return pages.jpeg_answer(folders.picture_sheet(query.get("id", ""), query.get("sheet", "")))


def _read_growing(query: Fields) -> web.StreamResponse:
    """The growing file `id`, or the range of it that the request asks for.

    Without content once the file has its number: a page that asks just then learns of it in the
    next message, and finds no error in its console.
    """
    path = _growing.get(query.get("id", ""))
    if path is None or not path.is_file():
        return web.Response(status=204)
    return web.FileResponse(path)


ROUTES = (
    pages.route("GET", "/headforcing/pictures", _sheet),
    pages.route("GET", "/headforcing/growing", _read_growing),
)


class NodePlayer:
    """The player on one node, in all pages that show its workflow; made where the node runs.

    False where there is none: the graph was queued by a script, or by a page without the pack's
    script.
    """

    def __init__(self, hidden: Any):
        self.node_id = hidden.unique_id
        self._client = pages.client()
        self._about: Fields = {
            "node": self.node_id,
            "workflow": queued_graph.workflow_id(hidden),
            "prompt_id": queued_graph.prompt_id(),
        }
        self._last: Fields = {
            **self._about,
            "state": "running",
            "text": "",
            "video": None,
            "place": None,
            "scenes": None,
        }

    @property
    def _pages(self) -> dict[str, pages.Page]:
        return pages.showing(self._client, self._about["workflow"])

    def __bool__(self) -> bool:
        return bool(self._pages)

    @property
    def grows(self) -> bool:
        """Whether all pages play files that grow; else they are shown previews until the file is
        finished.
        """
        return all(page.grows for page in self._pages.values())

    def show(
        self,
        state: str,
        text: str,
        video: Fields | None = None,
        preview: Any = None,
        place: Fields | None = None,
        scenes: Sequence[Fields] | None = None,
        files: Sequence[Fields] = (),
    ) -> None:
        """Send changes to the pages; without a player the text is shown below the node.

        `state` is "running", "stopped", "failed" or "done", `video` as `shown_video`,
        `preview` a PIL image for the time until that can be played, `place` as `RenderProgress`
        counts it, with the `scenes` of the story. Finished `files` are played in place of `video`.
        """
        message = {
            **self._about,
            "state": state,
            "text": text,
            "said": parts_of(text),
            "video": video,
            "place": place,
            "scenes": scenes,
            **({"files": files} if files else {}),
        }
        if preview is not None or message != self._last:
            self._tell(message, preview)

    def output(self, files: Sequence[OutputFile]) -> Any:
        """The `ui` of a node with these videos, which an editor without a player shows as it shows
        those of core.

        Not as core's where there is a player: the frontend's own would be an input of the node from
        then on, and the next run of the same graph would make the video again.
        """
        saved = [video_files.saved(file) for file in files]
        if not self:
            return ui.PreviewVideo(saved)
        self._tell({**self._last, "files": saved})
        return {"video": saved}

    def fail(self, sentence: str) -> None:
        """Show why the node failed, and what it has said before about what is kept."""
        last = pages.last(MESSAGE, self.node_id, self._about["workflow"], self._client) or {}
        if last.get("prompt_id") != self._about["prompt_id"]:
            last = {}
        text = Sentence("failed: %1", sentence)
        if last.get("state") == "stopped":
            text = Sentence("%1 (%2)", text, last["text"])
        if self:
            self._about["raised"] = True  # ComfyUI shows the error itself
            self.show(
                "failed",
                text,
                last.get("video"),
                place=last.get("place"),
                scenes=last.get("scenes"),
            )

    def _tell(self, message: Fields, preview: Any = None) -> None:
        if not self:
            say(message["text"], self.node_id)
            return
        self._last = message
        picture = {} if preview is None else {"preview": _data_url(preview)}
        pages.tell(MESSAGE, self.node_id, message, self._client, **picture)


def shows_errors(execute: Callable[..., Any]) -> Callable[..., Any]:
    """The `execute` of a node with a player, which shows its errors as `schema.shows_errors`, until
    the next run.
    """
    inner = schema.shows_errors(execute)

    @functools.wraps(execute)
    def shown(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(cls, *args, **kwargs)
        except model_management.InterruptProcessingException:
            raise
        except Exception as error:
            if cls.hidden is not None:  # else nothing shows the node
                NodePlayer(cls.hidden).fail(first_line(error))
            raise

    return shown


def _data_url(image: Image.Image) -> str:
    small = image.convert("RGB")
    small.thumbnail((512, 512))
    return "data:image/jpeg;base64," + base64.b64encode(images.jpeg(small)).decode()
