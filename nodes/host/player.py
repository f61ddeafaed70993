"""What the pack's script in the browser, `web/player.js`, is told: how far a render is, and the video that grows."""

from __future__ import annotations

import base64
import functools
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import comfy.model_management
from comfy_execution.utils import get_executing_context
from server import PromptServer

from . import helpers, pages
from .folders import OutputFile

log = logging.getLogger(__name__)

MESSAGE = "head_forcing.progress"


class NodePlayer:
    """The player on one node, in all pages that show its workflow; made where the node runs.

    False where there is none: the graph was queued by a script, or by a page without the pack's script.

    Args:
        workflow: the id of the graph, for pages with several of them open.
    """

    def __init__(self, node_id: str, workflow: str = ""):
        context = get_executing_context()
        prompt_id = "" if context is None else context.prompt_id
        self._about = {"node": node_id, "workflow": workflow, "prompt_id": prompt_id}
        server = getattr(PromptServer, "instance", None)
        self._client = str(getattr(server, "client_id", None))
        self._last: dict[str, Any] = {**self._about, "state": "running", "text": "", "video": None}

    def __bool__(self) -> bool:
        return bool(pages.showing(self._client, self._about["workflow"]))

    @property
    def grows(self) -> bool:
        """Whether all pages play files that grow; else they are shown previews until the file is finished."""
        return pages.play_growing(self._client, self._about["workflow"])

    def show(self, state: str, text: str, video: Mapping[str, Any] | None = None, preview: Any = None) -> None:
        """Tell the pages, if something has changed. A player that fails is logged and nothing more.

        Args:
            state: "running", "stopped", "failed" or "done".
            video: the growing file's id, name and bytes, see `GrowingVideo.shown`.
            preview: a PIL image to show until the video has something to play.
        """
        message = {**self._about, "state": state, "text": text, "video": video}
        if preview is not None or message != self._last:
            self._tell(message, preview)

    def output(self, files: Sequence[OutputFile]) -> Any:
        """The `ui` of a node with these videos, which an editor without a player shows as it shows those of core.

        Not as core's where there is a player: the frontend's own would be an input of the node from then on, and the
        next run of the same graph would make the video again.
        """
        if not self:
            return helpers.preview(files)
        shown = [helpers.saved(file) for file in files]
        self._tell({**self._last, "files": shown})
        return {"video": shown}

    def fail(self, sentence: str) -> None:
        """Show why the node failed, and what it has said before about what is kept."""
        told = pages.last(MESSAGE, self._about["node"], self._about["workflow"], self._client) or {}
        if told.get("prompt_id") != self._about["prompt_id"]:
            told = {}
        kept = f" ({told['text']})" if told.get("state") == "stopped" else ""
        self.show("failed", f"failed: {sentence}{kept}", told.get("video"))

    def _tell(self, message: dict[str, Any], preview: Any = None) -> None:
        try:
            if not self:
                return
            self._last = message
            picture = {} if preview is None else {"preview": _data_url(preview)}
            pages.tell(MESSAGE, message["node"], message, self._client, **picture)
        except Exception as error:
            log.warning("Head Forcing: the player in the editor was not told: %s", error)


def shows_errors(execute: Callable[..., Any]) -> Callable[..., Any]:
    """The `execute` of a node with a player, which shows its errors as `helpers.shows_errors` does, until the next run.

    The node asks for unique_id and extra_pnginfo.
    """
    inner = helpers.shows_errors(execute)

    @functools.wraps(execute)
    def shown(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(cls, *args, **kwargs)
        except comfy.model_management.InterruptProcessingException:
            raise
        except Exception as error:
            first = str(error).strip().partition("\n")[0] or type(error).__name__
            if cls.hidden is not None:  # else nothing shows the node
                NodePlayer(cls.hidden.unique_id, helpers.workflow_id(cls.hidden)).fail(first)
            raise

    return shown


def _data_url(image: Any) -> str:
    small = image.convert("RGB")
    small.thumbnail((512, 512))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
