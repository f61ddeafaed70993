"""What the pack's script in the browser, `web/player.js`, is told: how far a render is, and the video that grows."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web
from comfy_execution.utils import get_executing_context
from server import PromptServer

from . import helpers
from .folders import OutputFile
from .routes import FROM_ELSEWHERE, from_here, refused

log = logging.getLogger(__name__)

MESSAGE = "head_forcing.progress"
ROUTE = "/headforcing/player"
KEPT_CLIENTS = 8  # that are not connected: a page that is loaded again comes back within seconds


class _Editor:
    """An editor whose script runs: whether it plays growing files, and the last message of every node of a workflow."""

    def __init__(self) -> None:
        self.grows = True
        self.messages: dict[tuple[str, str], dict[str, Any]] = {}


_editors: dict[str, _Editor] = {}  # by client id


def register() -> None:
    """Add the route to ComfyUI's server, where one runs."""
    server = getattr(PromptServer, "instance", None)
    if server is not None:
        server.routes.get(ROUTE)(_register)


class NodePlayer:
    """The player on one node, in the editor that queued the graph; made where the node runs.

    False where that editor has none: a script, or a page without the pack's script.

    Args:
        workflow: the id of the graph, for an editor with several of them open.
    """

    def __init__(self, node_id: str, workflow: str = ""):
        context = get_executing_context()
        prompt_id = "" if context is None else context.prompt_id
        self._about = {"node": node_id, "workflow": workflow, "prompt_id": prompt_id}
        server = getattr(PromptServer, "instance", None)
        self._client = str(getattr(server, "client_id", None))
        self._last: dict[str, Any] = {**self._about, "state": "running", "text": "", "video": None}

    def __bool__(self) -> bool:
        return self._client in _editors

    @property
    def grows(self) -> bool:
        """Whether it plays files that grow; else it shows previews until they are finished."""
        editor = _editors.get(self._client)  # read once: it may be gone in the next moment
        return editor is not None and editor.grows

    def show(self, state: str, text: str, video: Mapping[str, Any] | None, preview: Any = None) -> None:
        """Tell the editor, if something has changed. A player that fails is logged and nothing more.

        Args:
            state: "running", "stopped" or "done".
            video: the growing file's id, name and bytes, see `GrowingVideo.shown`.
            preview: a PIL image to show until the video has something to play.
        """
        message = {**self._about, "state": state, "text": text, "video": video}
        if preview is not None or message != self._last:
            self._tell(message, preview)

    def output(self, files: Sequence[OutputFile]) -> Any:
        """The `ui` of a node with these videos, which an editor without a player shows as it shows those of core."""
        if not self:
            return helpers.preview(files)
        shown = [helpers.saved(file) for file in files]
        self._tell({**self._last, "files": shown})
        return {"video": shown}

    def preview(self, files: Sequence[OutputFile]) -> Any:
        """The `ui` of a node with these videos, which every editor shows as it shows those of core."""
        self._tell({**self._last, "files": []})
        return helpers.preview(files)

    def _tell(self, message: dict[str, Any], preview: Any = None) -> None:
        try:
            if not self:
                return
            # kept with its files: the editor may show another workflow now, or be away, and asks when it is back
            kept, self._last = _editors[self._client].messages, message
            kept.pop(place := (message["workflow"], message["node"]), None)
            kept[place] = message  # the newest comes last
            picture = {} if preview is None else {"preview": _data_url(preview)}
            PromptServer.instance.send_sync(MESSAGE, {**message, **picture}, self._client)
        except Exception as error:
            log.warning("Head Forcing: the player in the editor was not told: %s", error)


async def _register(request: web.Request) -> web.Response:
    """Note that a connected editor has players; answers with the last message of each of its nodes."""
    client = request.query.get("client", "")
    connected = PromptServer.instance.sockets
    if not from_here(request):
        return refused(403, FROM_ELSEWHERE)
    if client not in connected:
        return refused(403, "no editor of that client id is connected")
    for gone in [known for known in _editors if known not in connected][:-KEPT_CLIENTS]:
        del _editors[gone]
    editor = _editors.setdefault(client, _Editor())
    editor.grows = request.query.get("grows") == "true"
    return web.json_response(list(editor.messages.values()))


def _data_url(image: Any) -> str:
    small = image.convert("RGB")
    small.thumbnail((512, 512))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
