"""The video of a render, a file that grows, and the player that shows it in the pages of the editor."""

from __future__ import annotations

import base64
import functools
import io
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import comfy.model_management
from comfy_api.latest import ui
from comfy_execution.utils import get_executing_context
from server import PromptServer
from torch import Tensor

from ...headforcing_core.files import is_disk_full
from ...headforcing_core.render.job import RenderJob
from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.render.render import Render
from ...headforcing_core.render.sinks import VideoFile
from ...headforcing_core.rollout.loop import Block
from . import folders, helpers, pages
from .folders import OutputFile
from .queued_graph import skipped_video_frames
from .vae import check_vae, codec_of

log = logging.getLogger(__name__)

MESSAGE = "head_forcing.progress"


class GrowingVideo(VideoFile):
    """Decodes blocks as they are finished and writes them to a file in the output folder that plays at any time.

    A decoder or a disk that fails ends the video, not the sampling: the latents are what took the time. Decodes in a
    thread of its own, if it is asked for, where the VAE is on another GPU than the model: on the same one they would
    take turns, and ComfyUI's weight streaming is not made for two threads.

    Attributes:
        growing: the file that grows; set when the render begins. The same video made again replaces it.
        is_disk_full: whether it ended early because there was no space left.
    """

    passes = (comfy.model_management.InterruptProcessingException,)

    def __init__(self, render: Any, job: RenderJob):
        vae, plan, device = render.vae, job.plan, render.model.load_device
        check_vae(vae)
        self.render, self.name, self.first = render, job.keys[-1][:8], render.part.first(plan)
        self.id = uuid.uuid4().hex  # a render that goes on writes the file of that name from its beginning
        self.growing: folders.OutputFile
        self.is_disk_full = False
        self._about: Mapping[str, Any] = job.about
        shares_device = vae.device == device and device.type != "cpu"
        super().__init__(
            None,  # see `claim`
            plan,
            lambda: codec_of(vae).decoder(plan.restart_frames),
            render.video_tags(job.about),
            background=vae.device if render.decode_in_background and not shares_device else None,
            losable=True,
            while_waiting=comfy.model_management.throw_exception_if_processing_interrupted,
        )

    @property
    def shown(self) -> dict[str, Any]:
        """The growing file for the player in the editor, see `growing`.

        None of it before the first video frame is written: until then a file of that name is that of an earlier render.
        """
        return growing(self.growing, self.id) | ({} if self.video.video_frames else {"bytes": 0})

    def claim(self, stack: ExitStack) -> tuple[Path, Path]:
        size = self.plan.width, self.plan.height
        self.growing = stack.enter_context(folders.growing_file(self.render.filename_prefix, self.name, *size))
        return self.growing.path, self.growing.path  # until it gets its number

    def __exit__(self, *error: Any) -> None:
        with suppress(Exception):  # something else ended the render already
            super().__exit__(*error)

    def tags_of(self, about: Mapping[str, Any]) -> dict[str, str]:
        self._about = about
        return self.render.video_tags(about)

    def begin(self, render: Render) -> None:
        self.video.end_after(self.plan.video_frames - skipped_video_frames(self.plan, self.first))

    def change(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        super().change(plan, about)
        self._attempt(lambda: self.video.end_after(plan.video_frames - skipped_video_frames(plan, self.first)))

    def add(self, block: Block) -> None:
        if block.index >= self.first:
            super().add(block)

    def to_decoder(self, latents: Tensor) -> Tensor:
        return self.render.model.model.process_latent_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)

    def sentence(self, error: Exception) -> str:
        self.is_disk_full = is_disk_full(error)
        if self.is_disk_full:
            return f"No space left on the disk for output/{self.growing.label}"
        return super().sentence(error).replace(str(folders.output_folder()), "output")

    def complete(self) -> None:
        self.video.metadata = self.render.video_tags(self._about)  # whose story is newer than at `change`
        # numbered now, not at the beginning: others may have come since
        with folders.output_file(self.render.filename_prefix, ".mp4", self.plan.width, self.plan.height) as file:
            self.video.path = file.path
            super().complete()


def growing(file: OutputFile, id: str) -> dict[str, Any]:
    """A file that grows for the player in the editor: what it is, and how many bytes can be read by now."""
    written = 0
    with suppress(OSError):  # it is finished, and has its number
        written = file.path.stat().st_size
    return {**helpers.saved(file), "id": id, "bytes": written}


class NodePlayer:
    """The player on one node, in all pages that show its workflow; made where the node runs.

    False where there is none: the graph was queued by a script, or by a page without the pack's script.
    """

    def __init__(self, hidden: Any):
        context, self.node_id = get_executing_context(), hidden.unique_id
        prompt_id = "" if context is None else context.prompt_id
        self._about = {"node": self.node_id, "workflow": helpers.workflow_id(hidden), "prompt_id": prompt_id}
        server = getattr(PromptServer, "instance", None)
        self._client = str(getattr(server, "client_id", None))
        self._last: dict[str, Any] = {**self._about, "state": "running", "text": "", "video": None, "place": None}

    def __bool__(self) -> bool:
        return bool(pages.showing(self._client, self._about["workflow"]))

    @property
    def grows(self) -> bool:
        """Whether all pages play files that grow; else they are shown previews until the file is finished."""
        return pages.play_growing(self._client, self._about["workflow"])

    def show(
        self,
        state: str,
        text: str,
        video: Mapping[str, Any] | None = None,
        preview: Any = None,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        """Send changes to the pages; a player that fails is only logged.

        `state` is "running", "stopped", "failed" or "done", `video` as `GrowingVideo.shown`, `preview` a PIL image for
        the time until that can be played, `place` as `RenderProgress` counts it.
        """
        message = {**self._about, "state": state, "text": text, "video": video, "place": place}
        if preview is not None or message != self._last:
            self._tell(message, preview)

    def output(self, files: Sequence[OutputFile]) -> Any:
        """The `ui` of a node with these videos, which an editor without a player shows as it shows those of core.

        Not as core's where there is a player: the frontend's own would be an input of the node from then on, and the
        next run of the same graph would make the video again.
        """
        shown = [helpers.saved(file) for file in files]
        if not self:
            return ui.PreviewVideo(shown)
        self._tell({**self._last, "files": shown})
        return {"video": shown}

    def fail(self, sentence: str) -> None:
        """Show why the node failed, and what it has said before about what is kept."""
        last = pages.last(MESSAGE, self._about["node"], self._about["workflow"], self._client) or {}
        if last.get("prompt_id") != self._about["prompt_id"]:
            last = {}
        kept = f" ({last['text']})" if last.get("state") == "stopped" else ""
        self.show("failed", f"failed: {sentence}{kept}", last.get("video"), place=last.get("place"))

    def _tell(self, message: dict[str, Any], preview: Any = None) -> None:
        try:
            if not self:
                return
            self._last = message
            picture = {} if preview is None else {"preview": _data_url(preview)}
            pages.tell(MESSAGE, message["node"], message, self._client, **picture)
        except Exception as error:
            log.warning("Head Forcing: the player in the editor got no message: %s", error)


def shows_errors(execute: Callable[..., Any]) -> Callable[..., Any]:
    """The `execute` of a node with a player, which shows its errors as `helpers.shows_errors`, until the next run."""
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
                NodePlayer(cls.hidden).fail(first)
            raise

    return shown


def _data_url(image: Any) -> str:
    small = image.convert("RGB")
    small.thumbnail((512, 512))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
