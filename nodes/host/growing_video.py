"""The video file of a render, which grows while the blocks are sampled."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import comfy.model_management
import torch
from torch import Tensor

from ...headforcing_core.render.plan import RenderPlan
from ...headforcing_core.render.sinks import Sink
from ...headforcing_core.video.background import BackgroundStream
from ...headforcing_core.video.stream import VideoInfo, VideoStream
from . import folders, helpers
from .vae import check_vae, codec_of

log = logging.getLogger(__name__)


class GrowingVideo(Sink):
    """Decodes blocks as they are finished and writes them to a file that plays at any time.

    A decoder or a disk that fails ends the video, not the sampling: the latents are what took the time.

    Args:
        to_latent: from the latents of the model to those of a LATENT, `[1, 16, frames, h, w]`.
        name: tells this video from others in the name of the growing file. The same video made again replaces it.
        metadata: the tags of the file, from what is known `about` the video.
        device: where the model samples.
        background: decode in a thread of its own where the VAE is on another GPU than the model. On the same one
            they would take turns, and ComfyUI's weight streaming is not made for two threads.

    Attributes:
        partial: the file that grows; set when the render begins.
        failure: why the video ended early; None while all is well.
        info: the finished file.
    """

    def __init__(
        self,
        vae: Any,
        prefix: str,
        plan: RenderPlan,
        to_latent: Callable[[Tensor], Tensor],
        name: str,
        metadata: Callable[[Mapping[str, Any]], dict[str, str]],
        about: Mapping[str, Any],
        device: torch.device,
        background: bool = False,
    ):
        check_vae(vae)
        self.vae, self.prefix, self.plan = vae, prefix, plan
        self.shares_device = vae.device == device and device.type != "cpu"
        self.background = background and not self.shares_device
        self.name = name
        self.partial: folders.OutputFile
        self.failure: str | None = None
        self.info: VideoInfo | None = None
        self.id = uuid.uuid4().hex  # a render that goes on writes the file of that name from its beginning
        self._to_latent, self._metadata, self._about = to_latent, metadata, about
        self._stack = ExitStack()

    @property
    def shown(self) -> dict[str, Any]:
        """The growing file for the player in the editor: what it is, and how many bytes can be read by now.

        None before the first video frame is written: until then a file of that name is that of an earlier render.
        """
        written = 0
        with suppress(OSError):  # it is finished, and has its number
            written = self.partial.path.stat().st_size if self._video.video_frames else 0
        return {**helpers.saved(self.partial), "id": self.id, "bytes": written}

    def __enter__(self) -> GrowingVideo:
        """Begin, in a file that is claimed until the end; the VAE's weights must be in place."""
        with ExitStack() as stack:
            growing = stack.enter_context(
                folders.growing_file(self.prefix, self.name, self.plan.width, self.plan.height)
            )
            self._video = VideoStream(
                growing.path,  # until it gets its number
                codec_of(self.vae).decoder(self.plan.restart_frames),
                self.plan.timeline.clock.fps,
                self.plan.video_frames,
                metadata=self._metadata(self._about),
                partial=growing.path,
            )
            self._stream: VideoStream | BackgroundStream = self._video
            if self.background:
                waiting = comfy.model_management.throw_exception_if_processing_interrupted
                self._stream = BackgroundStream(self._video, self.vae.device, waiting)
            stack.enter_context(self._stream)
            self.partial, self._stack = growing, stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        with suppress(Exception):  # something else ended the render already
            self._stack.__exit__(*error)

    def check(self) -> None:
        """Raise a cancel that the decoding thread noticed."""
        if isinstance(self._stream, BackgroundStream):
            self._attempt(self._stream.check)

    def add(self, latents: Tensor) -> None:
        """Decode and write the next `[frames, 16, h, w]`, as the model made them."""
        self._attempt(lambda: self._stream.add(self._to_latent(latents.transpose(0, 1)[None])[0].transpose(0, 1)))

    def retold(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        """Give the finished file the tags and the length of the story that was rendered."""

        def retell() -> None:
            self._video.metadata = self._metadata(about)
            self._video.end_after(plan.video_frames)

        self._attempt(retell)

    def finish(self) -> None:
        """Complete the file and give it its number."""

        def complete() -> None:
            # numbered now, not at the beginning: others may have come since
            with folders.output_file(self.prefix, ".mp4", self.plan.width, self.plan.height) as file:
                self._video.path = file.path
                info = self._stream.finish()
                self._stack.close()
            self.info = info

        self._attempt(complete)

    def _attempt(self, action: Callable[[], None]) -> None:
        if self.failure is not None:
            return
        try:
            action()
        except comfy.model_management.InterruptProcessingException:
            raise
        except Exception as error:
            self.failure = str(error).partition("\n")[0] or type(error).__name__
            log.warning("Head Forcing: sampling goes on without the video: %s", self.failure)
            self.__exit__(type(error), error, error.__traceback__)
